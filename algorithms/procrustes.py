"""Orthogonal Procrustes between class means and anchors, batched over clients and never differentiated.

For each client, R = argmin over orthogonal R of ||R P - Delta||_F^2 = U V^T with Delta P^T = U S V^T, over
the classes S_m that the client has (equation 3 and its closed form, equation 14). Only the spans of P and
Delta matter, so thin QR factors of both and an SVD of a C x C core replace the p x p SVD: O(p C^2).

Shapes: k clients, p width, C classes; absent classes are zero columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-3
"""Singular values below this share of the largest are treated as zero."""


@dataclass(frozen=True)
class Calibration:
    """Result of the Procrustes problem of k clients.

    Attributes:
        personal_anchors: D = R^T Delta, [k, p, C]: the anchors in the client's own frame.
        calibrated_means: K = R P, [k, p, C]: the class means in the anchors' frame. Directions whose
            singular value vanishes are dropped, since R is arbitrary there.
        residual: ||R P - Delta||_F^2 = ||P||^2 + ||Delta||^2 - 2 tr S over the client's classes, [k].
        source, rotation, target: R restricted to the span of P is target rotation source^T, with orthonormal
            columns [k, p, C], [k, C, C] and [k, p, C].
    """

    personal_anchors: Tensor
    calibrated_means: Tensor
    residual: Tensor
    source: Tensor
    rotation: Tensor
    target: Tensor

    def turn(self, values: Tensor) -> Tensor:
        """R h for node values h [k, n, p], after projection onto the span of the class means."""
        return values @ self.source @ self.rotation.mT @ self.target.mT


@torch.no_grad()
def calibrate(means: Tensor, anchors: Tensor, present: Tensor) -> Calibration:
    """Solve the Procrustes problem of each client.

    A client whose class means are all zero (dead activation) gets R = I.

    Args:
        means: class means P, [k, p, C]; columns of absent classes are ignored.
        anchors: Delta, [p, C].
        present: bool [k, C], the classes S_m of each client.
    """
    mask = present[:, None, :].to(means.dtype)
    P = means * mask
    D = anchors.to(means.dtype)[None] * mask
    basis_p, core_p = torch.linalg.qr(P)
    basis_d, core_d = torch.linalg.qr(D)
    U, sigma, Vt = torch.linalg.svd(core_d @ core_p.mT)
    kept = (sigma > RANK_TOLERANCE * sigma[:, :1]).to(means.dtype)
    rotation = (U * kept[:, None, :]) @ Vt
    personal = basis_p @ (rotation.mT @ core_d)
    calibrated = basis_d @ (rotation @ core_p)
    dead = sigma[:, :1, None] <= torch.finfo(means.dtype).tiny
    personal = torch.where(dead, D, personal)
    calibrated = torch.where(dead, P, calibrated)
    residual = P.square().sum((1, 2)) + D.square().sum((1, 2)) - 2 * sigma.sum(dim=1)
    return Calibration(personal, calibrated, residual, basis_p, rotation, basis_d)


def class_means(values: Tensor, indicator: Tensor, counts: Tensor) -> Tensor:
    """Mean of node values per class: [k, n, p], one-hot [k, n, C], counts [k, C] -> [k, p, C].

    Absent classes give zero columns.
    """
    return torch.bmm(values.mT, indicator) / counts.clamp(min=1.0)[:, None, :]


def squared_distances(values: Tensor, personal_anchors: Tensor, labels: Tensor) -> Tensor:
    """||R h_v - d_{y_v}||^2 = ||h_v||^2 + 1 - 2 h_v . D[:, y_v] for unit anchors, [k, n].

    Shapes:
        values: h, [k, n, p]; personal_anchors: D = R^T Delta, [k, p, C]; labels: [k, n].
    """
    products = torch.bmm(values, personal_anchors).gather(2, labels[..., None])[..., 0]
    return values.square().sum(dim=2) + 1.0 - 2.0 * products
