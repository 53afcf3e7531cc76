"""UniFilter against the written network, and training on training rows against training on all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.algorithms.backbones import UniFilter
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.algorithms.weight_sharing import cross_entropy
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, stack

NETWORKS = [
    UniFilter(hidden=8, hops=3),
    UniFilter(hidden=8, hops=2, layers=4, activation="elu", homophily_mix=0.9),
    UniFilter(hidden=6, hops=2, layers=3, basis="official"),
    UniFilter(hidden=8, hops=3, shared_filter=True),
    UniFilter(hidden=8, hops=3, layers=1),
    UniFilter(hidden=8, hops=0),
]
each_network = pytest.mark.parametrize("network", NETWORKS, ids=str)


def different_weights(network, cohort):
    """Stacked initial weights [k, ...] in float64, perturbed so that clients and features differ."""
    generator = torch.Generator().manual_seed(1)
    k = len(cohort.clients)
    return {
        name: weight.double() + 0.3 * torch.randn(k, *weight.shape, dtype=torch.float64, generator=generator)
        for name, weight in network.initialise(cohort.task).items()
    }


def expected_logits(network, bases, own):
    """The network as it is written, for one client; bases [J, n, f]."""
    coefficients = own["encoder.filter.coefficients"]
    values = torch.einsum("jnf,jf->nf", bases, coefficients.reshape(len(bases), -1).expand(bases[:, 0].shape))
    layers = [own[f"encoder.{layer}.weight"] for layer in range(network.layers - 1)]
    for weight in layers:
        values = network.act(values @ weight + (values if weight.shape[0] == weight.shape[1] else 0))
    weight = own["classifier.weight"]
    return values @ weight + (values if weight.shape[0] == weight.shape[1] else 0)


@each_network
def test_equals_the_written_network(make_federation, network):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    weights = {n: w.requires_grad_() for n, w in different_weights(network, cohort).items()}
    result = network.forward(weights, cohort, None)
    bases = network.bases(cohort)
    assert bases.shape == (network.hops + 1, 4, cohort.width, 6)
    total = 0.0
    for m, size in enumerate(cohort.sizes):
        own = {name: weight[m] for name, weight in weights.items()}
        logits = expected_logits(network, bases[:, m, :size], own)
        torch.testing.assert_close(result.logits[m, :size], logits)
        total = total + logits.square().sum()
    mine = torch.autograd.grad(result.logits[cohort.nodes].square().sum(), list(weights.values()))
    torch.testing.assert_close(mine, torch.autograd.grad(total, list(weights.values())))


def test_widths_and_residuals_follow_the_layers(make_federation):
    task = make_federation().task
    shapes = {n: tuple(w.shape) for n, w in UniFilter(hidden=8, hops=3, layers=3).initialise(task).items()}
    assert shapes == {
        "encoder.filter.coefficients": (4, 6),
        "encoder.0.weight": (6, 8),
        "encoder.1.weight": (8, 8),
        "classifier.weight": (8, 3),
    }


def test_initial_weights_have_the_stated_ranges(make_federation):
    weights = UniFilter(hidden=8, hops=3).initialise(make_federation().task)
    assert (weights["encoder.filter.coefficients"] == 0.25).all()
    for name, columns in (("encoder.0.weight", 8), ("classifier.weight", 3)):
        bound = 1 / columns**0.5
        assert weights[name].abs().max() <= bound
        assert weights[name].abs().max() > 0.8 * bound


def test_a_shared_filter_is_the_same_coefficient_for_all_features(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    shared = UniFilter(hidden=8, hops=3, shared_filter=True)
    weights = different_weights(shared, cohort)
    name = "encoder.filter.coefficients"
    assert weights[name].shape == (4, 4)
    wide = {**weights, name: weights[name][..., None].expand(-1, -1, 6).contiguous()}
    first = shared.forward(weights, cohort, None).logits
    second = replace(shared, shared_filter=False).forward(wide, cohort, None).logits
    torch.testing.assert_close(first, second)


def test_without_hops_it_is_a_perceptron_that_sees_no_graph(make_federation):
    federation = make_federation()
    network = UniFilter(hidden=8, hops=0)
    edgeless = federation
    for m in range(4):
        edgeless = edgeless.changed(m, edges=np.zeros((2, 0), dtype=np.int64))
    cohorts = [stack(whole.graphs, whole.task, "float64") for whole in (federation, edgeless)]
    weights = different_weights(network, cohorts[0])
    first, second = (network.forward(weights, cohort, None).logits for cohort in cohorts)
    assert torch.equal(first, second)


@each_network
def test_training_rows_give_the_same_loss_and_gradients(make_federation, network):
    federation = make_federation().changed(3, train=np.zeros(12, dtype=bool))
    cohort = stack(federation.graphs, federation.task, "float64")
    network = replace(network, dropout=0.0)
    weights = {n: w.requires_grad_() for n, w in different_weights(network, cohort).items()}
    found = []
    for result in (
        network.forward(weights, cohort, None),
        network.forward_training(weights, cohort, Dropout(cohort, 0, 0)),
    ):
        loss = cross_entropy(cohort, result.logits)
        found.append((result, loss, torch.autograd.grad(loss.sum(), list(weights.values()))))
    (whole, loss, gradients), (rows, row_loss, row_gradients) = found
    torch.testing.assert_close(row_loss, loss)
    torch.testing.assert_close(row_gradients, gradients)
    for part in ("logits", "embedding"):
        expected = getattr(whole, part) * cohort.train[..., None]
        torch.testing.assert_close(getattr(rows, part), expected)


def test_rows_are_taken_and_spread_back(make_federation):
    federation = make_federation().changed(3, train=np.zeros(12, dtype=bool))
    cohort = stack(federation.graphs, federation.task)
    rows = training_rows(cohort)
    assert rows.counts == (6, 3, 8, 0)
    values = torch.rand(2, 4, cohort.width, 5)
    taken = rows.take(values)
    assert taken.shape == (2, 4, 8, 5)
    for m, count in enumerate(rows.counts):
        assert torch.equal(taken[:, m, :count], values[:, m, cohort.train[m]])
        assert (taken[:, m, count:] == 0).all()
    assert torch.equal(rows.spread(taken[0]), values[0] * cohort.train[..., None])


def test_dropout_of_rows_is_each_client_s_own(make_federation):
    federation = make_federation(sizes=(170, 90, 230))
    cohort = stack(federation.graphs, federation.task)
    rows = training_rows(cohort)
    ones = rows.present[..., None].float().expand(-1, -1, 20).contiguous()
    dropped = rows.drop(Dropout(cohort, 3, 1), "hidden.0", ones, 0.25)
    kept = dropped[rows.present] > 0
    assert dropped[rows.present][kept].unique().tolist() == pytest.approx([4 / 3])
    assert kept.float().mean() == pytest.approx(0.75, abs=0.02)
    alone = stack(federation.graphs[1:2], federation.task)
    single = training_rows(alone).drop(Dropout(alone, 3, 1), "hidden.0", ones[1:2, :30], 0.25)
    assert torch.equal(single[0], dropped[1, :30])
    assert rows.drop(Dropout(cohort, 3, 1), "hidden.0", ones, 0.0) is ones


def test_options_reach_the_network():
    options = {"hops": 4, "layers": 3, "homophily_mix": 0.8, "basis": "official", "hidden": 16}
    network = create("fedavg", "unifilter", options).backbone
    assert network == UniFilter(**options)
    assert create("fedavg", "unifilter", {}).backbone.hops == 10
    with pytest.raises(ConfigurationError, match=r"homophily_mix=0\.8 has no meaning for gcn"):
        create("fedavg", "gcn", {"homophily_mix": 0.8})


def test_filter_coefficients_have_their_own_rate(make_federation, make_method, run):
    federation = make_federation()
    settings = {"epochs": 1, "dropout": 0.0, "weight_decay": 0.0}
    method = make_method("local", "unifilter", lr=0.01, filter_lr=0.002, filter_weight_decay=0.0, **settings)
    moved = run(method, federation, rounds=1).clients["weights"]
    for name, start in method.backbone.initialise(federation.task).items():
        # The first step of Adam is the learning rate wherever the gradient is not tiny.
        rate = 0.002 if "filter" in name else 0.01
        assert (moved[name] - start).abs().max() == pytest.approx(rate, rel=1e-3)
