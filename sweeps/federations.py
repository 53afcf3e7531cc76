"""Small federations on which methods are checked: random block graphs, and the edge cases of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedatlas.algorithms.registry import Method
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.privacy import UNPROTECTED, Privacy
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.platform.federation.runtime import InlineRuntime, Job, Runtime
from fedatlas.platform.federation.state import Packed, pack, to_cpu
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import ClientGraph

SMALL = {
    "hidden": 8,
    "templates": 4,
    "sampled_nodes": 6,
    "pseudo_nodes": 12,
    "pseudo_graphs": 2,
    "personal_epochs": 3,
    # So that neighbours are generated within a few steps.
    "generator_epochs": 4,
    "generator_lr": 0.05,
    "hidden_portion": 1.0,
    "exchange_epochs": 2,
    "encoder_width": 8,
    "latent": 8,
    "inner_width": 8,
    "generator_width": 8,
    "walks": 4,
    "degrees": 3,
}
"""Sizes for checks, given to every method whose configuration has the option."""


@dataclass(frozen=True)
class Federation:
    """Clients' graphs and their task."""

    graphs: tuple[ClientGraph, ...]
    task: Task

    def changed(self, client: int, **fields: Any) -> Federation:
        """The same federation with some fields of one client replaced."""
        graphs = list(self.graphs)
        graphs[client] = replace(graphs[client], **fields)
        return replace(self, graphs=tuple(graphs))

    def job(self, method: Method, precision: Any = "float64", privacy: Privacy = UNPROTECTED) -> Job:
        return Job(method, self.graphs, self.task, precision, privacy)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind: packed states hold [M, ...] for the clients."""

    records: tuple[RoundRecord, ...]
    server: Packed
    clients: Packed

    def scores(self) -> np.ndarray:
        """Validation and test scores of every round and client, [R, 2, M]."""
        return np.array([[record.client_validation, record.client_test] for record in self.records])


def _client(
    number: int, size: int, classes: int, features: int, generator: np.random.Generator
) -> ClientGraph:
    labels = np.concatenate([np.arange(min(classes, size)), generator.integers(0, classes, size)])[:size]
    source, target = np.triu_indices(size, 1)
    odds = np.where(labels[source] == labels[target], 5.0, 1.5) / size
    kept = generator.random(source.size) < odds
    centres = np.linspace(0, np.pi, classes)[:, None] + np.arange(features)
    values = np.cos(centres)[labels] + 0.5 * generator.standard_normal((size, features))
    roles = np.arange(size) % 3
    return ClientGraph(
        client=number,
        nodes=np.arange(size),
        features=np.maximum(values, 0).astype(np.float32),
        edges=undirected(np.stack([source[kept], target[kept]]), size),
        labels=labels.astype(np.int64),
        train=roles == 0,
        validation=roles == 1,
        test=roles == 2,
    )


def make_federation(
    sizes: Sequence[int] = (17, 9, 23, 12),
    classes: int = 3,
    features: int = 6,
    sparse: bool = False,
    metric: Any = "accuracy",
    seed: int = 0,
) -> Federation:
    """Stochastic block graphs, one per size, whose features depend on the class; about half are zero."""
    generator = np.random.default_rng(100 + seed)
    graphs = tuple(_client(m, size, classes, features, generator) for m, size in enumerate(sizes))
    if sparse:
        graphs = tuple(replace(graph, features=sp.csr_array(graph.features)) for graph in graphs)
    return Federation(graphs, Task(len(graphs), features, classes, metric, seed))


def _client_of_graphs(
    number: int, graphs: int, classes: int, features: int, generator: np.random.Generator
) -> ClientGraph:
    """Random graphs of 1 to 7 nodes; the class sets the density and the features."""
    labels = np.arange(graphs) % classes
    sizes = generator.integers(1, 8, graphs)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    of_node = np.repeat(np.arange(graphs), sizes)
    source, target = np.triu_indices(starts[-1], 1)
    odds = (of_node[source] == of_node[target]) * (0.3 + 0.5 * labels[of_node[source]] / classes)
    kept = generator.random(source.size) < odds
    values = np.cos(labels[of_node][:, None] + np.arange(features))
    values = np.maximum(values + 0.5 * generator.standard_normal((starts[-1], features)), 0)
    roles = np.arange(graphs) // classes % 3
    return ClientGraph(
        client=number,
        nodes=np.arange(starts[-1]),
        features=values.astype(np.float32),
        edges=undirected(np.stack([source[kept], target[kept]]), int(starts[-1])),
        labels=labels.astype(np.int64),
        train=roles == 0,
        validation=roles == 1,
        test=roles == 2,
        starts=starts.astype(np.int64),
    )


def make_graph_federation(
    graphs: Sequence[int] = (21, 9, 30, 12),
    classes: int = 3,
    features: int = 6,
    sparse: bool = False,
    seed: int = 0,
    widths: Sequence[int] | None = None,
    own_classes: Sequence[int] | None = None,
) -> Federation:
    """Clients with so many graphs each; with `widths` and `own_classes`, of other features and classes."""
    generator = np.random.default_rng(200 + seed)
    clients = []
    for m, count in enumerate(graphs):
        of_client = own_classes[m] if own_classes else classes
        width = widths[m] if widths else features
        client = _client_of_graphs(m, count, of_client, width, generator)
        if sparse:
            client = replace(client, features=sp.csr_array(client.features))
        clients.append(replace(client, classes=of_client if own_classes else None))
    return Federation(tuple(clients), Task(len(clients), features, classes, "accuracy", seed, level="graph"))


def _single_class(whole: Federation) -> Federation:
    return whole.changed(1, labels=np.full(whole.graphs[1].size, 2))


def _missing_classes(whole: Federation) -> Federation:
    return whole.changed(0, labels=whole.graphs[0].labels % 2).changed(
        2, labels=1 + whole.graphs[2].labels % 2
    )


def _edgeless(whole: Federation) -> Federation:
    return whole.changed(2, edges=np.zeros((2, 0), dtype=np.int64))


def _isolated_nodes(whole: Federation) -> Federation:
    edges = whole.graphs[0].edges
    return whole.changed(0, edges=edges[:, (edges >= 5).all(axis=0)])


def _untrained(whole: Federation) -> Federation:
    nobody = np.zeros(whole.graphs[3].size, dtype=bool)
    return whole.changed(3, train=nobody, test=~whole.graphs[3].validation)


def _absent_class(whole: Federation) -> Federation:
    return replace(whole, task=replace(whole.task, classes=5))


def _zero_features(whole: Federation) -> Federation:
    return whole.changed(1, features=np.zeros_like(whole.graphs[1].features))


def _same(whole: Federation) -> Federation:
    return whole


ODD: dict[str, tuple[dict[str, Any], Callable[[Federation], Federation]]] = {
    "single-class client": ({}, _single_class),
    "missing classes": ({}, _missing_classes),
    "edgeless client": ({}, _edgeless),
    "isolated nodes": ({}, _isolated_nodes),
    "client without training nodes": ({}, _untrained),
    "one client": ({"sizes": (14,)}, _same),
    "class absent everywhere": ({}, _absent_class),
    "client whose features are zero": ({}, _zero_features),
    "two classes, AUC": ({"classes": 2, "metric": "auc"}, _same),
    "two classes, AUC, single-class client": (
        {"classes": 2, "metric": "auc"},
        lambda w: w.changed(1, labels=np.zeros(w.graphs[1].size, dtype=np.int64)),
    ),
    "one-node client": ({"sizes": (17, 1, 9)}, _same),
}
"""Arguments of `make_federation`, and a change, for each edge case of the protocol."""


def odd_federation(case: str) -> Federation:
    """The federation of an edge case."""
    arguments, change = ODD[case]
    return change(make_federation(**arguments))


def run(
    method: Method,
    federation: Federation,
    rounds: int = 4,
    per_cohort: int | None = None,
    precision: str = "float64",
    runtime: Runtime | None = None,
    privacy: Privacy = UNPROTECTED,
    **schedule: Any,
) -> Outcome:
    """Run a method on a federation in this process, in float64 unless told otherwise."""
    runtime = runtime or InlineRuntime(per_cohort)
    job = federation.job(method, precision, privacy)
    coordinator = Coordinator(job, runtime, Schedule(rounds=rounds, **schedule))
    coordinator.start()
    while not coordinator.finished:
        coordinator.advance()
    return Outcome(tuple(coordinator.records), to_cpu(pack(coordinator._server)), to_cpu(runtime.state()))


def require_same_run(first: Outcome, second: Outcome, tolerance: float = 0.0, scores: bool = True) -> None:
    """Check that two runs have the same scores, metrics, bytes and states; exactly if the tolerance is 0.

    Raises:
        AssertionError: says what differs, and by how much.
    """
    if scores:
        np.testing.assert_allclose(first.scores(), second.scores(), rtol=0, atol=tolerance)
    _compare(first.server, second.server, tolerance, "server")
    _compare(first.clients, second.clients, tolerance, "clients")
    for one, other in zip(first.records, second.records, strict=True):
        place = f"round {one.round}"
        if one.metrics.keys() != other.metrics.keys():
            raise AssertionError(f"{place}: figures {sorted(one.metrics)} and {sorted(other.metrics)}")
        for name, value in one.metrics.items():
            np.testing.assert_allclose(
                value, other.metrics[name], rtol=0, atol=tolerance, err_msg=f"{place}/{name}"
            )
        if (one.uplink, one.downlink) != (other.uplink, other.downlink):
            raise AssertionError(f"{place}: bytes differ")


def _compare(first: Any, second: Any, tolerance: float, place: str) -> None:
    if isinstance(first, dict):
        if first.keys() != second.keys():
            raise AssertionError(f"{place}: {sorted(first)} and {sorted(second)}")
        for name in first:
            _compare(first[name], second[name], tolerance, f"{place}/{name}")
    elif isinstance(first, tuple):
        for position, (one, other) in enumerate(zip(first, second, strict=True)):
            _compare(one, other, tolerance, f"{place}/{position}")
    elif isinstance(first, torch.Tensor):
        torch.testing.assert_close(
            first, second, rtol=1e-9, atol=tolerance, msg=lambda text: f"{place}: {text}", equal_nan=True
        )
    elif isinstance(first, int | float) and not isinstance(first, bool):
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance, err_msg=place)
    elif first != second:
        raise AssertionError(f"{place}: {first} and {second}")
