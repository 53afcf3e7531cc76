"""From a scenario to the clients' private graphs: load, preprocess, split, partition, cut out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedatlas.platform.errors import ConfigurationError, PartitionError, unknown_name
from fedatlas.platform.graphs import membership, own
from fedatlas.platform.graphs.catalog import Entry, entry
from fedatlas.platform.graphs.dealing import (
    GRAPH_CONCENTRATION,
    GRAPH_MODES,
    deal,
    quotas,
    quotas_sha256,
)
from fedatlas.platform.graphs.graph import (
    Array,
    ClientGraph,
    FederatedGraph,
    Graph,
    GraphSet,
    Metric,
    Split,
)
from fedatlas.platform.graphs.loading import load, load_graphs
from fedatlas.platform.graphs.partition import (
    CONCENTRATION,
    MODES,
    Partition,
    listing,
    partition,
)
from fedatlas.platform.graphs.preprocessing import (
    SCALINGS,
    Scaling,
    in_largest_component,
    largest_component,
    scale_features,
)
from fedatlas.platform.graphs.splits import random_split
from fedatlas.platform.randomness import stream

Component: TypeAlias = Literal["largest", "all"]
ClientFeatures: TypeAlias = Literal["same", "permuted", "rotated"]
CHOICES: dict[str, tuple[str, ...]] = {
    "partition": (*MODES, *GRAPH_MODES, "own"),
    "features": ("default", *SCALINGS),
    "component": get_args(Component),
    "client_features": get_args(ClientFeatures),
    "metric": get_args(Metric),
    "split": ("random", "own"),
}


class Scenario(BaseModel):
    """Which data the clients hold: everything that decides a `FederatedGraph`, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """Name in the catalog, or the path of a graph, see `fedatlas.platform.graphs.own`."""
    partition: str = "metis"
    """How the nodes are divided, see `fedatlas.platform.graphs.partition.partition`, or the graphs of a set,
    see `fedatlas.platform.graphs.dealing.quotas`; ``cross-dataset`` gives each client a set of a group;
    ``own``: as the graph's file says; or the path of a membership file, see
    `fedatlas.platform.graphs.membership`."""
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
    component: Component | None = None
    """Keep the ``largest`` connected component, or ``all``; of published sets the largest one, of own graphs
    all if not given."""
    split: Literal["random", "own"] | None = None
    """``own``: the masks of the graph's or the membership's file; ``random``: drawn from the seed. If not
    given, own masks where there are some."""
    metric: Metric | None = None
    """Score of an own graph with two classes: ``accuracy`` (if not given) or ``auc``."""
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
            if name == "partition" and own.is_path(value):
                return str(own.path_of(value))
            raise unknown_name(name, value, CHOICES[name])
        return value

    @field_validator("dataset")
    @classmethod
    def _absolute(cls, value: str) -> str:
        """Processes that work for an experiment may live in other folders."""
        return str(own.path_of(value)) if own.is_path(value) else value


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
    split, parts = _roles(scenario, graph), _parts(scenario)
    sha256 = data_sha256(scenario.dataset)
    if scenario.uncut:
        return _undivided(graph, parts, split, sha256)
    federated = divide(graph, parts, split, sha256=sha256, allow_untrained=scenario.allow_untrained)
    if scenario.client_features == "permuted":
        return _permuted(federated, scenario.seed)
    return _rotated(federated, scenario.seed) if scenario.client_features == "rotated" else federated


