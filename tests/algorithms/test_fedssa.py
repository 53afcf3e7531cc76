"""FedSSA: moments, divergences and energies against their definitions, and FedAvg where nothing is left."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.algorithms.fedssa import (
    DECODER,
    FILTER,
    HEADS,
    VARIANCE_FLOOR,
    Moments,
    alignment,
    class_moments,
    leading_directions,
    representatives,
    semantic_distances,
    subspace_distances,
)
from fedatlas.algorithms.gaussians import kl
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.messages import Broadcast

HOPS, LATENT = 3, 5
PLAIN = {"semantic_groups": 1, "structural_groups": 1, "variational_weight": 0.0, "semantic_weight": 0.0}
"""Settings under which only the groups' averages are left."""


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gaussians(clients, classes=3, seed=0, counts=None):
    number = torch.full((clients, classes), 4) if counts is None else torch.tensor(counts)
    return Moments(
        random(clients, classes, LATENT, seed=seed),
        0.3 * random(clients, classes, LATENT, seed=seed + 1),
        number,
    )


@pytest.fixture
def make(make_method):
    return lambda **options: make_method("fedssa", hops=HOPS, latent=LATENT, **options)


@pytest.fixture
def joined(make_federation, make):
    """Method, cohort and client that have received weights and, if given, moments of their groups."""

    def join(federation=None, moments=None, **options):
        federation = federation or make_federation()
        method = make(**options)
        cohort = stack(federation.graphs, federation.task, "float64")
        client = method.join(cohort)
        common = method.broadcast(method.init(federation.task), 0).common
        personal = {}
        if moments is not None:
            personal = {
                "moments/mean": moments.mean,
                "moments/log_variance": moments.log_variance,
                "moments/counts": moments.counts,
            }
        method.receive(client, cohort, Broadcast(common, personal))
        return method, cohort, client

    return join


# Moments and divergences


def test_class_moments_are_those_of_the_mixture_of_nodes(make_federation):
    federation = make_federation().changed(0, labels=make_federation().graphs[0].labels % 2)
    cohort = stack(federation.graphs, federation.task, "float64")
    rows = training_rows(cohort)
    mean, log_variance = random(*rows.present.shape, LATENT), random(*rows.present.shape, LATENT, seed=1)
    found = class_moments(cohort, mean, log_variance)
    for m, graph in enumerate(federation.graphs):
        labels = graph.labels[graph.train]
        for c in range(3):
            own = torch.as_tensor(np.flatnonzero(labels == c))
            assert found.counts[m, c] == len(own)
            if len(own) == 0:
                continue
            expected = log_variance[m, own].exp().mean(dim=0) + mean[m, own].var(dim=0, correction=0)
            torch.testing.assert_close(found.mean[m, c], mean[m, own].mean(dim=0))
            torch.testing.assert_close(found.log_variance[m, c].exp(), expected.clamp(min=VARIANCE_FLOOR))
    assert found.counts[0, 2] == 0


def test_one_training_node_has_its_own_variance_with_a_floor(make_federation):
    federation = make_federation(sizes=(9,), classes=1)
    train = np.zeros(9, dtype=bool)
    train[4] = True
    cohort = stack(federation.changed(0, train=train).graphs, federation.task, "float64")
    mean = random(1, 1, 2)
    log_variance = torch.tensor([[[0.5, -20.0]]], dtype=torch.float64)
    found = class_moments(cohort, mean, log_variance)
    torch.testing.assert_close(found.mean[0, 0], mean[0, 0])
    expected = torch.tensor([0.5, math.log(VARIANCE_FLOOR)], dtype=torch.float64)
    torch.testing.assert_close(found.log_variance[0, 0], expected)


def test_a_client_does_not_diverge_from_itself():
    own = gaussians(4)
    torch.testing.assert_close(alignment(own, own), torch.zeros(4).double())


def test_alignment_is_the_mean_divergence_over_shared_classes():
    own, group = (
        gaussians(2, counts=[[3, 0, 2], [0, 4, 0]]),
        gaussians(2, seed=5, counts=[[9, 9, 9], [9, 0, 9]]),
    )
    each = kl(own.mean, own.log_variance, group.mean, group.log_variance).mean(dim=2)
    found = alignment(own, group)
    assert found[0] == pytest.approx(float(each[0, [0, 2]].mean()))
    assert found[1] == 0


