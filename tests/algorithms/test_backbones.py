"""Backbones against PyG's layer and a dense reference; rings against a search over the graph."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.nn import GCNConv

from fedatlas.algorithms.backbones import BACKBONES, GCN, H2GCN
from fedatlas.algorithms.backbones.gcn import convolve
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.operators import gcn_operator, ring_operators, second_ring

NETWORKS = {
    "gcn": GCN(hidden=8),
    "h2gcn": H2GCN(hidden=8),
    "h2gcn, two rounds": H2GCN(hidden=8, propagation=2),
}
each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def different_weights(network, cohort, dtype=torch.float64):
    """Stacked initial weights [k, ...], perturbed so that clients differ and no bias is zero."""
    generator = torch.Generator().manual_seed(1)
    k = len(cohort.clients)
    return {
        name: weight.to(dtype) + 0.1 * torch.randn(k, *weight.shape, dtype=dtype, generator=generator)
        for name, weight in network.initialise(cohort.task).items()
    }


def features_of(graph, dtype=torch.float64):
    values = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    return torch.as_tensor(np.array(values), dtype=dtype)


def adjacency_of(graph):
    dense = np.zeros((graph.size, graph.size))
    dense[graph.edges[0], graph.edges[1]] = 1
    return dense


def distances(dense):
    """Shortest-path distances by breadth-first search; -1 where there is no path."""
    n = len(dense)
    out = np.full((n, n), -1)
    for start in range(n):
        out[start, start] = 0
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in np.flatnonzero(dense[node]):
                if out[start, other] < 0:
                    out[start, other] = out[start, node] + 1
                    queue.append(other)
    return out


def normalised(dense):
    degree = dense.sum(axis=1)
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    return torch.as_tensor(scale[:, None] * dense * scale)


def random_adjacency(nodes, edges, seed):
    generator = np.random.default_rng(seed)
    dense = np.zeros((nodes, nodes))
    ends = generator.integers(0, nodes, (2, edges))
    dense[ends[0], ends[1]] = dense[ends[1], ends[0]] = 1
    np.fill_diagonal(dense, 0)
    return dense


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_gcn_layer_equals_that_of_pyg(make_federation, precision, tolerance):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, precision)
    weights = different_weights(GCN(hidden=8), cohort, cohort.dtype)
    mine = convolve(cohort, cohort.project(weights["encoder.0.weight"]), weights["encoder.0.bias"])
    for m, graph in enumerate(federation.graphs):
        layer = GCNConv(6, 8).to(cohort.dtype)
        layer.load_state_dict(
            {"lin.weight": weights["encoder.0.weight"][m].T, "bias": weights["encoder.0.bias"][m]}
        )
        theirs = layer(features_of(graph, cohort.dtype), torch.as_tensor(graph.edges))
        torch.testing.assert_close(mine[m, : graph.size], theirs, rtol=0, atol=tolerance)


def test_gcn_equals_the_written_network_with_pyg_layers(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GCN(hidden=8, activation="elu")
    weights = different_weights(network, cohort)
    result = network.forward(weights, cohort, None)
    for m, graph in enumerate(federation.graphs):
        own = {name: weight[m] for name, weight in weights.items()}
        first, second = GCNConv(6, 8).double(), GCNConv(8, 8).double()
        first.load_state_dict({"lin.weight": own["encoder.0.weight"].T, "bias": own["encoder.0.bias"]})
        second.load_state_dict({"lin.weight": own["encoder.1.weight"].T, "bias": own["encoder.1.bias"]})
        edges = torch.as_tensor(graph.edges)
        act = torch.nn.functional.elu
        embedding = second(act(first(features_of(graph), edges)), edges)
        logits = act(embedding) @ own["classifier.weight"] + own["classifier.bias"]
        torch.testing.assert_close(result.embedding[m, : graph.size], embedding)
        torch.testing.assert_close(result.logits[m, : graph.size], logits)


@pytest.mark.parametrize("propagation", [1, 2])
def test_h2gcn_equals_the_dense_formula(make_federation, propagation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = H2GCN(hidden=8, propagation=propagation)
    weights = different_weights(network, cohort)
    result = network.forward(weights, cohort, None)
    assert result.embedding.shape[2] == {1: 3 * 8, 2: 7 * 8}[propagation]
    for m, graph in enumerate(federation.graphs):
        steps = distances(adjacency_of(graph))
        A1, A2 = normalised((steps == 1) * 1.0), normalised((steps == 2) * 1.0)
        H = torch.relu(features_of(graph) @ weights["encoder.weight"][m] + weights["encoder.bias"][m])
        rounds = [H]
        for _ in range(propagation):
            rounds.append(torch.cat([A1 @ rounds[-1], A2 @ rounds[-1]], dim=1))
        Z = torch.cat(rounds, dim=1)
        torch.testing.assert_close(result.ego[m, : graph.size], H)
        torch.testing.assert_close(result.rings[0][m, : graph.size], A1 @ H)
        torch.testing.assert_close(result.rings[1][m, : graph.size], A2 @ H)
        torch.testing.assert_close(result.embedding[m, : graph.size], Z)
        logits = Z @ weights["classifier.weight"][m] + weights["classifier.bias"][m]
        torch.testing.assert_close(result.logits[m, : graph.size], logits)


def test_golden_second_ring():
    dense = np.zeros((5, 5))
    for a, b in [(0, 1), (1, 2), (2, 3)]:
        dense[a, b] = dense[b, a] = 1
    ring = second_ring(sp.csr_array(dense))
    assert sorted(zip(*ring.nonzero(), strict=True)) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_triangle_has_no_second_ring():
    assert second_ring(sp.csr_array(np.ones((3, 3)) - np.eye(3))).nnz == 0


@pytest.mark.parametrize("seed", range(6))
def test_second_ring_is_distance_two_exactly(monkeypatch, seed):
    # Blocks of 7 rows, so that a graph takes several.
    monkeypatch.setattr("fedatlas.platform.federation.operators.RING_BLOCK_ROWS", 7)
    dense = random_adjacency(40, [20, 40, 80, 160, 320, 700][seed], seed)
    ring = second_ring(sp.csr_array(dense)).toarray()
    np.testing.assert_array_equal(ring, distances(dense) == 2)


def test_rings_and_diagonal_are_disjoint_and_cover_nodes_within_two_steps(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    first, second = (ring._forward.tensor().to_dense().numpy() != 0 for ring in ring_operators(cohort))
    width = cohort.width
    for m, graph in enumerate(federation.graphs):
        rows = slice(m * width, m * width + graph.size)
        one, two = first[rows, rows], second[rows, rows]
        assert not (one & two).any()
        assert not one.diagonal().any()
        assert not two.diagonal().any()
        steps = distances(adjacency_of(graph))
        np.testing.assert_array_equal(one | two, (steps == 1) | (steps == 2))


@pytest.mark.parametrize("limit", [1, 3, 8, 1000])
def test_limited_second_ring_is_symmetric_bounded_and_drops_the_weakest(limit):
    dense = random_adjacency(40, 120, seed=9)
    exact = second_ring(sp.csr_array(dense)).toarray()
    limited = second_ring(sp.csr_array(dense), limit).toarray()
    np.testing.assert_array_equal(limited, limited.T)
    assert limited.sum(axis=1).max() <= limit
    common = np.where(exact > 0, dense @ dense, 0)
    best = np.zeros_like(exact)
    for node in range(40):
        ranked = sorted(np.flatnonzero(common[node]), key=lambda other: (-common[node, other], other))
        best[node, ranked[:limit]] = 1
    np.testing.assert_array_equal(limited, best * best.T)
    if limit == 1000:
        np.testing.assert_array_equal(limited, exact)


def test_operators_are_symmetric_and_the_gcn_operator_has_norm_one(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    for operator in (gcn_operator(cohort), *ring_operators(cohort)):
        dense = operator._forward.tensor().to_dense()
        torch.testing.assert_close(dense, dense.T)
        assert torch.linalg.matrix_norm(dense, 2) <= 1 + 1e-12


def test_constant_features_stay_constant_on_a_regular_graph(make_federation):
    ring = np.stack([np.arange(9), (np.arange(9) + 1) % 9])
    edges = np.concatenate([ring, ring[::-1]], axis=1)
    federation = make_federation(sizes=(9,)).changed(
        0, edges=edges[:, np.lexsort(edges[::-1])], features=np.ones((9, 6), dtype=np.float32)
    )
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GCN(hidden=8)
    logits = network.forward(different_weights(network, cohort), cohort, None).logits
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))


@each_network
def test_dense_and_sparse_features_agree(make_federation, network):
    logits, gradients = [], []
    for sparse in (False, True):
        federation = make_federation(sparse=sparse)
        cohort = stack(federation.graphs, federation.task, "float64")
        assert (cohort.sparse_features is not None) == sparse
        weights = {
            name: weight.requires_grad_() for name, weight in different_weights(network, cohort).items()
        }
        logits.append(network.forward(weights, cohort, None).logits)
        gradients.append(torch.autograd.grad(logits[-1].square().sum(), list(weights.values())))
    torch.testing.assert_close(logits[0], logits[1])
    torch.testing.assert_close(gradients[0], gradients[1])


@each_network
def test_relabelling_the_nodes_relabels_the_outputs(make_federation, network):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = different_weights(network, cohort)
    logits = network.forward(weights, cohort, None).logits

    graph = federation.graphs[2]
    order = np.random.default_rng(0).permutation(graph.size)
    edges = np.argsort(order)[graph.edges]
    moved = federation.changed(
        2, edges=edges[:, np.lexsort(edges[::-1])], features=graph.features[order], labels=graph.labels[order]
    )
    other = network.forward(weights, stack(moved.graphs, moved.task, "float64"), None).logits
    torch.testing.assert_close(other[2, : graph.size], logits[2, order])
    for m in (0, 1, 3):
        torch.testing.assert_close(other[m], logits[m])


@each_network
def test_stacked_clients_equal_separate_ones(make_federation, network):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = different_weights(network, cohort)
    stacked = network.forward(weights, cohort, None).logits
    for m, graph in enumerate(federation.graphs):
        alone = network.forward(
            {name: weight[m : m + 1] for name, weight in weights.items()},
            stack([graph], federation.task, "float64"),
            None,
        )
        torch.testing.assert_close(stacked[m, : graph.size], alone.logits[0])


@pytest.mark.parametrize(("name", "classes"), [("gcn", 8), ("h2gcn", 24)])
def test_training_drops_entries_of_what_the_classifier_reads(make_federation, name, classes):
    """With the identity as classifier, a logit is the embedding's entry, scaled by 1/(1 - rate), or zero."""
    federation = make_federation(classes=classes)
    cohort = stack(federation.graphs, federation.task, "float64")
    network = BACKBONES[name](hidden=8, dropout=0.3, activation="elu")
    weights = different_weights(network, cohort)
    weights["classifier.weight"] = torch.eye(classes).double().expand(4, classes, classes)
    weights["classifier.bias"] = torch.zeros(4, classes).double()
    result = network.forward(weights, cohort, Dropout(cohort, 0, 0))
    read = result.embedding if name == "h2gcn" else network.act(result.embedding)
    logits, read = result.logits[cohort.nodes], read[cohort.nodes]
    kept = logits != 0
    torch.testing.assert_close(logits[kept], read[kept] / 0.7, rtol=1e-6, atol=0)
    assert kept[read != 0].double().mean().item() == pytest.approx(0.7, abs=0.1)
    # The hidden layer of GCN is dropped as well; H2GCN has nothing before the concatenation.
    unchanged = torch.equal(result.embedding, network.forward(weights, cohort, None).embedding)
    assert unchanged == (name == "h2gcn")


