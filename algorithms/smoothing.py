"""Gaussian kernel smoothing of node embeddings along one-dimensional scores.

    z_i = sum_j kappa_ij h_j / sum_j kappa_ij,    kappa_ij = exp(-(s_i - s_j)^2 / sigma^2),

with j over the real nodes of the same client. Written with V = [h | 1] it is one product Y = K V whose last
column is the denominator. Three forms of that product, all with gradients to s and h:

- ``dense``: the kernel matrix as written, O(n^2 p) time and O(n^2) memory; the reference.
- ``chunked``: the same numbers by blocks of rows, O(n^2 p) time, bounded memory, recomputed in backward.
- ``series``: exp(-(s-t)^2 / sigma^2) = sum_q phi_q(s) phi_q(t) with phi_q(s) = exp(-s^2 / sigma^2) (sqrt(2) s
  / sigma)^q / sqrt(q!), cut after T terms, so that Y = Phi (Phi^T V) in O(n T p) time and O(n T) memory.

**Error of the series.** The kernel depends on differences only, so the scores are first centred to [-r, r], r
<= 1 for cosines. Let x = 2 s t / sigma^2 and X = 2 r^2 / sigma^2, so |x| <= X; u is the unit round-off.

1. Truncation. The dropped part is exp(-(s^2 + t^2) / sigma^2) times the remainder of the exponential series.
   As s^2 + t^2 >= 2 |s t|, it is at most exp(-|x|) sum_{q >= T} |x|^q / q! = P(Poisson(|x|) >= T), which
   grows with |x|: at most delta_T := P(Poisson(X) >= T), also where s t < 0 and the terms alternate. The
   derivative by s is (-2 s / sigma^2) times the kernel with T terms plus (2 t / sigma^2) times that with T -
   1 terms, so its error is at most (4 r / sigma^2) delta_{T-1}.
2. Rounding. By Cauchy and Schwarz sum_q |phi_q(s) phi_q(t)| <= 1 and sum_q q |phi_q(s) phi_q(t)| <= X. In the
   recursion phi_q = phi_{q-1} x_s / sqrt(q), phi_q has a relative error of 3 q u, to which the exponential
   adds (X + 2) u; the sum over T terms adds T u. An entry is off by at most about (8 X + 4 + T) u in absolute
   value: where s t < 0 the terms cancel, but their sum of moduli never exceeds 1. Sums over n nodes are
   pairwise or blocked and add log2(n) u.
3. Denominators. sum_j kappa_ij >= max(1, n exp(-4 r^2 / sigma^2)), since node i is its own neighbour and no
   gap exceeds 2 r. An error epsilon of every entry changes the numerator by at most n epsilon max|h| and the
   denominator by n epsilon, so to first order ||z - z'|| <= 2 A epsilon max|h| with A = min(n, exp(4 r^2 /
   sigma^2)).

`series_terms` takes the least T with max(1, 4 r / sigma^2) delta_{T-1} <= u and calls the series safe if A (8
X + 5 + T + log2 n) u <= sqrt(u), which is 2.4e-4 in float32 and 1.1e-8 in float64. If it is not safe, or
needs more than `MOST_TERMS` terms, `smooth` takes the exact kernel. At sigma = 1 the series is safe for all
cosines: 16 terms in float32, 25 in float64. At sigma = 0.5 it is safe in float64, and in float32 for r <=
0.5.

Shapes:
    scores: [k, n]; values h: [k, n, p]; nodes: bool [k, n]; result z: [k, n, p], 0 on padding.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fedatlas.platform.errors import ConfigurationError

Kernel = Literal["auto", "exact", "series"]

MOST_TERMS = 64
"""Longest series that is used."""

NODES_PER_TERM = 4
"""The series is the faster form from about this many nodes per term on."""

BLOCK_ENTRIES = 1 << 21
"""Kernel entries that the chunked form holds at a time."""


def smooth(scores: Tensor, values: Tensor, nodes: Tensor, sigma: float, kernel: Kernel = "auto") -> Tensor:
    """Kernel means z of the values.

    Args:
        scores: one score per node, for example a cosine.
        values: what is averaged.
        nodes: real nodes; padding neither receives nor gives anything.
        sigma: bandwidth.
        kernel: ``exact``, ``series``, or ``auto``: the series where it is safe and faster.

    Raises:
        ConfigurationError: `kernel="series"` where it is not safe.
    """
    n = scores.shape[1]
    if kernel == "exact":
        return chunked(scores, values, nodes, sigma)
    centred = centre(scores, nodes)
    radius = float(centred.detach().abs().amax())
    terms = series_terms(sigma, radius, n, scores.dtype)
    if kernel == "series" and terms is None:
        raise ConfigurationError(
            f"kernel=series cannot represent sigma={sigma:g} for {n} nodes with scores {2 * radius:.3g} "
            f"apart in {str(scores.dtype)[6:]}: use kernel=auto or a larger sigma"
        )
    if terms is None or (kernel == "auto" and n < NODES_PER_TERM * terms):
        return chunked(scores, values, nodes, sigma)
    return _mean(_expand(centred, _extended(values, nodes), sigma, terms), nodes)


def dense(scores: Tensor, values: Tensor, nodes: Tensor, sigma: float) -> Tensor:
    """Kernel means by the whole kernel matrix."""
    gaps = scores[:, :, None] - scores[:, None, :]
    kernel = torch.exp(-gaps.square() / sigma**2)
    return _mean(torch.bmm(kernel, _extended(values, nodes)), nodes)


def chunked(
    scores: Tensor, values: Tensor, nodes: Tensor, sigma: float, entries: int = BLOCK_ENTRIES
) -> Tensor:
    """Kernel means by blocks of rows; holds at most about `entries` entries of the kernel at a time."""
    k, n = scores.shape
    rows = max(1, min(n, entries // max(1, k * n)))
    product: Tensor = _Product.apply(scores, _extended(values, nodes), sigma, rows)  # type: ignore[no-untyped-call]
    return _mean(product, nodes)


def series(scores: Tensor, values: Tensor, nodes: Tensor, sigma: float, terms: int) -> Tensor:
    """Kernel means by the first `terms` terms of the expansion."""
    return _mean(_expand(centre(scores, nodes), _extended(values, nodes), sigma, terms), nodes)


def window(scores: Tensor, values: Tensor, nodes: Tensor, taps: Tensor) -> Tensor:
    """Hard sorting: one-dimensional convolution over the nodes in the order of their scores.

        z_(r) = sum_w taps_w h_(r + w - half),   r = rank of the node, half = (W - 1) / 2

    Values beyond the first and last node are zero. No gradient reaches the scores. Equal scores keep the
    order of the nodes.

    Shapes:
        taps: [k, W], W odd.
    """
    k, n, p = values.shape
    half = taps.shape[1] // 2
    order = scores.detach().masked_fill(~nodes, math.inf).argsort(dim=1, stable=True)
    index = order[..., None].expand(k, n, p)
    ranked = torch.nn.functional.pad((values * nodes[..., None]).gather(1, index), (0, 0, half, half))
    mixed = torch.matmul(ranked.unfold(1, taps.shape[1], 1), taps[:, None, :, None])[..., 0]
    return torch.zeros_like(values).scatter(1, index, mixed) * nodes[..., None]


def centre(scores: Tensor, nodes: Tensor) -> Tensor:
    """Scores minus the middle of each client's range, 0 on padding; the kernel does not notice."""
    known = scores.detach()
    low = known.masked_fill(~nodes, math.inf).amin(dim=1, keepdim=True)
    high = known.masked_fill(~nodes, -math.inf).amax(dim=1, keepdim=True)
    return (scores - (low + high) / 2).masked_fill(~nodes, 0.0)


