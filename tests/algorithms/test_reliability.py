"""Reliability by sparse products equals the written sums over nodes and neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.algorithms import reliability as module
from fedatlas.algorithms.features import dense_features
from fedatlas.algorithms.reliability import class_reliability, normalised_reliability, return_profile
from fedatlas.platform.federation.cohort import stack


def adjacency_of(edges, n):
    rows, columns = np.array(edges, dtype=int).reshape(-1, 2).T
    half = sp.csr_array((np.ones(rows.size), (rows, columns)), shape=(n, n))
    return sp.csr_array(half + half.T)


def test_return_probabilities_of_known_graphs():
    triangle = return_profile(adjacency_of([(0, 1), (1, 2), (0, 2)], 3), 4)
    np.testing.assert_allclose(triangle, np.tile([0, 1 / 2, 1 / 4, 3 / 8], (3, 1)))
    path = return_profile(adjacency_of([(0, 1), (1, 2)], 4), 3)
    np.testing.assert_allclose(path, [[0, 1 / 2, 0], [0, 1, 0], [0, 1 / 2, 0], [0, 0, 0]])


@pytest.mark.parametrize("longest", [1, 2, 5, 6])
def test_return_probabilities_are_diagonals_of_powers(make_federation, monkeypatch, longest):
    monkeypatch.setattr(module, "BLOCK_COLUMNS", 7)
    for graph in make_federation().graphs:
        adjacency = adjacency_of(graph.edges.T[graph.edges[0] < graph.edges[1]], graph.size)
        walk = adjacency.toarray() / np.maximum(adjacency.sum(axis=0), 1)
        power, expected = np.eye(graph.size), []
        for _ in range(longest):
            power = power @ walk
            expected.append(np.diag(power))
        np.testing.assert_allclose(return_profile(adjacency, longest), np.stack(expected, axis=1), atol=1e-12)


def by_nodes(graph, classes, longest=5):
    """phi [C] as written, node by node."""
    half = graph.edges.T[graph.edges[0] < graph.edges[1]]
    profile = return_profile(adjacency_of(half, graph.size), longest)
    features = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    described = np.concatenate([features.astype(float), profile], axis=1)
    found = np.zeros(classes)
    for node in np.flatnonzero(graph.train):
        near = graph.edges[1][graph.edges[0] == node]
        total = 1.0
        for other in near:
            lengths = np.linalg.norm(described[node]) * np.linalg.norm(described[other])
            total += described[node] @ described[other] / lengths if lengths > 0 else 0.0
        found[graph.labels[node]] += total / (1 + len(near))
    return found


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_reliability_is_the_sum_over_training_nodes_and_neighbours(make_federation, sparse):
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    expected = [by_nodes(graph, 3) for graph in federation.graphs]
    np.testing.assert_allclose(class_reliability(cohort).numpy(), expected, atol=1e-9)


def test_an_isolated_node_counts_one(make_federation):
    federation = make_federation().changed(2, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    torch.testing.assert_close(class_reliability(cohort)[2], cohort.class_counts()[2])


def test_a_client_without_training_nodes_has_no_reliability(make_federation):
    federation = make_federation()
    federation = federation.changed(1, train=federation.graphs[1].train & False)
    assert class_reliability(stack(federation.graphs, federation.task))[1].tolist() == [0, 0, 0]


def test_shares_of_a_class_sum_to_one():
    shares = normalised_reliability(torch.tensor([[1.0, 0, -2], [3.0, 0, 4]]))
    assert shares.tolist() == [[0.25, 0.5, 0], [0.75, 0.5, 1]]


def test_sparse_features_become_dense_unchanged(make_federation):
    sparse, dense = (
        stack(whole.graphs, whole.task, "float64")
        for whole in (make_federation(sparse=True), make_federation())
    )
    assert torch.equal(dense_features(sparse), dense_features(dense))
    assert dense_features(dense) is dense.dense_features
