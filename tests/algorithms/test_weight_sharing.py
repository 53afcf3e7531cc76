"""Methods that share weights: each is equal to a simpler one, or to torch, at some setting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.algorithms.aggregation import shared_names
from fedatlas.platform.federation.cohort import stack

EXACT = {"dropout": 0.0, "lr": 0.02, "weight_decay": 1e-3}
BIAS = "classifier.bias"


def assert_same_clients(first, second, tolerance=0.0):
    """Scores and client weights of two runs are equal."""
    np.testing.assert_allclose(first.scores(), second.scores(), rtol=0, atol=tolerance)
    for name, weight in first.clients["weights"].items():
        torch.testing.assert_close(weight, second.clients["weights"][name], rtol=0, atol=tolerance)


def client_loss(cohort, logits, m):
    """Mean cross-entropy over the training nodes of client m."""
    rows = cohort.train[m]
    return torch.nn.functional.cross_entropy(logits[m, rows], cohort.labels[m, rows])


# Equal to Local


@pytest.mark.parametrize("backbone", ["gcn", "h2gcn"])
def test_fedavg_with_one_client_is_local(make_federation, make_method, run, backbone):
    federation = make_federation(sizes=(19,))
    alone = run(make_method("local", backbone), federation)
    assert_same_clients(run(make_method("fedavg", backbone), federation), alone)


def test_fedopt_with_one_client_is_local_one_evaluation_later(make_federation, make_method, run):
    """The server's Adam takes the step that the client's own would have taken."""
    federation = make_federation(sizes=(19,))
    alone = run(make_method("local"), federation)
    shared = run(make_method("fedopt", shared="all"), federation)
    for name, weight in shared.server["weights"].items():
        torch.testing.assert_close(weight, alone.clients["weights"][name][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "fedopt", "fedper"])
@pytest.mark.parametrize("option", [{"aggregation": "none"}, {"shared": "none"}], ids=str)
def test_sharing_nothing_is_local(make_federation, make_method, run, name, option):
    federation = make_federation()
    outcome = run(make_method(name, **option), federation)
    assert_same_clients(outcome, run(make_method("local"), federation))
    assert outcome.records[-1].uplink == outcome.records[-1].downlink == {}


def test_local_clients_do_not_see_each_other(make_federation, make_method, run):
    federation = make_federation()
    other = federation.changed(2, labels=(federation.graphs[2].labels + 1) % 3)
    first, second = (run(make_method("local"), each).clients["weights"] for each in (federation, other))
    for name in first:
        torch.testing.assert_close(first[name][[0, 1, 3]], second[name][[0, 1, 3]])
        assert not torch.allclose(first[name][2], second[name][2])


def test_equal_clients_stay_equal(make_federation, make_method, run):
    federation = make_federation()
    federation = replace(federation, graphs=tuple(replace(federation.graphs[0], client=m) for m in range(4)))
    weights = run(make_method("local", dropout=0.0), federation).clients["weights"]
    for weight in weights.values():
        for m in (1, 2, 3):
            assert torch.equal(weight[m], weight[0])


# FedAvg and FedPer


@pytest.mark.parametrize("client_weights", ["uniform", "train_nodes", "nodes"])
@pytest.mark.parametrize("backbone", ["gcn", "h2gcn"])
def test_fedavg_averages_the_clients(make_federation, make_method, run, client_weights, backbone):
    federation = make_federation()
    outcome = run(make_method("fedavg", backbone, client_weights=client_weights), federation)
    raw = {
        "uniform": np.ones(4),
        "train_nodes": np.array([graph.train.sum() for graph in federation.graphs]),
        "nodes": np.array([graph.size for graph in federation.graphs]),
    }[client_weights]
    p = torch.as_tensor(raw / raw.sum())
    for name, weight in outcome.server["weights"].items():
        clients = outcome.clients["weights"][name]
        expected = sum(p[m] * clients[m] for m in range(4))
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-14)


def test_equally_sized_clients_make_all_client_weights_equal(
    make_federation, make_method, run, assert_same_run
):
    federation = make_federation(sizes=(12, 12, 12))
    uniform = run(make_method("fedavg"), federation)
    for kind in ("train_nodes", "nodes"):
        assert_same_run(run(make_method("fedavg", client_weights=kind), federation), uniform, 1e-12)


def test_fedavg_starts_every_client_at_the_mean_and_keeps_its_moments(make_federation, make_method, run):
    """Two rounds by hand with one torch.optim.Adam per client, whose weights the server overwrites."""
    federation = make_federation()
    method = make_method("fedavg", epochs=2, **EXACT)
    outcome = run(method, federation, rounds=3)

    cohort = stack(federation.graphs, federation.task, "float64")
    start = {name: weight.double() for name, weight in method.backbone.initialise(federation.task).items()}
    own = [{name: torch.nn.Parameter(w.clone()) for name, w in start.items()} for _ in range(4)]
    optimizers = [torch.optim.Adam(each.values(), lr=0.02, weight_decay=1e-3) for each in own]
    for _ in range(3):
        for each in own:
            for name, parameter in each.items():
                parameter.data.copy_(start[name])
        for _ in range(2):
            stacked = {name: torch.stack([each[name] for each in own]) for name in start}
            logits = method.backbone.forward(stacked, cohort, None).logits
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(client_loss(cohort, logits, m) for m in range(4)).backward()
            for optimizer in optimizers:
                optimizer.step()
        start = {name: torch.stack([each[name].data for each in own]).mean(dim=0) for name in start}
    for name, expected in start.items():
        torch.testing.assert_close(outcome.server["weights"][name], expected, rtol=0, atol=1e-10)


def test_fedper_sharing_all_is_fedavg(make_federation, make_method, run, assert_same_run):
    federation = make_federation()
    assert_same_run(
        run(make_method("fedper", shared="all"), federation), run(make_method("fedavg"), federation)
    )


def test_fedper_keeps_the_classifier(make_federation, make_method, run):
    federation = make_federation()
    personal, common = (run(make_method(name), federation, rounds=1) for name in ("fedper", "fedavg"))
    encoder = {name for name in common.server["weights"] if name.startswith("encoder.")}
    assert personal.server["weights"].keys() == encoder
    for name in encoder:
        assert torch.equal(personal.server["weights"][name], common.server["weights"][name])
    longer = run(make_method("fedper"), federation, rounds=3).clients["weights"]["classifier.weight"]
    for m in (1, 2, 3):
        assert not torch.allclose(longer[0], longer[m])


# FedOpt


def adam_on_the_mean_loss(method, federation, rounds, personal):
    """Shared weights by one torch Adam on the mean of the clients' losses; personal ones by one each."""
    cohort = stack(federation.graphs, federation.task, "float64")
    clients = len(federation.graphs)
    trained = [m for m in range(clients) if cohort.train[m].any()]
    initial = {name: weight.double() for name, weight in method.backbone.initialise(federation.task).items()}
    shared = {name: torch.nn.Parameter(w.clone()) for name, w in initial.items() if name not in personal}
    own = [{name: torch.nn.Parameter(initial[name].clone()) for name in personal} for _ in range(clients)]
    settings = {"lr": method.configuration.lr, "weight_decay": method.configuration.weight_decay}
    server = torch.optim.Adam(shared.values(), **settings)
    locals_ = [torch.optim.Adam(own[m].values(), **settings) for m in trained] if personal else []
    for _ in range(rounds):
        stacked = {name: w.expand(clients, *w.shape) for name, w in shared.items()}
        stacked |= {name: torch.stack([each[name] for each in own]) for name in personal}
        logits = method.backbone.forward(stacked, cohort, None).logits
        losses = [client_loss(cohort, logits, m) for m in trained]
        names = list(shared)
        mean = sum(losses) / len(losses)
        for name, gradient in zip(
            names, torch.autograd.grad(mean, [shared[n] for n in names], retain_graph=True), strict=True
        ):
            shared[name].grad = gradient
        for m, loss, optimizer in zip(trained, losses, locals_, strict=bool(personal)):
            for name in personal:
                (own[m][name].grad,) = torch.autograd.grad(loss, [own[m][name]], retain_graph=True)
            optimizer.step()
        server.step()
    return shared, {name: torch.stack([each[name].data for each in own]) for name in personal}


