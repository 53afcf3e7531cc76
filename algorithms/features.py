"""Features of a cohort in dense form, for methods that propagate or compare them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort


def dense_features(cohort: Cohort) -> Tensor:
    """Node features [k, n, f], zero on padding."""
    if cohort.dense_features is not None:
        return cohort.dense_features
    assert cohort.sparse_features is not None
    k, n, f = len(cohort.clients), cohort.width, cohort.task.features
    entries = cohort.sparse_features.scipy().tocoo()
    rows, columns = (torch.from_numpy(index).long() for index in (entries.row, entries.col % f))
    dense = torch.zeros(k * n, f, dtype=cohort.dtype)
    dense[rows, columns] = torch.from_numpy(entries.data)
    return dense.reshape(k, n, f).to(cohort.device)
