"""Optimal transport between neighbourhoods and templates.

A neighbourhood and a template are two atoms of mass 1/2 each in R^p. Between two such measures there are two
matchings only, so the exact Wasserstein cost has a closed form; a Sinkhorn plan then assigns neighbourhoods
to templates.

Shapes: k clients, B sampled nodes, Q templates, p width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SAFE_EXPONENT = 300.0
_TINY = 1e-300


def matching_scores(radials: Tensor, templates: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the identity and the swapped matching, r_1.t_1 + r_2.t_2 and r_1.t_2 + r_2.t_1.

    Shapes:
        radials: [k, B, 2, p]; templates: [Q, 2, p]; results: [k, B, Q].
    """
    flat = templates.reshape(-1, templates.shape[2])
    k, nodes = radials.shape[:2]
    products = (radials.reshape(-1, radials.shape[3]) @ flat.T).reshape(k, nodes, 2, -1, 2)
    identity = products[:, :, 0, :, 0] + products[:, :, 1, :, 1]
    swapped = products[:, :, 0, :, 1] + products[:, :, 1, :, 0]
    return identity, swapped


def wasserstein_cost(radials: Tensor, templates: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance between two-atom measures, [k, B, Q] (equations 6 and 7).

    W_2^2 = (|r_1|^2 + |r_2|^2 + |t_1|^2 + |t_2|^2) / 2 - max(r_1.t_1 + r_2.t_2, r_1.t_2 + r_2.t_1).
    For unit atoms it is 2 minus the maximum and lies in [0, 4].

    Shapes:
        radials: [k, B, 2, p]; templates: [Q, 2, p].
    """
    identity, swapped = matching_scores(radials, templates)
    size = radials.square().sum(dim=(2, 3))[:, :, None] + templates.square().sum(dim=(1, 2))
    return size / 2 - torch.maximum(identity, swapped)


@torch.no_grad()
def sinkhorn(cost: Tensor, epsilon: float, iterations: int, nodes: Tensor) -> Tensor:
    """Balanced entropic plan F [k, B, Q]: rows sum to 1, columns to about B_m / Q.

    Minimises <F, W> - epsilon H(F) by alternating scalings (Cuturi, NeurIPS 2013); it ends on the rows,
    whose sums are exact. No gradient passes through it. Scalings run in float64 on the kernel
    exp(-W / epsilon) where that cannot underflow, which is several times faster, and on logarithms elsewhere.

    Args:
        cost: W, [k, B, Q], non-negative.
        epsilon: entropic regularisation, in units of the cost.
        iterations: pairs of scalings.
        nodes: bool [k, B], the sampled nodes that exist; other rows of F are zero.
    """
    exponents = cost.double() / -epsilon
    exponents = exponents - exponents.amax(dim=2, keepdim=True)
    if float(exponents.amin()) > -_SAFE_EXPONENT:
        plan = _scale_kernel(exponents.exp() * nodes[:, :, None], iterations, nodes)
    else:
        plan = _scale_logarithms(exponents, iterations, nodes)
    return plan.to(cost.dtype)


def _scale_kernel(kernel: Tensor, iterations: int, nodes: Tensor) -> Tensor:
    k, _, templates = kernel.shape
    mass = nodes.to(kernel.dtype)
    column = mass.sum(dim=1, keepdim=True) / templates
    right = torch.ones((k, templates), dtype=kernel.dtype, device=kernel.device)

    def rows() -> Tensor:
        return mass / torch.bmm(kernel, right[..., None])[..., 0].clamp(min=_TINY)

    for _ in range(iterations):
        right = column / torch.bmm(rows()[:, None], kernel)[:, 0].clamp(min=_TINY)
    return rows()[..., None] * kernel * right[:, None]


def _scale_logarithms(exponents: Tensor, iterations: int, nodes: Tensor) -> Tensor:
    column = (nodes.sum(dim=1).clamp(min=1).to(exponents.dtype) / exponents.shape[2]).log()
    absent = ~nodes[:, :, None]
    plan = exponents
    for _ in range(iterations):
        plan = torch.log_softmax(plan, dim=2).masked_fill(absent, -math.inf)
        total = torch.logsumexp(plan, dim=1, keepdim=True)
        plan = plan + (column[:, None, None] - total).nan_to_num(0.0, 0.0, 0.0)
    return torch.softmax(plan, dim=2).masked_fill(absent, 0.0)