@pytest.mark.parametrize("name", ["fedopt", "fedgmc"])
@pytest.mark.parametrize("shared", ["all", "all_but_bias", "encoder"])
@pytest.mark.parametrize("untrained", [False, True])
def test_fedopt_is_adam_on_the_mean_loss(make_federation, make_method, run, name, shared, untrained):
    federation = make_federation()
    if untrained:
        federation = federation.changed(1, train=np.zeros(9, dtype=bool))
    options = {"semantic": False, "structural": False} if name == "fedgmc" else {}
    method = make_method(name, shared=shared, **EXACT, **options)
    outcome = run(method, federation, rounds=5)
    names = list(method.backbone.initialise(federation.task))
    personal = [each for each in names if each not in shared_names(names, shared)]
    weights, own = adam_on_the_mean_loss(method, federation, 5, personal)
    assert outcome.server["weights"].keys() == weights.keys()
    for each, expected in weights.items():
        torch.testing.assert_close(outcome.server["weights"][each], expected.data, rtol=0, atol=1e-10)
    for each, expected in own.items():
        torch.testing.assert_close(outcome.clients["weights"][each], expected, rtol=0, atol=1e-10)


def test_fedopt_with_two_epochs_sends_the_sum_of_gradients_along_local_steps(make_federation, make_method):
    federation = make_federation()
    method = make_method("fedopt", shared="all", epochs=2, local_lr=0.3, **EXACT)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    start = {name: weight.clone() for name, weight in client.weights.items()}
    sent = method.update(client, cohort, 0).upload.fields

    def gradients(weights):
        live = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        logits = method.backbone.forward(live, cohort, None).logits
        total = sum(client_loss(cohort, logits, m) for m in range(4))
        return dict(zip(live, torch.autograd.grad(total, list(live.values())), strict=True))

    first = gradients(start)
    moved = {name: start[name] - 0.3 * first[name] for name in start}
    second = gradients(moved)
    for name in start:
        torch.testing.assert_close(sent[f"weights/{name}"], first[name] + second[name])
        torch.testing.assert_close(client.weights[name], moved[name])


