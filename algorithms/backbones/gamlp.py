"""Graph attention multi-layer perceptron (Zhang et al., KDD 2022), in the light form of FedGTA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, linear, uniform
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.operators import gcn_operator

INITIAL_SLOPE = 0.25


@dataclass(frozen=True)
class GAMLP(Backbone):
    """Every node weighs its own hops, then a perceptron reads the weighted sum.

        X^(j) = A^^j X,  j = 0..K                                     hop features           [k, n, f]
        s_j   = sigmoid(w_r [X^(0) | ... | X^(K)] + w_h X^(j) + b)    score of a hop         [k, n]
        alpha = softmax over j of (s_0, ..., s_K)                     weights of the hops    [k, n, K+1]
        logits = MLP(sum_j alpha_j X^(j))                                                    [k, n, C]

    A^ is the symmetric normalisation with self-loops. The perceptron has `layers` linear layers, between them
    PReLU with one learned slope per layer, and dropout. Weights are Glorot-uniform with gain sqrt(2), the
    classifier as torch's linear layer; the first slope is 0.25.

    Dense features with f <= p give hop features that are kept with the cohort; training then needs no graph.
    Otherwise they are never formed: A^^j X W = A^^j (X W), so features are projected once, sparse ones as
    sparse ones, and K products with A^ of width p + 2 follow. Either way a client holds at most
    (K + 1) n (p + 2) of these numbers instead of (K + 1) n f. Input dropout acts on X, hence on all hops of a
    node alike, and always takes the second way.

    Departures from the code of FedGTA: scores keep their own node and hop (there a reshape without
    transposition mixes them), and each layer has its own slope (there one is shared).

    Attributes:
        hops: K; with 0 the network is a perceptron.
        layers: number of linear layers, at least 2.
        activation: ``relu`` stands for PReLU, the published non-linearity; others replace it.
    """

    name: ClassVar[str] = "gamlp"

    hops: int = 3
    layers: int = 3

    def __post_init__(self) -> None:
        if self.layers < 2:
            raise ConfigurationError(f"layers={self.layers} leaves gamlp without hidden layer: use 2 or more")

    def initialise(self, task: Task) -> Tensors:
        scored = (self.hops + 2) * task.features
        weights: Tensors = {
            "encoder.attention.weight": uniform(
                task, "encoder.attention.weight", (scored, 1), 1 / math.sqrt(scored)
            ),
            "encoder.attention.bias": torch.zeros(1),
        }
        rows = task.features
        for layer in range(self.layers - 1):
            name = f"encoder.{layer}"
            bound = math.sqrt(12.0 / (rows + self.hidden))
            weights[f"{name}.weight"] = uniform(task, f"{name}.weight", (rows, self.hidden), bound)
            weights[f"{name}.bias"] = torch.zeros(self.hidden)
            if self.activation == "relu":
                weights[f"{name}.slope"] = torch.full((1,), INITIAL_SLOPE)
            rows = self.hidden
        return {**weights, **linear(task, "classifier", rows, task.classes)}

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        hidden, _ = self._first(weights, cohort, dropout)
        embedding = self._activate(hidden, weights, 0)
        for layer in range(1, self.layers - 1):
            hidden = self._drop(f"hidden.{layer - 1}", embedding, dropout)
            hidden = affine(hidden, weights, f"encoder.{layer}")
            embedding = self._activate(hidden, weights, layer)
        hidden = self._drop(f"hidden.{self.layers - 2}", embedding, dropout)
        return Representation(affine(hidden, weights, "classifier"), embedding)

    def attention(self, weights: Tensors, cohort: Cohort) -> Tensor:
        """Weights of the hops in evaluation mode, alpha [k, n, K+1]; rows sum to 1."""
        return self._first(weights, cohort, None)[1]

    def _first(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
        """First layer before its non-linearity, [k, n, p], and alpha."""
        first = weights["encoder.0.weight"]
        k, f, p = first.shape
        scorer = weights["encoder.attention.weight"].reshape(k, self.hops + 2, f)
        dropping = dropout is not None and self.input_dropout > 0
        if cohort.dense_features is not None and f <= p and not dropping:
            hops = self._hop_features(cohort)
            own = torch.matmul(hops, scorer[:, None, -1, :, None])[..., 0]
            reference = torch.bmm(hops.flatten(2), scorer[:, :-1].reshape(k, -1, 1))
            alpha = self._alpha(own + reference, weights)
            values = torch.bmm(_weighted(alpha, hops), first)
        else:
            weight = torch.cat([first, scorer.transpose(1, 2)], dim=2)
            hops, own, reference = self._projected_hops(
                cohort, cohort.project(weight, dropout, self.input_dropout)
            )
            alpha = self._alpha(own + reference, weights)
            values = _weighted(alpha, hops)
        return values + weights["encoder.0.bias"][:, None, :], alpha

    def _hop_features(self, cohort: Cohort) -> Tensor:
        """X^(0), ..., X^(K), [k, n, K+1, f]."""

        def build() -> Tensor:
            assert cohort.dense_features is not None
            found = [cohort.dense_features]
            for _ in range(self.hops):
                found.append(cohort.propagate(gcn_operator(cohort), found[-1]))
            return torch.stack(found, dim=2)

        return cohort.keep(f"hop_features/{self.hops}", build)

    def _projected_hops(self, cohort: Cohort, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A^^j X W [k, n, K+1, p], X^(j) w_h [k, n, K+1] and the sum over j of X^(j) w_j [k, n, 1].

        Args:
            cohort: the clients.
            projected: X [W | w_0 | ... | w_K | w_h], [k, n, p + K + 2].
        """
        p = projected.shape[2] - self.hops - 2
        values, reference, own = projected.tensor_split((p, p + self.hops + 1), dim=2)
        # The last column is the sum, by Horner's rule.
        current = torch.cat([values, own, reference[..., self.hops :]], dim=2)
        found = [current]
        for step in range(self.hops - 1, -1, -1):
            inflow = pad(reference[..., step : step + 1], (p + 1, 0))
            current = cohort.propagate(gcn_operator(cohort), current) + inflow
            found.append(current)
        hops = torch.stack(found, dim=2)
        return hops[..., :p], hops[..., p], current[..., p + 1 :]

    def _alpha(self, scores: Tensor, weights: Tensors) -> Tensor:
        return torch.softmax(torch.sigmoid(scores + weights["encoder.attention.bias"][:, None, :]), dim=2)

    def _activate(self, values: Tensor, weights: Tensors, layer: int) -> Tensor:
        slope = weights.get(f"encoder.{layer}.slope")
        if slope is None:
            return self.act(values)
        return values.clamp(min=0) + slope[:, None, :] * values.clamp(max=0)


def _weighted(alpha: Tensor, hops: Tensor) -> Tensor:
    """sum_j alpha_j x_j: [k, n, K+1] and [k, n, K+1, h] -> [k, n, h]."""
    return torch.matmul(alpha[:, :, None, :], hops)[:, :, 0]
