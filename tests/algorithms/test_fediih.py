"""FedIIH: what it sends, how it mixes, and that its objective is the written one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits

from fedatlas.algorithms.fediih import MEANS, VARIANCE, Inferred, latent_similarity, mixed_by_factor
from fedatlas.algorithms.reconstruction import reconstruction_loss, sampled_weights
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.weight_sharing import cross_entropy
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, Task, stack
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.federation.runtime import InlineRuntime

FACTORS, WIDTH = 2, 3


@pytest.fixture
def method(make_method):
    return make_method("fediih", hidden=WIDTH, factors=FACTORS, routing=2)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def upload(clients, train_nodes=None, seed=0, **changed):
    """What clients with random weights and latent distributions send: 4 features, 2 classes."""
    fields = {
        "weights/encoder.weight": normal(clients, 4, FACTORS * WIDTH, seed=seed),
        "weights/encoder.bias": normal(clients, FACTORS * WIDTH, seed=seed + 1),
        "weights/classifier.weight": normal(clients, FACTORS * WIDTH, 2, seed=seed + 2),
        "weights/classifier.bias": normal(clients, 2, seed=seed + 3),
        "latent/mean": normal(clients, FACTORS, WIDTH, seed=seed + 4) / 3,
        "latent/log_variance": normal(clients, FACTORS, WIDTH, seed=seed + 5) / 3,
        "size/train_nodes": torch.tensor(train_nodes or [5] * clients, dtype=torch.int32),
        "size/nodes": torch.full((clients,), 9, dtype=torch.int32),
    }
    return Upload({**fields, **changed})


def aggregated(method, sent):
    task = Task(len(sent.fields["size/nodes"]), 4, 2, "accuracy", 0)
    return method.aggregate(method.init(task), sent, 0)


# Server


def test_golden_similarity():
    """Means (0, 0) and (1, 0), log-variances (0, 0) and (ln 2, 0): S .837294, beta row (.835766, .164234)."""
    mean = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    log_variance = torch.tensor([[[0.0, 0.0], [math.log(2), 0.0]]], dtype=torch.float64)
    similarity = latent_similarity(mean, log_variance, "sum")
    torch.testing.assert_close(similarity[0].diagonal(), torch.ones(2, dtype=torch.float64))
    assert float(similarity[0, 0, 1]) == pytest.approx(0.837294, abs=1e-6)
    beta = torch.softmax(10 * similarity, dim=2)
    assert beta[0, 0].tolist() == pytest.approx([0.835766, 0.164234], abs=1e-6)
    halved = latent_similarity(mean, log_variance, "mean")
    torch.testing.assert_close(1 - halved, (1 - similarity) / 2)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_rows_are_the_softmax_of_the_similarities(make_method, reduce):
    method = make_method("fediih", hidden=WIDTH, factors=FACTORS, js_reduce=reduce, sharpness=4.0)
    sent = upload(5)
    rows = aggregated(method, sent).factor_mixing
    similarity = latent_similarity(
        sent.fields["latent/mean"].transpose(0, 1), sent.fields["latent/log_variance"].transpose(0, 1), reduce
    )
    assert rows.shape == (FACTORS, 5, 5)
    torch.testing.assert_close(rows, torch.softmax(4 * similarity, dim=2))
    torch.testing.assert_close(rows.sum(dim=2), torch.ones(FACTORS, 5, dtype=torch.float64))


def test_far_clients_keep_to_themselves_without_underflow(method):
    rows = aggregated(method, upload(3, **{"latent/mean": 1e4 * normal(3, FACTORS, WIDTH)})).factor_mixing
    torch.testing.assert_close(rows, torch.eye(3, dtype=torch.float64).expand(FACTORS, 3, 3))


def test_equal_clients_get_equal_weights(method):
    same = {name: field[:1].expand(4, *field.shape[1:]) for name, field in upload(4).fields.items()}
    server = aggregated(method, Upload(same))
    torch.testing.assert_close(server.factor_mixing, torch.full((FACTORS, 4, 4), 0.25, dtype=torch.float64))
    for name, weight in server.personal.items():
        torch.testing.assert_close(weight, same[f"weights/{name}"])


@pytest.mark.parametrize("factor", range(FACTORS))
def test_what_a_client_changes_in_one_factor_reaches_only_that_factor(method, factor):
    sent = upload(4)
    columns = slice(factor * WIDTH, (factor + 1) * WIDTH)
    changed = {name: field.clone() for name, field in sent.fields.items()}
    changed["weights/encoder.weight"][2, :, columns] += 1
    changed["weights/encoder.bias"][2, columns] += 1
    changed["weights/classifier.weight"][2, columns] += 1
    changed["latent/mean"][2, factor] += 1
    before, after = aggregated(method, sent).personal, aggregated(method, Upload(changed)).personal
    for name, axis in (("encoder.weight", 2), ("encoder.bias", 1), ("classifier.weight", 1)):
        difference = (after[name] - before[name]).movedim(axis, 0)
        inside = torch.zeros(FACTORS * WIDTH, dtype=torch.bool)
        inside[columns] = True
        assert (difference[~inside] == 0).all()
        assert (difference[inside] != 0).all()
    assert torch.equal(before["classifier.bias"], after["classifier.bias"])


def test_blocks_are_mixed_by_their_own_weights_and_the_bias_is_averaged():
    sent = upload(3).fields
    mixing = torch.softmax(normal(FACTORS, 3, 3), dim=2)
    shares = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    weights = {name.removeprefix("weights/"): sent[name] for name in sent if name.startswith("weights/")}
    found = mixed_by_factor(weights, mixing, shares)
    for m in range(3):
        for k in range(FACTORS):
            block = slice(k * WIDTH, (k + 1) * WIDTH)
            for name, place in (
                ("encoder.weight", (slice(None), block)),
                ("encoder.bias", (block,)),
                ("classifier.weight", (block,)),
            ):
                expected = sum(mixing[k, m, j] * weights[name][j][place] for j in range(3))
                torch.testing.assert_close(found[name][m][place], expected)
        torch.testing.assert_close(found["classifier.bias"][m], weights["classifier.bias"][:2].mean(dim=0))


@pytest.mark.parametrize("clients", [1, 4])
def test_latent_means_are_shrunk_to_the_prior(method, clients):
    sent = upload(clients)
    expected = sent.fields["latent/mean"].sum(dim=0) / (clients + 0.25)
    server = aggregated(method, sent)
    torch.testing.assert_close(server.means, expected)
    if clients == 1:
        torch.testing.assert_close(server.means, sent.fields["latent/mean"][0] / 1.25)
        assert (server.factor_mixing == 1).all()


def test_a_client_without_training_nodes_gives_nothing_and_receives(method):
    sent = upload(4, train_nodes=[5, 5, 0, 5])
    server = aggregated(method, sent)
    assert (server.factor_mixing[:, :, 2] == 0).all()
    torch.testing.assert_close(server.factor_mixing.sum(dim=2), torch.ones(FACTORS, 4, dtype=torch.float64))
    torch.testing.assert_close(server.means, sent.fields["latent/mean"][[0, 1, 3]].sum(dim=0) / 3.25)
    nobody = aggregated(method, upload(2, train_nodes=[0, 0]))
    torch.testing.assert_close(nobody.factor_mixing, torch.eye(2, dtype=torch.float64).expand(FACTORS, 2, 2))


# Messages


def test_alphahat_never_travels(make_federation, method, run):
    federation = make_federation()
    runtime = InlineRuntime()
    runtime.setup(federation.job(method))
    server = method.init(federation.task)
    for round_number in range(2):
        broadcast = method.broadcast(server, round_number)
        (report,) = runtime.round(broadcast, round_number)
        server = method.aggregate(server, report.upload, round_number)
        for field in (*broadcast.common, *broadcast.personal, *report.upload.fields):
            assert MEANS not in field
    own = runtime.state()["weights"][MEANS]
    assert own.shape == (4, FACTORS, WIDTH)
    assert MEANS not in {**server.weights, **server.personal}
    assert (own[0] != own[1]).all()


def test_floats_per_client_and_round(make_federation, method, run):
    """Up: theta and 2 K p; down: theta and K p."""
    outcome = run(method, make_federation(), rounds=2, precision="float32")
    for record in outcome.records:
        assert record.uplink["latent"] == 4 * 4 * 2 * FACTORS * WIDTH
        assert record.downlink["latent"] == 4 * 4 * FACTORS * WIDTH
        assert record.uplink["weights"] == record.downlink["weights"]


def test_aggregation_none_sends_nothing(make_federation, make_method, run):
    outcome = run(make_method("fediih", aggregation="none"), make_federation(), rounds=2)
    assert all(record.uplink == record.downlink == {} for record in outcome.records)


def test_means_that_are_sent_are_averages_over_the_real_nodes(make_federation, method):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    sent = method.own_upload(client, cohort, 0)
    network = method.network
    hidden = network.forward(client.weights, cohort, None)
    values = network.route(cohort, hidden.factors)
    for m, graph in enumerate(federation.graphs):
        expected = values[m, : graph.size].mean(dim=0).view(FACTORS, WIDTH)
        torch.testing.assert_close(sent["latent/mean"][m], expected)
        torch.testing.assert_close(sent["latent/log_variance"][m], expected)
    torch.testing.assert_close(client.logits, hidden.logits)


# Objective


def prepared(method, federation, received=None):
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    client.received = received
    return cohort, client


def inferred(representation, cohort, m):
    size = cohort.sizes[m]
    return tuple(
        part[m, :size].view(size, FACTORS, WIDTH)
        for part in (representation.mean, representation.log_variance)
    )


def test_the_loss_is_the_written_elbo(make_federation, make_method):
    method = make_method("fediih", hidden=WIDTH, factors=FACTORS, routing=2, elbo_weight=0.5)
    received = normal(FACTORS, WIDTH, seed=7)
    cohort, client = prepared(method, make_federation(), received)
    weights = {name: weight.clone().requires_grad_() for name, weight in client.weights.items()}
    representation = method.represent(client, cohort, weights, Dropout(cohort, 3, 0))
    assert isinstance(representation, Inferred)
    terms = method.losses(client, cohort, weights, representation, 3)
    deviation = VARIANCE**0.5
    noise = method._noise(client, cohort, 3, representation.mean)
    for m, adjacency in enumerate(cohort.adjacencies):
        mean, log_variance = inferred(representation, cohort, m)
        own = weights[MEANS][m]
        latent = kl_divergence(Normal(mean, torch.exp(log_variance / 2)), Normal(own, deviation))
        prior = -Normal(0.0, 1.0).log_prob(own) + kl_divergence(
            Normal(own, deviation), Normal(received, deviation)
        )
        torch.testing.assert_close(terms["latent"][m], 0.5 * latent.mean(dim=(0, 2)).sum())
        torch.testing.assert_close(terms["prior"][m], 0.5 * prior.mean(dim=1).sum())
        size = cohort.sizes[m]
        sample = (mean + torch.exp(log_variance / 2) * noise[m, :size].view_as(mean)).flatten(1)
        apart = ~torch.eye(size, dtype=torch.bool)
        expected = binary_cross_entropy_with_logits(
            (sample @ sample.T)[apart], torch.as_tensor(adjacency.toarray())[apart]
        )
        torch.testing.assert_close(terms["reconstruction"][m], 0.5 * expected)


def gradients(method, federation):
    cohort, client = prepared(method, federation, torch.zeros(FACTORS, WIDTH, dtype=torch.float64))
    return method._gradients(client, next(method._steps(cohort, 0, 0)), 0)[1]


def test_in_the_released_code_the_elbo_trains_alphahat_only(make_federation, make_method):
    federation = make_federation()
    options = {"hidden": WIDTH, "factors": FACTORS, "routing": 2}
    without = gradients(make_method("fediih", elbo_weight=0, **options), federation)
    official = gradients(make_method("fediih", elbo_trains_encoder=False, **options), federation)
    joint = gradients(make_method("fediih", **options), federation)
    assert MEANS not in without
    assert (official[MEANS] != 0).all()
    torch.testing.assert_close(official[MEANS], joint[MEANS])
    for name, gradient in without.items():
        assert torch.equal(gradient, official[name])
    assert not torch.allclose(joint["encoder.weight"], official["encoder.weight"])
    assert torch.equal(joint["classifier.weight"], official["classifier.weight"])


def test_in_the_released_code_networks_do_not_depend_on_the_elbo(make_federation, make_method, run):
    federation = make_federation()
    options = {"hidden": WIDTH, "factors": FACTORS, "routing": 2}
    first = run(make_method("fediih", elbo_trains_encoder=False, **options), federation)
    second = run(make_method("fediih", elbo_weight=0, **options), federation)
    assert np.array_equal(first.scores(), second.scores())
    for name, weight in second.clients["weights"].items():
        if name != MEANS:
            assert torch.equal(weight, first.clients["weights"][name])


@pytest.mark.parametrize("latent_layers", [1, 2])
def test_branches_are_equal_without_dropout_and_differ_with_it(make_federation, make_method, latent_layers):
    method = make_method("fediih", hidden=WIDTH, factors=FACTORS, routing=2, latent_layers=latent_layers)
    cohort, client = prepared(method, make_federation())
    factors = method.network.forward(client.weights, cohort, None).factors
    mean, log_variance = method._infer(cohort, factors, None)
    assert torch.equal(mean, log_variance)
    expected = factors
    for _ in range(latent_layers):
        expected = method.network.route(cohort, expected)
    torch.testing.assert_close(mean, expected)
    mean, log_variance = method._infer(cohort, factors, Dropout(cohort, 0, 0))
    assert not torch.equal(mean, log_variance)


def test_cross_entropy_reads_the_same_forward_pass(make_federation, method):
    cohort, client = prepared(method, make_federation())
    source = Dropout(cohort, 0, 0)
    plain = method.network.forward(client.weights, cohort, source)
    joint = method.represent(client, cohort, client.weights, source)
    torch.testing.assert_close(cross_entropy(cohort, joint.logits), cross_entropy(cohort, plain.logits))


# Decoder


def written_reconstruction(latent, adjacency):
    apart = ~torch.eye(len(latent), dtype=torch.bool)
    return binary_cross_entropy_with_logits(
        (latent @ latent.T)[apart], torch.as_tensor(adjacency.toarray())[apart]
    )


def test_sampled_pairs_estimate_all_pairs():
    generator = np.random.default_rng(0)
    dense = np.triu(generator.random((40, 40)) < 0.1, 1)
    adjacency = sp.csr_array((dense | dense.T).astype(float))
    latent = normal(40, 3)
    convex = torch.nn.functional.softplus(latent @ latent.T).numpy()
    np.fill_diagonal(convex, 0)
    sums = [float((sampled_weights(adjacency, generator).toarray() * convex).sum()) for _ in range(400)]
    assert np.mean(sums) == pytest.approx(convex.sum(), rel=0.01)
    weights = sampled_weights(adjacency, generator).toarray()
    assert (weights[dense | dense.T] == 1).all()
    assert np.array_equal(weights, weights.T)
    assert weights.sum() == pytest.approx(40 * 39)
    assert (weights.diagonal() == 0).all()


@pytest.mark.parametrize("limit", [5000, 15, 1], ids=["all pairs", "two clients sampled", "all sampled"])
def test_gradients_of_the_decoder(make_federation, limit):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    latent = normal(4, cohort.width, 3).requires_grad_()

    def loss(values):
        return reconstruction_loss(cohort, values, limit, cohort.generators(0, "test"))

    assert torch.autograd.gradcheck(loss, (latent,), fast_mode=True)
    found = loss(latent)
    for m, size in enumerate(cohort.sizes):
        if size <= limit:
            expected = written_reconstruction(latent[m, :size], cohort.adjacencies[m])
            torch.testing.assert_close(found[m], expected)


def test_a_complete_graph_needs_no_sample(make_federation):
    federation = make_federation(sizes=(6,))
    edges = np.array([(a, b) for a in range(6) for b in range(6) if a != b]).T
    federation = federation.changed(0, edges=edges)
    cohort = stack(federation.graphs, federation.task, "float64")
    latent = normal(1, 6, 3)
    every, sampled = (reconstruction_loss(cohort, latent, k, cohort.generators(0, "x")) for k in (6, 1))
    torch.testing.assert_close(every, sampled)


def test_sampled_decoder_does_not_depend_on_placement(make_federation, make_method, run, assert_same_run):
    federation = make_federation()
    method = make_method("fediih", all_pairs_limit=12, epochs=2, latent_layers=2, layers=2, factors=3)
    assert_same_run(run(method, federation, per_cohort=1), run(method, federation), 1e-5)


def test_odd_federations_with_a_sampled_decoder(odd_federation, make_method, run):
    method = make_method("fediih", all_pairs_limit=1)
    for record in run(method, odd_federation, rounds=2).records:
        assert np.isfinite(list(record.metrics.values())).all()


# Limits


def test_without_sharpness_it_is_fedavg_on_its_backbone(make_federation, make_method, run):
    federation = make_federation()
    options = {"hidden": 4, "factors": 2, "routing": 2, "dropout": 0.2}
    found = run(make_method("fediih", elbo_weight=0, sharpness=0, **options), federation)
    expected = run(make_method("fedavg", "disengcn", **options), federation)
    for name, weight in expected.clients["weights"].items():
        torch.testing.assert_close(found.clients["weights"][name], weight, rtol=0, atol=1e-9)
    assert found.records[-1].metrics["mixing/entropy"] == pytest.approx(math.log(4))


def test_with_great_sharpness_it_is_local_but_for_the_bias(make_federation, make_method, run):
    federation = make_federation()
    options = {"hidden": 4, "factors": 2, "routing": 2, "dropout": 0.2}
    found = run(make_method("fediih", sharpness=1e9, **options), federation, rounds=2)
    assert found.records[-1].metrics["mixing/self"] == pytest.approx(1)
    for name, sent in found.server["personal"].items():
        own = found.clients["weights"][name]
        expected = own.mean(dim=0).expand_as(own) if name == "classifier.bias" else own
        torch.testing.assert_close(sent, expected)


def test_another_network_is_refused():
    with pytest.raises(ConfigurationError, match="does not work with backbone=gcn: use backbone=disengcn"):
        create("fediih", "gcn")


def test_snapshot_of_the_server(method):
    server = aggregated(method, upload(3))
    found = method.server_snapshot(server)
    torch.testing.assert_close(found["mixing"], found["factor_mixing"].mean(dim=0))
    assert found["latent_means"].shape == (FACTORS, WIDTH)
    figures = method.diagnostics(server)
    rows = server.factor_mixing
    assert figures["mixing/self"] == pytest.approx(float(rows.diagonal(dim1=1, dim2=2).mean()))
    assert figures["mixing/entropy"] == pytest.approx(float(-(rows * rows.log()).sum(dim=2).mean()))
    assert method.diagnostics(dataclasses.replace(server, mixing=torch.zeros(0, 0))) == {}


def test_the_first_broadcast_has_the_prior_mean(make_federation, method):
    federation = make_federation()
    first = method.broadcast(method.init(federation.task), 0)
    assert isinstance(first, Broadcast)
    assert first.personal == {}
    assert (first.common["latent/means"] == 0).all()
