"""Semantic anchors: a simplex equiangular tight frame on the unit sphere, and its refinement.

Symbols: p width, C classes, M clients; Delta = [d_1 .. d_C], [p, C], with unit columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.randomness import SERVER, stream

_CLOSEST = 1e-6


def simplex_anchors(width: int, classes: int, seed: int) -> Tensor:
    """Simplex ETF, float64 [p, C] (equations 1 and 2).

    Delta = sqrt(C / (C-1)) Phi (I - 11^T / C), where Phi [p, C] has orthonormal columns: the Q factor of a
    seeded Gaussian matrix. Columns have norm 1, inner products -1/(C-1) and sum 0.

    Raises:
        ConfigurationError: C > p, or C < 2.
    """
    if classes > width:
        raise ConfigurationError(
            f"hidden={width} cannot hold {classes} equidistant anchors: set hidden to at least {classes}"
        )
    if classes < 2:
        raise ConfigurationError(f"semantic anchors need at least 2 classes, the task has {classes}")
    gaussian = stream(seed, SERVER, -1, "anchors").standard_normal((width, classes))
    basis, _ = np.linalg.qr(gaussian)
    centred = np.eye(classes) - 1.0 / classes
    return torch.from_numpy(np.sqrt(classes / (classes - 1.0)) * basis @ centred)


def gram_error(anchors: Tensor) -> float:
    """Largest |d_i . d_j + 1/(C-1)| over i != j: 0 at an exact simplex."""
    classes = anchors.shape[1]
    gram = anchors.T @ anchors
    off = ~torch.eye(classes, dtype=torch.bool, device=gram.device)
    return float((gram[off] + 1.0 / (classes - 1)).abs().max())


def repulsion(anchors: Tensor) -> Tensor:
    """s_i = - sum_{j != i} d_j / ||d_i - d_j||^2, [p, C]; at the simplex it is (C-1)/(2C) d_i."""
    squared = torch.cdist(anchors.T, anchors.T).square().clamp(min=_CLOSEST)
    weights = 1.0 / squared
    weights.fill_diagonal_(0.0)
    return -anchors @ weights.T


@dataclass(frozen=True)
class AnchorStep:
    """One refinement of the anchors: the new anchors [p, C] and the share of classes whose cap binds."""

    anchors: Tensor
    capped_share: float


def refine_anchors(
    anchors: Tensor, means: Tensor, losses: Tensor, counts: Tensor, tau: float, eta: float
) -> AnchorStep:
    """Difficulty-weighted, repulsive, capped step on the sphere (equation 8).

    With v_i the mean over the clients that have class i of (K_{m,i} - d_i), L_i the mean of their alignment
    losses, and all classes moved at once from the old anchors:

        gamma = softmax_i(L_i / tau) over the classes present somewhere
        d~_i  = d_i + gamma_i v_i + s_i
        t_i   = min(1, eta / (||d~_i - d_i|| + 1e-12))
        d_i  <- normalise(d_i + t_i (d~_i - d_i))

    A class that no client has keeps gamma_i = 0.

    Shapes:
        anchors: [p, C]; means: calibrated class means K, [M, p, C]; losses, counts: [M, C].
    """
    has = (counts > 0).to(anchors.dtype)
    holders = has.sum(dim=0)
    divisor = holders.clamp(min=1.0)
    pull = ((means.to(anchors.dtype) - anchors) * has[:, None, :]).sum(dim=0) / divisor
    difficulty = (losses.to(anchors.dtype) * has).sum(dim=0) / divisor
    present = holders > 0
    gamma = torch.zeros_like(difficulty)
    if bool(present.any()):
        gamma[present] = torch.softmax(difficulty[present] / tau, dim=0)
    move = gamma * pull + repulsion(anchors)
    length = move.norm(dim=0)
    step = (eta / (length + 1e-12)).clamp(max=1.0)
    moved = anchors + step * move
    return AnchorStep(moved / moved.norm(dim=0), float((step < 1.0).double().mean()))
