"""Made-up federations: every method stays finite on them, or refuses them in words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import ClientGraph
from fedatlas.sweeps.federations import Federation

NODE_METHODS = [name for name, kind in ALGORITHMS.items() if "node" in kind.levels]

CLASSES, FEATURES = 3, 5


@st.composite
def clients(draw: st.DrawFn, number: int) -> ClientGraph:
    """A graph of 1 to 9 nodes: any edges, any labels, any roles, features of any kind."""
    size = draw(st.integers(1, 9))
    noise = np.random.default_rng(draw(st.integers(0, 2**16)))
    edges = np.array(
        draw(st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), max_size=12)), dtype=np.int64
    ).reshape(-1, 2)
    roles = np.array(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    features = {
        "random": noise.standard_normal((size, FEATURES)),
        "zero": np.zeros((size, FEATURES)),
        "equal": np.ones((size, FEATURES)),
        "large": 1e4 * noise.standard_normal((size, FEATURES)),
        "one-hot": np.eye(FEATURES)[noise.integers(0, FEATURES, size)],
    }[draw(st.sampled_from(["random", "zero", "equal", "large", "one-hot"]))]
    return ClientGraph(
        client=number,
        nodes=np.arange(size),
        features=features.astype(np.float32),
        edges=undirected(edges[edges[:, 0] != edges[:, 1]].T, size),
        labels=np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=size, max_size=size))),
        train=roles == 0,
        validation=roles == 1,
        test=roles == 2,
    )


@st.composite
def federations(draw: st.DrawFn) -> Federation:
    graphs = tuple(draw(clients(m)) for m in range(draw(st.integers(1, 4))))
    if draw(st.booleans()):
        graphs = tuple(
            dataclasses.replace(graph, features=sp.csr_array(np.asarray(graph.features))) for graph in graphs
        )
    return Federation(graphs, Task(len(graphs), FEATURES, CLASSES, "accuracy", draw(st.integers(0, 3))))


def check(name, make_method, run, assert_same_run, examples: int) -> None:
    method = make_method(name)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(federation=federations())
    def holds(federation: Federation) -> None:
        outcome = run(method, federation, rounds=2)
        for record in outcome.records:
            assert np.isfinite(list(record.metrics.values())).all()
            for role in ("validation", "test"):
                scored = np.isfinite(getattr(record, f"client_{role}"))
                assert scored.tolist() == [bool(getattr(graph, role).any()) for graph in federation.graphs]
        assert_same_run(run(method, federation, rounds=2, per_cohort=1), outcome, 1e-5)

    holds()


@pytest.mark.parametrize("name", NODE_METHODS)
def test_every_method_on_a_few(name, make_method, run, assert_same_run):
    check(name, make_method, run, assert_same_run, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NODE_METHODS)
def test_every_method_on_many(name, make_method, run, assert_same_run):
    check(name, make_method, run, assert_same_run, 100)
