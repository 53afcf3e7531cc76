"""GraphSAGE agrees with PyTorch Geometric, with its formula, and with a perceptron where there is no edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.nn import SAGEConv

from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.operators import mean_operator


def features_of(graph):
    values = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    return torch.as_tensor(np.array(values), dtype=torch.float64)


def different_weights(network, cohort):
    """Stacked weights that differ between the clients, with biases that are not zero."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: 0.5 * torch.randn((len(cohort.clients), *weight.shape), generator=generator, dtype=cohort.dtype)
        for name, weight in network.initialise(cohort.task).items()
    }


def test_it_equals_the_written_network_with_pyg_layers(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GraphSAGE(hidden=8, activation="elu")
    weights = different_weights(network, cohort)
    result = network.forward(weights, cohort, None)
    for m, graph in enumerate(federation.graphs):
        own = {name: weight[m] for name, weight in weights.items()}
        edges, hidden = torch.as_tensor(graph.edges), features_of(graph)
        for number, width in enumerate((6, 8)):
            layer = SAGEConv(width, 8, aggr="mean").double()
            of_self, of_neighbours = own[f"encoder.{number}.weight"].chunk(2, dim=1)
            layer.load_state_dict(
                {
                    "lin_l.weight": of_neighbours.T,
                    "lin_l.bias": own[f"encoder.{number}.bias"],
                    "lin_r.weight": of_self.T,
                }
            )
            embedding = layer(hidden, edges)
            hidden = torch.nn.functional.elu(embedding)
        logits = hidden @ own["classifier.weight"] + own["classifier.bias"]
        torch.testing.assert_close(result.embedding[m, : graph.size], embedding)
        torch.testing.assert_close(result.logits[m, : graph.size], logits)


def test_isolated_nodes_see_a_perceptron(make_federation):
    federation = make_federation(sizes=(9, 7))
    edges = federation.graphs[0].edges
    federation = federation.changed(0, edges=edges[:, (edges >= 4).all(axis=0)])
    federation = federation.changed(1, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GraphSAGE(hidden=8)
    weights = different_weights(network, cohort)
    logits = network.forward(weights, cohort, None).logits
    for m, alone in ((0, slice(0, 4)), (1, slice(0, 7))):
        own = {name: weight[m] for name, weight in weights.items()}
        hidden = features_of(federation.graphs[m])[alone]
        for number in (0, 1):
            weight = own[f"encoder.{number}.weight"][:, :8]
            hidden = torch.relu(hidden @ weight + own[f"encoder.{number}.bias"])
        torch.testing.assert_close(
            logits[m, alone], hidden @ own["classifier.weight"] + own["classifier.bias"]
        )


@pytest.mark.parametrize("self_loops", [False, True])
def test_rows_of_the_mean_sum_to_one_where_there_is_a_neighbour(make_federation, self_loops):
    federation = make_federation().changed(2, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    dense = mean_operator(cohort, self_loops)._forward.tensor().to_dense()
    for m, graph in enumerate(federation.graphs):
        rows = slice(m * cohort.width, m * cohort.width + graph.size)
        degree = np.bincount(graph.edges[0], minlength=graph.size) + self_loops
        expected = torch.as_tensor((degree > 0).astype(float))
        torch.testing.assert_close(dense[rows, rows].sum(dim=1), expected)
        torch.testing.assert_close(dense[rows].sum(), dense[rows, rows].sum())
        if self_loops:
            torch.testing.assert_close(dense[rows, rows].diagonal(), torch.as_tensor(1 / degree))


def test_gradients_pass_the_transposed_mean(make_federation):
    federation = make_federation(sizes=(11,))
    cohort = stack(federation.graphs, federation.task, "float64")
    operator = mean_operator(cohort)
    values = torch.randn(1, 11, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: cohort.propagate(operator, x), values)


def test_dense_and_sparse_features_agree(make_federation):
    network, logits, gradients = GraphSAGE(hidden=8), [], []
    for sparse in (False, True):
        federation = make_federation(sparse=sparse)
        cohort = stack(federation.graphs, federation.task, "float64")
        weights = {name: each.requires_grad_() for name, each in different_weights(network, cohort).items()}
        logits.append(network.forward(weights, cohort, None).logits)
        gradients.append(torch.autograd.grad(logits[-1].square().sum(), list(weights.values())))
    torch.testing.assert_close(logits[0], logits[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_stacked_clients_equal_separate_ones(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GraphSAGE(hidden=8)
    weights = different_weights(network, cohort)
    stacked = network.forward(weights, cohort, None).logits
    for m, graph in enumerate(federation.graphs):
        own = {name: weight[m : m + 1] for name, weight in weights.items()}
        alone = network.forward(own, stack([graph], federation.task, "float64"), None)
        torch.testing.assert_close(stacked[m, : graph.size], alone.logits[0])


def test_relabelling_the_nodes_relabels_the_outputs(make_federation):
    federation = make_federation(sizes=(13,))
    network, graph = GraphSAGE(hidden=8), federation.graphs[0]
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = different_weights(network, cohort)
    order = np.random.default_rng(0).permutation(graph.size)
    edges = np.argsort(order)[graph.edges]
    moved = federation.changed(
        0, edges=edges[:, np.lexsort(edges[::-1])], features=graph.features[order], labels=graph.labels[order]
    )
    first = network.forward(weights, cohort, None).logits
    second = network.forward(weights, stack(moved.graphs, moved.task, "float64"), None).logits
    torch.testing.assert_close(second[0], first[0, order])


def test_dropout_reaches_the_features_and_both_layers(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GraphSAGE(hidden=8, dropout=0.0)
    weights, dropout = different_weights(network, cohort), Dropout(cohort, 0, 0)
    plain = network.forward(weights, cohort, None)
    assert torch.equal(network.forward(weights, cohort, dropout).logits, plain.logits)
    dropped = replace(network, dropout=0.3).forward(weights, cohort, dropout)
    assert not torch.allclose(dropped.embedding, plain.embedding)
    given = replace(network, input_dropout=0.3).forward(weights, cohort, dropout)
    assert not torch.allclose(given.embedding, plain.embedding)


def test_self_and_neighbour_weights_start_apart(make_federation):
    weights = GraphSAGE(hidden=8).initialise(make_federation().task)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == {
        "encoder.0.weight": (6, 16),
        "encoder.0.bias": (8,),
        "encoder.1.weight": (8, 16),
        "encoder.1.bias": (8,),
        "classifier.weight": (8, 3),
        "classifier.bias": (3,),
    }
    for number, rows in ((0, 6), (1, 8)):
        of_self, of_neighbours = weights[f"encoder.{number}.weight"].chunk(2, dim=1)
        assert not torch.equal(of_self, of_neighbours)
        assert weights[f"encoder.{number}.weight"].abs().max() <= np.sqrt(6 / (rows + 8))
