"""FedProx equals FedAvg where its pull has no effect, and pulls where it has one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.platform.federation.cohort import stack


@pytest.mark.parametrize("options", [{"mu": 0.0, "epochs": 3}, {"mu": 10.0, "epochs": 1}], ids=str)
def test_without_a_pull_it_is_fedavg(make_federation, make_method, run, options):
    federation = make_federation()
    proximal = run(make_method("fedprox", **options), federation)
    plain = run(make_method("fedavg", epochs=options["epochs"]), federation)
    np.testing.assert_array_equal(proximal.scores(), plain.scores())
    for name, weight in proximal.clients["weights"].items():
        torch.testing.assert_close(weight, plain.clients["weights"][name], rtol=0, atol=1e-12)


def test_a_stronger_pull_keeps_clients_closer_to_what_they_received(make_federation, make_method, run):
    federation = make_federation()

    def drift(mu: float) -> float:
        outcome = run(make_method("fedprox", mu=mu, epochs=4, lr=0.001, dropout=0.0), federation, rounds=1)
        start = make_method("fedprox", mu=mu).init(federation.task).weights
        return sum(
            float((weight - start[name]).square().sum())
            for name, weight in outcome.clients["weights"].items()
        )

    weak, strong = drift(0.0), drift(100.0)
    assert strong < weak


def test_the_penalty_is_half_mu_times_the_squared_distance(make_federation, make_method):
    federation = make_federation()
    method = make_method("fedprox", mu=0.5)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    method.receive(client, cohort, method.broadcast(method.init(federation.task), 0))
    moved = {name: (weight + 0.1).requires_grad_() for name, weight in client.weights.items()}
    penalty = method.losses(client, cohort, moved, None, 0)["proximal"]
    parameters = sum(weight[0].numel() for weight in moved.values())
    expected = torch.full_like(penalty, 0.25 * parameters * 0.01)
    torch.testing.assert_close(penalty, expected, rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(penalty.sum(), [moved["classifier.bias"]])
    torch.testing.assert_close(gradient, torch.full_like(gradient, 0.5 * 0.1), rtol=1e-6, atol=0)
