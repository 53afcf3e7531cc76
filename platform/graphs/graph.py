"""The graph types that travel between the data, partition and federation layers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

Array: TypeAlias = np.ndarray
Features: TypeAlias = "np.ndarray | sp.csr_array"
Metric: TypeAlias = Literal["accuracy", "auc"]
DataKind: TypeAlias = Literal["real", "generated", "stand-in", "own"]
Level: TypeAlias = Literal["node", "graph"]
"""What is labelled, scored and predicted: the nodes of a graph, or whole graphs."""


@dataclass(frozen=True)
class Graph:
    """An undirected attributed graph with node labels.

    Attributes:
        name: name in the catalog, for example ``"cora"``.
        features: float32 [n, f], a dense array or a scipy CSR array.
        edges: int64 [2, e]; every undirected edge in both directions, no self-loop, no duplicate,
            sorted by source, then target.
        labels: int64 [n] in 0..classes-1.
        classes: number of classes C.
        metric: score of the task: accuracy, or ROC-AUC of class 1 for binary sets.
        kind: ``real`` (read from published files), ``generated`` (published data set reproduced bit for
            bit), ``stand-in`` (synthetic graph with a published set's statistics) or ``own`` (brought by the
            user).
    """

    name: str
    features: Features
    edges: Array
    labels: Array
    classes: int
    metric: Metric
    kind: DataKind

    @property
    def nodes(self) -> int:
        return int(self.labels.shape[0])

    def adjacency(self) -> sp.csr_array:
        """Binary symmetric adjacency matrix, CSR float32 [n, n]."""
        values = np.ones(self.edges.shape[1], dtype=np.float32)
        return sp.csr_array((values, (self.edges[0], self.edges[1])), shape=(self.nodes, self.nodes))

    def sha256(self) -> str:
        """Hash of the arrays: identifies the data that a run used."""
        return _sha256(self.features, self.edges, self.labels)


def _sha256(features: Features, *others: Array) -> str:
    digest = hashlib.sha256()
    arrays = list(others)
    if isinstance(features, np.ndarray):
        arrays.append(features)
    else:
        arrays += [features.indptr.astype(np.int64), features.indices.astype(np.int64)]
        arrays.append(np.asarray(features.data))
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class GraphSet:
    """Many undirected attributed graphs with a label each, kept as one disjoint union.

    Attributes:
        name: name in the catalog, for example ``"nci1"``.
        features: float32 [n, f] of all nodes, graph after graph; dense or CSR.
        edges: as in `Graph`, over all n nodes; no edge joins two graphs.
        starts: int64 [g + 1], first node of each graph, and n.
        labels: int64 [g] in 0..classes-1.
        classes, metric, kind: as in `Graph`.
    """

    name: str
    features: Features
    edges: Array
    starts: Array
    labels: Array
    classes: int
    metric: Metric
    kind: DataKind

    @property
    def graphs(self) -> int:
        return int(self.labels.shape[0])

    @property
    def nodes(self) -> int:
        return int(self.starts[-1])

    def select(self, graphs: Array) -> tuple[Array, Features, Array, Array]:
        """The disjoint union of some graphs: node ids [m], features [m, f], edges [2, e], starts [s + 1].

        Args:
            graphs: int64 [s], ids of the graphs in the order wanted.
        """
        sizes = np.diff(self.starts)[graphs]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        nodes = runs(self.starts[graphs], sizes)
        first = np.searchsorted(self.edges[0], self.starts)
        counts = np.diff(first)[graphs]
        edges = self.edges[:, runs(first[graphs], counts)]
        return (
            nodes,
            self.features[nodes],
            edges + np.repeat(starts[:-1] - self.starts[graphs], counts),
            starts,
        )

    def sha256(self) -> str:
        """Hash of the arrays: identifies the data that a run used."""
        return _sha256(self.features, self.edges, self.starts, self.labels)


def runs(starts: Array, counts: Array) -> Array:
    """Concatenation of starts[i], starts[i] + 1, ..., starts[i] + counts[i] - 1 over all i, int64."""
    offsets = starts - (np.cumsum(counts) - counts)
    return np.repeat(offsets, counts) + np.arange(counts.sum(), dtype=np.int64)


@dataclass(frozen=True)
class Split:
    """Roles of the nodes of a graph: three disjoint boolean masks [n] that cover every node."""

    train: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class ClientGraph:
    """The private part of one client: an induced subgraph, or several graphs, with masks.

    Several graphs are kept as their disjoint union, and what has a label and a role are the g_m graphs.

    Attributes:
        client: client id, 0..M-1.
        nodes: int64 [n_m], ids in the whole graph (after preprocessing) or in the set of graphs.
        features: float32 [n_m, f], dense or CSR; at most as wide as the task's if clients differ.
        edges: int64 [2, e_m] in local numbering, both directions, sorted.
        labels: int64 [n_m] in the label space of the whole graph, or [g_m].
        train, validation, test: boolean masks [n_m], or [g_m].
        groups: for the uncut reference only: local node ids of each part that is scored by itself.
        starts: of several graphs: int64 [g_m + 1], first node of each, and n_m. None for a subgraph.
        classes: number of classes of this client where clients differ; None: those of the task.
    """

    client: int
    nodes: Array
    features: Features
    edges: Array
    labels: Array
    train: Array
    validation: Array
    test: Array
    groups: tuple[Array, ...] | None = None
    starts: Array | None = None
    classes: int | None = None

    @property
    def size(self) -> int:
        """Number of nodes n_m."""
        return int(self.nodes.shape[0])

    @property
    def items(self) -> int:
        """Number of things with a label: nodes, or graphs."""
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class FederatedGraph:
    """A graph or a set of graphs divided among clients: what an experiment trains on.

    Attributes:
        name: data set.
        clients: one `ClientGraph` per client, ordered by id.
        features: feature width f.
        classes: number of classes C of the whole task.
        metric, kind: as in `Graph`.
        sha256: hash of the whole graph before preprocessing.
        partition_sha256: hash of the membership of every client.
        lost_edges: undirected edges of the whole graph that no client holds.
        level: what has a label.
    """

    name: str
    clients: tuple[ClientGraph, ...]
    features: int
    classes: int
    metric: Metric
    kind: DataKind
    sha256: str
    partition_sha256: str
    lost_edges: int
    level: Level = "node"
