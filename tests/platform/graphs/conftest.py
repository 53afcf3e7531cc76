"""Small graphs for the tests of the data layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import Graph

GraphMaker = Callable[..., Graph]


@pytest.fixture(scope="session")
def make_graph() -> GraphMaker:
    """Graph from pairs of nodes, with random labels and features; every argument has a default."""

    def make(pairs: object = (), nodes: int = 10, classes: int = 3, seed: int = 0) -> Graph:
        generator = np.random.default_rng(seed)
        ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T  # type: ignore[call-overload]
        return Graph(
            name="handmade",
            features=generator.random((nodes, 4)).astype(np.float32),
            edges=undirected(ends, nodes),
            labels=generator.integers(0, classes, nodes),
            classes=classes,
            metric="accuracy",
            kind="real",
        )

    return make


@pytest.fixture(scope="session")
def blocks(make_graph: GraphMaker) -> Graph:
    """Stochastic block model: 600 nodes in 12 blocks of 50, about 5 edges a node inside, 1 between blocks."""
    generator = np.random.default_rng(7)
    source, target = np.triu_indices(600, 1)
    odds = np.where(source // 50 == target // 50, 0.1, 0.002)
    kept = generator.random(len(source)) < odds
    return make_graph(np.stack([source[kept], target[kept]], axis=1), nodes=600)
