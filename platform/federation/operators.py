"""Propagation operators of a cohort, built once and shared by all methods.

All are block-diagonal over k*n nodes and, but for the mean, symmetric. 0^(-1/2) and 0^(-1) are 0: an isolated
node receives nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch

from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.sparse import SparseMatrix

RING_BLOCK_ROWS = 4096


def gcn_operator(cohort: Cohort) -> SparseMatrix:
    """Symmetric normalisation with self-loops, D~^(-1/2) (A + I) D~^(-1/2) (Kipf and Welling, 2017)."""

    def build() -> SparseMatrix:
        return cohort.block_diagonal(
            _each(cohort, lambda a: _normalise(a + sp.eye_array(a.shape[0], format="csr"), cohort))
        )

    return cohort.keep("gcn_operator", build)


def mean_operator(cohort: Cohort, self_loops: bool = False) -> SparseMatrix:
    """Row normalisation D^(-1) A, the mean over neighbours; with self-loops D~^(-1) (A + I)."""

    def rows(adjacency: sp.csr_array) -> sp.csr_array:
        matrix = adjacency + sp.eye_array(adjacency.shape[0], format="csr") if self_loops else adjacency
        degree = np.asarray(matrix.sum(axis=1, dtype=np.float64)).ravel()
        return sp.csr_array(sp.diags_array(1 / np.maximum(degree, 1.0)) @ matrix)

    def build() -> SparseMatrix:
        return cohort.block_diagonal(_each(cohort, rows), symmetric=False)

    return cohort.keep(f"mean_operator/{self_loops}", build)


def adjacency_operator(cohort: Cohort) -> SparseMatrix:
    """Symmetric normalisation without self-loops, D^(-1/2) A D^(-1/2)."""

    def build() -> SparseMatrix:
        return cohort.block_diagonal(_each(cohort, lambda a: _normalise(a, cohort)))

    return cohort.keep("adjacency_operator", build)


def ring_operators(cohort: Cohort, second_hop_limit: int | None = None) -> tuple[SparseMatrix, SparseMatrix]:
    """Normalised exact 1-hop and 2-hop rings, D_k^(-1/2) A_k D_k^(-1/2) (Zhu et al., NeurIPS 2020).

    A_1 is the adjacency without self-loops; A_2 joins nodes at distance exactly 2. Their supports and the
    diagonal are disjoint.

    Args:
        cohort: the clients.
        second_hop_limit: keep at most this many 2-hop neighbours per node (see `second_ring`).
    """

    def build() -> tuple[SparseMatrix, SparseMatrix]:
        first = adjacency_operator(cohort)
        second = cohort.block_diagonal(
            _each(cohort, lambda a: _normalise(second_ring(a, second_hop_limit), cohort))
        )
        return first, second

    return cohort.keep(f"rings/{second_hop_limit}", build)


def second_ring(adjacency: sp.csr_array, limit: int | None = None) -> sp.csr_array:
    """Indicator of node pairs at distance exactly 2, CSR [n, n].

    Args:
        adjacency: binary symmetric CSR [n, n] without self-loops.
        limit: if given, a pair is kept only if it is among the `limit` best of both its ends, ranked by
            the number of common neighbours (ties: lower node id). What is dropped is thus the pairs that
            share the fewest neighbours; the ring stays symmetric.
    """
    n = adjacency.shape[0]
    blocks = []
    for start in range(0, n, RING_BLOCK_ROWS):
        rows = adjacency[start : start + RING_BLOCK_ROWS]
        paths = sp.csr_array(rows @ adjacency)
        paths.sum_duplicates()
        # Subtracting more than any path count makes self and 1-hop entries negative, then drops them.
        identity = sp.csr_array(
            (
                np.ones(rows.shape[0]),
                (np.arange(rows.shape[0]), np.arange(start, start + rows.shape[0])),
            ),
            shape=rows.shape,
        )
        paths = sp.csr_array(paths - (rows + identity) * float(n + 1))
        paths.data[paths.data < 0] = 0
        paths.eliminate_zeros()
        if limit is not None:
            paths = _largest_per_row(paths, limit)
        else:
            paths.data = paths.data.astype(np.float32)
        blocks.append(paths)
    ring = sp.csr_array(sp.vstack(blocks, format="csr")) if blocks else sp.csr_array((n, n))
    ring.data = np.ones_like(ring.data)
    if limit is not None:
        ring = sp.csr_array(ring.multiply(ring.T))
    return ring


def _each(cohort: Cohort, change: Callable[[sp.csr_array], sp.csr_array]) -> list[sp.csr_array]:
    """The changed adjacency of every client; what clients have in common is computed once."""
    made = {id(adjacency): adjacency for adjacency in cohort.adjacencies}
    made = {key: change(adjacency) for key, adjacency in made.items()}
    return [made[id(adjacency)] for adjacency in cohort.adjacencies]


def _largest_per_row(matrix: sp.csr_array, limit: int) -> sp.csr_array:
    matrix.sort_indices()
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    chosen = np.sort(order[rank < limit])
    return sp.csr_array((matrix.data[chosen], (rows[chosen], matrix.indices[chosen])), shape=matrix.shape)


def _normalise(matrix: sp.csr_array, cohort: Cohort) -> sp.csr_array:
    """D^(-1/2) A D^(-1/2), computed in float64 and kept in the cohort's precision."""
    csr = sp.csr_array(matrix)
    counts = np.diff(csr.indptr)
    degree = np.asarray(csr.sum(axis=1, dtype=np.float64)).ravel()
    scale = np.zeros_like(degree)
    np.divide(1.0, np.sqrt(degree, where=degree > 0, out=np.ones_like(scale)), where=degree > 0, out=scale)
    kept = np.float64 if cohort.dtype == torch.float64 else np.float32
    values = np.empty(csr.nnz, dtype=kept)
    # In blocks of rows: a 2-hop ring can have a thousand times more entries than the graph has nodes.
    for start in range(0, csr.shape[0], RING_BLOCK_ROWS):
        stop = min(start + RING_BLOCK_ROWS, csr.shape[0])
        part = slice(csr.indptr[start], csr.indptr[stop])
        values[part] = (
            csr.data[part] * np.repeat(scale[start:stop], counts[start:stop]) * scale[csr.indices[part]]
        )
    return sp.csr_array((values, csr.indices, csr.indptr), shape=csr.shape)
