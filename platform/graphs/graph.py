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
        digest = hashlib.sha256()
        arrays = [self.edges, self.labels]
        if isinstance(self.features, np.ndarray):
            arrays.append(self.features)
        else:
            csr = self.features
            arrays += [csr.indptr.astype(np.int64), csr.indices.astype(np.int64), np.asarray(csr.data)]
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Split:
    """Roles of the nodes of a graph: three disjoint boolean masks [n] that cover every node."""

    train: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class ClientGraph:
    """The private part of one client: an induced subgraph with its masks.

    Attributes:
        client: client id, 0..M-1.
        nodes: int64 [n_m], ids in the whole graph (after preprocessing).
        features: float32 [n_m, f], dense or CSR.
        edges: int64 [2, e_m] in local numbering, both directions, sorted.
        labels: int64 [n_m] in the label space of the whole graph.
        train, validation, test: boolean masks [n_m].
        groups: for the uncut reference only: local node ids of each part that is scored by itself.
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

    @property
    def size(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class FederatedGraph:
    """A graph divided among clients: what an experiment trains on.

    Attributes:
        name: data set.
        clients: one `ClientGraph` per client, ordered by id.
        features: feature width f.
        classes: number of classes C of the whole task.
        metric, kind: as in `Graph`.
        sha256: hash of the whole graph before preprocessing.
        partition_sha256: hash of the membership of every client.
        lost_edges: undirected edges of the whole graph that no client holds.
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
