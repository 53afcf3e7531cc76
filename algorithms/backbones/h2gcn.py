"""H2GCN with one propagation round (Zhu et al., NeurIPS 2020): the backbone of FedGMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, glorot, linear
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.operators import ring_operators


@dataclass(frozen=True)
class H2GCN(Backbone):
    """Ego embedding and the exact rings around it, concatenated.

        H  = act(X W_e + b_e)            structure-free ego embedding            [k, n, p]
        Z1 = A1 H,  Z2 = A2 H            normalised 1-hop and strict 2-hop rings [k, n, p]
        H_r = [A1 H_{r-1} | A2 H_{r-1}]  further rounds, r = 2..K                [k, n, 2^r p]
        logits = dropout([H | Z1 | Z2 | ...]) W_c + b_c                          [k, n, C]

    With K rounds the classifier reads (2^(K+1) - 1) p values: 3p for K = 1, 7p for K = 2. The published
    model has no biases; the reproduction needs them (`b_c` stays personal there).

    Attributes:
        propagation: number of rounds K.
        second_hop_limit: bound on 2-hop neighbours per node (see `operators.second_ring`); None is exact.
    """

    name: ClassVar[str] = "h2gcn"

    propagation: int = 1
    second_hop_limit: int | None = None

    def initialise(self, task: Task) -> Tensors:
        width = (2 ** (self.propagation + 1) - 1) * self.hidden
        return {
            "encoder.weight": glorot(task, "encoder.weight", task.features, self.hidden),
            "encoder.bias": torch.zeros(self.hidden),
            **linear(task, "classifier", width, task.classes),
        }

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        first, second = ring_operators(cohort, self.second_hop_limit)
        projected = cohort.project(weights["encoder.weight"], dropout, self.input_dropout)
        ego = self.act(projected + weights["encoder.bias"][:, None, :])
        z1, z2 = cohort.propagate(first, ego), cohort.propagate(second, ego)
        parts, last = [ego, z1, z2], torch.cat([z1, z2], dim=2)
        for _ in range(1, self.propagation):
            last = torch.cat([cohort.propagate(first, last), cohort.propagate(second, last)], dim=2)
            parts.append(last)
        embedding = torch.cat(parts, dim=2)
        hidden = self._drop("embedding", embedding, dropout)
        logits = affine(hidden, weights, "classifier")
        return Representation(logits, embedding, ego, (z1, z2))
