"""GAMLP against precomputed hop features, and the networks that it becomes in the limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import prelu

from fedatlas.algorithms.backbones import GAMLP
from fedatlas.algorithms.registry import create
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, stack


def different_weights(network, cohort):
    """Stacked initial weights [k, ...], perturbed so that clients differ and no bias is zero."""
    generator = torch.Generator().manual_seed(1)
    k = len(cohort.clients)
    return {
        name: weight.double() + 0.3 * torch.randn(k, *weight.shape, dtype=torch.float64, generator=generator)
        for name, weight in network.initialise(cohort.task).items()
    }


def hop_features(graph, hops):
    """A^^j X for j = 0..K, [K+1, n, f]."""
    values = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    loops = np.eye(graph.size)
    loops[graph.edges[0], graph.edges[1]] = 1
    scale = 1 / np.sqrt(loops.sum(axis=1))
    found = [np.asarray(values, dtype=np.float64)]
    for _ in range(hops):
        found.append(scale[:, None] * loops * scale @ found[-1])
    return torch.as_tensor(np.stack(found))


def perceptron(values, own, layers, act):
    for layer in range(layers - 1):
        values = act(values @ own[f"encoder.{layer}.weight"] + own[f"encoder.{layer}.bias"], layer)
    return values @ own["classifier.weight"] + own["classifier.bias"]


def expected_logits(network, graph, own):
    """The network as it is written, with hop features and one scorer input per node and hop."""
    features = hop_features(graph, network.hops)
    reference = features.permute(1, 0, 2).reshape(graph.size, -1)
    scores = torch.cat(
        [
            torch.cat([reference, hop], dim=1) @ own["encoder.attention.weight"]
            + own["encoder.attention.bias"]
            for hop in features
        ],
        dim=1,
    )
    alpha = scores.sigmoid().softmax(dim=1)
    mixed = torch.einsum("nj,jnf->nf", alpha, features)

    def act(values, layer):
        if network.activation == "relu":
            return prelu(values, own[f"encoder.{layer}.slope"])
        return network.act(values)

    return perceptron(mixed, own, network.layers, act), alpha


@pytest.mark.parametrize(
    "network",
    [
        GAMLP(hidden=8),
        GAMLP(hidden=4),
        GAMLP(hidden=8, hops=1, layers=2),
        GAMLP(hidden=8, hops=2, layers=4, activation="elu"),
        GAMLP(hidden=8, hops=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_equals_the_written_network(make_federation, network, sparse):
    """Six features: a wide network keeps dense hop features, others project before they propagate."""
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = {n: w.requires_grad_() for n, w in different_weights(network, cohort).items()}
    result = network.forward(weights, cohort, None)
    alpha = network.attention(weights, cohort)
    assert result.embedding.shape == (4, cohort.width, network.hidden)
    total = 0.0
    for m, graph in enumerate(federation.graphs):
        logits, weighing = expected_logits(network, graph, {n: w[m] for n, w in weights.items()})
        torch.testing.assert_close(result.logits[m, : graph.size], logits)
        torch.testing.assert_close(alpha[m, : graph.size], weighing)
        total = total + logits.square().sum()
    # Without hops there is one score, whose softmax is 1 whatever it is.
    read = [n for n in weights if network.hops or "attention" not in n]
    leaves = [weights[n] for n in read]
    mine = torch.autograd.grad(result.logits[cohort.nodes].square().sum(), leaves)
    torch.testing.assert_close(mine, torch.autograd.grad(total, leaves))


def test_attention_rows_sum_to_one_and_differ_between_nodes(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GAMLP(hidden=8)
    alpha = network.attention(different_weights(network, cohort), cohort)
    assert alpha.shape == (4, cohort.width, 4)
    torch.testing.assert_close(alpha.sum(dim=2), torch.ones_like(alpha[..., 0]))
    assert alpha[0].std(dim=0).min() > 1e-3


def test_equal_scores_give_the_mean_of_the_hops(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GAMLP(hidden=8)
    weights = different_weights(network, cohort)
    weights["encoder.attention.weight"] = torch.zeros_like(weights["encoder.attention.weight"])
    logits = network.forward(weights, cohort, None).logits
    for m, graph in enumerate(federation.graphs):
        own = {name: weight[m] for name, weight in weights.items()}
        expected = perceptron(
            hop_features(graph, 3).mean(dim=0),
            own,
            3,
            lambda values, layer, own=own: prelu(values, own[f"encoder.{layer}.slope"]),
        )
        torch.testing.assert_close(logits[m, : graph.size], expected)


def test_without_hops_and_without_edges_it_is_a_perceptron(make_federation):
    federation = make_federation(sizes=(7,))
    edgeless = federation.changed(0, edges=np.zeros((2, 0), dtype=np.int64))
    for whole, network in ((federation, GAMLP(hidden=8, hops=0)), (edgeless, GAMLP(hidden=8))):
        cohort = stack(whole.graphs, whole.task, "float64")
        weights = different_weights(network, cohort)
        own = {name: weight[0] for name, weight in weights.items()}
        expected = perceptron(
            torch.as_tensor(whole.graphs[0].features).double(),
            own,
            3,
            lambda values, layer, own=own: prelu(values, own[f"encoder.{layer}.slope"]),
        )
        torch.testing.assert_close(network.forward(weights, cohort, None).logits[0], expected)


def test_stacked_clients_equal_separate_ones(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GAMLP(hidden=8)
    weights = different_weights(network, cohort)
    stacked = network.forward(weights, cohort, None).logits
    for m, graph in enumerate(federation.graphs):
        alone = network.forward(
            {name: weight[m : m + 1] for name, weight in weights.items()},
            stack([graph], federation.task, "float64"),
            None,
        )
        torch.testing.assert_close(stacked[m, : graph.size], alone.logits[0])


def test_training_drops_hidden_entries_and_input_features(make_federation):
    """With the identity as classifier, a logit is the embedding's entry, scaled by 1/(1 - rate), or zero."""
    federation = make_federation(classes=8)
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GAMLP(hidden=8, dropout=0.3, layers=2)
    weights = different_weights(network, cohort)
    weights["classifier.weight"] = torch.eye(8).double().expand(4, 8, 8)
    weights["classifier.bias"] = torch.zeros(4, 8).double()
    result = network.forward(weights, cohort, Dropout(cohort, 0, 0))
    logits, read = result.logits[cohort.nodes], result.embedding[cohort.nodes]
    kept = logits != 0
    torch.testing.assert_close(logits[kept], read[kept] / 0.7, rtol=1e-6, atol=0)
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.1)
    assert torch.equal(result.embedding, network.forward(weights, cohort, None).embedding)
    dropping = replace(network, input_dropout=0.5, dropout=0.0)
    dropped = dropping.forward(weights, cohort, Dropout(cohort, 0, 0)).embedding
    assert not torch.allclose(dropped, result.embedding)


def test_initial_weights(make_federation):
    task = make_federation(features=100).task
    weights = GAMLP(hidden=60).initialise(task)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == {
        "encoder.attention.weight": (500, 1),
        "encoder.attention.bias": (1,),
        "encoder.0.weight": (100, 60),
        "encoder.0.bias": (60,),
        "encoder.0.slope": (1,),
        "encoder.1.weight": (60, 60),
        "encoder.1.bias": (60,),
        "encoder.1.slope": (1,),
        "classifier.weight": (60, 3),
        "classifier.bias": (3,),
    }
    bound = np.sqrt(2) * np.sqrt(6 / 160)
    assert weights["encoder.0.weight"].abs().max() <= bound
    assert weights["encoder.0.weight"].std().item() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert weights["encoder.0.slope"].item() == 0.25


def test_a_network_without_hidden_layer_is_refused():
    with pytest.raises(ConfigurationError, match="layers=1 leaves gamlp without hidden layer: use 2 or more"):
        create("fedavg", "gamlp", {"layers": 1})
