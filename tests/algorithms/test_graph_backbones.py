"""GAT and GIN equal dense networks written graph by graph, and PyG's attention layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv

from fedatlas.algorithms.backbones import GAT, GIN
from fedatlas.algorithms.backbones.gat import attend
from fedatlas.platform.federation.cohort import Dropout, stack

NETWORKS = {
    "gat": GAT(hidden=8, dropout=0.0, activation="elu"),
    "gat, sum": GAT(hidden=8, dropout=0.0, layers=2, heads=2, readout="sum"),
    "gin": GIN(hidden=8, dropout=0.0),
    "gin, mean": GIN(hidden=8, dropout=0.0, layers=1, readout="mean"),
}
each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def perturbed(network, cohort):
    """Stacked initial weights [k, ...], changed so that clients differ and no bias is zero."""
    generator = torch.Generator().manual_seed(1)
    k = len(cohort.clients)
    return {
        name: weight.double() + 0.1 * torch.randn(k, *weight.shape, dtype=torch.float64, generator=generator)
        for name, weight in network.initialise(cohort.task).items()
    }


def dense_attention(values, closed, weights, name, heads):
    z = values @ weights[f"{name}.weight"]
    parts = []
    for columns in np.split(np.arange(z.shape[1]), heads):
        end = z[:, columns] @ weights[f"{name}.end"][columns]
        start = z[:, columns] @ weights[f"{name}.start"][columns]
        scores = torch.nn.functional.leaky_relu(end[:, None] + start[None], 0.2)
        alpha = torch.softmax(scores.masked_fill(closed == 0, -torch.inf), dim=1)
        parts.append(alpha @ z[:, columns])
    return torch.cat(parts, dim=1) + weights[f"{name}.bias"]


def dense_network(network, features, closed, weights):
    x = features @ weights["private.input.weight"] + weights["private.input.bias"]
    for layer in range(network.layers):
        name = f"encoder.{layer}"
        if isinstance(network, GAT):
            x = dense_attention(x, closed, weights, name, network.heads_of(layer))
            x = network.act(x) if layer + 1 < network.layers else x
        else:
            inner = torch.relu(closed @ x @ weights[f"{name}.0.weight"] + weights[f"{name}.0.bias"])
            x = network.act(inner @ weights[f"{name}.1.weight"] + weights[f"{name}.1.bias"])
    pooled = x.mean(dim=0) if network.readout == "mean" else x.sum(dim=0)
    if isinstance(network, GIN):
        pooled = torch.relu(pooled @ weights["private.post.weight"] + weights["private.post.bias"])
    return pooled, pooled @ weights["private.classifier.weight"] + weights["private.classifier.bias"]


@each_network
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_batch_equals_dense_graphs_one_by_one(make_graph_federation, network, sparse):
    federation = make_graph_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = perturbed(network, cohort)
    rows, chosen = [0, 2, 3], [np.array([5, 0, 7]), np.array([29]), np.array([1, 2, 3, 11])]
    found = network.forward(
        {name: weight[rows] for name, weight in weights.items()}, cohort.batch(rows, chosen), None
    )
    for position, (row, ids) in enumerate(zip(rows, chosen, strict=True)):
        client = federation.graphs[row]
        own = {name: weight[row] for name, weight in weights.items()}
        for place, graph in enumerate(ids):
            begin, end = client.starts[graph], client.starts[graph + 1]
            values = client.features[begin:end]
            values = torch.as_tensor(values.toarray() if sparse else values).double()
            inside = (client.edges[0] >= begin) & (client.edges[0] < end)
            closed = torch.eye(end - begin, dtype=torch.float64)
            closed[client.edges[0, inside] - begin, client.edges[1, inside] - begin] = 1
            embedding, logits = dense_network(network, values, closed, own)
            torch.testing.assert_close(found.embedding[position, place], embedding)
            torch.testing.assert_close(found.logits[position, place], logits)


def test_the_attention_layer_is_that_of_pyg(make_graph_federation):
    federation = make_graph_federation(graphs=(12,))
    cohort = stack(federation.graphs, federation.task, "float64")
    batch = cohort.batch([0], [np.arange(12)])
    client = federation.graphs[0]
    layer = GATConv(6, 4, heads=2).double()
    with torch.no_grad():
        layer.bias.normal_()
    weights = {
        "layer.weight": layer.lin.weight.T[None],
        "layer.end": layer.att_dst.reshape(1, -1),
        "layer.start": layer.att_src.reshape(1, -1),
        "layer.bias": layer.bias[None],
    }
    values = torch.as_tensor(client.features).double()
    expected = layer(values, torch.as_tensor(client.edges))
    torch.testing.assert_close(attend(batch, values[None], weights, "layer", 2)[0], expected)


@each_network
def test_the_order_of_nodes_and_other_graphs_do_not_matter(make_graph_federation, network):
    federation = make_graph_federation(graphs=(15,))
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = perturbed(network, cohort)
    together = network.forward(weights, cohort.batch([0], [np.array([3, 9, 14])]), None).logits
    turned = network.forward(weights, cohort.batch([0], [np.array([14, 3, 9])]), None).logits
    torch.testing.assert_close(together[0, [2, 0, 1]], turned[0])


def test_the_projection_fits_each_clients_width_and_length_of_rows(make_graph_federation):
    federation = make_graph_federation(graphs=(9, 9), features=5, widths=(2, 5), own_classes=(2, 3))
    ten = federation.graphs[1].features * 10
    federation = federation.changed(1, features=ten)
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GAT(hidden=4)
    initial = network.initialise(federation.task)
    stacked = {name: weight.double().expand(2, *weight.shape).clone() for name, weight in initial.items()}
    fitted = network.fitted(stacked, cohort)
    lengths = [np.sqrt((client.features**2).sum(axis=1).mean()) for client in federation.graphs]
    weight = initial["private.input.weight"].double()
    projections = fitted["private.input.weight"]
    torch.testing.assert_close(projections[1], weight / lengths[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(projections[0, :2], weight[:2] / lengths[0], rtol=1e-6, atol=0)
    assert not fitted["private.input.weight"][0, 2:].any()
    assert not fitted["private.classifier.weight"][0, :, 2].any()
    assert fitted["private.classifier.weight"][1, :, 2].any()


def test_dropout_changes_training_only(make_graph_federation):
    federation = make_graph_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    batch = cohort.batch([0, 1, 2, 3], [np.arange(6)] * 4)
    network = GIN(hidden=8, dropout=0.5)
    weights = perturbed(network, cohort)
    plain = network.forward(weights, batch, None).logits
    assert torch.equal(plain, network.forward(weights, batch, None).logits)
    first, other = (
        network.forward(weights, batch, Dropout(batch, 0, step)).logits for step in ("0.0", "0.1")
    )
    assert not torch.allclose(first, plain)
    assert not torch.allclose(first, other)
