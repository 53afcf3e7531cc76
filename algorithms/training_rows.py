"""The training nodes of a cohort, stacked: what reads them only need not touch the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort, Dropout


@dataclass(frozen=True)
class TrainingRows:
    """The training nodes of a cohort, stacked and padded to the largest number t of them.

    Attributes:
        index: node of each row, [k, t]; 0 on padding.
        present: bool [k, t].
        counts: training nodes of each client.
        width: padded number of nodes n of the cohort.
    """

    index: Tensor
    present: Tensor
    counts: tuple[int, ...]
    width: int

    def take(self, values: Tensor) -> Tensor:
        """Rows of node values, [..., k, n, h] -> [..., k, t, h]; 0 on padding."""
        clients = torch.arange(len(self.counts), device=values.device)[:, None]
        return values[..., clients, self.index, :] * self.present[..., None]

    def spread(self, values: Tensor) -> Tensor:
        """Node values with the given rows, [k, t, h] -> [k, n, h]; 0 elsewhere."""
        index = self.index[..., None].expand_as(values)
        out = values.new_zeros(values.shape[0], self.width, values.shape[2])
        return out.scatter_add(1, index, values * self.present[..., None])

    def drop(self, dropout: Dropout, purpose: str, values: Tensor, rate: float) -> Tensor:
        """Drop entries of rows [k, t, h] and scale the rest by 1 / (1 - rate)."""
        if rate <= 0:
            return values
        width = values.shape[2]
        factors = torch.zeros_like(values)
        factors[self.present] = dropout.flat(purpose, rate, [c * width for c in self.counts]).view(-1, width)
        return values * factors


def training_rows(cohort: Cohort) -> TrainingRows:
    """The training nodes of a cohort."""

    def build() -> TrainingRows:
        counts = cohort.train.sum(dim=1)
        # Training nodes first, in the order of the nodes.
        index = (~cohort.train).to(torch.int8).argsort(dim=1, stable=True)[:, : max(1, int(counts.max()))]
        present = torch.arange(index.shape[1], device=index.device) < counts[:, None]
        return TrainingRows(index * present, present, tuple(counts.tolist()), cohort.width)

    return cohort.keep("training_rows", build)
