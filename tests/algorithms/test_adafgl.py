"""AdaFGL is FedAvg up to its last federated round; then clients learn alone from what they kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, prelu

from fedatlas.algorithms import adafgl
from fedatlas.algorithms.personal_propagation import PERCEPTRONS, Outputs
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.runtime import InlineRuntime


@pytest.mark.parametrize("extractor", ["best", "last"])
def test_phase_one_is_fedavg(make_federation, make_method, run, extractor):
    federation = make_federation()
    found = run(make_method("adafgl", epochs=2, extractor=extractor), federation)
    plain = run(make_method("fedavg", epochs=2, client_weights="nodes"), federation)
    np.testing.assert_array_equal(found.scores()[:4], plain.scores())
    for name, weight in plain.server["weights"].items():
        assert torch.equal(found.server["weights"][name], weight)


def test_the_personal_phase_sends_nothing(make_federation, make_method, run):
    outcome = run(make_method("adafgl", personal_epochs=5), make_federation())
    federated, personal = outcome.records[:4], outcome.records[4:]
    assert [set(record.uplink) for record in federated] == [{"weights", "size", "selection"}] * 4
    assert [record.uplink for record in personal] == [{}] * 5
    assert set(personal[0].downlink) == {"weights", "selection"}
    assert [record.downlink for record in personal[1:]] == [{}] * 4


def test_the_last_aggregate_needs_no_scores(make_federation, make_method, run):
    outcome = run(make_method("adafgl", extractor="last"), make_federation())
    assert all("selection" not in {**r.uplink, **r.downlink} for r in outcome.records)


def watched(method):
    """Keeps the candidates and scores that clients form in each round."""
    seen = []
    update = method.update

    def and_keep(client, cohort, round_number):
        result = update(client, cohort, round_number)
        seen.append((client.candidate, result.upload.fields))
        return result

    method.update = and_keep
    return seen


def test_the_extractor_is_the_aggregate_with_the_best_validation_score(make_federation, make_method, run):
    method = make_method("adafgl", lr=0.1, epochs=5)
    seen = watched(method)
    outcome = run(method, make_federation(), rounds=8)
    scores = []
    for _, fields in seen[1:]:
        nodes = fields["selection/nodes"].double()
        scores.append(float((fields["selection/score"] * nodes).sum() / nodes.sum()))
    best = 1 + int(np.argmax(scores))
    assert 1 < best < 7
    assert outcome.server["best"] == pytest.approx(max(scores))
    for kept, expected in zip(outcome.clients["extractor"], seen[best][0], strict=True):
        assert torch.equal(kept, expected)


@pytest.mark.parametrize(("extractor", "rounds"), [("last", 3), ("best", 1)], ids=str)
def test_otherwise_it_is_the_last_aggregate(make_federation, make_method, run, extractor, rounds):
    """A first aggregate is never scored, so it cannot be selected."""
    federation = make_federation()
    method = make_method("adafgl", extractor=extractor)
    outcome = run(method, federation, rounds=rounds)
    cohort = stack(federation.graphs, federation.task, "float64")
    last = {name: weight.expand(4, *weight.shape) for name, weight in outcome.server["weights"].items()}
    expected = torch.softmax(method.backbone.forward(last, cohort, None).logits, dim=2)
    for row, kept in enumerate(outcome.clients["extractor"]):
        torch.testing.assert_close(kept, expected[row, : len(kept)])


def test_epochs_are_divided_into_rounds(make_federation, make_method, run):
    federation = make_federation()
    method = make_method("adafgl", personal_epochs=5, personal_epochs_per_round=2)
    assert method.personal_rounds == 3
    outcome = run(method, federation, rounds=1)
    assert len(outcome.records) == 4
    assert outcome.clients["personal_optimizer"]["step"] == 5


def personal(make_federation, make_method, change=lambda whole: whole, **options):
    """A method, its cohort and its client state before the personal phase."""
    federation = change(make_federation())
    method = make_method("adafgl", extractor="last", **options)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    method.receive(client, cohort, method.broadcast(method.init(federation.task), 0))
    return method, cohort, client


def test_training_lowers_the_losses(make_federation, make_method):
    method, cohort, client = personal(make_federation, make_method, personal_epochs=30, personal_dropout=0.0)
    losses = [method.personalise(client, cohort, step) for step in range(30)]
    for name in ("loss/homophilous", "loss/heterophilous"):
        assert (losses[-1][name] < losses[0][name]).all()


def test_losses_are_the_written_ones(make_federation, make_method, monkeypatch):
    method, cohort, client = personal(make_federation, make_method)
    evidence = method._evidence(client, cohort)
    assert not evidence.probabilities.requires_grad
    values = [
        torch.from_numpy(np.random.default_rng(seed).standard_normal((4, 23, 3))).requires_grad_()
        for seed in range(4)
    ]
    monkeypatch.setattr(type(method._modules), "forward", lambda *arguments: Outputs(*values))
    monkeypatch.setattr(torch.autograd, "grad", lambda total, weights: [torch.zeros_like(w) for w in weights])
    found = method.personalise(client, cohort, 0)
    for m, size in enumerate(cohort.sizes):
        train = cohort.train[m]
        entropies = [cross_entropy(each[m, train], cohort.labels[m, train]) for each in values]
        pull = (values[0][m, :size] - evidence.probabilities[m, :size]).square().mean()
        torch.testing.assert_close(found["loss/homophilous"][m], (entropies[0] + pull).detach())
        torch.testing.assert_close(found["loss/heterophilous"][m], sum(entropies[1:]).detach())


def test_first_layers_get_the_gradients_of_all_nodes(make_federation, make_method, monkeypatch):
    """They are computed from training nodes alone where the loss reads no others."""
    method, cohort, client = personal(make_federation, make_method, personal_dropout=0.0)
    method.personalise(client, cohort, 0)
    method.predict(client, cohort)
    evidence, before = client.evidence, {name: weight.clone() for name, weight in client.modules.items()}
    found = {}
    monkeypatch.setattr(adafgl, "adam_step", lambda weights, grads, *rest: found.update(grads))
    method.personalise(client, cohort, 1)
    live = {name: weight.requires_grad_() for name, weight in before.items()}
    total = 0
    for name in ("features", "smoothed", "homophilous"):
        values = evidence.features if name == "features" else evidence.smoothed
        for layer in range(PERCEPTRONS[name]):
            values = values @ live[f"{name}.{layer}.weight"] + live[f"{name}.{layer}.bias"][:, None]
            if layer + 1 < PERCEPTRONS[name]:
                slopes = live[f"{name}.slope"]
                values = torch.stack(
                    [prelu(each, slope[None]) for each, slope in zip(values, slopes, strict=True)]
                )
        for m, size in enumerate(cohort.sizes):
            train = cohort.train[m]
            if train.any():
                total = total + cross_entropy(values[m, train], cohort.labels[m, train])
            if name == "homophilous":
                total = total + (values[m, :size] - evidence.probabilities[m, :size]).square().mean()
    total.backward()
    for name in ("features", "smoothed", "homophilous"):
        torch.testing.assert_close(found[f"{name}.0.weight"], live[f"{name}.0.weight"].grad)


@pytest.mark.parametrize(("switch", "silent"), [(0.0, "heterophilous"), (1.0, "homophilous")], ids=str)
def test_a_hard_switch_trains_one_module(make_federation, make_method, switch, silent):
    method, cohort, client = personal(make_federation, make_method, combine="hard", switch=switch)
    client.evidence = dataclasses.replace(
        method._evidence(client, cohort), confidence=torch.full((4,), 0.5, dtype=torch.float64)
    )
    assert (method.personalise(client, cohort, 0)[f"loss/{silent}"] == 0).all()


def test_a_client_without_training_nodes_keeps_the_extractor(make_federation, make_method):
    method, cohort, client = personal(
        make_federation, make_method, lambda whole: whole.changed(3, train=whole.graphs[3].train & False)
    )
    before = torch.softmax(method.predict(client, cohort), dim=2)
    method.personalise(client, cohort, 0)
    after = method.predict(client, cohort).exp()
    torch.testing.assert_close(after[3, :12], before[3, :12])
    assert not torch.allclose(after[0, :17], before[0, :17])


def test_a_run_stopped_in_the_personal_phase_goes_on(
    make_federation, make_method, run, assert_same_run, tmp_path
):
    federation = make_federation()
    method = make_method("adafgl", personal_epochs=6)
    options = {"rounds": 3, "checkpoint_every": 5, "checkpoint_path": tmp_path / "run.checkpoint"}
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(**options))
    coordinator.start()
    for _ in range(7):
        coordinator.advance()
    assert_same_run(run(method, federation, **options), run(method, federation, rounds=3))


def test_best_rounds_are_sought_in_both_phases(make_federation, make_method):
    coordinator = Coordinator(
        make_federation().job(make_method("adafgl", personal_epochs=40)), InlineRuntime(), Schedule(2)
    )
    coordinator.start()
    while not coordinator.finished:
        coordinator.advance()
    assert coordinator.result().best_round == int(np.argmax([r.validation for r in coordinator.records])) > 1
