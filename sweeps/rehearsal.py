"""What a method sends, found out without data: two rounds among a few clients of a few nodes.

Message sizes follow from a method's own messages and are polynomials in the sizes of the task. So rehearsals
with few features and classes give the bytes for many: they are taken to be linear in the number of features,
quadratic in that of classes and, for one client, linear in the number of clients and in that of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.registry import create, validate
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.privacy import Privacy
from fedatlas.platform.federation.runtime import InlineRuntime, Job
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import ClientGraph
from fedatlas.sweeps.experiment import Experiment

CLIENTS, NODES = 2, 12
MORE_CLIENTS, MORE_NODES = 3, 36
WIDTHS, CLASSES = (8, 16), (2, 3, 5)
"""Numbers of features and classes of the rehearsals."""
SILENT = ("lr", "local_lr", "weight_decay", "dropout", "input_dropout", "activation", "epochs")
"""Options that change no message."""
OVERLAP = 5 / 2
"""Nodes of all clients together by nodes of the graph under ``metis-overlap``: 5 draws of half a part."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients together.

    Attributes:
        uplink, downlink: per federated round, mean over the rounds.
        preparation: before round 0, both directions.
    """

    uplink: float
    downlink: float
    preparation: float

    def total(self, rounds: int) -> float:
        """Bytes of a run."""
        return self.preparation + rounds * (self.uplink + self.downlink)


def traffic(given: Experiment) -> Traffic:
    """What an experiment will send.

    Args:
        given: resolved, with every option filled in.
    """
    sizes = entry(given.dataset)
    clients = 1 if given.uncut else given.clients
    nodes = sizes.nodes * (OVERLAP if given.partition == "metis-overlap" else 1.0) / clients
    usual = validate(given.algorithm, {}).model_dump(mode="json")
    options = tuple(
        (key, _frozen(value))
        for key, value in sorted(given.options.items())
        if key not in SILENT and value != usual.get(key)
    )
    method = (given.algorithm, given.backbone, options, bool(given.secure_aggregation))
    base = _one_client(method, sizes.features, sizes.classes, CLIENTS, NODES)
    by_clients, by_nodes = _grows(method)
    found = base
    if by_clients:
        more = _one_client(method, sizes.features, sizes.classes, MORE_CLIENTS, NODES)
        found = found + (clients - CLIENTS) / (MORE_CLIENTS - CLIENTS) * (more - base)
    if by_nodes:
        more = _one_client(method, sizes.features, sizes.classes, CLIENTS, MORE_NODES)
        found = found + (nodes - NODES) / (MORE_NODES - NODES) * (more - base)
    found = np.maximum(np.rint(found), 0.0)
    rounds = given.rounds or sizes.rounds
    training = max(1, round((given.participation or 1.0) * clients))
    first_up, first_down, later_up, later_down = (training * found[:4]).tolist()
    return Traffic(
        uplink=(first_up + (rounds - 1) * later_up) / rounds,
        downlink=(first_down + (rounds - 1) * later_down) / rounds,
        preparation=float(clients * found[4]),
    )


_Method = tuple[str, str | None, tuple[tuple[str, Any], ...], bool]


def _one_client(method: _Method, features: int, classes: int, clients: int, nodes: int) -> np.ndarray:
    """Bytes of one client as `_rehearse` counts them, for any number of features and classes."""
    total = np.zeros(5)
    for width, by_width in zip(WIDTHS, _lagrange(features, WIDTHS), strict=True):
        for count, by_count in zip(CLASSES, _lagrange(classes, CLASSES), strict=True):
            total += by_width * by_count * _rehearse(method, width, count, clients, nodes)
    return total


def _lagrange(place: float, known: Sequence[int]) -> list[float]:
    """Weights of a polynomial's values at the known places in its value at another."""
    return [
        float(np.prod([(place - other) / (one - other) for other in known if other != one])) for one in known
    ]


@lru_cache(maxsize=1024)
def _grows(method: _Method) -> tuple[bool, bool]:
    """Whether a client's messages grow with the number of clients, and with that of its nodes."""
    width, classes = WIDTHS[0], CLASSES[0]
    base = _rehearse(method, width, classes, CLIENTS, NODES)
    return (
        not np.allclose(_rehearse(method, width, classes, MORE_CLIENTS, NODES), base, atol=0.5),
        not np.allclose(_rehearse(method, width, classes, CLIENTS, MORE_NODES), base, atol=0.5),
    )


@lru_cache(maxsize=4096)
def _rehearse(method: _Method, features: int, classes: int, clients: int, nodes: int) -> np.ndarray:
    """Bytes of one client: [up, down] of the first round and of the second, and before both."""
    name, backbone, options, secure = method
    chosen = create(name, backbone, {key: _thawed(value) for key, value in options})
    level = BACKBONES[backbone].levels[0] if backbone in BACKBONES else "node"
    make = _graph if level == "node" else _pairs
    graphs = tuple(make(client, nodes, features, classes) for client in range(clients))
    task = Task(clients, features, classes, "accuracy", seed=0, level=level)
    job = Job(chosen, graphs, task, privacy=Privacy(secure_aggregation=secure))
    coordinator = Coordinator(job, InlineRuntime(), Schedule(rounds=2, checkpoint_every=0))
    coordinator.start()
    records = [coordinator.advance() for _ in range(2)]
    figures = [_sum(side) for record in records for side in (record.uplink, record.downlink)]
    before = records[0].preparation
    figures.append(0 if before is None else _sum(before.uplink) + _sum(before.downlink))
    return np.array(figures) / clients


def _sum(fields: Mapping[str, int]) -> int:
    return sum(fields.values())


def _graph(client: int, nodes: int, features: int, classes: int) -> ClientGraph:
    """A ring with chords, a class per position, features that are not all zero."""
    place = np.arange(nodes)
    generator = np.random.default_rng([client, nodes])
    edges = np.stack(
        [np.concatenate([place, place]), np.concatenate([(place + 1) % nodes, (place + 4) % nodes])]
    )
    return ClientGraph(
        client=client,
        nodes=place,
        features=generator.random((nodes, features), dtype=np.float32),
        edges=undirected(edges, nodes),
        labels=place % classes,
        train=place % 3 == 0,
        validation=place % 3 == 1,
        test=place % 3 == 2,
    )


def _pairs(client: int, nodes: int, features: int, classes: int) -> ClientGraph:
    """Graphs of two nodes each."""
    whole = _graph(client, nodes, features, classes)
    first = np.arange(0, nodes, 2)
    half = slice(nodes // 2)
    return replace(
        whole,
        edges=undirected(np.stack([first, first + 1]), nodes),
        labels=whole.labels[half],
        train=whole.train[half],
        validation=whole.validation[half],
        test=whole.test[half],
        starts=np.arange(0, nodes + 1, 2),
    )


def _frozen(value: Any) -> Any:
    """A value that can be a key of a cache."""
    if isinstance(value, Mapping):
        return ("mapping", tuple((key, _frozen(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(_frozen, value)))
    return value


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, content = value
        if kind == "mapping":
            return {key: _thawed(each) for key, each in content}
        return [_thawed(each) for each in content]
    return value
