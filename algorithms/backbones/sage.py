"""Two-layer GraphSAGE with mean aggregation and a linear classifier (Hamilton et al., NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, glorot, linear
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.operators import mean_operator


def aggregate(cohort: Cohort, projected: Tensor, bias: Tensor) -> Tensor:
    """Mean layer after projection: H W_self + D^(-1) A H W_nb + b; the mean over no neighbours is 0.

    Shapes:
        projected: [H W_self | H W_nb], [k, n, 2p]; bias: [k, p]; result: [k, n, p].
    """
    own, neighbours = projected.chunk(2, dim=2)
    return own + cohort.propagate(mean_operator(cohort), neighbours) + bias[:, None, :]


@dataclass(frozen=True)
class GraphSAGE(Backbone):
    """mean(f -> p), act, dropout, mean(p -> p), act, dropout, linear(p -> C).

        h'_v = W_self h_v + W_nb mean_{u in N(v)} h_u + b

    All neighbours count, none are sampled. The weight of a layer is [W_self | W_nb], [f, 2p], so that one
    product projects for both. The embedding is the output of the second layer before its non-linearity. A
    node without neighbours sees a multilayer perceptron of the W_self.
    """

    name: ClassVar[str] = "sage"

    def initialise(self, task: Task) -> Tensors:
        p = self.hidden

        def layer(number: int, rows: int) -> Tensors:
            name = f"encoder.{number}"
            parts = [glorot(task, f"{name}.{part}", rows, p) for part in ("self", "neighbours")]
            return {f"{name}.weight": torch.cat(parts, dim=1), f"{name}.bias": torch.zeros(p)}

        return {**layer(0, task.features), **layer(1, p), **linear(task, "classifier", p, task.classes)}

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        projected = cohort.project(weights["encoder.0.weight"], dropout, self.input_dropout)
        first = self.act(aggregate(cohort, projected, weights["encoder.0.bias"]))
        first = self._drop("hidden.0", first, dropout)
        projected = torch.bmm(first, weights["encoder.1.weight"])
        embedding = aggregate(cohort, projected, weights["encoder.1.bias"])
        hidden = self._drop("hidden.1", self.act(embedding), dropout)
        logits = affine(hidden, weights, "classifier")
        return Representation(logits, embedding)