@each_network
def test_input_dropout_reaches_the_features(make_federation, network):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = different_weights(network, cohort)
    plain, dropped = (
        replace(network, dropout=0.0, input_dropout=rate)
        .forward(weights, cohort, Dropout(cohort, 0, 0))
        .logits
        for rate in (0.0, 0.5)
    )
    assert torch.equal(plain, network.forward(weights, cohort, None).logits)
    assert not torch.allclose(dropped, plain)


def test_edgeless_gcn_is_a_multilayer_perceptron(make_federation):
    federation = make_federation(sizes=(7,)).changed(0, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GCN(hidden=8)
    weights = different_weights(network, cohort)
    own = {name: weight[0] for name, weight in weights.items()}
    hidden = torch.relu(features_of(federation.graphs[0]) @ own["encoder.0.weight"] + own["encoder.0.bias"])
    hidden = torch.relu(hidden @ own["encoder.1.weight"] + own["encoder.1.bias"])
    expected = hidden @ own["classifier.weight"] + own["classifier.bias"]
    torch.testing.assert_close(network.forward(weights, cohort, None).logits[0], expected)


@pytest.mark.parametrize("propagation", [1, 2])
def test_edgeless_h2gcn_sees_the_ego_only(make_federation, propagation):
    federation = make_federation(sizes=(7, 5))
    federation = federation.changed(0, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    network = H2GCN(hidden=8, propagation=propagation)
    result = network.forward(different_weights(network, cohort), cohort, None)
    torch.testing.assert_close(result.embedding[0, :, :8], result.ego[0])
    assert (result.embedding[0, :, 8:] == 0).all()
    assert (result.embedding[1, :, 8:] != 0).any()


@pytest.mark.parametrize("name", [name for name, kind in BACKBONES.items() if "node" in kind.levels])
def test_initial_weights_depend_on_the_seed_only(make_federation, name):
    network, task = BACKBONES[name](hidden=8), make_federation().task
    first, again = network.initialise(task), network.initialise(task)
    other = network.initialise(replace(task, seed=1))
    for part, weight in first.items():
        assert part.startswith(("encoder.", "classifier."))
        assert torch.equal(weight, again[part])
        constant = bool((weight == weight.flatten()[0]).all())
        assert torch.equal(weight, other[part]) == constant


def test_initial_weights_have_the_stated_ranges(make_federation):
    weights = GCN(hidden=200).initialise(make_federation(features=100).task)
    glorot = np.sqrt(6 / 300)
    assert weights["encoder.0.weight"].abs().max() <= glorot
    assert weights["encoder.0.weight"].std().item() == pytest.approx(glorot / np.sqrt(3), rel=0.02)
    assert (weights["encoder.0.bias"] == 0).all()
    linear = 1 / np.sqrt(200)
    assert weights["classifier.weight"].abs().max() <= linear
    assert weights["classifier.weight"].std().item() == pytest.approx(linear / np.sqrt(3), rel=0.1)
    assert weights["classifier.bias"].abs().max() <= linear


def test_activations_are_torchs():
    values = torch.linspace(-2, 2, 9)
    for name, expected in {
        "relu": values.relu(),
        "elu": torch.nn.functional.elu(values),
        "tanh": values.tanh(),
        "identity": values,
    }.items():
        assert torch.equal(GCN(activation=name).act(values), expected)
