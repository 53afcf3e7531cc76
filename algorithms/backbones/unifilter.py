"""UniFilter: a learned sum of polynomial bases, then a perceptron (Huang et al., ICML 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, uniform
from fedatlas.algorithms.spectral_bases import Basis, build_bases, column_energies, unibasis
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors

Drop = Callable[[str, Tensor, float], Tensor]
"""Dropout of stacked rows: purpose, values [k, rows, h], rate."""


@dataclass(frozen=True)
class UniFilter(Backbone):
    """Filter coefficients over fixed bases; nothing propagates in training.

        Z = sum_j w_j * b_j,  j = 0..K,  b_0 = x,  b_j = tau m_j + (1 - tau) u_j      [k, n, f]
        H <- act(dropout(H) W_l (+ dropout(H) where the widths agree))                [k, n, p]
        logits = dropout(H) W_c                                                       [k, n, C]

    The bases depend on the client's graph, features and training labels (see `spectral_bases`) and are
    computed once: (K + 1) n f numbers per client. Coefficients share a shape over clients, but what they
    multiply differs from client to client. There are no biases. Coefficients start at 1 / (K + 1), weights at
    U(-a, a) with a = 1 / sqrt(columns), as in the authors' code.

    Departure: the authors drop entries of every basis; here Z is dropped at the rate `input_dropout`. A mask
    over the bases would be larger than everything else that a step computes.

    Attributes:
        hops: K.
        layers: number of dense layers with the classifier; with 1 the classifier reads Z.
        homophily_mix: tau, share of the homophily basis.
        basis: ``exact``, or ``official`` for what the authors' code computes.
        shared_filter: one coefficient per hop (the authors' ``sole``) instead of one per hop and feature.
    """

    name: ClassVar[str] = "unifilter"

    hops: int = 10
    layers: int = 2
    homophily_mix: float = 0.5
    basis: Basis = "exact"
    shared_filter: bool = False

    def initialise(self, task: Task) -> Tensors:
        weights = self.initial_filter(task)
        rows = task.features
        for layer in range(self.layers - 1):
            weights[f"encoder.{layer}.weight"] = _dense(task, f"encoder.{layer}.weight", rows, self.hidden)
            rows = self.hidden
        weights["classifier.weight"] = _dense(task, "classifier.weight", rows, task.classes)
        return weights

    def initial_filter(self, task: Task) -> Tensors:
        """Initial coefficients by parameter name."""
        width = () if self.shared_filter else (task.features,)
        value = 1 / (self.hops + 1)
        return {"encoder.filter.coefficients": torch.full((self.hops + 1, *width), value)}

    def coefficients(self, weights: Tensors) -> Tensor:
        """Coefficients of the members of `bases`, [k, J, f] or [k, J, 1]."""
        found = weights["encoder.filter.coefficients"]
        return found[..., None] if self.shared_filter else found

    def bases(self, cohort: Cohort) -> Tensor:
        """The members b_j, [J, k, n, f]; built on first use and kept with the cohort."""
        return cohort.keep(self._key, lambda: build_bases(cohort, self.hops + 1, self._members))

    def training_bases(self, cohort: Cohort) -> Tensor:
        """The rows of training nodes, [J, k, t, f]."""
        return cohort.keep(f"{self._key}/train", lambda: training_rows(cohort).take(self.bases(cohort)))

    def energies(self, cohort: Cohort) -> Tensor:
        """Squared norms of the members' columns if those of x have norm 1, [k, J, f]."""
        return cohort.keep(
            f"{self._key}/energies", lambda: column_energies(cohort, self.hops + 1, self._members)
        )

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        def drop(purpose: str, values: Tensor, rate: float) -> Tensor:
            return values if dropout is None else dropout.apply(purpose, values, rate)

        return self._perceive(weights, self.bases(cohort), drop)

    def forward_training(self, weights: Tensors, cohort: Cohort, dropout: Dropout) -> Representation:
        """Forward pass over the training nodes alone; all other rows of the result are 0.

        A node's output depends on its own row only, so the loss is that of `forward` with other dropout
        masks, at the cost of the training nodes.
        """
        rows = training_rows(cohort)

        def drop(purpose: str, values: Tensor, rate: float) -> Tensor:
            return rows.drop(dropout, purpose, values, rate)

        found = self._perceive(weights, self.training_bases(cohort), drop)
        return Representation(rows.spread(found.logits), rows.spread(found.embedding))

    @property
    def _key(self) -> str:
        return f"unifilter/{self.hops}/{self.homophily_mix}/{self.basis}"

    def _members(
        self, propagate: Callable[[Tensor], Tensor], columns: Tensor, cosine: Tensor
    ) -> Iterator[Tensor]:
        return unibasis(propagate, columns, cosine, self.hops, self.homophily_mix, self.basis)

    def _perceive(self, weights: Tensors, bases: Tensor, drop: Drop) -> Representation:
        embedding: Tensor = _WeightedSum.apply(self.coefficients(weights), bases)  # type: ignore[no-untyped-call]
        hidden = drop("filtered", embedding, self.input_dropout)
        for layer in range(self.layers - 1):
            embedding = self.act(_residual(hidden, weights[f"encoder.{layer}.weight"]))
            hidden = drop(f"hidden.{layer}", embedding, self.dropout)
        return Representation(_residual(hidden, weights["classifier.weight"]), embedding)


class _WeightedSum(torch.autograd.Function):
    """sum_j w_j * B_j for constant bases: reads them once in each direction and copies none.

    Shapes:
        coefficients: [k, J, f] or [k, J, 1]; bases: [J, k, n, f]; result: [k, n, f].
    """

    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, bases: Tensor) -> Tensor:
        ctx.bases, ctx.shared = bases, coefficients.shape[2] < bases.shape[3]
        total = bases[0] * coefficients[:, :1]
        for position in range(1, len(bases)):
            total.addcmul_(bases[position], coefficients[:, position, None])
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sums = [(grads[0] * member).sum(dim=1) for member in ctx.bases]
        found = torch.stack(sums, dim=1)
        return found.sum(dim=2, keepdim=True) if ctx.shared else found, None


def _residual(values: Tensor, weight: Tensor) -> Tensor:
    if weight.shape[1] == weight.shape[2]:
        return torch.baddbmm(values, values, weight)
    return torch.bmm(values, weight)


def _dense(task: Task, name: str, rows: int, columns: int) -> Tensor:
    return uniform(task, name, (rows, columns), 1 / math.sqrt(columns))
