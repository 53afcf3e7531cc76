"""Stand-ins have the published sizes exactly, are deterministic, skewed, connected and learnable."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs import catalog, standins
from fedatlas.platform.graphs.graph import Graph

HOMOPHILY = {
    "standin:roman-empire": 0.05,
    "standin:amazon-ratings": 0.38,
    "standin:questions": 0.84,
    "standin:ogbn-arxiv": 0.66,
}
SKEWED = ("standin:amazon-ratings", "standin:questions", "standin:ogbn-arxiv")
SMALL = ("standin:roman-empire", "standin:amazon-ratings")


@cache
def standin(name: str) -> Graph:
    return standins.generate(name)


@pytest.mark.parametrize("name", catalog.standin_names())
def test_sizes_are_exactly_the_published_ones(name: str) -> None:
    graph, entry = standin(name), catalog.entry(name)
    assert graph.kind == "stand-in"
    assert graph.features.dtype == np.float32
    assert graph.features.shape == (entry.nodes, entry.features)
    assert graph.edges.shape == (2, 2 * entry.published_edges)
    assert np.array_equal(np.unique(graph.labels), np.arange(entry.classes))


@pytest.mark.parametrize("name", catalog.standin_names())
def test_edges_are_sorted_symmetric_and_connect_every_node(name: str) -> None:
    graph = standin(name)
    keys = graph.edges[0] * graph.nodes + graph.edges[1]
    assert np.all(np.diff(keys) > 0)
    assert np.all(graph.edges[0] != graph.edges[1])
    assert np.array_equal(np.sort(graph.edges[1] * graph.nodes + graph.edges[0]), keys)
    assert connected_components(graph.adjacency())[0] == 1


@pytest.mark.parametrize("name", catalog.standin_names())
def test_edge_homophily_is_the_one_stated(name: str) -> None:
    graph = standin(name)
    same = graph.labels[graph.edges[0]] == graph.labels[graph.edges[1]]
    assert same.mean() == pytest.approx(HOMOPHILY[name], abs=1e-4)


@pytest.mark.parametrize("name", SKEWED)
def test_degrees_are_skewed(name: str) -> None:
    degrees = np.bincount(standin(name).edges[0])
    assert degrees.max() > 20 * degrees.mean()
    assert np.median(degrees) < degrees.mean()


def test_roman_empire_is_nearly_a_chain() -> None:
    degrees = np.bincount(standin("standin:roman-empire").edges[0])
    assert degrees.mean() == pytest.approx(2.9, abs=0.01)
    assert degrees.max() < 15


@pytest.mark.parametrize("name", SMALL)
def test_same_seed_gives_the_same_graph_and_another_seed_another(name: str) -> None:
    first = standin(name)
    assert standins.generate(name, 0).sha256() == first.sha256()
    other = standins.generate(name, 1)
    assert other.edges.shape == first.edges.shape
    assert not np.array_equal(other.edges, first.edges)
    assert not np.array_equal(other.features, first.features)


@pytest.mark.parametrize("name", SMALL)
def test_class_means_learned_from_a_fifth_beat_the_majority_class(name: str) -> None:
    graph = standin(name)
    features = np.asarray(graph.features)
    train = np.arange(graph.nodes) % 5 == 0
    means = np.stack(
        [features[train & (graph.labels == label)].mean(axis=0) for label in range(graph.classes)]
    )
    scores = features[~train] @ means.T - 0.5 * np.sum(means**2, axis=1)
    accuracy = np.mean(scores.argmax(axis=1) == graph.labels[~train])
    majority = np.bincount(graph.labels).max() / graph.nodes
    assert majority + 0.1 < accuracy < 0.9


def test_a_real_set_is_not_a_standin() -> None:
    with pytest.raises(ConfigurationError, match="unknown stand-in 'cora'"):
        standins.generate("cora")