def test_an_absent_class_contributes_no_gradient(joined):
    moments = gaussians(4)
    method, cohort, client = joined(moments=moments, variational_weight=0.0, structural_weight=0.0)
    absent = replace(moments, counts=moments.counts * torch.tensor([1, 0, 1]))
    changed = replace(absent, mean=moments.mean + torch.tensor([0.0, 50.0, 0.0])[:, None])
    found = []
    for group in (absent, changed):
        client.group = {**client.group, "mean": group.mean, "counts": group.counts}
        live = {n: w.clone().requires_grad_() for n, w in client.weights.items()}
        representation = method.represent(client, cohort, live, Dropout(cohort, 0, 0))
        loss = method.losses(client, cohort, live, representation, 6)["semantic"]
        found.append((loss, torch.autograd.grad(loss.sum(), live[f"{HEADS}mean.weight"])[0]))
    torch.testing.assert_close(found[0], found[1])
    assert found[0][1].abs().max() > 0


def test_the_representative_of_one_member_is_that_member():
    own = gaussians(3)
    found = representatives(own, torch.eye(3).double())
    torch.testing.assert_close(found.mean, own.mean)
    torch.testing.assert_close(found.log_variance, own.log_variance)
    torch.testing.assert_close(found.counts, own.counts.double())


def test_representatives_have_the_moments_of_the_sampled_mixture():
    own = gaussians(3, classes=1, counts=[[1], [3], [6]])
    found = representatives(own, torch.ones(3, 3).double())
    generator = np.random.default_rng(0)
    member = generator.choice(3, 400_000, p=[0.1, 0.3, 0.6])
    mean, deviation = own.mean[:, 0].numpy(), (own.log_variance[:, 0] / 2).exp().numpy()
    samples = mean[member] + deviation[member] * generator.standard_normal((400_000, LATENT))
    for m in range(3):
        np.testing.assert_allclose(found.mean[m, 0], samples.mean(axis=0), atol=0.01)
        np.testing.assert_allclose(found.log_variance[m, 0].exp(), samples.var(axis=0), rtol=0.01)


def test_representatives_leave_out_other_groups_and_absent_classes():
    own = gaussians(3, counts=[[4, 0, 0], [2, 2, 0], [9, 9, 9]])
    together = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).double()
    found = representatives(own, together)
    assert found.counts.tolist() == [[6, 2, 0], [6, 2, 0], [9, 9, 9]]
    expected = (4 * own.mean[0, 0] + 2 * own.mean[1, 0]) / 6
    torch.testing.assert_close(found.mean[0, 0], expected)
    torch.testing.assert_close(found.mean[0, 1], own.mean[1, 1])


def test_distances_are_symmetric_divergences_over_shared_classes():
    own = gaussians(3, counts=[[4, 4, 0], [4, 0, 4], [0, 0, 0]])
    found = semantic_distances(own)
    assert torch.equal(found, found.T)
    there = kl(own.mean[0, 0], own.log_variance[0, 0], own.mean[1, 0], own.log_variance[1, 0]).mean()
    back = kl(own.mean[1, 0], own.log_variance[1, 0], own.mean[0, 0], own.log_variance[0, 0]).mean()
    assert found[0, 1] == pytest.approx(float(there + back))
    # The third client shares no class with anybody.
    assert found[0, 2] == found[1, 2] == found.max()
    assert (found.diagonal() == 0).all()
    alone = semantic_distances(gaussians(2, counts=[[4, 0, 0], [0, 4, 0]]))
    assert alone.tolist() == [[0, 1], [1, 0]]


# Energies


@pytest.mark.parametrize("shared_filter", [False, True])
@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_energies_sum_to_one_and_do_not_depend_on_the_scale(make_federation, joined, shared_filter, scale):
    federation = make_federation()
    scaled = replace(
        federation, graphs=tuple(replace(g, features=scale * g.features) for g in federation.graphs)
    )
    method, cohort, client = joined(scaled, shared_filter=shared_filter)
    weights = {**client.weights, FILTER: random(*client.weights[FILTER].shape)}
    found = method._energy(cohort, weights)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(4).double())
    norms = np.maximum(np.linalg.norm(federation.graphs[0].features.astype(np.float64), axis=0), 1e-12)
    unit = federation.changed(0, features=federation.graphs[0].features / norms)
    own = stack(unit.graphs[:1], federation.task, "float64")
    coefficients = method.backbone.coefficients(weights)[0]
    energy = (method.backbone.bases(own)[:, 0] * coefficients[:, None]).square().sum(dim=(1, 2))
    torch.testing.assert_close(found[0], energy / energy.sum(), rtol=1e-5, atol=1e-7)


