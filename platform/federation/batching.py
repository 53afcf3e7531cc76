"""Which graphs a step sees: mini-batches to train on, and larger ones to score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort

SCORED = 256
"""Graphs of each client that are scored at once."""


@dataclass(frozen=True)
class Batch:
    """Some graphs of some clients of a cohort.

    Attributes:
        rows: positions of these clients in the cohort, int64 [k'].
        cohort: their graphs.
        graphs: ids of the graphs of each of these clients, in its numbering.
    """

    rows: Tensor
    cohort: Cohort
    graphs: tuple[np.ndarray, ...]


def training_batches(cohort: Cohort, size: int | None, round_number: int, epoch: int) -> Iterator[Batch]:
    """The steps of one local epoch: step s has batch s of every client that still has one.

    Each client's training graphs are shuffled by a stream of its own and cut into pieces of `size`; the last
    piece has what is left. A client without training graphs has no step; if that is all of them, there is one
    step with the first graph of each, none of them to train on.

    Args:
        cohort: of graph classification.
        size: graphs in a batch; None for one batch with all.
        round_number, epoch: of the shuffle.
    """
    orders = [
        generator.permutation(np.flatnonzero(train))
        for generator, train in zip(
            cohort.generators(round_number, f"batches/{epoch}"), cohort.train.cpu().numpy(), strict=True
        )
    ]
    longest = max(map(len, orders))
    if longest == 0:
        first = _batch(cohort, [np.zeros(1, dtype=np.int64)] * len(orders))
        yield replace(first, cohort=replace(first.cohort, train=torch.zeros_like(first.cohort.train)))
        return
    step = size or longest
    for begin in range(0, longest, step):
        yield _batch(cohort, [order[begin : begin + step] for order in orders])


def scored_batches(cohort: Cohort) -> Sequence[Batch]:
    """All validation and test graphs, `SCORED` of each client at once; built once and kept."""

    def build() -> list[Batch]:
        marks = (cohort.validation | cohort.test).cpu().numpy()
        return list(batches_of(cohort, [np.flatnonzero(mark) for mark in marks]))

    return cohort.keep("scored_batches", build)


def batches_of(cohort: Cohort, graphs: Sequence[np.ndarray], size: int = SCORED) -> Iterator[Batch]:
    """The given graphs of each client in order, at most `size` of each at once."""
    for begin in range(0, max(map(len, graphs)), size):
        yield _batch(cohort, [ids[begin : begin + size] for ids in graphs])


def _batch(cohort: Cohort, pieces: Sequence[np.ndarray]) -> Batch:
    rows = [row for row, ids in enumerate(pieces) if len(ids)]
    graphs = tuple(pieces[row] for row in rows)
    return Batch(torch.tensor(rows, device=cohort.device), cohort.batch(rows, graphs), graphs)


def scattered(batch: Batch, values: Tensor, into: Tensor) -> None:
    """Write values [k', b, ...] of a batch's graphs to their places in `into` [k, g, ...]."""
    for row, ids, own in zip(batch.rows.tolist(), batch.graphs, values, strict=True):
        into[row, torch.from_numpy(ids).to(into.device)] = own[: len(ids)]
