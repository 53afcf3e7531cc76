"""Diagonal Gaussians N(mu, diag(e^lv)), given by means and log-variances.

Everything is element-wise over the dimensions: a divergence keeps the axis of the dimensions, and the caller
takes the sum (the divergence between the distributions) or the mean. Arguments broadcast, so
`kl(m[:, None], l[:, None], m[None], l[None])` compares all pairs of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kl(mean: Tensor, log_variance: Tensor, mean_q: Tensor, log_variance_q: Tensor) -> Tensor:
    """Kullback-Leibler divergence of every dimension from N(mean, e^lv) to N(mean_q, e^lq).

        KL = 1/2 (lq - lv - 1 + ((mu - mu_q)^2 + e^lv) e^(-lq))

    Shapes:
        all arguments [..., d], broadcast against each other; result [..., d], at least 0, not summed.
    """
    # e^(lv - lq) - 1 - (lv - lq) is written with expm1: near equality both parts are small.
    ratio = log_variance - log_variance_q
    squares = (mean - mean_q).square() * torch.exp(-log_variance_q)
    return 0.5 * (torch.expm1(ratio) - ratio + squares)


def jensen_shannon(mean: Tensor, log_variance: Tensor, mean_q: Tensor, log_variance_q: Tensor) -> Tensor:
    """Divergence of every dimension from two Gaussians to the one in their middle.

        JS = 1/2 KL(p || m) + 1/2 KL(q || m),  m = N((mu_p + mu_q) / 2, (e^lp + e^lq) / 2)

    The Gaussian m stands in for the mixture (p + q) / 2, for which there is no closed form. It is symmetric
    and 0 for equal Gaussians, but unlike the divergence to the mixture it has no bound.

    Shapes:
        all arguments [..., d], broadcast against each other; result [..., d], not summed.
    """
    middle = (mean + mean_q) / 2
    middle_log_variance = torch.logaddexp(log_variance, log_variance_q) - torch.log(
        torch.full_like(log_variance[..., :1], 2.0)
    )
    return 0.5 * (
        kl(mean, log_variance, middle, middle_log_variance)
        + kl(mean_q, log_variance_q, middle, middle_log_variance)
    )


def reparameterise(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """A sample mu + e^(lv / 2) * noise, differentiable in mean and log-variance (Kingma and Welling, 2014).

    Shapes:
        all [..., d]; `noise` is standard normal.
    """
    return mean + torch.exp(0.5 * log_variance) * noise


def match_moments(
    means: Tensor, log_variances: Tensor, weights: Tensor, floor: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """The Gaussian with the mean and the variance of each weighted mixture.

        mu_g = sum_j w_gj mu_j,  var_g = sum_j w_gj (e^lv_j + mu_j^2) - mu_g^2,  w_g normalised to sum 1

    Args:
        means, log_variances: of the j components, [..., j, d].
        weights: of the components in g mixtures, at least 0, [..., g, j]; need not be normalised.
        floor: smallest variance.

    Returns:
        Mean and log-variance, [..., g, d]. A mixture without weight has mean 0 and the smallest variance.
    """
    total = weights.sum(dim=-1, keepdim=True)
    shares = weights / torch.where(total > 0, total, torch.ones_like(total))
    mean = shares @ means
    second = shares @ (torch.exp(log_variances) + means.square())
    return mean, torch.log((second - mean.square()).clamp(min=floor))
