"""Adam over stacked weights against torch's, one optimizer per client."""

from __future__ import annotations

import pytest
import torch

from fedatlas.algorithms.optimizer import AdamState, adam_step


def random_weights(seed, k=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"encoder.weight": (4, 5), "encoder.bias": (5,), "classifier.bias": (1,)}
    return {name: torch.randn(k, *shape, dtype=dtype, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_one_stacked_adam_is_one_torch_adam_per_client(weight_decay, dtype, tolerance):
    weights = random_weights(0, dtype=dtype)
    separate = [
        {name: torch.nn.Parameter(weight[m].clone()) for name, weight in weights.items()} for m in range(3)
    ]
    optimizers = [
        torch.optim.Adam(own.values(), lr=0.02, weight_decay=weight_decay, foreach=False) for own in separate
    ]
    state = AdamState.zeros(weights)
    for step in range(1, 8):
        gradients = random_weights(step, dtype=dtype)
        adam_step(weights, gradients, state, 0.02, weight_decay)
        for m, (own, optimizer) in enumerate(zip(separate, optimizers, strict=True)):
            for name, parameter in own.items():
                parameter.grad = gradients[name][m].clone()
            optimizer.step()
            for name, parameter in own.items():
                torch.testing.assert_close(weights[name][m], parameter.data, rtol=0, atol=tolerance)
                moments = optimizer.state[parameter]
                torch.testing.assert_close(state.first[name][m], moments["exp_avg"], rtol=0, atol=tolerance)
                torch.testing.assert_close(
                    state.second[name][m], moments["exp_avg_sq"], rtol=0, atol=tolerance
                )
    assert state.step == 7


def test_inactive_clients_keep_weights_and_moments():
    weights, state = random_weights(0), AdamState.zeros(random_weights(0))
    adam_step(weights, random_weights(1), state, 0.02, 0.1)
    tables = (weights, state.first, state.second)
    before = [{name: tensor.clone() for name, tensor in table.items()} for table in tables]
    active = torch.tensor([True, False, True])
    everyone = [{name: tensor.clone() for name, tensor in table.items()} for table in tables]
    adam_step(weights, random_weights(2), state, 0.02, 0.1, active)
    adam_step(everyone[0], random_weights(2), AdamState(everyone[1], everyone[2], 1), 0.02, 0.1)
    for table, old, full in zip(tables, before, everyone, strict=True):
        for name in table:
            assert torch.equal(table[name][1], old[name][1])
            assert torch.equal(table[name][[0, 2]], full[name][[0, 2]])
            assert not torch.equal(table[name][0], old[name][0])


def test_parameters_without_gradient_stay():
    weights, state = random_weights(0), AdamState.zeros(random_weights(0))
    gradients = random_weights(1)
    del gradients["encoder.bias"]
    old = weights["encoder.bias"].clone()
    adam_step(weights, gradients, state, 0.02, 0.1)
    assert torch.equal(weights["encoder.bias"], old)
    assert (state.first["encoder.bias"] == 0).all()


def test_gradients_are_left_as_they_were():
    weights, gradients = random_weights(0), random_weights(1)
    adam_step(weights, gradients, AdamState.zeros(weights), 0.02, 0.1)
    for name, expected in random_weights(1).items():
        assert torch.equal(gradients[name], expected)
