"""Structural templates: Q pairs of unit vectors, and their refinement by the server.

Symbols: T_q = [t_q1; t_q2], [Q, 2, p]; radial pairs r = [r_1; r_2], [k, B, 2, p]; plan F, [k, B, Q].

The Gromov-Wasserstein distance between two-point spaces of gaps a = ||r_1 - r_2|| and b = ||t_1 - t_2|| is
GW^2 = (a - b)^2 / 2, so equation 9 alone fixes only the gap of a template, b* = sum F a / sum F; a barycentre
has no direction. The rule here is well posed: among the templates with gap b* and unit halves, which are all
optimal for equation 9, it takes the one closest to the assigned radials in the Wasserstein sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithms.transport import matching_scores
from fedatlas.platform.randomness import SERVER, stream

TemplateRule = Literal["closest", "gap_only", "wasserstein"]
_UNUSED = 1e-6


def random_templates(count: int, width: int, seed: int) -> Tensor:
    """Q templates with independent, uniformly directed unit halves, float64 [Q, 2, p]."""
    draw = stream(seed, SERVER, -1, "templates").standard_normal((count, 2, width))
    return torch.from_numpy(draw / np.linalg.norm(draw, axis=2, keepdims=True))


@dataclass(frozen=True)
class TemplateStatistics:
    """What the refinement needs of the radials assigned to each template; sums over clients add up.

    Attributes:
        mass: N = sum F, [.., Q].
        gap: sum F a with a = ||r_1 - r_2||, [.., Q].
        atoms: (M_1, M_2), sums of F times the radial halves matched to the template's, [.., Q, 2, p].
    """

    mass: Tensor
    gap: Tensor
    atoms: Tensor


@torch.no_grad()
def statistics(radials: Tensor, plan: Tensor, templates: Tensor) -> TemplateStatistics:
    """Sufficient statistics of each client, [k, Q] and [k, Q, 2, p].

    Each radial pair is matched to a template by the better of the two matchings.
    """
    identity, swapped = matching_scores(radials, templates)
    straight = plan * (identity >= swapped)
    crossed = plan - straight
    first, second = radials[:, :, 0], radials[:, :, 1]
    m1 = straight.mT @ first + crossed.mT @ second
    m2 = straight.mT @ second + crossed.mT @ first
    gaps = (first - second).norm(dim=2)
    return TemplateStatistics(plan.sum(dim=1), (plan * gaps[..., None]).sum(dim=1), torch.stack([m1, m2], 2))


@torch.no_grad()
def refine_templates(
    templates: Tensor, assigned: TemplateStatistics, rule: TemplateRule = "closest", momentum: float = 0.9
) -> Tensor:
    """New templates [Q, 2, p] with unit halves; a template that nothing is assigned to stays.

    Args:
        templates: [Q, 2, p].
        assigned: statistics summed over clients, [Q] and [Q, 2, p].
        rule: ``closest`` (equation 9, made well posed, see the module); ``gap_only`` keeps each template's
            plane and sets its gap to b* (equation 9 and nothing else); ``wasserstein`` moves the halves
            towards the assigned radials, T <- normalise(momentum T + (1 - momentum) normalise(M)).
        momentum: for ``wasserstein``.
    """
    used = (assigned.mass > _UNUSED)[:, None, None]
    if rule == "wasserstein":
        target = torch.nn.functional.normalize(assigned.atoms, dim=2)
        moved = torch.nn.functional.normalize(momentum * templates + (1 - momentum) * target, dim=2)
        return torch.where(used, moved, templates)
    gap = (assigned.gap / assigned.mass.clamp(min=_UNUSED)).clamp(0.0, 2.0)
    phi = torch.arcsin(gap / 2)
    cos, sin = phi.cos()[:, None], phi.sin()[:, None]
    source = templates if rule == "gap_only" else assigned.atoms
    m1, m2 = source[:, 0], source[:, 1]
    pair = torch.stack([cos * (m1 + m2), sin * (m1 - m2)], dim=2)
    frame = _orthonormal_frame(pair, templates)
    middle, across = frame[:, :, 0], frame[:, :, 1]
    moved = torch.stack([cos * middle + sin * across, cos * middle - sin * across], dim=1)
    return torch.where(used, moved, templates)


def _orthonormal_frame(pair: Tensor, templates: Tensor) -> Tensor:
    """Orthonormal [Q, p, 2] closest to `pair`; a vanishing direction is completed from the old template."""
    size = pair.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
    old = torch.stack([templates[:, 0] + templates[:, 1], templates[:, 0] - templates[:, 1]], dim=2)
    # A trace of the old directions decides what the data leave open, and vanishes elsewhere.
    U, _, Vt = torch.linalg.svd(pair / size + 1e-7 * old, full_matrices=False)
    frame: Tensor = U @ Vt
    return frame


def mean_cosine(templates: Tensor) -> float:
    """Mean pairwise similarity of templates, (t_q1.t_s1 + t_q2.t_s2) / 2 over q != s; 1 is collapse."""
    count = templates.shape[0]
    if count < 2:
        return 1.0
    flat = templates.reshape(count, -1)
    gram = flat @ flat.T / 2
    return float((gram.sum() - gram.diagonal().sum()) / (count * (count - 1)))


def usage_entropy(mass: Tensor) -> float:
    """Entropy of the templates' shares of mass [Q], divided by ln Q: 1 is even use, 0 a single template."""
    if mass.numel() < 2 or float(mass.sum()) <= 0:
        return 1.0
    share = mass / mass.sum()
    return float(torch.special.entr(share).sum() / np.log(mass.numel()))
