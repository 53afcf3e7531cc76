from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from fedatlas.platform.errors import ConfigurationError, DataError
from fedatlas.platform.graphs import minesweeper
from fedatlas.platform.graphs.preprocessing import largest_component, scale_features

MIXED = np.array([[1, 0, 3, 0], [0, 0, 0, 0], [0, 0.5, 0, 0], [2, 2, 2, 2]], dtype=np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_component_is_that_of_networkx(make_graph, seed):
    pairs = np.random.default_rng(seed).integers(0, 80, (50, 2))
    graph = make_graph(pairs, nodes=80)
    network = nx.Graph(graph.edges.T.tolist())
    ids = sorted(max(nx.connected_components(network), key=len))

    kept = largest_component(graph)

    np.testing.assert_array_equal(kept.labels, graph.labels[ids])
    np.testing.assert_array_equal(kept.features, graph.features[ids])
    renumbered = nx.relabel_nodes(network.subgraph(ids), {old: new for new, old in enumerate(ids)})
    expected = sorted([(a, b) for a, b in renumbered.edges] + [(b, a) for a, b in renumbered.edges])
    assert kept.edges.T.tolist() == [list(pair) for pair in expected]
    assert kept.edges.dtype == np.int64


def test_a_connected_graph_is_returned_as_it_is():
    graph = minesweeper.graph()
    assert largest_component(graph) is graph


def test_of_equal_components_the_one_with_the_smallest_id_is_kept(make_graph):
    graph = make_graph([(1, 2), (0, 3)], nodes=5)
    np.testing.assert_array_equal(largest_component(graph).features, graph.features[[0, 3]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", MIXED),
        ("row", [[0.25, 0, 0.75, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25]]),
        ("l2", [[0.1**0.5, 0, 0.9**0.5, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0.5, 0.5]]),
        ("binary", [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]),
    ],
)
def test_scaling_by_hand_dense_and_sparse(make_graph, mode, expected):
    dense = replace(make_graph(nodes=4), features=MIXED.copy())
    sparse = replace(dense, features=sp.csr_array(MIXED))

    scaled, scaled_sparse = scale_features(dense, mode).features, scale_features(sparse, mode).features

    assert scaled.dtype == scaled_sparse.dtype == np.float32
    assert isinstance(scaled_sparse, sp.csr_array)
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    np.testing.assert_array_equal(scaled_sparse.toarray(), scaled)
    np.testing.assert_array_equal(dense.features, MIXED)
    np.testing.assert_array_equal(sparse.features.toarray(), MIXED)


def test_standard_features_have_mean_0_and_deviation_1_and_constant_columns_vanish(make_graph):
    given = np.array([[1.0, 5, 0.1], [2, 7, 0.1], [3, 9, 0.1], [4, 11, 0.1]], dtype=np.float32)
    graph = replace(make_graph(nodes=4), features=given)
    scaled = scale_features(graph, "standard").features
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-7)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 0], rtol=1e-6)
    np.testing.assert_array_equal(scaled[:, 2], 0)
    sparse = scale_features(replace(graph, features=sp.csr_array(given)), "standard").features
    np.testing.assert_array_equal(sparse, scaled)
    assert scaled.dtype == sparse.dtype == np.float32


def test_rows_of_negative_features_cannot_sum_to_one(make_graph):
    graph = replace(make_graph(nodes=4), features=-MIXED)
    with pytest.raises(
        DataError, match=r"features=row needs non-negative features; handmade .* use features=l2"
    ):
        scale_features(graph, "row")
    np.testing.assert_allclose(scale_features(graph, "l2").features[2], [0, -1, 0, 0])


def test_an_unknown_scaling_names_the_nearest(make_graph):
    with pytest.raises(ConfigurationError, match="unknown feature scaling 'rows': did you mean row"):
        scale_features(make_graph(), "rows")