def test_without_features_the_energies_are_equal(make_federation, joined):
    federation = make_federation()
    empty = federation.changed(1, features=np.zeros_like(federation.graphs[1].features))
    method, cohort, client = joined(empty)
    torch.testing.assert_close(
        method._energy(cohort, client.weights)[1], torch.full((HOPS + 1,), 0.25).double()
    )


def test_subspaces_are_compared_by_their_principal_angles():
    axes = torch.eye(6).double()
    first, second = axes[:2], axes[[1, 0]]
    third = torch.stack([axes[0], math.cos(0.3) * axes[1] + math.sin(0.3) * axes[2]])
    found = subspace_distances(torch.stack([first, second, third, axes[3:5]]))
    assert found[0, 1] == pytest.approx(0, abs=1e-7)
    assert found[0, 2] == pytest.approx(math.sin(0.3))
    assert found[0, 3] == pytest.approx(2**0.5)


def test_leading_directions_span_the_stacked_bases(joined):
    method, cohort, _ = joined()
    bases = method.backbone.bases(cohort)
    found = leading_directions(cohort, bases, 2)
    for m, size in enumerate(cohort.sizes):
        values, vectors = torch.linalg.eigh(
            torch.einsum("jnf,jng->fg", bases[:, m, :size], bases[:, m, :size])
        )
        expected = vectors[:, values.argsort(descending=True)[:2]]
        torch.testing.assert_close(found[m].T @ found[m], expected @ expected.T)


# Loss


def test_the_bound_is_the_written_one(joined):
    method, cohort, client = joined(variational_weight=0.2, prior_weight=0.3, activation="elu")
    representation = method.represent(client, cohort, client.weights, Dropout(cohort, 2, 0))
    found = method.losses(client, cohort, client.weights, representation, 2)
    assert found.keys() == {"variational"}
    for m, graph in enumerate(make_graphs(cohort)):
        own = {name: weight[m] for name, weight in client.weights.items()}
        embedding = representation.embedding[m, cohort.train[m]]
        mean = embedding @ own[f"{HEADS}mean.weight"] + own[f"{HEADS}mean.bias"]
        spread = embedding @ own[f"{HEADS}log_variance.weight"] + own[f"{HEADS}log_variance.bias"]
        draw = cohort.generators(2, "posterior/0")[m].standard_normal(mean.shape)
        latent = mean + (spread / 2).exp() * torch.as_tensor(draw)
        hot = cohort.class_indicator()[m, cohort.train[m]]
        hidden = torch.nn.functional.elu(
            torch.cat([latent, hot], dim=1) @ own[f"{DECODER}0.weight"] + own[f"{DECODER}0.bias"]
        )
        rebuilt = hidden @ own[f"{DECODER}1.weight"] + own[f"{DECODER}1.bias"]
        error = (rebuilt - graph[cohort.train[m]]).square().mean()
        prior = 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()
        assert found["variational"][m] == pytest.approx(float(0.2 * (error + 0.3 * prior)))


def make_graphs(cohort):
    """Features of each client, padded."""
    return cohort.dense_features


def test_noise_differs_between_steps_and_clients_but_not_between_placements(make_federation, make, run):
    federation = make_federation()
    method = make(epochs=3, warmup=1)
    together, apart = run(method, federation, rounds=3), run(method, federation, rounds=3, per_cohort=1)
    for name, weight in together.clients["weights"].items():
        torch.testing.assert_close(weight, apart.clients["weights"][name], rtol=0, atol=1e-5)


def test_the_structural_pull_starts_with_the_second_step(make_federation, make, run):
    federation = make_federation()
    plain = {**PLAIN, "warmup": 0, "dropout": 0.0}
    for epochs, same in ((1, True), (2, False)):
        weak, strong = (
            run(make(structural_weight=weight, epochs=epochs, **plain), federation).clients["weights"]
            for weight in (0.0, 10.0)
        )
        assert torch.allclose(weak[FILTER], strong[FILTER], rtol=0, atol=1e-12) == same


def test_the_structural_pull_is_the_squared_distance_per_coefficient(joined):
    method, cohort, client = joined(moments=gaussians(4), structural_weight=0.5, **PLAIN)
    moved = {**client.weights, FILTER: client.weights[FILTER] + 0.1}
    found = method.losses(client, cohort, moved, None, 6)
    torch.testing.assert_close(found["structural"], torch.full((4,), 0.5 * 6 * 0.01).double())