def test_fedopt_clients_are_evaluated_at_the_weights_they_received(make_federation, make_method):
    federation = make_federation()
    method = make_method("fedopt", shared="all")
    cohort = stack(federation.graphs, federation.task, "float64")
    server, client = method.init(federation.task), method.join(cohort)
    method.receive(client, cohort, method.broadcast(server, 0))
    before = method.predict(client, cohort)
    method.update(client, cohort, 0)
    assert torch.equal(method.predict(client, cohort), before)


def test_clients_without_training_nodes_neither_move_nor_count(make_federation, make_method, run):
    federation = make_federation()
    untrained = federation.changed(1, train=np.zeros(9, dtype=bool))
    outcome = run(make_method("fedavg"), untrained, rounds=1)
    start = make_method("fedavg").backbone.initialise(federation.task)
    for name, weight in outcome.clients["weights"].items():
        assert torch.equal(weight[1], start[name].double())
        mean = weight[[0, 2, 3]].mean(dim=0)
        torch.testing.assert_close(outcome.server["weights"][name], mean, rtol=0, atol=1e-14)


def test_every_epoch_has_its_own_dropout(make_federation, make_method):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    method = make_method("fedavg")
    client = method.join(cohort)
    first, again, second, later = (
        method._gradients(client, next(method._steps(cohort, round_number, epoch)), round_number)[0][
            "loss/total"
        ]
        for round_number, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)


def test_loss_metrics_add_up(make_federation, make_method):
    federation = make_federation()
    method = make_method("fedavg", **EXACT)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    logits = method.predict(client, cohort)
    metrics = method.update(client, cohort, 0).metrics
    expected = torch.stack([client_loss(cohort, logits, m) for m in range(4)])
    torch.testing.assert_close(metrics["loss/cross_entropy"], expected)
    torch.testing.assert_close(metrics["loss/total"], expected)
