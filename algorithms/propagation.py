"""Label propagation over the clients' graphs, and what FedGTA computes from it.

Shapes: k clients, n padded nodes, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.sparse import SparseMatrix

Moments = Literal["origin", "mean", "hybrid"]


def label_propagation(
    cohort: Cohort,
    operator: SparseMatrix,
    start: Tensor,
    kappa: float,
    steps: int,
    added: Tensor | None = None,
) -> Tensor:
    """Labels after a number of propagation steps, [k, n, C].

        F_0 = Y,   F_t = kappa A^ F_{t-1} + (1 - kappa) Y,   then F_t += Y on the rows `added`.

    Known labels are added after each step, not put in place of what was propagated: so do the public codes
    of FedGTA and AdaFGL. With `steps=0` the result is Y.

    Args:
        cohort: the clients.
        operator: A^, block-diagonal over k*n nodes, for example `operators.gcn_operator`.
        start: Y, [k, n, C].
        kappa: share of the neighbours.
        steps: number of steps.
        added: bool [k, n], rows with known labels; None for no such rows.
    """
    return [start, *propagated_labels(cohort, operator, start, kappa, steps, added)][-1]


def propagated_labels(
    cohort: Cohort,
    operator: SparseMatrix,
    start: Tensor,
    kappa: float,
    steps: int,
    added: Tensor | None = None,
) -> Iterator[Tensor]:
    """F_1, ..., F_steps of `label_propagation`, [k, n, C] each."""
    rest = (1 - kappa) * start
    if added is not None:
        rest = rest + start * added[..., None]
    current = start
    for _ in range(steps):
        current = kappa * cohort.propagate(operator, current) + rest
        yield current


def moment_vector(values: Tensor, nodes: Tensor, orders: int, kind: Moments) -> Tensor:
    """Moments of each class over each client's nodes, [k, K C], or [k, 2 K C] for ``hybrid``.

        raw      m_r[c]  = mean_v P[v, c]^r
        central  m'_r[c] = mean_v (P[v, c] - m_1[c])^r,   r = 1..K

    Args:
        values: P, [k, n, C].
        nodes: bool [k, n], which nodes count.
        orders: K.
        kind: ``origin`` (raw), ``mean`` (central) or ``hybrid`` (raw, then central).
    """
    weights = nodes.to(values.dtype) / nodes.sum(dim=1, keepdim=True).clamp(min=1)

    def powers(base: Tensor) -> list[Tensor]:
        power, found = torch.ones_like(base), []
        for _ in range(orders):
            power = power * base
            found.append(torch.bmm(weights[:, None], power)[:, 0])
        return found

    parts = powers(values) if kind != "mean" else []
    if kind != "origin":
        mean = torch.bmm(weights[:, None], values)
        parts += powers(values - mean)
    return torch.cat(parts, dim=1)


def smoothing_confidence(probabilities: Tensor, degrees: Tensor) -> Tensor:
    """Confidence of smoothed labels, [k]: H = sum_v deg_v sum_c (1/e + P[v, c] log P[v, c]).

    Every summand over c is in [0, 1/e], so 0 <= H <= (C / e) sum_v deg_v; one-hot rows reach the upper end.

    Args:
        probabilities: P, [k, n, C].
        degrees: [k, n], without self-loops; 0 on padding.
    """
    summands = 1 / math.e + torch.special.xlogy(probabilities, probabilities)
    confidence: Tensor = (degrees * summands.clamp(min=0).sum(dim=2)).sum(dim=1)
    return confidence
