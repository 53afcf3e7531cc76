"""Disentangled graph convolutional network (Ma et al., ICML 2019), as FedIIH uses it (Yu et al., 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, linear, uniform
from fedatlas.algorithms.routing import factor_graph, route
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors

SLOPE = 0.01


@dataclass(frozen=True)
class Disentangled(Representation):
    """Adds what further routing layers read.

    Attributes:
        factors: the embedding after its dropout, [k, n, K p]; factor j is columns j p to (j + 1) p.
    """

    factors: Tensor | None = None


@dataclass(frozen=True)
class DisenGCN(Backbone):
    """Projection into K factors of width p, neighbourhood routing, linear classifier.

        H  = dropout(act(X W + b))           [k, n, K p]
        H <- dropout(act(route(H)))          `layers` times; see `algorithms.routing`
        logits = H W_c + b_c                 [k, n, C]

    W and b are uniform in +-1/sqrt(K p), the classifier is initialised as torch's linear layer. Routing has
    no parameters and normalises every factor of its input.

    Attributes:
        hidden: width p of one factor.
        factors: K.
        layers: number of routing layers.
        routing: iterations of a layer.
        activation: ``relu`` stands for leaky ReLU with slope 0.01, the published non-linearity.
    """

    name: ClassVar[str] = "disengcn"

    factors: int = 2
    layers: int = 1
    routing: int = 6

    def initialise(self, task: Task) -> Tensors:
        width = self.factors * self.hidden
        bound = 1.0 / math.sqrt(width)
        return {
            "encoder.weight": uniform(task, "encoder.weight", (task.features, width), bound),
            "encoder.bias": uniform(task, "encoder.bias", (width,), bound),
            **linear(task, "classifier", width, task.classes),
        }

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Disentangled:
        projected = cohort.project(weights["encoder.weight"], dropout, self.input_dropout)
        hidden = self.act(projected + weights["encoder.bias"][:, None, :])
        hidden = self._drop("projection", hidden, dropout)
        for layer in range(self.layers):
            embedding = self.route(cohort, hidden)
            hidden = self._drop(f"routing.{layer}", embedding, dropout)
        logits = affine(hidden, weights, "classifier")
        return Disentangled(logits, embedding, factors=hidden)

    def route(self, cohort: Cohort, hidden: Tensor) -> Tensor:
        """One routing layer with its non-linearity, [k, n, K p] -> [k, n, K p]."""
        k, n, _ = hidden.shape
        vectors = hidden.view(k * n, self.factors, self.hidden).transpose(0, 1).contiguous()
        routed = route(vectors, factor_graph(cohort, self.factors), self.routing)
        return self.act(routed).transpose(0, 1).reshape(k, n, -1)

    def drop(self, purpose: str, values: Tensor, dropout: Dropout | None) -> Tensor:
        """Dropout of hidden values; none if `dropout` is None."""
        return self._drop(purpose, values, dropout)

    def act(self, values: Tensor) -> Tensor:
        if self.activation == "relu":
            return torch.nn.functional.leaky_relu(values, SLOPE)
        return super().act(values)
