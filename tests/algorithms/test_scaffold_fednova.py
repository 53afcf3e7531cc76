"""SCAFFOLD's control variates and FedNova's normalisers are those of the papers."""

from __future__ import annotations

import pytest
import torch

from fedatlas.algorithms.fednova import reach
from fedatlas.algorithms.optimizer import AdamState, client_adam_step, sgd_step
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.messages import Upload, unprefixed

PLAIN = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0, "dropout": 0.0, "epochs": 3}


def test_with_plain_sgd_the_control_is_the_papers_second_option(make_federation, make_method):
    federation = make_federation()
    method = make_method("scaffold", **PLAIN)
    cohort = stack(federation.graphs, federation.task, "float64")
    client, server = method.join(cohort), method.init(federation.task)
    for number in range(3):
        broadcast = method.broadcast(server, number)
        method.receive(client, cohort, broadcast)
        start = unprefixed("weights", broadcast.common)
        common = unprefixed("control", broadcast.common)
        before = {name: control.clone() for name, control in client.control.items()}
        result = method.update(client, cohort, number)
        for name, control in client.control.items():
            moved = (start[name].double() - client.weights[name]) / (3 * 0.05)
            torch.testing.assert_close(control, before[name] - common[name].double() + moved)
        server = method.aggregate(server, result.upload, number)
        for name, control in client.control.items():
            torch.testing.assert_close(control.mean(dim=0), server.control[name])


def test_the_first_round_is_that_of_fedavg(make_federation, make_method, run):
    federation = make_federation()
    first = run(make_method("scaffold", **PLAIN), federation, rounds=1).clients["weights"]
    for name, weight in run(make_method("fedavg", **PLAIN), federation, rounds=1).clients["weights"].items():
        torch.testing.assert_close(first[name], weight, rtol=0, atol=0)


def test_clients_without_training_nodes_keep_their_control(make_federation, make_method, run):
    federation = make_federation()
    nobody = federation.graphs[2].train & False
    federation = federation.changed(2, train=nobody)
    controls = run(make_method("scaffold", **PLAIN), federation).clients["control"]
    assert all(not control[2].any() for control in controls.values())
    assert any(control[0].any() for control in controls.values())


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
def test_the_closed_form_of_the_reach_is_the_recursion(momentum):
    steps = torch.tensor([0, 1, 2, 7, 20])
    expected = []
    for count in steps.tolist():
        velocity = total = 0.0
        for _ in range(count):
            velocity = momentum * velocity + 1
            total += velocity
        expected.append(total)
    torch.testing.assert_close(reach(steps, momentum), torch.tensor(expected, dtype=torch.float64))


def test_the_reach_of_the_published_setting():
    assert float(reach(torch.tensor([20]), 0.99)) == pytest.approx(197.28, abs=0.01)


def test_unequal_steps_are_normalised(make_method, make_federation):
    """theta - sum_m p_m (tau_eff / a_m) (theta - theta_m), written out."""
    method = make_method("fednova", optimizer="sgd", momentum=0.9)
    task = make_federation(sizes=(9, 9)).task
    server = method.init(task)
    moved = {name: torch.stack([weight + 1, weight + 4]) for name, weight in server.weights.items()}
    fields = {f"weights/{name}": weight for name, weight in moved.items()}
    fields["size/train_nodes"], fields["size/nodes"] = torch.tensor([30, 10]), torch.tensor([90, 30])
    a = reach(torch.tensor([2, 5]), 0.9)
    fields["normaliser/reach"] = a
    p = torch.tensor([0.75, 0.25]).double()
    effective = (p * a).sum()
    step = (p * effective / a * torch.tensor([1.0, 4.0])).sum()
    after = method.aggregate(server, Upload(fields), 0)
    for name, weight in server.weights.items():
        torch.testing.assert_close(after.weights[name], weight + float(step), rtol=0, atol=1e-5)


# Local optimizers


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_that_of_torch(momentum):
    generator = torch.Generator().manual_seed(0)
    ours = {"w": torch.randn(2, 3, generator=generator)}
    theirs = ours["w"].clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=0.05)
    state = AdamState(first={"w": torch.zeros(2, 3)})
    for _ in range(4):
        gradient = torch.randn(2, 3, generator=generator)
        theirs.grad = gradient.clone()
        optimizer.step()
        sgd_step(ours, {"w": gradient}, state, {"w": (0.1, 0.05)}, momentum)
    torch.testing.assert_close(ours["w"], theirs.detach())


def test_adam_of_clients_with_different_step_counts_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    ours = {"w": torch.randn(2, 3, generator=generator, dtype=torch.float64)}
    theirs = [ours["w"][m].clone().requires_grad_() for m in range(2)]
    optimizers = [torch.optim.Adam([weight], lr=0.1, weight_decay=0.05) for weight in theirs]
    state = AdamState.zeros(ours)
    state.step = torch.zeros(2, dtype=torch.int64)
    for active in ([True, True], [True, False], [True, True]):
        gradient = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        for m in range(2):
            theirs[m].grad = gradient[m].clone()
            if active[m]:
                optimizers[m].step()
        client_adam_step(ours, {"w": gradient}, state, {"w": (0.1, 0.05)}, torch.tensor(active))
    torch.testing.assert_close(ours["w"], torch.stack([weight.detach() for weight in theirs]))
    assert state.step.tolist() == [3, 2]


def test_sgd_leaves_inactive_clients_alone():
    ours, state = {"w": torch.ones(2, 3)}, AdamState(first={"w": torch.ones(2, 3)})
    sgd_step(ours, {"w": torch.ones(2, 3)}, state, {"w": (0.1, 0.5)}, 0.9, torch.tensor([False, True]))
    assert torch.equal(ours["w"][0], torch.ones(3))
    assert torch.equal(state.first["w"][0], torch.ones(3))
    torch.testing.assert_close(ours["w"][1], torch.full((3,), 1 - 0.1 * 2.4))
