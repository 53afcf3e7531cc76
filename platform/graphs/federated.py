"""From a scenario to the clients' private graphs: load, preprocess, split, partition, cut out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedatlas.platform.errors import ConfigurationError, PartitionError, unknown_name
from fedatlas.platform.graphs.catalog import Entry, entry
from fedatlas.platform.graphs.dealing import (
    GRAPH_CONCENTRATION,
    GRAPH_MODES,
    GraphMode,
    deal,
    quotas,
    quotas_sha256,
)
from fedatlas.platform.graphs.graph import Array, ClientGraph, FederatedGraph, Graph, GraphSet, Split
from fedatlas.platform.graphs.loading import load, load_graphs
from fedatlas.platform.graphs.partition import (
    CONCENTRATION,
    MODES,
    Mode,
    Partition,
    listing,
    partition,
)
from fedatlas.platform.graphs.preprocessing import SCALINGS, Scaling, largest_component, scale_features
from fedatlas.platform.graphs.splits import random_split
from fedatlas.platform.randomness import stream

Component: TypeAlias = Literal["largest", "all"]
ClientFeatures: TypeAlias = Literal["same", "permuted", "rotated"]
CHOICES: dict[str, tuple[str, ...]] = {
    "partition": (*MODES, *GRAPH_MODES),
    "features": ("default", *SCALINGS),
    "component": get_args(Component),
    "client_features": get_args(ClientFeatures),
}


class Scenario(BaseModel):
    """Which data the clients hold: everything that decides a `FederatedGraph`, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """Name in the catalog."""
    partition: Mode | GraphMode = "metis"
    """How the nodes are divided, see `fedatlas.platform.graphs.partition.partition`, or the graphs of a set,
    see `fedatlas.platform.graphs.dealing.quotas`; ``cross-dataset`` gives each client a set of a group."""
    clients: int = Field(ge=1)
    """Number of clients M."""
    seed: int = 0
    """Draws the split. Repetitions of an experiment differ in it and share the partition."""
    partition_seed: int = Field(default=0, ge=0, lt=2**31 - 1)
    """Seed of METIS, Louvain, the random assignment, the overlapping draws and the class shares."""
    concentration: float | None = Field(default=None, gt=0)
    """Of ``partition=label-skew`` and ``dirichlet``: beta of the Dirichlet distribution; small values mean
    strong skew."""
    features: Literal["default"] | Scaling = "default"
    """Scaling of the features; ``default`` is the protocol's for the data set (``row`` or ``none``)."""
    component: Component = "largest"
    """Keep the largest connected component, or the whole graph."""
    train_fraction: float | None = None
    """Share of all nodes or graphs to train on; the data set's published share if not given."""
    test_fraction: float | None = None
    """Share of all nodes to test on, the rest validates. If not given: the data set's published share, or
    half of what a given `train_fraction` leaves."""
    allow_untrained: bool = False
    """Accept clients that hold no training node."""
    client_features: ClientFeatures = "same"
    """``permuted``: every client has the feature columns in an order of its own, drawn from the seed;
    ``rotated``: its features are turned by an orthogonal matrix of its own, and are dense then."""
    uncut: bool = False
    """The centralised reference: one client holds the whole graph, and every part is scored by itself."""

    @field_validator(*CHOICES, mode="before")
    @classmethod
    def _known(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        if isinstance(value, str) and value not in CHOICES[name]:
            raise unknown_name(name, value, CHOICES[name])
        return value


def build(scenario: Scenario) -> FederatedGraph:
    """Load a data set and divide it among clients.

    The order is that of FED-PUB's published code: largest component, feature scaling, one global split, then
    the partition. Graphs and partitions are kept in a small in-process cache, since repetitions share them.

    Raises:
        ConfigurationError: the data set does not exist, or the fractions leave nothing for validation.
        DataError: the data set cannot be read, or its features cannot be scaled as asked.
        PartitionError: the graph cannot be divided as asked, or a client has no training node.
    """
    if entry(scenario.dataset).level == "graph":
        return _build_graphs(scenario)
    graph = preprocess(scenario)
    split = random_split(graph.nodes, *_fractions(scenario), scenario.seed)
    parts = _partition(
        scenario.dataset,
        scenario.component,
        scenario.partition,
        scenario.clients,
        scenario.partition_seed,
        scenario.concentration,
    )
    sha256 = data_sha256(scenario.dataset)
    if scenario.uncut:
        return _undivided(graph, parts, split, sha256)
    federated = divide(graph, parts, split, sha256=sha256, allow_untrained=scenario.allow_untrained)
    if scenario.client_features == "permuted":
        return _permuted(federated, scenario.seed)
    return _rotated(federated, scenario.seed) if scenario.client_features == "rotated" else federated


def concrete(scenario: Scenario) -> dict[str, object]:
    """What the scenario leaves open: `features`, `train_fraction`, `test_fraction` and `concentration`.

    Raises:
        ConfigurationError: the data set does not exist, or settings contradict each other.
    """
    _check_partition(scenario)
    if scenario.uncut and scenario.client_features != "same":
        raise ConfigurationError(
            "uncut=true holds the whole graph in one client: client_features must be 'same'"
        )
    usual = {"label-skew": CONCENTRATION, "dirichlet": GRAPH_CONCENTRATION}.get(scenario.partition)
    if scenario.concentration is not None and usual is None:
        raise ConfigurationError(
            f"concentration={scenario.concentration:g} belongs to partition=label-skew or dirichlet, "
            f"not to partition={scenario.partition}"
        )
    train, test = _fractions(scenario)
    return {
        "features": _scaling(scenario),
        "train_fraction": train,
        "test_fraction": test,
        "concentration": scenario.concentration or usual,
    }


def _check_partition(scenario: Scenario) -> None:
    """Refuse a division that the data set does not have.

    Raises:
        ConfigurationError: with the ones that it has.
    """
    published = entry(scenario.dataset)
    fitting: tuple[str, ...] = ("cross-dataset",) if published.members else ("iid", "dirichlet")
    if published.level == "node":
        fitting = MODES
    if scenario.partition not in fitting:
        what = "one graph" if published.level == "node" else "a set of graphs"
        raise ConfigurationError(
            f"partition={scenario.partition} does not divide {published.name}, which is "
            f"{'a group of sets' if published.members else what}: use partition={' or '.join(fitting)}"
        )
    if published.members and scenario.clients != len(published.members):
        raise ConfigurationError(
            f"clients={scenario.clients}: {published.name} has {len(published.members)} sets, one for each "
            f"client: use clients={len(published.members)}"
        )
    if published.level == "graph":
        for name, usual in {"features": ("default", "none"), "client_features": ("same",)}.items():
            if (value := getattr(scenario, name)) not in usual:
                raise ConfigurationError(
                    f"{name}={value} is for the nodes of one graph, and {published.name} is a set of graphs: "
                    f"use {name}={usual[0]}"
                )
        if scenario.uncut:
            raise ConfigurationError(f"uncut=true: {published.name} is a set of graphs, none of which is cut")


def preprocess(scenario: Scenario) -> Graph:
    """Whole graph that a scenario divides: the clients' node ids refer to it."""
    return scale_features(_whole(scenario.dataset, scenario.component), _scaling(scenario))


def divide(
    graph: Graph,
    parts: Partition,
    split: Split,
    *,
    sha256: str | None = None,
    allow_untrained: bool = False,
) -> FederatedGraph:
    """Cut the induced subgraph of each client out of a graph, in time O(n + e + sum of the clients' degrees).

    A node has the same role (train, validation, test) in every client that holds it.

    Args:
        graph: n nodes, e directed edges.
        parts: members of each client.
        split: masks [n].
        sha256: hash of the data before preprocessing; that of `graph` if not given.
        allow_untrained: accept clients without a training node.

    Raises:
        PartitionError: a client has no training node.
    """
    if not allow_untrained:
        untrained = [client for client, nodes in enumerate(parts.members) if not split.train[nodes].any()]
        if untrained:
            who = (
                f"client {untrained[0]} has" if len(untrained) == 1 else f"clients {listing(untrained)} have"
            )
            raise PartitionError(
                f"{who} no training node ({graph.name}, clients={parts.clients}, partition={parts.mode}): "
                "use another seed, fewer clients or a larger train_fraction, or set allow_untrained=true"
            )
    starts = np.searchsorted(graph.edges[0], np.arange(graph.nodes + 1))
    local = np.full(graph.nodes, -1, dtype=np.int64)
    held = np.zeros(graph.edges.shape[1], dtype=bool)
    clients = []
    for client, nodes in enumerate(parts.members):
        local[nodes] = np.arange(len(nodes))
        positions = _incident(starts, nodes)
        positions = positions[local[graph.edges[1, positions]] >= 0]
        held[positions] = True
        clients.append(
            ClientGraph(
                client=client,
                nodes=nodes,
                features=graph.features[nodes],
                edges=local[graph.edges[:, positions]],
                labels=graph.labels[nodes],
                train=split.train[nodes],
                validation=split.validation[nodes],
                test=split.test[nodes],
            )
        )
        local[nodes] = -1
    return FederatedGraph(
        name=graph.name,
        clients=tuple(clients),
        features=int(graph.features.shape[1]),
        classes=graph.classes,
        metric=graph.metric,
        kind=graph.kind,
        sha256=sha256 or graph.sha256(),
        partition_sha256=parts.sha256(),
        lost_edges=int(np.count_nonzero(~held)) // 2,
    )


def _build_graphs(scenario: Scenario) -> FederatedGraph:
    """Clients with whole graphs: of one set, or of a set each."""
    _check_partition(scenario)
    published = entry(scenario.dataset)
    train, test = _fractions(scenario)
    sets = [_loaded_graphs(name)[0] for name in published.members or (scenario.dataset,)]
    mode = "iid" if published.members else scenario.partition
    each = 1 if published.members else scenario.clients
    wanted = [
        quotas(
            np.bincount(graphs.labels, minlength=graphs.classes),
            mode,
            each,
            train,
            test,
            scenario.partition_seed,
            scenario.concentration,
        )
        for graphs in sets
    ]
    held = [
        (graphs, *part)
        for graphs, counts in zip(sets, wanted, strict=True)
        for part in deal(graphs.labels, counts, scenario.seed)
    ]
    hashes = "".join(map(quotas_sha256, wanted))
    return FederatedGraph(
        name=scenario.dataset,
        clients=tuple(
            _client_of_graphs(client, graphs, ids, roles, published)
            for client, (graphs, ids, roles) in enumerate(held)
        ),
        features=published.features,
        classes=published.classes,
        metric=published.metric,
        kind=published.kind,
        sha256=data_sha256(scenario.dataset),
        partition_sha256=hashes if len(wanted) == 1 else hashlib.sha256(hashes.encode()).hexdigest(),
        lost_edges=0,
        level="graph",
    )


def _client_of_graphs(
    client: int, graphs: GraphSet, ids: Array, roles: Array, published: Entry
) -> ClientGraph:
    nodes, features, edges, starts = graphs.select(ids)
    return ClientGraph(
        client=client,
        nodes=nodes,
        features=features,
        edges=edges,
        labels=graphs.labels[ids],
        train=roles == 0,
        validation=roles == 1,
        test=roles == 2,
        starts=starts,
        classes=graphs.classes if published.members else None,
    )


def _undivided(graph: Graph, parts: Partition, split: Split, sha256: str) -> FederatedGraph:
    """One client with the whole graph, scored on each part."""
    whole = divide(graph, Partition("metis", 1, (np.arange(graph.nodes),)), split, sha256=sha256)
    client = replace(whole.clients[0], groups=parts.members)
    return replace(whole, clients=(client,), partition_sha256=parts.sha256())


def _permuted(federated: FederatedGraph, seed: int) -> FederatedGraph:
    """Feature columns in an order of each client's own."""
    clients = []
    for client in federated.clients:
        order = stream(seed, client.client, -1, "feature order").permutation(federated.features)
        clients.append(replace(client, features=client.features[:, order]))
    return replace(federated, clients=tuple(clients))


def _rotated(federated: FederatedGraph, seed: int) -> FederatedGraph:
    """Features times an orthogonal matrix of each client's own, uniform over all of them (Mezzadri 2007)."""
    clients = []
    for client in federated.clients:
        draw = stream(seed, client.client, -1, "feature rotation")
        basis, triangle = np.linalg.qr(draw.standard_normal((federated.features, federated.features)))
        turned = client.features @ (basis * np.sign(np.diag(triangle)))
        clients.append(replace(client, features=np.asarray(turned, dtype=np.float32)))
    return replace(federated, clients=tuple(clients))


def _incident(starts: Array, nodes: Array) -> Array:
    """Positions in the sorted edge list of all edges that start at the given nodes."""
    counts = starts[nodes + 1] - starts[nodes]
    offsets = starts[nodes] - (np.cumsum(counts) - counts)
    return np.repeat(offsets, counts) + np.arange(counts.sum())


def _scaling(scenario: Scenario) -> Scaling:
    if scenario.features != "default":
        return scenario.features
    return "row" if entry(scenario.dataset).row_normalise else "none"


def _fractions(scenario: Scenario) -> tuple[float, float]:
    train, _, test = entry(scenario.dataset).split
    if scenario.train_fraction is not None:
        train, test = scenario.train_fraction, (1 - scenario.train_fraction) / 2
    return train, test if scenario.test_fraction is None else scenario.test_fraction


def data_sha256(dataset: str) -> str:
    """Hash of a data set's arrays before preprocessing.

    Raises:
        ConfigurationError: the data set does not exist.
        DataError: it cannot be read.
    """
    published = entry(dataset)
    if published.members:
        parts = "".join(data_sha256(member) for member in published.members)
        return hashlib.sha256(parts.encode()).hexdigest()
    return _loaded_graphs(dataset)[1] if published.level == "graph" else _loaded(dataset)[1]


@lru_cache(maxsize=13)
def _loaded_graphs(dataset: str) -> tuple[GraphSet, str]:
    graphs = load_graphs(dataset)
    return graphs, graphs.sha256()


@lru_cache(maxsize=2)
def _loaded(dataset: str) -> tuple[Graph, str]:
    graph = load(dataset)
    return graph, graph.sha256()


@lru_cache(maxsize=2)
def _whole(dataset: str, component: str) -> Graph:
    graph, _ = _loaded(dataset)
    return largest_component(graph) if component == "largest" else graph


@lru_cache(maxsize=16)
def _partition(
    dataset: str, component: str, mode: Mode, clients: int, seed: int, concentration: float | None
) -> Partition:
    return partition(_whole(dataset, component), mode, clients, seed, concentration)