def series_terms(sigma: float, radius: float, nodes: int, dtype: torch.dtype) -> int | None:
    """Number of terms that the series needs, or None where it is not safe (see the module's text).

    Args:
        sigma: bandwidth.
        radius: bound r of the centred scores.
        nodes: number of nodes n.
        dtype: precision of the computation.
    """
    unit = torch.finfo(dtype).eps / 2
    rate = 2 * (radius / sigma) ** 2
    if rate >= MOST_TERMS:
        return None
    steepness = max(1.0, 4 * radius / sigma**2)
    probability = math.exp(-rate)  # P(Poisson(rate) = q)
    for q in range(1, MOST_TERMS):
        probability *= rate / q
        # P(Poisson(rate) >= q) is at most a geometric series from its first term on, for q + 1 > rate.
        if q + 1 > rate and steepness * probability * (q + 1) / (q + 1 - rate) <= unit:
            terms = q + 1
            break
    else:
        return None
    amplification = min(float(nodes), math.exp(2 * rate))
    entry = (8 * rate + 5 + terms + math.log2(max(nodes, 1))) * unit
    return terms if amplification * entry <= math.sqrt(unit) else None


def _extended(values: Tensor, nodes: Tensor) -> Tensor:
    """[h | 1] with zero rows on padding, [k, n, p + 1]."""
    present = nodes[..., None].to(values.dtype)
    return torch.cat([values * present, present], dim=2)