def concrete(scenario: Scenario) -> dict[str, object]:
    """What the scenario leaves open: `features`, `component`, `split`, fractions and `concentration`.

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
    _check_metric(scenario)
    train: float | None
    test: float | None
    train, test = _fractions(scenario)
    drawn = not _own_roles(scenario)
    if not drawn:
        train = test = None
    return {
        "features": _scaling(scenario),
        "component": _component(scenario) if entry(scenario.dataset).level == "node" else None,
        "split": ("random" if drawn else "own") if _has_roles(scenario) else None,
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
    brought = published.level == "node" and is_brought(scenario.partition)
    if scenario.partition not in fitting and not brought:
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
    graph = scale_features(
        _whole(scenario.dataset, _component(scenario), _version(scenario.dataset)), _scaling(scenario)
    )
    return graph if scenario.metric in (None, graph.metric) else replace(graph, metric=scenario.metric)


@dataclass(frozen=True)
class Placed:
    """Who holds what in the whole graph, before any component is left out.

    Attributes:
        members: nodes of each client, ascending.
        split: roles of the nodes.
        names: names of the nodes; None if they are numbers.
        client_names: names of the clients; empty if they are numbers.
    """

    members: tuple[Array, ...]
    split: Split
    names: Array | None
    client_names: tuple[str, ...]


def placed(scenario: Scenario) -> Placed:
    """Clients and roles of a scenario in the numbering of the whole graph, for a file."""
    kept = _kept(scenario)
    places, brought = np.flatnonzero(kept), _brought(scenario.dataset)
    split = _roles(scenario, preprocess(scenario))
    masks = np.zeros((3, kept.size), dtype=bool)
    masks[:, kept] = split.train, split.validation, split.test
    names: tuple[str, ...] = ()
    if scenario.partition == "own" and brought is not None:
        names = brought.client_names
    elif own.is_path(scenario.partition):
        names = membership.read(scenario.partition).names
    return Placed(
        members=tuple(places[nodes] for nodes in _parts(scenario).members),
        split=Split(*masks),
        names=None if brought is None else brought.names,
        client_names=names,
    )


def metric_of(scenario: Scenario) -> Metric:
    """Score of a scenario's task."""
    return scenario.metric or entry(scenario.dataset).metric


def is_brought(partition: str) -> bool:
    """Whether clients are given by the data or by a file, and not drawn."""
    return partition == "own" or own.is_path(partition)


def count_clients(dataset: str, partition: str) -> int:
    """Number of clients that the graph's file (``partition=own``) or a membership file names.

    Raises:
        PartitionError: it names none.
    """
    if partition == "own":
        return len(_clients_of(dataset).client_names)
    return len(membership.read(partition).names)


def data_name(dataset: str) -> str:
    """Name in tables and tracked runs; it says nothing about where an own graph lies."""
    return f"{own.OWN_PREFIX}{own.title(dataset)}" if own.is_path(dataset) else dataset


def partition_name(partition: str) -> str:
    """The same of a partition."""
    return f"{own.OWN_PREFIX}{own.title(partition)}" if own.is_path(partition) else partition


def content(scenario: Scenario) -> dict[str, str]:
    """What an own graph and a membership file hold, as hashes in place of their paths."""
    found = {}
    if own.is_path(scenario.dataset):
        found["dataset"] = own.OWN_PREFIX + own.load(scenario.dataset).sha256[:20]
    if own.is_path(scenario.partition):
        found["partition"] = own.OWN_PREFIX + membership.read(scenario.partition).sha256()[:20]
    return found


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


def _component(scenario: Scenario) -> Component:
    return scenario.component or ("all" if own.is_path(scenario.dataset) else "largest")


def _check_metric(scenario: Scenario) -> None:
    if scenario.metric is None:
        return
    published = entry(scenario.dataset)
    if published.kind != "own" and scenario.metric != published.metric:
        raise ConfigurationError(
            f"metric={scenario.metric}: the score of {scenario.dataset} is {published.metric}: leave it out"
        )
    if scenario.metric == "auc" and published.classes != 2:
        raise ConfigurationError(f"metric=auc needs two classes; {published.title} has {published.classes}")


# Own roles and clients


def _brought(dataset: str) -> own.OwnGraph | None:
    return own.load(dataset) if own.is_path(dataset) else None


def _clients_of(dataset: str) -> own.OwnGraph:
    brought = _brought(dataset)
    if brought is None:
        entry(dataset)
    if brought is None or brought.clients is None:
        raise PartitionError(
            f"partition=own: {dataset} names no clients; give its nodes a column or array `client`, or "
            "name a "
            "membership file in place of own"
        )
    return brought


def _has_roles(scenario: Scenario) -> bool:
    brought = _brought(scenario.dataset)
    masks = brought is not None and brought.masks.shape[1] > 0
    return masks or (
        own.is_path(scenario.partition) and membership.read(scenario.partition).roles is not None
    )


def _own_roles(scenario: Scenario) -> bool:
    """Whether the roles come from a file."""
    drawn = scenario.train_fraction is not None or scenario.test_fraction is not None
    if scenario.split != "own":
        return scenario.split is None and not drawn and _has_roles(scenario)
    if drawn:
        raise ConfigurationError(
            "split=own takes the roles from the file: leave train_fraction and test_fraction out"
        )
    if not _has_roles(scenario):
        raise ConfigurationError(
            f"split=own: {data_name(scenario.dataset)} has no masks (train_mask, val_mask, test_mask, or a "
            "column `role`) and neither has the membership: use split=random"
        )
    return True


