"""FedStar's structure encodings equal those of dense random walks."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.algorithms import structure
from fedatlas.algorithms.structure import structural_encodings
from fedatlas.platform.federation.unions import ClientUnion


def dense(graphs: ClientUnion, graph: int) -> np.ndarray:
    part = slice(graphs.starts[graph], graphs.starts[graph + 1])
    return graphs.adjacency()[part, part].toarray()


@pytest.mark.parametrize("largest_dense", [500, 3])
def test_walk_probabilities_and_degrees(make_graph_federation, monkeypatch, largest_dense):
    monkeypatch.setattr(structure, "DENSE", largest_dense)
    graphs = ClientUnion.of(make_graph_federation().graphs[2])
    found = structural_encodings(graphs, walks=7, degrees=3)
    assert found.shape == (graphs.starts[-1], 10)
    for graph in range(len(graphs.starts) - 1):
        adjacency = dense(graphs, graph)
        degree = adjacency.sum(axis=0)
        walk = adjacency / np.maximum(degree, 1)
        power = np.eye(len(walk))
        rows = slice(graphs.starts[graph], graphs.starts[graph + 1])
        for k in range(7):
            power = power @ walk
            np.testing.assert_allclose(found[rows, k], np.diag(power), atol=1e-6)
        np.testing.assert_array_equal(found[rows, 7:].argmax(axis=1) + 1, np.clip(degree, 1, 3))
    assert (found[:, 7:].sum(axis=1) == 1).all()
    assert (found[:, 0] == 0).all()
    assert found.min() >= 0
    assert found.max() <= 1


def test_a_node_without_edges_never_returns(make_graph_federation):
    client = make_graph_federation(graphs=(3,)).graphs[0]
    alone = ClientUnion.of(type(client)(**{**client.__dict__, "edges": np.zeros((2, 0), dtype=np.int64)}))
    found = structural_encodings(alone)
    assert not found[:, :16].any()
    assert (found[:, 16] == 1).all()
