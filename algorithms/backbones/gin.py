"""Graph isomorphism network for graph classification (Xu et al., ICLR 2019), as GCFL and FedStar use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import affine, linear
from fedatlas.algorithms.backbones.graph_level import GraphBackbone, Readout, union_of
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors


def isomorphic(cohort: Cohort, values: Tensor, weights: Tensors, name: str) -> Tensor:
    """One layer, x'_i = ReLU((x_i + sum_{j in N(i)} x_j) W_0 + b_0) W_1 + b_1.

    Shapes:
        values: [k, n, r]; W_0: [k, r, p]; W_1: [k, p, p]; result: [k, n, p].
    """
    summed = cohort.propagate(union_of(cohort).summing, values)
    return affine(torch.relu(affine(summed, weights, f"{name}.0")), weights, f"{name}.1")


def perceptron(task: Task, name: str, rows: int, columns: int) -> Tensors:
    """Initial weights of a layer."""
    return {**linear(task, f"{name}.0", rows, columns), **linear(task, f"{name}.1", columns, columns)}


@dataclass(frozen=True)
class GIN(GraphBackbone):
    """Layers of width p with act and dropout after each, sum over nodes, linear(p -> p), ReLU, classifier.

    The layers have no weight for the node itself besides 1 (eps = 0). The linear layer after the readout is
    private too, as in the released code of GCFL.
    """

    name: ClassVar[str] = "gin"

    readout: Readout = "sum"

    def _initial_encoder(self, task: Task) -> Tensors:
        out: Tensors = {}
        for layer in range(self.layers):
            out |= perceptron(task, f"encoder.{layer}", self.hidden, self.hidden)
        return {**out, **linear(task, "private.post", self.hidden, self.hidden)}

    def _encode(self, nodes: Tensor, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Tensor:
        for layer in range(self.layers):
            nodes = isomorphic(cohort, nodes, weights, f"encoder.{layer}")
            nodes = self._drop(f"hidden.{layer}", self.act(nodes), dropout)
        return nodes

    def _read(self, pooled: Tensor, weights: Tensors) -> Tensor:
        return torch.relu(affine(pooled, weights, "private.post"))