def test_heads_can_read_the_labels(joined):
    method, cohort, client = joined(label_input=True)
    assert client.weights[f"{HEADS}mean.weight"].shape == (4, 8 + 3, LATENT)
    representation = method.represent(client, cohort, client.weights, Dropout(cohort, 0, 0))
    assert method.losses(client, cohort, client.weights, representation, 0)["variational"].isfinite().all()


# Server


def test_with_one_group_and_no_further_loss_it_is_fedavg(make_federation, make, make_method, run):
    federation = make_federation()
    options = {"dropout": 0.0, "epochs": 2, "client_weights": "nodes"}
    plain = run(make_method("fedavg", "unifilter", hops=HOPS, **options), federation, rounds=8)
    grouped = run(make(structural_weight=0.0, **options, **PLAIN), federation, rounds=8)
    np.testing.assert_array_equal(plain.scores(), grouped.scores())
    for name, weight in plain.clients["weights"].items():
        torch.testing.assert_close(grouped.clients["weights"][name], weight, rtol=0, atol=1e-9)


def test_groups_appear_after_the_warm_up_and_stay_once_frozen(make_federation, make, run):
    federation = make_federation(sizes=(17, 9, 23, 12, 14, 11))
    for rounds, numel in ((2, 0), (3, 6)):
        server = run(make(warmup=3), federation, rounds=rounds).server
        assert server["semantic"].numel() == server["structural"].numel() == numel
    frozen = make(warmup=2, freeze=3)
    early, late = (run(frozen, federation, rounds=rounds) for rounds in (3, 8))
    for kind in ("semantic", "structural"):
        assert torch.equal(early.server[kind], late.server[kind])
        assert len(late.server[kind].unique()) == 3
    # What stands for a group goes on changing.
    assert not torch.allclose(early.server["mean"], late.server["mean"])


def test_weights_are_averaged_within_their_kind_of_group(make_federation, make, run):
    federation = make_federation(sizes=(17, 9, 23, 12, 14, 11))
    outcome = run(make(warmup=1), federation, rounds=3)
    server, weights = outcome.server, outcome.clients["weights"]
    sizes = torch.tensor([17, 9, 23, 12, 14, 11]).double()
    for name, personal in server["personal"].items():
        labels = server["semantic" if name.startswith(HEADS) else "structural"]
        for label in labels.unique():
            members = labels == label
            share = sizes * members / sizes[members].sum()
            expected = torch.tensordot(share, weights[name], dims=1)
            torch.testing.assert_close(
                personal[members], expected.expand(int(members.sum()), *expected.shape)
            )


def test_the_decoder_never_travels(make_federation, make, run):
    outcome = run(make(), make_federation())
    decoder = outcome.clients["weights"][f"{DECODER}0.weight"]
    assert not torch.allclose(decoder[0], decoder[1])
    assert not any(name.startswith(DECODER) for name in outcome.server["weights"])


def test_traffic_is_weights_moments_and_energies(make_federation, make, run):
    outcome = run(make(warmup=2), make_federation(), rounds=3, precision="float32")
    theta = (HOPS + 1) * 6 + 6 * 8 + 8 * 3 + 2 * (8 + 1) * LATENT
    moments = 3 * (2 * LATENT + 1)
    for number, record in enumerate(outcome.records):
        assert record.uplink == {
            "weights": 16 * theta,
            "size": 16 * 2,
            "moments": 16 * moments,
            "energy": 16 * (HOPS + 1),
        }
        assert record.downlink["weights"] == 16 * theta
        assert record.downlink.get("moments", 0) == (16 * moments if number == 2 else 0)


@pytest.mark.parametrize(
    "options", [{"energy": "subspace"}, {"label_input": True}, {"shared_filter": True}], ids=str
)
def test_other_readings_train(make_federation, make, run, options):
    federation = make_federation(sizes=(17, 9, 23, 12, 14, 11))
    outcome = run(make(warmup=1, epochs=2, **options), federation, rounds=4)
    assert outcome.records[-1].metrics["groups/structural"] == 3
    for values in outcome.clients["weights"].values():
        assert values.isfinite().all()
    apart = run(make(warmup=1, epochs=2, **options), federation, rounds=4, per_cohort=1)
    np.testing.assert_array_equal(outcome.scores(), apart.scores())


def test_what_it_cannot_use_is_refused():
    with pytest.raises(ConfigurationError, match=r"fedssa does not work with backbone=gcn: use .*unifilter"):
        create("fedssa", "gcn")