def _mean(product: Tensor, nodes: Tensor) -> Tensor:
    """Numerators over denominators; padding, whose denominator can vanish, gets 0."""
    present = nodes[..., None]
    mean = product[..., :-1] / product[..., -1:].masked_fill(~present, 1.0)
    return mean.masked_fill(~present, 0.0)


def _expand(centred: Tensor, extended: Tensor, sigma: float, terms: int) -> Tensor:
    features: Tensor = _Features.apply(centred, sigma, terms)  # type: ignore[no-untyped-call]
    moments = torch.bmm(features.transpose(0, 1), extended)
    return torch.bmm(features.permute(1, 2, 0), moments)


class _Product(torch.autograd.Function):
    """Y = K(s) V by blocks of rows; K is symmetric, so dV = K dY.

    With A_ij = K_ij (dY_i . V_j) and E_ij = A_ij (s_i - s_j): ds_i = -(2/sigma^2) sum_j (E_ij - E_ji).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, extended: Tensor, sigma: float, rows: int) -> Tensor:
        ctx.save_for_backward(scores, extended)
        ctx.sigma, ctx.rows = sigma, rows
        product = torch.empty_like(extended)
        for start in range(0, scores.shape[1], rows):
            part = slice(start, start + rows)
            kernel = (scores[:, part, None] - scores[:, None, :]).square_().mul_(-1 / sigma**2).exp_()
            product[:, part] = torch.bmm(kernel, extended)
        return product

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        scores, extended = ctx.saved_tensors
        upstream = grads[0].contiguous()
        sigma, rows = ctx.sigma, ctx.rows
        to_scores = torch.zeros_like(scores)
        to_extended = torch.empty_like(extended)
        for start in range(0, scores.shape[1], rows):
            part = slice(start, start + rows)
            gaps = scores[:, part, None] - scores[:, None, :]
            kernel = gaps.square().mul_(-1 / sigma**2).exp_()
            to_extended[:, part] = torch.bmm(kernel, upstream)
            pulls = torch.bmm(upstream[:, part], extended.transpose(1, 2)).mul_(kernel).mul_(gaps)
            to_scores[:, part] -= pulls.sum(dim=2)
            to_scores += pulls.sum(dim=1)
        return to_scores.mul_(2 / sigma**2), to_extended, None, None


class _Features(torch.autograd.Function):
    """phi_q(s), [T, k, n]; d phi_q / ds = (sqrt(2 q) / sigma) phi_{q-1} - (2 s / sigma^2) phi_q."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, sigma: float, terms: int) -> Tensor:
        features = scores.new_empty((terms, *scores.shape))
        torch.exp(-(scores / sigma).square(), out=features[0])
        scaled = scores * (math.sqrt(2.0) / sigma)
        for q in range(1, terms):
            torch.mul(features[q - 1], scaled, out=features[q]).mul_(1 / math.sqrt(q))
        ctx.save_for_backward(scores, features)
        ctx.sigma = sigma
        return features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        scores, features = ctx.saved_tensors
        sigma, upstream = ctx.sigma, grads[0]
        orders = torch.arange(1, len(features), dtype=scores.dtype, device=scores.device)
        roots = orders.mul_(2).sqrt_()[:, None, None]
        lower = (upstream[1:] * features[:-1]).mul_(roots).sum(dim=0)
        same = (upstream * features).sum(dim=0)
        return lower / sigma - (2 / sigma**2) * scores * same, None, None
