"""Disjoint unions of graphs: what the cohorts of graph classification are computed on.

A client's graphs are kept on the host as one union with its closed neighbourhoods. A batch is a smaller
union of some graphs of some clients, cut out without a loop over graphs, nodes or edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.neighbours import Neighbours
from fedatlas.platform.federation.sparse import SparseMatrix, pad_blocks
from fedatlas.platform.graphs.graph import ClientGraph, Features, runs


@dataclass(frozen=True)
class ClientUnion:
    """The g graphs of one client: n nodes, and E entries of A + I.

    Attributes:
        starts: int64 [g + 1], first node of each graph, and n.
        pointers, columns: CSR structure of A + I, int64 [n + 1] and [E], sorted.
        reverse: int64 [E], position of the entry (j, i) for each entry (i, j).
        features: float32 [n, f_m], dense or CSR.
    """

    starts: np.ndarray
    pointers: np.ndarray
    columns: np.ndarray
    reverse: np.ndarray
    features: Features

    @staticmethod
    def of(graph: ClientGraph) -> ClientUnion:
        """The union of a client's graphs."""
        assert graph.starts is not None
        n = graph.size
        loops = np.arange(n, dtype=np.int64)
        rows = np.concatenate([graph.edges[0], loops])
        columns = np.concatenate([graph.edges[1], loops])
        order = np.lexsort((columns, rows))
        rows, columns = rows[order], columns[order]
        pointers = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(np.int64)
        # The structure is symmetric: sorted by column, then row, entries are in the order of the transpose.
        reverse = np.empty(len(rows), dtype=np.int64)
        reverse[np.lexsort((rows, columns))] = np.arange(len(rows))
        return ClientUnion(graph.starts, pointers, columns, reverse, graph.features)

    def adjacency(self) -> sp.csr_array:
        """A, binary CSR [n, n] without self-loops."""
        n = len(self.pointers) - 1
        closed = sp.csr_array((np.ones(len(self.columns)), self.columns, self.pointers), shape=(n, n))
        open_ = sp.csr_array(closed - sp.eye_array(n, format="csr"))
        open_.eliminate_zeros()
        return open_


@dataclass(eq=False)
class Union:
    """Graphs of k clients stacked: at most b graphs and n nodes of each, padded.

    Attributes:
        neighbours: closed neighbourhoods over k*n nodes.
        counts: nodes of each graph [k, b]; 0 on padding.
        chosen: ids of the graphs of each client, in its numbering.
        sizes: number of nodes of each client.
        nodes: ids of the nodes of each client, in its numbering.
        dense_features: [k, n, f], or None if the features are sparse.
        sparse_features: block-diagonal [k*n, k*f], or None if the features are dense.
    """

    neighbours: Neighbours
    counts: Tensor
    chosen: tuple[np.ndarray, ...]
    sizes: tuple[int, ...]
    nodes: tuple[np.ndarray, ...]
    dense_features: Tensor | None
    sparse_features: SparseMatrix | None
    _lengths: Tensor

    def summed(self, values: Tensor) -> Tensor:
        """Sum over the nodes of each graph: [k, n, h] -> [k, b, h]; 0 on padding."""
        k, n, h = values.shape
        sums = torch.segment_reduce(
            values.reshape(k * n, h), "sum", lengths=self._lengths, axis=0, initial=0, unsafe=True
        )
        # The last segment of each client is its padding.
        return sums.reshape(k, -1, h)[:, :-1]

    def averaged(self, values: Tensor) -> Tensor:
        """Mean over the nodes of each graph: [k, n, h] -> [k, b, h]; 0 on padding."""
        return self.summed(values) / self.counts.clamp(min=1).to(values.dtype)[..., None]

    @cached_property
    def summing(self) -> SparseMatrix:
        """A + I over all nodes."""
        return self.neighbours.summing()

    @cached_property
    def normalised(self) -> SparseMatrix:
        """D~^(-1/2) (A + I) D~^(-1/2) over all nodes."""
        return self.neighbours.normalised()


def union(
    clients: Sequence[ClientUnion],
    chosen: Sequence[np.ndarray],
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Union:
    """Cut some graphs of some clients out and stack them.

    Args:
        clients: k clients.
        chosen: int64 ids of the graphs of each client; not all empty.
        width: feature width f of the task; narrower features are padded with zeros.
        dtype, device: of the tensors.
    """
    k = len(clients)
    counts = [np.diff(client.starts)[ids] for client, ids in zip(clients, chosen, strict=True)]
    sizes = tuple(int(count.sum()) for count in counts)
    n, b = max(*sizes, 1), max(map(len, chosen))
    nodes, degrees, columns, reverse = [], np.zeros((k, n), dtype=np.int64), [], []
    lengths = np.zeros((k, b + 1), dtype=np.int64)
    entries = 0
    for row, (client, ids, count) in enumerate(zip(clients, chosen, counts, strict=True)):
        begins = client.starts[ids]
        lengths[row, : len(ids)], lengths[row, b] = count, n - sizes[row]
        nodes.append(runs(begins, count))
        degrees[row, : sizes[row]] = np.diff(client.pointers)[nodes[-1]]
        first = client.pointers[begins]
        edges = client.pointers[client.starts[ids + 1]] - first
        positions = runs(first, edges)
        shift = row * n + np.cumsum(count) - count - begins
        columns.append(client.columns[positions] + np.repeat(shift, edges))
        shift = entries + np.cumsum(edges) - edges - first
        reverse.append(client.reverse[positions] + np.repeat(shift, edges))
        entries += int(edges.sum())
    pointers = np.concatenate([[0], np.cumsum(degrees.reshape(-1))])
    neighbours = Neighbours(pointers, np.concatenate(columns), np.concatenate(reverse), dtype, device)
    dense, sparse = _features(clients, nodes, n, width, dtype, device)
    return Union(
        neighbours=neighbours,
        counts=torch.from_numpy(lengths[:, :b].copy()).to(device),
        chosen=tuple(chosen),
        sizes=sizes,
        nodes=tuple(nodes),
        dense_features=dense,
        sparse_features=sparse,
        _lengths=torch.from_numpy(lengths.reshape(-1)).to(device),
    )


def _features(
    clients: Sequence[ClientUnion],
    nodes: Sequence[np.ndarray],
    n: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor | None, SparseMatrix | None]:
    """Features of the chosen nodes: sparse if those of one client are, since only narrow ones are dense."""
    if any(sp.issparse(client.features) for client in clients):
        blocks = [sp.csr_array(client.features[ids]) for client, ids in zip(clients, nodes, strict=True)]
        return None, SparseMatrix(pad_blocks(blocks, n, width), dtype, device)
    dense = np.zeros((len(clients), n, width), dtype=np.float32)
    for row, (client, ids) in enumerate(zip(clients, nodes, strict=True)):
        own = np.asarray(client.features)
        dense[row, : len(ids), : own.shape[1]] = own[ids]
    return torch.from_numpy(dense).to(device=device, dtype=dtype), None
