"""SEAL's perturbation and update are the paper's equations; RepDec has its bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms.decorrelation import correlation_penalty
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.weight_sharing import Step
from fedatlas.platform.federation.cohort import Dropout, stack


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tensors(seed):
    return {"a": draw(3, 4, 2, seed=seed), "b": draw(3, 5, seed=seed + 1)}


def flat(parts):
    return torch.cat([part.flatten(1) for part in parts.values()], dim=1)


@pytest.mark.parametrize("rho", [0.001, 0.5])
def test_the_scaled_perturbation_has_the_radius_and_climbs(rho):
    method = create("seal", options={"rho": rho})
    weights, gradients = tensors(0), tensors(5)
    shifts = method.shifts(weights, gradients)
    scale = flat(weights).abs() + 0.1
    torch.testing.assert_close((flat(shifts) / scale).square().sum(dim=1), torch.full((3,), rho).double())
    expected = scale * flat(gradients) / (scale * flat(gradients)).norm(dim=1, keepdim=True)
    torch.testing.assert_close(flat(shifts) / scale / rho**0.5, expected)


def test_the_plain_perturbation_is_along_the_gradient():
    method = create("sealb", options={"rho": 0.04})
    gradients = tensors(5)
    shifts = flat(method.shifts(tensors(0), gradients))
    torch.testing.assert_close(shifts, 0.2 * flat(gradients) / flat(gradients).norm(dim=1, keepdim=True))


def test_the_perturbation_scales_with_the_weights():
    """With gamma = 0, weights times s and gradients by s give eps times s: sharpness is scale invariant."""
    method = create("seal", options={"gamma": 0.0})
    weights, gradients = tensors(0), tensors(5)
    shifts = method.shifts(weights, gradients)
    scaled = method.shifts(
        {name: 7 * each for name, each in weights.items()},
        {name: each / 7 for name, each in gradients.items()},
    )
    for name, shift in shifts.items():
        torch.testing.assert_close(scaled[name], 7 * shift)


def test_layers_may_be_scaled_by_different_factors():
    """A rescaling S that leaves the function alone leaves the climb alone: eps of S w is S eps."""
    method = create("seal", options={"gamma": 0.0})
    weights, gradients = tensors(0), tensors(5)
    factors = {"a": 0.25, "b": 4.0}
    shifts = method.shifts(weights, gradients)
    scaled = method.shifts(
        {name: factors[name] * each for name, each in weights.items()},
        {name: each / factors[name] for name, each in gradients.items()},
    )
    for name, shift in shifts.items():
        torch.testing.assert_close(scaled[name], factors[name] * shift)


def test_without_a_gradient_there_is_no_perturbation():
    zero = {name: torch.zeros_like(each) for name, each in tensors(0).items()}
    shifts = create("seal").shifts(tensors(0), zero)
    assert not any(shift.any() for shift in shifts.values())


def test_a_step_is_minus_eta_times_the_gradient_there_plus_decay(make_graph_federation, make_method):
    """w - eta (grad L(w + eps) + lambda w), written out with the method's own loss."""
    federation = make_graph_federation()
    options = {
        "optimizer": "sgd",
        "lr": 0.1,
        "weight_decay": 0.03,
        "repdec": 0.2,
        "rho": 0.05,
        "dropout": 0.0,
    }
    method = make_method("seal", "gat", **options)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    before = {name: weight.clone() for name, weight in client.weights.items()}

    def gradient(weights):
        live = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        (step,) = method._steps(cohort, 0, 0)
        found = method.backbone.forward(live, step.cohort, None)
        log = torch.log_softmax(found.logits, dim=2).gather(2, step.cohort.labels[..., None])[..., 0]
        loss = -(log * step.cohort.train).sum(dim=1) / step.cohort.train.sum(dim=1)
        loss = loss + 0.2 * correlation_penalty(found.embedding, step.cohort.train)
        return dict(zip(live, torch.autograd.grad(loss.sum(), list(live.values())), strict=True))

    shifts = method.shifts(before, gradient(before))
    there = gradient({name: weight + shifts[name] for name, weight in before.items()})
    result = method.update(client, cohort, 0)
    for name, weight in before.items():
        torch.testing.assert_close(client.weights[name], weight - 0.1 * (there[name] + 0.03 * weight))
    assert bool((result.metrics["sharpness/rise"] > 0).all())


def test_looking_around_does_not_move_the_weights(make_graph_federation, make_method):
    federation = make_graph_federation()
    method = make_method("seal", "gat", optimizer="sgd", lr=0.1, dropout=0.0)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    before = {name: weight.clone() for name, weight in client.weights.items()}
    batch = cohort.batch([0, 1, 2, 3], [np.arange(4)] * 4)
    method._gradients(client, Step(batch, None, Dropout(batch, 0, 0)), 0)
    assert all(torch.equal(weight, client.weights[name]) for name, weight in before.items())


# RepDec


def whitened(rows, columns):
    values = draw(rows, columns)
    return torch.linalg.qr(values - values.mean(dim=0)).Q


def test_uncorrelated_columns_have_the_least_penalty_and_equal_ones_the_largest():
    everything = torch.ones(2, 50, dtype=torch.bool)
    apart = (whitened(50, 6) * 50).expand(2, -1, -1)
    same = draw(2, 50, 1).expand(-1, -1, 6) * torch.arange(1, 7) + 3
    torch.testing.assert_close(
        correlation_penalty(apart, everything), torch.full((2,), 1 / 6).double(), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        correlation_penalty(same, everything), torch.ones(2).double(), atol=1e-4, rtol=0
    )


def test_the_penalty_does_not_depend_on_scale_shift_or_padding():
    values, everything = draw(1, 20, 4), torch.ones(1, 20, dtype=torch.bool)
    plain = correlation_penalty(values, everything)
    moved = values * torch.tensor([100.0, 50.0, 20.0, 10.0]) + torch.tensor([1.0, -5.0, 0.0, 9.0])
    torch.testing.assert_close(correlation_penalty(moved, everything), plain, rtol=1e-4, atol=0)
    padded = torch.cat([values, draw(1, 7, 4, seed=3)], dim=1)
    marks = torch.cat([everything, torch.zeros(1, 7, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(correlation_penalty(padded, marks), plain)


def test_the_penalty_is_that_of_the_correlation_matrix():
    values = draw(1, 30, 5)
    correlations = np.corrcoef(values[0].numpy().T)
    found = correlation_penalty(values, torch.ones(1, 30, dtype=torch.bool))
    assert float(found) == pytest.approx((correlations**2).sum() / 25, rel=1e-4)


@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_items_have_no_penalty_and_finite_gradients(count):
    values = draw(1, 3, 4).requires_grad_()
    marks = torch.arange(3)[None] < count
    penalty = correlation_penalty(values, marks)
    assert float(penalty.detach()) == 0
    (gradient,) = torch.autograd.grad(penalty.sum(), [values])
    assert torch.isfinite(gradient).all()


def test_a_constant_column_adds_nothing():
    values = torch.cat([draw(1, 10, 2), torch.full((1, 10, 1), 5.0, dtype=torch.float64)], dim=2)
    everything = torch.ones(1, 10, dtype=torch.bool)
    without = correlation_penalty(values[..., :2], everything)
    torch.testing.assert_close(correlation_penalty(values, everything), without * 4 / 9)
