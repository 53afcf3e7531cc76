"""Two-layer graph convolutional network with a linear classifier (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, glorot, linear
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.operators import gcn_operator


def convolve(cohort: Cohort, projected: Tensor, bias: Tensor) -> Tensor:
    """Graph convolution after projection: A^ (X W) + b with A^ = D~^(-1/2) (A + I) D~^(-1/2).

    Shapes:
        projected: X W, [k, n, p]; bias: [k, p]; result: [k, n, p].
    """
    return cohort.propagate(gcn_operator(cohort), projected) + bias[:, None, :]


@dataclass(frozen=True)
class GCN(Backbone):
    """conv(f -> p), act, dropout, conv(p -> p), act, dropout, linear(p -> C).

    The embedding is the output of the second convolution before its non-linearity. This is the network of
    the FED-PUB code family, with p = 128.
    """

    name: ClassVar[str] = "gcn"

    def initialise(self, task: Task) -> Tensors:
        p = self.hidden
        return {
            "encoder.0.weight": glorot(task, "encoder.0.weight", task.features, p),
            "encoder.0.bias": torch.zeros(p),
            "encoder.1.weight": glorot(task, "encoder.1.weight", p, p),
            "encoder.1.bias": torch.zeros(p),
            **linear(task, "classifier", p, task.classes),
        }

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        projected = cohort.project(weights["encoder.0.weight"], dropout, self.input_dropout)
        first = self.act(convolve(cohort, projected, weights["encoder.0.bias"]))
        first = self._drop("hidden.0", first, dropout)
        projected = torch.bmm(first, weights["encoder.1.weight"])
        embedding = convolve(cohort, projected, weights["encoder.1.bias"])
        hidden = self._drop("hidden.1", self.act(embedding), dropout)
        logits = affine(hidden, weights, "classifier")
        return Representation(logits, embedding)
