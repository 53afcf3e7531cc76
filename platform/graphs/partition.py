"""Who holds which nodes: the ways to divide the nodes of a graph among clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fedatlas.platform.errors import PartitionError, unknown_name
from fedatlas.platform.graphs.graph import Array, Graph
from fedatlas.platform.graphs.metis import k_way
from fedatlas.platform.randomness import SERVER, stream

Mode: TypeAlias = Literal["metis", "metis-overlap", "random", "louvain", "label-skew", "own"]
MODES: tuple[Mode, ...] = tuple(mode for mode in get_args(Mode) if mode != "own")
"""The modes that draw clients from one graph; ``own`` clients are given by the user, and
`fedatlas.platform.graphs.dealing` has the modes of sets of graphs."""
DRAWS = 5
"""Overlapping clients drawn from each METIS part."""
CONCENTRATION = 0.5
"""Of ``label-skew`` if none is given."""
LEAST_NODES = 10
ATTEMPTS = 1000


@dataclass(frozen=True)
class Partition:
    """Nodes of each client.

    Attributes:
        mode: how the nodes were divided.
        clients: number of clients M.
        members: one int64 array [n_m] of node ids per client, ascending. They cover every node once, except
            for ``metis-overlap`` and ``own``, where clients may share nodes and some nodes may be in none.
    """

    mode: Mode
    clients: int
    members: tuple[Array, ...]

    def sha256(self) -> str:
        """Hash of the members of every client: the same on every machine for the same division."""
        digest = hashlib.sha256()
        for nodes in self.members:
            digest.update(len(nodes).to_bytes(8, "little"))
            digest.update(nodes.astype("<i8").tobytes())
        return digest.hexdigest()


def metis_binding() -> str:
    """Algorithm and binding behind the METIS modes; other bindings divide the same graph differently."""
    return f"pymetis {version('pymetis')}, k-way"


def partition(
    graph: Graph, mode: str, clients: int, seed: int = 0, concentration: float | None = None
) -> Partition:
    """Divide the nodes of a graph among M clients.

    Modes:
        ``metis``: METIS k-way into M parts, one client each (Karypis & Kumar, SIAM J. Sci. Comput. 1998).
        ``metis-overlap``: METIS k-way into M/5 parts; from each part five draws, independent and without
            replacement, of floor(n_part/2) nodes; client 5 part + draw (FED-PUB, Baek et al., ICML 2023).
        ``random``: a random permutation cut into M pieces whose sizes differ by one at most.
        ``louvain``: communities of greatest modularity (Blondel et al. 2008); those above floor(n/M) nodes
            are cut along a breadth-first order into equal pieces below it, then the largest piece left goes
            to the client with the fewest nodes. The limit makes at least M pieces, so no client is empty, and
            keeps every client below 2n/M nodes.
        ``label-skew``: the nodes of each class are dealt out in proportions drawn from Dirichlet(beta):
            the smaller beta, the more clients differ in their classes (Hsu et al., arXiv 1909.06335). Drawn
            again until every client has 10 nodes, or half of an equal share if that is less.

    Args:
        graph: n nodes.
        mode: one of `MODES`.
        clients: M, from 1 to n; a multiple of 5 for ``metis-overlap``.
        seed: of METIS, the draws, the permutation and Louvain; 0..2^31-2.
        concentration: beta > 0 of ``label-skew``; `CONCENTRATION` if not given.

    Raises:
        ConfigurationError: the mode does not exist.
        PartitionError: the graph cannot be divided like that.
    """
    if mode not in MODES:
        raise unknown_name("partition", mode, MODES)
    if mode == "own":
        raise PartitionError(
            "partition=own is not drawn: the graph's file or a membership file names the clients"
        )
    if clients < 1:
        raise PartitionError(f"clients={clients} must be at least 1: use clients=1 for a single client")
    if clients > graph.nodes:
        raise PartitionError(
            f"clients={clients} exceeds the {graph.nodes} nodes of {graph.name}: "
            f"use at most {graph.nodes} clients"
        )
    members: list[Array]
    if mode == "metis":
        members = _metis_parts(graph, clients, clients, seed)
        return Partition("metis", clients, tuple(members))
    if mode == "metis-overlap":
        return Partition("metis-overlap", clients, tuple(_overlapping(graph, clients, seed)))
    if mode == "random":
        order = stream(seed, SERVER, -1, "partition").permutation(graph.nodes)
        members = [np.sort(piece) for piece in np.array_split(order, clients)]
        return Partition("random", clients, tuple(members))
    if mode == "label-skew":
        skewed = _label_skewed(graph, clients, seed, concentration or CONCENTRATION)
        return Partition("label-skew", clients, tuple(skewed))
    return Partition("louvain", clients, tuple(_louvain(graph, clients, seed)))


def _metis_parts(graph: Graph, parts: int, clients: int, seed: int) -> list[Array]:
    """Sorted nodes of each METIS part; `clients` only appears in the error about empty parts."""
    starts = np.searchsorted(graph.edges[0], np.arange(graph.nodes + 1))
    owner = k_way(starts, graph.edges[1], parts, seed)
    sizes = np.bincount(owner, minlength=parts)
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        which = f"part {empty[0]} is" if len(empty) == 1 else f"parts {listing(empty)} are"
        raise PartitionError(
            f"clients={clients} needs {parts} non-empty METIS parts; {graph.name} gave {parts - len(empty)} "
            f"({which} empty): use fewer clients or partition=random"
        )
    return _groups(owner, parts)


def _overlapping(graph: Graph, clients: int, seed: int) -> list[Array]:
    if clients % DRAWS:
        below = clients - clients % DRAWS
        near = f"clients={below + DRAWS}" if below == 0 else f"clients={below} or clients={below + DRAWS}"
        raise PartitionError(
            f"clients={clients} is not a multiple of {DRAWS}, and partition=metis-overlap draws "
            f"{DRAWS} clients from each METIS part: use {near}, or partition=metis"
        )
    parts = _metis_parts(graph, clients // DRAWS, clients, seed)
    single = [number for number, nodes in enumerate(parts) if len(nodes) < 2]
    if single:
        raise PartitionError(
            f"clients={clients} draws half of each METIS part, but {graph.name} gave parts of one node "
            f"({listing(single)}): use fewer clients or partition=random"
        )
    members = []
    for client in range(clients):
        nodes = parts[client // DRAWS]
        draw = stream(seed, client, -1, "overlap").permutation(len(nodes))[: len(nodes) // 2]
        members.append(nodes[np.sort(draw)])
    return members


def _label_skewed(graph: Graph, clients: int, seed: int, concentration: float) -> list[Array]:
    draws = stream(seed, SERVER, -1, "label-skew")
    least = max(1, min(LEAST_NODES, graph.nodes // (2 * clients)))
    of_class = [np.flatnonzero(graph.labels == label) for label in np.unique(graph.labels)]
    owner = np.empty(graph.nodes, dtype=np.int64)
    for _ in range(ATTEMPTS):
        for nodes in of_class:
            shares = draws.dirichlet(np.full(clients, concentration))
            bounds = np.round(np.cumsum(shares)[:-1] * len(nodes)).astype(np.int64)
            for client, part in enumerate(np.split(draws.permutation(nodes), bounds)):
                owner[part] = client
        if np.bincount(owner, minlength=clients).min() >= least:
            return _groups(owner, clients)
    raise PartitionError(
        f"concentration={concentration:g} left one of clients={clients} with fewer than {least} of the "
        f"{graph.nodes} nodes in {ATTEMPTS} draws: use a larger concentration or fewer clients"
    )


def _louvain(graph: Graph, clients: int, seed: int) -> list[Array]:
    # Imported here: only this mode needs it, and workers never do.
    import networkx as nx  # type: ignore[import-untyped]

    adjacency = graph.adjacency()
    network = nx.from_scipy_sparse_array(adjacency)
    communities = [np.array(sorted(found)) for found in nx.community.louvain_communities(network, seed=seed)]
    limit = graph.nodes // clients
    pieces = [piece for nodes in communities for piece in _cut(adjacency, nodes, limit)]
    pieces.sort(key=lambda piece: (-len(piece), piece[0]))
    sizes = np.zeros(clients, dtype=np.int64)
    owner = np.empty(graph.nodes, dtype=np.int64)
    for piece in pieces:
        client = int(np.argmin(sizes))
        sizes[client] += len(piece)
        owner[piece] = client
    return _groups(owner, clients)


def _cut(adjacency: sp.csr_array, nodes: Array, limit: int) -> list[Array]:
    """A community in pieces of at most `limit` nodes each, cut along a breadth-first order."""
    if len(nodes) <= limit:
        return [nodes]
    inside = sp.csr_array(adjacency[nodes][:, nodes])
    order = nodes[reverse_cuthill_mckee(inside, symmetric_mode=True)]
    return [np.sort(piece) for piece in np.array_split(order, -(-len(nodes) // limit))]


def _groups(owner: Array, groups: int) -> list[Array]:
    """Node ids of each group, ascending, from the group of each node."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=groups))[:-1])


def listing(numbers: Array | list[int], most: int = 10) -> str:
    """``3, 7 and 12``, for messages; past `most` numbers, how many more there are."""
    words = [str(number) for number in numbers]
    if len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
