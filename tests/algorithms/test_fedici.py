"""FedICI: what the server's subspaces promise, and the methods that it becomes in the limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms.fedici import (
    HIGH,
    LOW,
    decorrelated,
    leading_subspace,
    mean_absolute_cosine,
    orthonormal_columns,
)
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.spectral_bases import angle_cosine, homophily
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.messages import Upload, prefixed

FEATURES, HOPS = 6, 3
SIZE = (HOPS + 1) * FEATURES


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def make(make_method):
    return lambda **options: make_method("fedici", hops=HOPS, **options)


@pytest.fixture
def aggregated(make, make_federation):
    """Server state and changes of both sides after one aggregation of given changes (of round 1)."""

    def aggregate(low, high=None, train_nodes=None, round_number=1, **options):
        method = make(**options)
        clients = len(low)
        task = make_federation().task
        server = method.init(task)
        sent = {n: w.double().expand(clients, *w.shape).clone() for n, w in server.weights.items()}
        starts = method.backbone.start
        sent[LOW] += low.view(clients, HOPS + 1, FEATURES)
        if high is not None:
            sent[HIGH] += high.view(clients, HOPS, FEATURES)
        counts = torch.full((clients,), 5) if train_nodes is None else torch.tensor(train_nodes)
        fields = {**prefixed("weights", sent), "size/train_nodes": counts, "size/nodes": counts}
        server = method.aggregate(server, Upload(fields), round_number)
        low_after = (server.weights[LOW] - starts[0]).flatten()
        high_after = (server.high - starts[1]).flatten(1)
        return server, low_after, high_after

    return aggregate


# Subspaces


def test_projections_are_orthogonal_and_idempotent():
    common, _ = leading_subspace(random(6, SIZE), 1.0, 3)
    torch.testing.assert_close(common.T @ common, torch.eye(3).double())
    onto = common @ common.T
    torch.testing.assert_close(onto @ onto, onto)
    inner = orthonormal_columns(common[FEATURES:])
    away = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    away[FEATURES:, FEATURES:] = torch.eye(SIZE - FEATURES) - inner @ inner.T
    torch.testing.assert_close(away @ away, away)
    torch.testing.assert_close(onto @ away, torch.zeros_like(onto), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("energy", "limit", "rank"), [(0.5, 5, 1), (0.89, 5, 2), (0.9, 5, 3), (1.0, 5, 4), (1.0, 2, 2)]
)
def test_rank_is_the_least_with_the_energy(energy, limit, rank):
    """Squared singular values 64, 25, 9, 2 of 100."""
    left, _ = torch.linalg.qr(random(5, 4))
    right, _ = torch.linalg.qr(random(12, 4, seed=1))
    rows = left @ torch.diag(torch.tensor([8.0, 5.0, 3.0, 2**0.5]).double()) @ right.T
    found, captured = leading_subspace(rows, energy, limit)
    assert found.shape == (12, rank)
    assert captured == pytest.approx((0.64, 0.89, 0.98, 1.0)[rank - 1])


def test_rank_is_at_most_the_numerical_rank():
    rows = torch.cat([random(2, SIZE), random(2, SIZE)])
    assert leading_subspace(rows, 1.0, 3)[0].shape == (SIZE, 2)
    assert leading_subspace(torch.zeros(4, SIZE), 0.9, 3)[0].shape == (SIZE, 0)
    assert leading_subspace(random(1, SIZE), 0.9, 0)[0].shape == (SIZE, 0)


# Aggregation


def test_the_common_update_lies_in_the_subspace(aggregated):
    low = random(5, SIZE)
    server, update, _ = aggregated(low, rank=2)
    common, _ = leading_subspace(low, 0.9, 2)
    assert server.rank == 2
    torch.testing.assert_close(common @ (common.T @ update), update)
    torch.testing.assert_close(update, common @ (common.T @ low.mean(dim=0)))


@pytest.mark.parametrize("decorrelation", [0.0, 0.5, 1.0])
def test_individual_parts_are_orthogonal_to_the_common_update(aggregated, decorrelation):
    low = random(5, SIZE)
    _, update, high = aggregated(low, random(5, SIZE - FEATURES, seed=1), decorrelation=decorrelation)
    padded = torch.cat([torch.zeros(5, FEATURES), high], dim=1)
    cosines = padded @ update / padded.norm(dim=1) / update.norm()
    assert cosines.abs().max() < 1e-6


def test_with_the_full_rank_the_low_side_is_fedavg(aggregated):
    low = random(3, SIZE, seed=2)[[0, 1, 2, 0, 1]]
    server, update, _ = aggregated(low, energy=1.0)
    assert server.rank == 3
    torch.testing.assert_close(update, low.mean(dim=0))


def test_equal_clients_reproduce_fedavg(make_federation, make, make_method, run):
    """All clients hold the same graph: low side and perceptron are what each of them sent."""
    whole = make_federation(sizes=(15,) * 3)
    for m in (1, 2):
        whole = whole.changed(
            m, **{part: getattr(whole.graphs[0], part) for part in ("features", "edges", "labels")}
        )
    outcome = run(make(dropout=0.0), whole)
    weights = outcome.clients["weights"]
    for values in weights.values():
        torch.testing.assert_close(values, values[:1].expand_as(values))
    for name, values in outcome.server["weights"].items():
        if name != HIGH:
            torch.testing.assert_close(values, weights[name][0])


def test_the_first_round_averages_and_leaves_high_frequencies_alone(aggregated):
    low, own = random(4, SIZE), random(4, SIZE - FEATURES, seed=1)
    server, update, high = aggregated(low, own, round_number=0, rank=1)
    torch.testing.assert_close(update, low.mean(dim=0))
    torch.testing.assert_close(high, own)
    assert server.rank == 0


def test_full_decorrelation_makes_individual_parts_orthogonal(aggregated):
    own = random(4, SIZE - FEATURES, seed=1)
    _, _, plain = aggregated(random(4, SIZE), own)
    _, _, high = aggregated(random(4, SIZE), own, decorrelation=1.0)
    assert mean_absolute_cosine(plain) > 0.05
    assert mean_absolute_cosine(high) < 1e-10
    torch.testing.assert_close(high.norm(dim=1), plain.norm(dim=1))


def test_decorrelation_is_the_least_change():
    """No other orthonormal rows lie closer to unit rows."""
    rows = random(3, 10)
    rows = rows / rows.norm(dim=1, keepdim=True)
    turned = decorrelated(rows, 1.0)
    torch.testing.assert_close(turned @ turned.T, torch.eye(3).double())
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        other, _ = torch.linalg.qr(
            turned.T + 0.3 * torch.randn(10, 3, dtype=torch.float64, generator=generator)
        )
        signs = torch.sign((other * turned.T).sum(dim=0))
        assert (other * signs).T.sub(rows).norm() >= turned.sub(rows).norm() - 1e-12


def test_projection_separates_clients_that_share_the_common_direction(aggregated):
    shared = random(1, SIZE, seed=5)
    low = shared + 0.1 * random(4, SIZE)
    own = 2 * shared[:, FEATURES:] + random(4, SIZE - FEATURES, seed=1)
    _, _, high = aggregated(low, own)
    assert mean_absolute_cosine(high) < mean_absolute_cosine(own)


def test_clients_without_training_nodes_do_not_shape_the_subspace(aggregated):
    low = random(4, SIZE)
    other = torch.cat([low[:3], 100 * random(1, SIZE, seed=9)])
    counts = (5, 3, 8, 0)
    first, update, _ = aggregated(low, train_nodes=counts)
    second, other_update, _ = aggregated(other, train_nodes=counts)
    torch.testing.assert_close(update, other_update)
    torch.testing.assert_close(first.subspace, second.subspace)


def test_one_client_trains_as_if_it_were_alone(make_federation, make, run):
    federation = make_federation(sizes=(14,))
    together, alone = (run(make(aggregation=rule), federation) for rule in ("fedavg", "none"))
    np.testing.assert_array_equal(together.scores(), alone.scores())


def test_clients_keep_their_own_high_frequencies_and_share_low_ones(make_federation, make, run):
    outcome = run(make(), make_federation())
    server = outcome.server
    assert server["high"].shape == (4, HOPS, FEATURES)
    assert mean_absolute_cosine(server["high"].flatten(1) - server["high"].flatten(1).mean(0)) > 0
    assert server["weights"][LOW].shape == (HOPS + 1, FEATURES)
    assert server["rank"] >= 1


# Clients


def test_all_members_have_the_stated_column_norms(make_federation, make):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    norms = cohort.dense_features.norm(dim=1)
    for scale, expected in (("unit", torch.ones_like(norms)), ("input", norms)):
        bases = make(scale=scale).backbone.bases(cohort)
        assert bases.shape == (2 * HOPS + 1, 4, cohort.width, FEATURES)
        torch.testing.assert_close(bases.norm(dim=2), expected.expand(2 * HOPS + 1, -1, -1))


def test_members_are_powers_first_and_then_those_that_meet_at_one_angle(make_federation, make):
    federation = make_federation(sizes=(17, 23))
    cohort = stack(federation.graphs, federation.task, "float64")
    bases = make(scale="input").backbone.bases(cohort)
    torch.testing.assert_close(bases[0], cohort.dense_features)
    high = make(scale="unit").backbone.bases(cohort)[HOPS + 1 :]
    gram = torch.einsum("iknf,jknf->kfij", high, high)
    cosine = angle_cosine(homophily(cohort))
    off = gram[..., 0, 1:]
    torch.testing.assert_close(off, cosine[:, None, None].expand_as(off), rtol=0, atol=1e-6)


def test_the_frequency_reading_filters_by_the_sign_of_the_frequency(make_federation, make):
    federation = make_federation(sizes=(11,))
    cohort = stack(federation.graphs, federation.task, "float64")
    bases = make(split="frequency", scale="input").backbone.bases(cohort)[:, 0]
    dense = np.zeros((11, 11))
    dense[federation.graphs[0].edges[0], federation.graphs[0].edges[1]] = 1
    scale = 1 / np.sqrt(np.maximum(dense.sum(axis=1), 1))
    operator = torch.as_tensor(scale[:, None] * dense * scale)
    x, identity = cohort.dense_features[0], torch.eye(11).double()
    for side, sign, first in ((bases[: HOPS + 1], 1, 0), (bases[HOPS + 1 :], -1, 1)):
        for power, member in enumerate(side, first):
            value = torch.linalg.matrix_power((identity + sign * operator) / 2, power) @ x
            value = value / value.norm(dim=0) * x.norm(dim=0)
            torch.testing.assert_close(member, value)


def test_coefficients_start_at_the_shares_of_the_mix(make_federation, make):
    method = make(homophily_mix=0.8)
    weights = method.init(make_federation().task).weights
    torch.testing.assert_close(weights[LOW], torch.full((4, 6), 0.2))
    torch.testing.assert_close(weights[HIGH], torch.full((3, 6), 0.05))


def test_the_clients_loss_is_the_part_inside_the_subspace(make_federation, make):
    federation = make_federation()
    method = make(orthogonality="loss", orthogonality_weight=0.3)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    client.subspace = orthonormal_columns(random(HOPS * FEATURES, 2))
    high = (client.weights[HIGH] + random(4, HOPS, FEATURES, seed=3)).requires_grad_()
    loss = method.losses(client, cohort, {**client.weights, HIGH: high}, None, 1)["orthogonality"]
    change = (high.detach() - method.backbone.start[1]).flatten(1)
    inside = change @ client.subspace @ client.subspace.T
    torch.testing.assert_close(loss, 0.3 * inside.square().sum(dim=1))
    (gradient,) = torch.autograd.grad(loss.sum(), high)
    torch.testing.assert_close(gradient.flatten(1), 0.6 * inside)


def test_the_loss_reading_sends_the_subspace_and_projects_nothing(make_federation, make, run, aggregated):
    own = random(4, SIZE - FEATURES, seed=1)
    _, _, high = aggregated(random(4, SIZE), own, orthogonality="loss")
    torch.testing.assert_close(high, own)
    outcome = run(make(orthogonality="loss"), make_federation(), rounds=4, precision="float32")
    sent = [record.downlink.get("subspace", 0) for record in outcome.records]
    assert sent[:2] == [0, 0]
    assert all(count % (4 * 4 * HOPS * FEATURES) == 0 and count > 0 for count in sent[2:])
    assert "loss/orthogonality" in outcome.records[3].metrics


def test_traffic_is_both_coefficients_and_the_perceptron(make_federation, make, run):
    outcome = run(make(), make_federation(), rounds=3, precision="float32")
    numbers = (2 * HOPS + 1) * FEATURES + FEATURES * 8 + 8 * 3
    for record in outcome.records:
        assert record.uplink["weights"] == record.downlink["weights"] == 4 * 4 * numbers


@pytest.mark.parametrize("shared", ["encoder", "classifier", "none"])
def test_less_can_be_shared(make_federation, make, run, shared):
    outcome = run(make(shared=shared), make_federation())
    classifier = outcome.clients["weights"]["classifier.weight"]
    assert (LOW in outcome.server["weights"]) == (shared == "encoder")
    assert not torch.allclose(classifier[0], classifier[1])


def test_what_it_cannot_use_is_refused():
    with pytest.raises(ConfigurationError, match=r"fedici does not work with backbone=gcn: use .*unifilter"):
        create("fedici", "gcn")
    with pytest.raises(ConfigurationError, match="hops=0 leaves fedici without high frequencies"):
        create("fedici", options={"hops": 0})
    with pytest.raises(ConfigurationError, match="aggregation='fedopt'"):
        create("fedici", options={"aggregation": "fedopt"})
