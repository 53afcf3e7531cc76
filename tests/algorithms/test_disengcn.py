"""DisenGCN against the network written out on an edge list."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import leaky_relu, normalize

from fedatlas.algorithms.backbones.disengcn import DisenGCN
from fedatlas.algorithms.registry import create
from fedatlas.platform.federation.cohort import Dropout, stack


def different_weights(network, cohort):
    """Stacked initial weights [k, ...], perturbed so that clients differ."""
    generator = torch.Generator().manual_seed(1)
    k = len(cohort.clients)
    return {
        name: weight.double() + 0.1 * torch.randn(k, *weight.shape, dtype=torch.float64, generator=generator)
        for name, weight in network.initialise(cohort.task).items()
    }


def features_of(graph):
    values = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    return torch.as_tensor(np.array(values), dtype=torch.float64)


def layer(h, edges, factors, iterations):
    """One routing layer over a list of directed edges (source, target), h [n, K p]."""
    n = len(h)
    x = normalize(h.view(n, factors, -1), dim=2)
    source, target = torch.as_tensor(edges)
    centres = x
    for _ in range(iterations):
        share = torch.softmax((x[source] * centres[target]).sum(dim=2), dim=1)
        gathered = torch.zeros_like(x).index_add(0, target, share[..., None] * x[source])
        centres = normalize(x + gathered, dim=2)
    return leaky_relu(centres, 0.01).reshape(n, -1)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("factors", "layers", "routing"), [(1, 1, 1), (2, 1, 6), (3, 2, 2)])
def test_network_equals_the_written_one(make_federation, sparse, factors, layers, routing):
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    network = DisenGCN(hidden=4, factors=factors, layers=layers, routing=routing)
    weights = different_weights(network, cohort)
    result = network.forward(weights, cohort, None)
    for m, graph in enumerate(federation.graphs):
        h = leaky_relu(features_of(graph) @ weights["encoder.weight"][m] + weights["encoder.bias"][m], 0.01)
        for _ in range(layers):
            h = layer(h, graph.edges, factors, routing)
        torch.testing.assert_close(result.embedding[m, : graph.size], h)
        torch.testing.assert_close(result.factors[m, : graph.size], h)
        logits = h @ weights["classifier.weight"][m] + weights["classifier.bias"][m]
        torch.testing.assert_close(result.logits[m, : graph.size], logits)


def test_initial_weights(make_federation):
    """Projection and its bias are uniform in +-1/sqrt(K p), whatever the number of features."""
    task = make_federation().task
    weights = DisenGCN(hidden=50, factors=8).initialise(task)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == {
        "encoder.weight": (6, 400),
        "encoder.bias": (400,),
        "classifier.weight": (400, 3),
        "classifier.bias": (3,),
    }
    for name in ("encoder.weight", "encoder.bias", "classifier.weight"):
        assert 0.9 / math.sqrt(400) < float(weights[name].abs().max()) <= 1 / math.sqrt(400)


def test_routing_has_no_parameters(make_federation):
    task = make_federation().task
    shallow, deep = (DisenGCN(hidden=4, layers=layers).initialise(task) for layers in (1, 5))
    assert all(torch.equal(shallow[name], deep[name]) for name in deep)


@pytest.mark.parametrize("layers", [1, 3])
def test_there_is_dropout_after_the_projection_and_after_every_layer(make_federation, layers):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    asked = []

    class Recorder(Dropout):
        def apply(self, purpose, values, rate):
            asked.append((purpose, rate))
            return super().apply(purpose, values, rate)

    network = DisenGCN(hidden=4, layers=layers, dropout=0.3, input_dropout=0.1)
    network.forward(different_weights(network, cohort), cohort, Recorder(cohort, 0, 0))
    hidden = ["projection", *(f"routing.{number}" for number in range(layers))]
    assert asked == [("features", 0.1), *((purpose, 0.3) for purpose in hidden)]


def test_the_published_non_linearity_is_leaky_and_can_be_replaced():
    values = torch.tensor([-1.0, 2.0])
    assert torch.equal(DisenGCN().act(values), torch.tensor([-0.01, 2.0]))
    assert torch.equal(DisenGCN(activation="tanh").act(values), torch.tanh(values))


def test_options_reach_the_network():
    method = create("fedavg", "disengcn", {"factors": 3, "layers": 2, "routing": 4, "hidden": 16})
    assert method.backbone == DisenGCN(hidden=16, factors=3, layers=2, routing=4)
    assert create("fedavg", "disengcn").backbone == DisenGCN()
