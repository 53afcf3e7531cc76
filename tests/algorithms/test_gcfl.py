"""GCFL is FedAvg within clusters, and clusters split where updates disagree."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedatlas.algorithms.gcfl import update_gram
from fedatlas.algorithms.weight_sharing import cross_entropy
from fedatlas.platform.federation.cohort import Dropout, Task, stack
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.messages import Upload
from fedatlas.platform.federation.runtime import InlineRuntime

SIZES = (17, 9, 23, 12, 15, 11, 14)
EAGER = {"warm_up": 0, "split_interval": 1, "r1": 0.9, "sequence_length": 2}
"""Splits from the first rounds on."""

both = pytest.mark.parametrize("name", ["gcfl", "gcflplus"])


def planted(method, deltas, train_nodes=None, norms=None):
    """A server with one weight of value 1, and an upload of 1 + delta by each client."""
    deltas = torch.as_tensor(deltas, dtype=torch.float64)
    clients = len(deltas)
    task = Task(clients, 3, 2, "accuracy", 0)
    server = method._server({"w": torch.ones(deltas.shape[1], dtype=torch.float64)}, task)
    sizes = torch.tensor(train_nodes or [5] * clients)
    fields = {"weights/w": 1 + deltas, "size/train_nodes": sizes, "size/nodes": sizes}
    if norms is not None:
        fields["gradient_norm/last"] = torch.as_tensor(norms, dtype=torch.float64)
    return server, Upload(fields)


def groups(clusters):
    """Clusters as a set of sets, whatever their numbers."""
    numbers = clusters.tolist()
    return {frozenset(m for m, c in enumerate(numbers) if c == number) for number in set(numbers)}


def counts(outcome):
    return [record.metrics["cluster/count"] for record in outcome.records]


# Equalities


@both
@pytest.mark.parametrize("weights", ["uniform", "train_nodes"])
@pytest.mark.parametrize("criterion", [{"r1": 0.0}, {"criterion": "absolute", "eps1": 0.0}], ids=str)
def test_without_a_split_it_is_fedavg(make_federation, make_method, run, name, weights, criterion):
    federation = make_federation()
    options = {"client_weights": weights, "epochs": 2}
    clustered = run(make_method(name, warm_up=0, **criterion, **options), federation)
    plain = run(make_method("fedavg", **options), federation)
    assert counts(clustered) == [1] * 4
    np.testing.assert_array_equal(clustered.scores(), plain.scores())
    for part, weight in clustered.clients["weights"].items():
        torch.testing.assert_close(weight, plain.clients["weights"][part], rtol=0, atol=1e-12)


@both
def test_with_one_client_to_a_cluster_it_is_local(make_federation, make_method, run, monkeypatch, name):
    federation = make_federation()
    method = make_method(name)
    start = method._server

    def alone(weights, task):
        return dataclasses.replace(start(weights, task), clusters=torch.arange(task.clients))

    monkeypatch.setattr(method, "_server", alone)
    clustered, local = run(method, federation), run(make_method("local"), federation)
    for part, weight in clustered.clients["weights"].items():
        torch.testing.assert_close(weight, local.clients["weights"][part], rtol=0, atol=1e-12)


@both
def test_one_client_is_local(make_federation, make_method, run, name):
    federation = make_federation(sizes=(14,))
    clustered, local = run(make_method(name, **EAGER), federation), run(make_method("local"), federation)
    for part, weight in clustered.clients["weights"].items():
        torch.testing.assert_close(weight, local.clients["weights"][part], rtol=0, atol=1e-12)


# When a cluster splits


@both
def test_nothing_splits_before_the_warm_up_is_over(make_federation, make_method, run, name):
    outcome = run(make_method(name, r1=1.0), make_federation(), rounds=21)
    assert counts(outcome)[:20] == [1] * 20
    assert counts(outcome)[20] == 2


@pytest.mark.parametrize(
    ("given", "rounds"), [({}, [0, 5, 10]), ({"split_interval": 3}, [0, 3, 6, 9])], ids=str
)
def test_splits_keep_their_distance(make_federation, make_method, run, given, rounds):
    outcome = run(make_method("gcfl", r1=1.0, warm_up=0, **given), make_federation(SIZES), rounds=11)
    seen = [1, *counts(outcome)]
    assert [number for number in range(11) if seen[number + 1] > seen[number]] == rounds


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        # The mean update has norm 1, the largest sqrt(5).
        ({"r1": 0.44}, False),
        ({"r1": 0.45}, True),
        ({"criterion": "absolute", "eps1": 1.01, "eps2": 2.2}, True),
        ({"criterion": "absolute", "eps1": 0.99, "eps2": 2.2}, False),
        ({"criterion": "absolute", "eps1": 1.01, "eps2": 2.3}, False),
    ],
    ids=str,
)
def test_criterion_golden_values(make_method, options, splits):
    method = make_method("gcfl", warm_up=0, **options)
    server, upload = planted(method, [[1, 2], [1, -2], [1, 2], [1, -2]])
    after = method.aggregate(server, upload, 0)
    assert (len(groups(after.clusters)) == 2) == splits


def test_the_mean_update_has_the_clients_weights(make_method):
    """With weights 3:1 the mean of (1, 1) and -1 is 0.6, with equal weights 1/3."""
    deltas, sizes = [[1.0], [1.0], [-1.0]], [2, 2, 1]
    for weights, splits in (("uniform", True), ("train_nodes", False)):
        method = make_method("gcfl", warm_up=0, r1=0.5, client_weights=weights)
        server, upload = planted(method, deltas, sizes)
        assert (len(groups(method.aggregate(server, upload, 0).clusters)) == 2) == splits


def test_two_clients_and_updates_of_zero_stay_together(make_method):
    method = make_method("gcfl", warm_up=0, r1=1.0)
    for deltas in ([[1.0], [-1.0]], [[0.0], [0.0], [0.0]]):
        assert method.aggregate(*planted(method, deltas), 0).clusters.eq(0).all()


# How a cluster splits


def test_opposite_groups_are_separated_by_one_cut(make_method):
    generator = np.random.default_rng(0)
    side = np.array([1, -1, -1, 1, 1, -1, 1, -1])
    deltas = side[:, None] * np.array([3.0, 1.0, -2.0]) + 0.1 * generator.standard_normal((8, 3))
    method = make_method("gcfl", warm_up=0)
    server, upload = planted(method, deltas)
    after = method.aggregate(server, upload, 0)
    assert groups(after.clusters) == {
        frozenset(np.flatnonzero(side > 0)),
        frozenset(np.flatnonzero(side < 0)),
    }
    for sign in (1, -1):
        mean = 1 + torch.from_numpy(deltas)[torch.from_numpy(side == sign)].mean(dim=0)
        for m in np.flatnonzero(side == sign):
            torch.testing.assert_close(after.personal["w"][m], mean)


def test_gcflplus_separates_groups_by_the_course_of_their_gradients(make_method):
    """All updates are alike; the gradients of three clients rise and those of three fall."""
    method = make_method("gcflplus", warm_up=0, r1=1.0, sequence_length=4)
    rising = torch.tensor([True, False, False, True, True, False])
    deltas = [[1.0, 0.1 * m] for m in range(6)]
    server, _ = planted(method, deltas)
    for step in range(4):
        assert server.clusters.eq(0).all()
        _, upload = planted(method, deltas, norms=torch.where(rising, 1.0 + step, 4.0 - step))
        server = method.aggregate(server, upload, step)
    assert groups(server.clusters) == {frozenset([0, 3, 4]), frozenset([1, 2, 5])}
    assert (server.last_split, server.recorded) == (3, 0)


def test_gcflplus_splits_one_cluster_at_a_time_and_starts_its_sequences_again(make_method):
    method = make_method("gcflplus", **{**EAGER, "r1": 1.0, "sequence_length": 3})
    generator = np.random.default_rng(1)
    server, _ = planted(method, np.zeros((9, 4)))
    counted = []
    for number in range(9):
        deltas = generator.standard_normal((9, 4))
        _, upload = planted(method, deltas, norms=generator.random(9))
        server = method.aggregate(dataclasses.replace(server, personal={}), upload, number)
        counted.append((len(groups(server.clusters)), server.recorded))
    assert counted == [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (4, 0)]


def test_equal_sequences_keep_a_cluster_together(make_method):
    method = make_method("gcflplus", warm_up=0, r1=1.0, sequence_length=1)
    server, upload = planted(method, [[1.0], [-1.0], [1.0], [-1.0]], norms=[2.0] * 4)
    after = method.aggregate(server, upload, 0)
    assert after.clusters.eq(0).all()
    assert (after.last_split, after.recorded) == (None, 1)


@pytest.mark.parametrize("standardise", [False, True])
def test_sequences_are_compared_by_course_if_they_are_standardised(make_method, standardise):
    """Clients 0 and 1 differ in scale only, 2 and 3 in their course."""
    method = make_method("gcflplus", sequence_length=3, standardise=standardise)
    server, _ = planted(method, np.zeros((4, 1)))
    norms = torch.tensor([[1.0, 2, 3], [10, 20, 30], [3, 2, 1], [2, 2, 3]], dtype=torch.float64)
    server = dataclasses.replace(server, norms=norms)
    similarity = method._similarities(server, torch.eye(4), torch.arange(4))
    closest = similarity[0, 1:].argmax() + 1
    assert int(closest) == (1 if standardise else 3)


def test_similarities_are_cosines_plus_one(make_method):
    method = make_method("gcfl")
    deltas = torch.tensor([[1.0, 0], [2, 0], [0, 3], [-1, 0], [0, 0]], dtype=torch.float64)
    server, upload = planted(method, deltas)
    gram = update_gram(server, upload)
    torch.testing.assert_close(gram, deltas @ deltas.T)
    found = method._similarities(server, gram, torch.arange(5))
    torch.testing.assert_close(found, found.T)
    torch.testing.assert_close(found.diagonal()[:4], torch.full((4,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(found[0], torch.tensor([2.0, 2, 1, 0, 1], dtype=torch.float64))
    torch.testing.assert_close(found[4], torch.ones(5, dtype=torch.float64))


@both
def test_renaming_clients_renames_the_clusters(make_method, name):
    generator = np.random.default_rng(3)
    method = make_method(name, warm_up=0, r1=1.0, sequence_length=1)
    deltas, norms = generator.standard_normal((9, 4)), generator.random(9)
    order = generator.permutation(9)
    found = method.aggregate(*planted(method, deltas, norms=norms), 0)
    renamed = method.aggregate(*planted(method, deltas[order], norms=norms[order]), 0)
    expected = {
        frozenset(int(np.flatnonzero(order == m)[0]) for m in group) for group in groups(found.clusters)
    }
    assert groups(renamed.clusters) == expected
    torch.testing.assert_close(renamed.personal["w"], found.personal["w"][torch.from_numpy(order)])


def test_clients_without_training_nodes_follow_the_larger_part(make_method):
    """Client 3 has no update; without it, three clients oppose one."""
    method = make_method("gcfl", warm_up=0, r1=0.6)
    server, upload = planted(method, [[1.0], [1.0], [-1.0], [0.0], [1.0]], [5, 5, 5, 0, 5])
    after = method.aggregate(server, upload, 0)
    assert after.clusters.tolist() == [0, 0, 1, 0, 0]
    assert after.personal["w"][:, 0].tolist() == [2, 2, 0, 2, 2]


def test_a_cluster_without_training_nodes_keeps_its_weights(make_method):
    method = make_method("gcfl")
    server, upload = planted(method, [[1.0], [0.5], [0.0]], [5, 5, 0])
    server = dataclasses.replace(server, clusters=torch.tensor([0, 0, 1]))
    assert method.aggregate(server, upload, 0).personal["w"][:, 0].tolist() == [1.75, 1.75, 1.0]


# Whole runs


def server_states(method, federation, rounds):
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(rounds))
    coordinator.start()
    for _ in range(rounds):
        coordinator.advance()
        yield coordinator._server


@both
def test_clusters_always_partition_the_clients_and_are_only_ever_divided(make_federation, make_method, name):
    before = {frozenset(range(len(SIZES)))}
    for server in server_states(make_method(name, **EAGER), make_federation(SIZES), 8):
        after = groups(server.clusters)
        assert sorted(m for group in after for m in group) == list(range(len(SIZES)))
        assert all(any(group <= old for old in before) for group in after)
        for group in after:
            first, *others = sorted(group)
            for weight in server.personal.values():
                for m in others:
                    torch.testing.assert_close(weight[m], weight[first], rtol=0, atol=1e-12)
        before = after
    assert len(before) > 2


@both
def test_runs_with_splits_do_not_depend_on_placement(
    make_federation, make_method, run, assert_same_run, name
):
    federation, method = make_federation(SIZES), make_method(name, epochs=2, **EAGER)
    together = run(method, federation, rounds=6)
    assert counts(together)[-1] > 2
    for per_cohort in (1, 3):
        assert_same_run(run(method, federation, rounds=6, per_cohort=per_cohort), together, 1e-5)


@both
def test_runs_with_splits_can_be_resumed(make_federation, make_method, run, assert_same_run, tmp_path, name):
    federation, method = make_federation(SIZES), make_method(name, **EAGER)
    schedule = {"rounds": 7, "checkpoint_every": 3, "checkpoint_path": tmp_path / "run.checkpoint"}
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(**schedule))
    coordinator.start()
    for _ in range(4):
        coordinator.advance()
    assert_same_run(run(method, federation, **schedule), run(method, federation, rounds=7))


def test_clusters_are_shown(make_federation, make_method):
    method = make_method("gcfl", **EAGER)
    *_, server = server_states(method, make_federation(SIZES), 3)
    assert torch.equal(method.server_snapshot(server)["clusters"], server.clusters)
    sizes = [len(group) for group in groups(server.clusters)]
    found = method.diagnostics(server)
    assert (found["cluster/count"], found["cluster/largest"]) == (len(sizes), max(sizes))


def test_only_gcflplus_sends_gradient_norms(make_federation, make_method, run):
    federation = make_federation()
    sent = {
        name: run(make_method(name), federation, rounds=1, precision="float32").records[0].uplink
        for name in ("gcfl", "gcflplus", "fedavg")
    }
    assert sent["gcfl"] == sent["fedavg"]
    assert sent["gcflplus"] == {**sent["fedavg"], "gradient_norm": 4 * 4}


def test_the_gradient_norm_is_that_of_the_shared_parameters_at_the_last_step(make_federation, make_method):
    federation = make_federation()
    method = make_method("gcflplus", shared="encoder")
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    live = {name: weight.clone().requires_grad_() for name, weight in client.weights.items()}
    loss = cross_entropy(cohort, method.backbone.forward(live, cohort, Dropout(cohort, 0, 0)).logits)
    shared = [name for name in live if name.startswith("encoder.")]
    found = torch.autograd.grad(loss.sum(), [live[name] for name in shared])
    expected = torch.cat([gradient.flatten(1) for gradient in found], dim=1).norm(dim=1)
    sent = method.update(client, cohort, 0).upload.fields["gradient_norm/last"]
    torch.testing.assert_close(sent, expected)


def test_the_cluster_of_every_client_is_tracked_in_every_round(make_federation, make_method, run):
    method = make_method("gcfl", r1=1.0, warm_up=1, split_interval=1)
    outcome = run(method, make_federation())
    for record in outcome.records:
        found = {record.metrics[f"cluster/client_{m}"] for m in range(4)}
        assert len(found) == record.metrics["cluster/count"]
    assert outcome.records[-1].metrics["cluster/count"] > 1
