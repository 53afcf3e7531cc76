"""What every backbone offers: initial weights and a forward pass over a cohort."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.graphs.graph import Level
from fedatlas.platform.randomness import SERVER, stream

NARROW = 16
"""Columns up to which a product is computed transposed."""

Activation = Literal["relu", "elu", "tanh", "identity"]


@dataclass(frozen=True)
class Representation:
    """Result of a forward pass over k clients.

    Attributes:
        logits: [k, n, C]; of graphs [k, g, C].
        embedding: what the classifier reads, before its dropout, [k, n, p]; of graphs [k, g, p].
        ego: structure-free embedding [k, n, p] of backbones that have one.
        rings: aggregates of the exact 1-hop and 2-hop rings, [k, n, p] each, of backbones that have them.
    """

    logits: Tensor
    embedding: Tensor
    ego: Tensor | None = None
    rings: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Backbone(ABC):
    """A graph neural network without its weights.

    Weights are dictionaries; names start with ``encoder.`` or ``classifier.``, so that methods can share
    parts. Stacked weights carry the client axis first.

    Attributes:
        levels: what it classifies: nodes of a graph, or graphs.
        hidden: width p.
        dropout: probability of dropping an entry of a hidden representation.
        input_dropout: probability of dropping an input feature.
        activation: non-linearity of hidden layers.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[Level, ...]] = ("node",)

    hidden: int = 128
    dropout: float = 0.5
    input_dropout: float = 0.0
    activation: Activation = "relu"

    @abstractmethod
    def initialise(self, task: Task) -> Tensors:
        """Initial float32 weights without client axis, drawn from the task's seed."""

    def fitted(self, weights: Tensors, cohort: Cohort) -> Tensors:
        """Initial weights [k, ...], changed where clients have other widths or classes than the task."""
        return weights

    @abstractmethod
    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        """Forward pass with stacked weights [k, ...]; `dropout` is None in evaluation."""

    def act(self, values: Tensor) -> Tensor:
        """The hidden non-linearity."""
        if self.activation == "relu":
            return torch.relu(values)
        if self.activation == "elu":
            return torch.nn.functional.elu(values)
        return torch.tanh(values) if self.activation == "tanh" else values

    def _drop(self, purpose: str, values: Tensor, dropout: Dropout | None) -> Tensor:
        return values if dropout is None else dropout.apply(purpose, values, self.dropout)


def affine(values: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """values W + b with stacked weights `name.weight` and `name.bias`: [k, n, r] -> [k, n, c]."""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"][:, None, :]
    if weight.shape[2] > NARROW or values.is_cuda:
        return torch.baddbmm(bias, values, weight)
    product: Tensor = _Narrow.apply(values, weight)  # type: ignore[no-untyped-call]
    return product + bias


class _Narrow(torch.autograd.Function):
    """values W for few columns: the transposed products, which MKL computes up to five times faster."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return torch.bmm(weight.mT.contiguous(), values.mT).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        values, weight = ctx.saved_tensors
        of_values = torch.bmm(grads[0], weight.mT) if ctx.needs_input_grad[0] else None
        of_weight = torch.bmm(grads[0].mT.contiguous(), values).mT if ctx.needs_input_grad[1] else None
        return of_values, of_weight


def glorot(task: Task, name: str, rows: int, columns: int) -> Tensor:
    """Glorot-uniform matrix [rows, columns]: U(-a, a) with a = sqrt(6 / (rows + columns))."""
    return uniform(task, name, (rows, columns), math.sqrt(6.0 / (rows + columns)))


def uniform(task: Task, name: str, shape: tuple[int, ...], bound: float) -> Tensor:
    """U(-bound, bound) from the stream of this parameter name."""
    draw = stream(task.seed, SERVER, -1, f"init/{name}").uniform(-bound, bound, shape)
    return torch.from_numpy(draw.astype(np.float32))


def linear(task: Task, name: str, rows: int, columns: int) -> Tensors:
    """Weight [rows, columns] and bias [columns], both U(-1/sqrt(rows), 1/sqrt(rows)) as torch.nn.Linear."""
    bound = 1.0 / math.sqrt(rows)
    return {
        f"{name}.weight": uniform(task, f"{name}.weight", (rows, columns), bound),
        f"{name}.bias": uniform(task, f"{name}.bias", (columns,), bound),
    }
