"""How flat the minimum is that a client has found, and how many directions its representations use.

These are figures to look at, not parts of a method: SEAL (arXiv 2512.16247) shows the spectrum of
representations, slices of the loss, and compares FedAvg with SEAL by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.federation.batching import Batch, batches_of
from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.randomness import stream

GRAPHS = 256
"""Training graphs of a client that figures are computed on."""
ITERATIONS = 30
POINTS = 11


class Loss(Protocol):
    """A loss of k clients with stacked weights."""

    def values(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Losses [k]."""

    def gradients(self, weights: Mapping[str, Tensor]) -> Tensors:
        """Their gradients [k, ...]."""


class TrainingLoss:
    """Mean cross-entropy of some training graphs of each client, without dropout.

    Args:
        method: a weight-sharing method.
        client: its clients' state.
        cohort: of graph classification; every client has a training graph.
    """

    def __init__(self, method: Any, client: Any, cohort: Cohort) -> None:
        self._method, self._client = method, client
        self._batch = training_sample(cohort)

    def values(self, weights: Mapping[str, Tensor]) -> Tensor:
        batch = self._batch.cohort
        logits = self._method.represent(self._client, batch, dict(weights), None).logits
        picked = torch.log_softmax(logits, dim=2).gather(2, batch.labels[..., None])[..., 0]
        return batch.masked_mean(-picked, batch.train)

    def gradients(self, weights: Mapping[str, Tensor]) -> Tensors:
        live = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        with torch.enable_grad():
            total = self.values(live).sum()
            found = torch.autograd.grad(total, list(live.values()), allow_unused=True)
        return {
            name: torch.zeros_like(weight) if gradient is None else gradient
            for (name, weight), gradient in zip(live.items(), found, strict=True)
        }


def training_sample(cohort: Cohort) -> Batch:
    """At most `GRAPHS` training graphs of each client, drawn once; its first graph if it has none."""
    chosen = []
    for client, train in zip(cohort.clients, cohort.train.cpu().numpy(), strict=True):
        ids = np.flatnonzero(train) if train.any() else np.zeros(1, dtype=np.int64)
        order = stream(cohort.task.seed, client, -1, "landscape").permutation(ids)
        chosen.append(np.sort(order[:GRAPHS]))
    (batch,) = batches_of(cohort, chosen, GRAPHS)
    return batch


def representation_spectrum(method: Any, client: Any, cohort: Cohort) -> Tensor:
    """Singular values of the covariance of each client's graph representations, [k, p], largest first.

    Values near zero are directions that no graph uses (dimensional collapse). Training graphs only.
    """
    batch = training_sample(cohort).cohort
    with torch.no_grad():
        embedding = method.represent(client, batch, client.weights, None).embedding
    weights = batch.train.to(embedding.dtype)[..., None]
    count = weights.sum(dim=1, keepdim=True).clamp(min=1)
    centred = (embedding - (embedding * weights).sum(dim=1, keepdim=True) / count) * weights
    values: Tensor = torch.linalg.svdvals(centred.transpose(1, 2) @ centred / count)
    return values


def filter_normalised(weights: Mapping[str, Tensor], cohort: Cohort, purpose: str) -> Tensors:
    """A random direction [k, ...] with filters as long as those of the weights (Li et al., NeurIPS 2018).

    A filter is a column of a matrix, or a whole attention vector; biases do not move.
    """
    generators = cohort.generators(-1, purpose)
    out: Tensors = {}
    for name in sorted(weights):
        weight = weights[name]
        drawn = np.stack([generator.standard_normal(tuple(weight.shape[1:])) for generator in generators])
        direction = torch.from_numpy(drawn).to(weight.device, weight.dtype)
        if name.endswith("bias"):
            direction = torch.zeros_like(weight)
        lengths = direction.norm(dim=1, keepdim=True).clamp(min=1e-12)
        out[name] = direction * weight.norm(dim=1, keepdim=True) / lengths
    return out


def loss_slice(
    loss: Loss, weights: Mapping[str, Tensor], first: Tensors, second: Tensors, points: int = POINTS
) -> Tensor:
    """Losses at w + a d_1 + b d_2 for a, b in [-1, 1]: [k, points, points], `points` of them each way."""
    steps = torch.linspace(-1, 1, points).tolist()
    with torch.no_grad():
        rows = [
            torch.stack(
                [
                    loss.values(
                        {
                            name: weight + a * first[name] + b * second[name]
                            for name, weight in weights.items()
                        }
                    )
                    for b in steps
                ],
                dim=1,
            )
            for a in steps
        ]
    return torch.stack(rows, dim=1)


def largest_eigenvalue(
    loss: Loss, weights: Mapping[str, Tensor], cohort: Cohort, iterations: int = ITERATIONS
) -> Tensor:
    """Eigenvalue of largest magnitude of the Hessian of each client's loss, [k], by power iteration.

        v <- H v / ||H v||,   lambda = v . H v,
        H v = (grad L(w + h v) - grad L(w - h v)) / (2 h)

    with h = 1e-3 ||w|| in single and 1e-4 ||w|| in double precision. The clients' iterations are independent.
    """
    scale = 1e-4 if next(iter(weights.values())).dtype == torch.float64 else 1e-3
    step = scale * _norm(weights).clamp(min=1e-12)
    generators = cohort.generators(-1, "hessian")
    vector = {
        name: torch.from_numpy(
            np.stack([generator.standard_normal(tuple(weights[name].shape[1:])) for generator in generators])
        ).to(weights[name].device, weights[name].dtype)
        for name in sorted(weights)
    }
    vector = _scaled(vector, 1 / _norm(vector))
    value = torch.zeros_like(step)
    for _ in range(iterations):
        ahead, behind = (
            loss.gradients(
                {
                    name: weight + sign * _shaped(step, weight) * vector[name]
                    for name, weight in weights.items()
                }
            )
            for sign in (1, -1)
        )
        product = _scaled({name: ahead[name] - behind[name] for name in vector}, 0.5 / step)
        value = torch.stack([(vector[name] * product[name]).flatten(1).sum(dim=1) for name in vector]).sum(
            dim=0
        )
        vector = _scaled(product, 1 / _norm(product).clamp(min=1e-30))
    return value


def _norm(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([part.square().flatten(1).sum(dim=1) for part in parts.values()]).sum(dim=0).sqrt()


def _scaled(parts: Mapping[str, Tensor], factors: Tensor) -> Tensors:
    return {name: part * _shaped(factors, part) for name, part in parts.items()}


def _shaped(factors: Tensor, part: Tensor) -> Tensor:
    return factors.view(-1, *[1] * (part.dim() - 1))
