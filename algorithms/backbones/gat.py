"""Graph attention network for graph classification (Velickovic et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import glorot
from fedatlas.algorithms.backbones.graph_level import GraphBackbone, union_of
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors

SLOPE = 0.2
"""Of LeakyReLU for negative scores."""


def attend(cohort: Cohort, values: Tensor, weights: Tensors, name: str, heads: int) -> Tensor:
    """One attention layer; heads are concatenated.

        z = x W,   e_ij = LeakyReLU(a_end . z_i + a_start . z_j),
        alpha_ij = softmax_{j in N(i) + {i}} e_ij,   x'_i = sum_j alpha_ij z_j + b

    Shapes:
        values: [k, n, r]; W: [k, r, p]; a_end, a_start, b: [k, p]; result: [k, n, p].
    """
    projected = torch.bmm(values, weights[f"{name}.weight"])
    k, n, p = projected.shape

    def scores(part: str) -> Tensor:
        products = projected * weights[f"{name}.{part}"][:, None, :]
        return products.reshape(k * n, heads, p // heads).sum(dim=2)

    neighbours = union_of(cohort).neighbours
    pairs = torch.nn.functional.leaky_relu(neighbours.pairs(scores("end"), scores("start")), SLOPE)
    weighted = neighbours.weighted_sum(neighbours.softmax(pairs), projected.reshape(k * n, heads, p // heads))
    return weighted.reshape(k, n, p) + weights[f"{name}.bias"][:, None, :]


def attention(task: Task, name: str, rows: int, columns: int, heads: int) -> Tensors:
    """Initial weights of a layer: Glorot-uniform, each head's vectors as a [1, p/heads] matrix; zero bias."""
    width = columns // heads
    vectors = {
        part: torch.cat([glorot(task, f"{name}.{part}.{head}", 1, width)[0] for head in range(heads)])
        for part in ("end", "start")
    }
    return {
        f"{name}.weight": glorot(task, f"{name}.weight", rows, columns),
        f"{name}.end": vectors["end"],
        f"{name}.start": vectors["start"],
        f"{name}.bias": torch.zeros(columns),
    }


@dataclass(frozen=True)
class GAT(GraphBackbone):
    """Attention layers of width p with `heads` heads each, the last with one; act and dropout between them.

    SEAL names a three-layer GAT and nothing more. Four heads that are concatenated to width p, a single head
    in the last layer, no activation after it, and the mean over nodes are our choices.
    """

    name: ClassVar[str] = "gat"

    heads: int = 4

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ConfigurationError(
                f"hidden={self.hidden} cannot be divided among heads={self.heads}: use a multiple of heads"
            )

    def heads_of(self, layer: int) -> int:
        """Heads of a layer, from 0."""
        return 1 if layer == self.layers - 1 else self.heads

    def _initial_encoder(self, task: Task) -> Tensors:
        out: Tensors = {}
        for layer in range(self.layers):
            out |= attention(task, f"encoder.{layer}", self.hidden, self.hidden, self.heads_of(layer))
        return out

    def _encode(self, nodes: Tensor, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Tensor:
        for layer in range(self.layers):
            nodes = attend(cohort, nodes, weights, f"encoder.{layer}", self.heads_of(layer))
            if layer + 1 < self.layers:
                nodes = self._drop(f"hidden.{layer}", self.act(nodes), dropout)
        return nodes