def _kept(scenario: Scenario) -> Array:
    """Which nodes of the whole graph the component keeps."""
    graph = _loaded(scenario.dataset, _version(scenario.dataset))[0]
    if _component(scenario) == "all":
        return np.ones(graph.nodes, dtype=bool)
    return in_largest_component(graph)


def _roles(scenario: Scenario, graph: Graph) -> Split:
    brought = _brought(scenario.dataset)
    if not _own_roles(scenario):
        fractions = _fractions(scenario)
        if brought is None or brought.labelled.all():
            return random_split(graph.nodes, *fractions, scenario.seed)
        usable = np.flatnonzero(brought.labelled[_kept(scenario)])
        drawn = random_split(usable.size, *fractions, scenario.seed)
        masks = np.zeros((3, graph.nodes), dtype=bool)
        for mask, role in zip(masks, (drawn.train, drawn.validation, drawn.test), strict=True):
            mask[usable[role]] = True
        return Split(*masks)
    kept = _kept(scenario)
    if own.is_path(scenario.partition):
        found = membership.read(scenario.partition)
        whole = membership.split(
            found, scenario.partition, scenario.dataset, kept.size, None if brought is None else brought.names
        )
        if whole is not None:
            usable = kept if brought is None else kept & brought.labelled
            return Split(*((mask & usable)[kept] for mask in (whole.train, whole.validation, whole.test)))
    assert brought is not None
    return Split(*brought.masks[:, scenario.seed % brought.masks.shape[1]][:, kept])


def _parts(scenario: Scenario) -> Partition:
    if not is_brought(scenario.partition):
        return _partition(
            scenario.dataset,
            _component(scenario),
            scenario.partition,
            scenario.clients,
            scenario.partition_seed,
            scenario.concentration,
            _version(scenario.dataset),
        )
    where = f"partition={partition_name(scenario.partition)}"
    if scenario.partition == "own":
        given = _clients_of(scenario.dataset)
        assert given.clients is not None
        names = given.client_names
        held: tuple[Array, ...] = tuple(
            np.flatnonzero(given.clients == client) for client in range(len(names))
        )
    else:
        found, brought = membership.read(scenario.partition), _brought(scenario.dataset)
        graph = _loaded(scenario.dataset, _version(scenario.dataset))[0]
        names = found.names
        held = membership.members(
            found,
            scenario.partition,
            scenario.dataset,
            graph.nodes,
            None if brought is None else brought.names,
            data_sha256(scenario.dataset),
        )
    if len(held) != scenario.clients:
        raise PartitionError(
            f"clients={scenario.clients}: {where} has {len(held)} clients; leave clients out, or say "
            f"clients={len(held)}"
        )
    kept = _kept(scenario)
    number = np.cumsum(kept) - 1
    members = tuple(number[nodes[kept[nodes]]] for nodes in held)
    empty = [names[client] for client, nodes in enumerate(members) if not nodes.size]
    if empty:
        raise PartitionError(
            f"{where}: no node of client {empty[0]} is in the largest connected component: use component=all"
        )
    return Partition("own", len(members), members)


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
    if published.level == "graph":
        return _loaded_graphs(dataset)[1]
    return _version(dataset) or _loaded(dataset)[1]


def _version(dataset: str) -> str:
    """Hash of an own graph, which may change under its path; published sets do not."""
    return own.load(dataset).sha256 if own.is_path(dataset) else ""


@lru_cache(maxsize=13)
def _loaded_graphs(dataset: str) -> tuple[GraphSet, str]:
    graphs = load_graphs(dataset)
    return graphs, graphs.sha256()


@lru_cache(maxsize=2)
def _loaded(dataset: str, version: str = "") -> tuple[Graph, str]:
    graph = load(dataset)
    return graph, version or graph.sha256()


@lru_cache(maxsize=2)
def _whole(dataset: str, component: str, version: str = "") -> Graph:
    graph, _ = _loaded(dataset, version)
    return largest_component(graph) if component == "largest" else graph


@lru_cache(maxsize=16)
def _partition(
    dataset: str,
    component: str,
    mode: str,
    clients: int,
    seed: int,
    concentration: float | None,
    version: str = "",
) -> Partition:
    return partition(_whole(dataset, component, version), mode, clients, seed, concentration)
