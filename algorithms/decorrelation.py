"""RepDec: a penalty on correlated representations (Li et al., arXiv 2512.16247)."""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-5
"""Added to the variance."""


def correlation_penalty(representations: Tensor, items: Tensor) -> Tensor:
    """||C||_F^2 / d^2 of each client, [k], with C the correlation matrix of the columns.

        H^ = (H - mean) / sqrt(var + 1e-5) per column over the b items,   C = H^^T H^ / b

    Means and variances are those of the items (divided by b). With uncorrelated columns the penalty is 1/d,
    with equal ones 1; a column that does not vary adds nothing, so that a client with less than two items
    has 0. It does not depend on the scale and shift of a column but for the 1e-5.

    Args:
        representations: H, [k, b, d].
        items: bool [k, b], rows that count.
    """
    weights = items.to(representations.dtype)[..., None]
    count = weights.sum(dim=1, keepdim=True).clamp(min=1)
    centred = (representations - (representations * weights).sum(dim=1, keepdim=True) / count) * weights
    variance = centred.square().sum(dim=1, keepdim=True) / count
    scaled = centred / (variance + EPSILON).sqrt()
    correlations = scaled.transpose(1, 2) @ scaled / count
    return correlations.square().sum(dim=(1, 2)) / representations.shape[2] ** 2
