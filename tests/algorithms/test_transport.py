"""Transport between two-atom measures and entropic plans, against POT."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch

from fedatlas.algorithms import transport
from fedatlas.algorithms.transport import matching_scores, sinkhorn, wasserstein_cost

GOLDEN_COST = [[0, 1], [1, 0.5], [0.2, 0.4], [2, 0]]


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=-1)


def all_nodes(cost):
    return torch.ones(cost.shape[:2], dtype=torch.bool)


def golden_pair():
    half = np.sqrt(0.5)
    radials = torch.tensor([[1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    template = torch.tensor([[0, 1, 0], [half, 0, half]], dtype=torch.float64)
    return radials[None, None], template[None]


def test_golden_cost():
    radials, templates = golden_pair()
    identity, swapped = matching_scores(radials, templates)
    assert identity.item() == pytest.approx(0, abs=1e-12)
    assert swapped.item() == pytest.approx(1.707107, abs=1e-6)
    assert wasserstein_cost(radials, templates).item() == pytest.approx(0.292893, abs=1e-6)


@pytest.mark.parametrize("make", [unit, random], ids=["unit atoms", "any atoms"])
def test_cost_equals_exact_transport(make):
    radials, templates = make(2, 5, 2, 4, seed=1), make(3, 2, 4, seed=2)
    cost = wasserstein_cost(radials, templates)
    mass = np.array([0.5, 0.5])
    for k, b, q in np.ndindex(2, 5, 3):
        between = ot.dist(radials[k, b].numpy(), templates[q].numpy())
        assert cost[k, b, q].item() == pytest.approx(ot.emd2(mass, mass, between), abs=1e-12)


def test_cost_of_unit_atoms_is_two_minus_the_better_score():
    radials, templates = unit(2, 50, 2, 3, seed=3), unit(20, 2, 3, seed=4)
    cost = wasserstein_cost(radials, templates)
    torch.testing.assert_close(cost, 2 - torch.maximum(*matching_scores(radials, templates)))
    assert cost.min() >= 0
    assert cost.max() <= 4
    opposite = -radials[:1, :1, :1].expand(1, 1, 2, 3)
    assert wasserstein_cost(opposite, -opposite[0]).item() == pytest.approx(4.0)


def test_order_of_atoms_does_not_matter():
    radials, templates = unit(1, 6, 2, 4, seed=5), unit(5, 2, 4, seed=6)
    cost = wasserstein_cost(radials, templates)
    torch.testing.assert_close(wasserstein_cost(radials.flip(2), templates), cost)
    torch.testing.assert_close(wasserstein_cost(radials, templates.flip(1)), cost)


def test_cost_vanishes_exactly_for_equal_sets():
    atoms = unit(4, 2, 5, seed=7)
    cost = wasserstein_cost(atoms[None], atoms.flip(1))[0]
    assert cost.diagonal().abs().max() < 1e-12
    assert cost[~torch.eye(4, dtype=torch.bool)].min() > 1e-3


def test_dead_radials_are_equally_far_from_all_templates():
    cost = wasserstein_cost(torch.zeros(1, 1, 2, 4, dtype=torch.float64), unit(3, 2, 4))
    torch.testing.assert_close(cost, torch.ones(1, 1, 3).double())


def gap(pair):
    return (pair[0] - pair[1]).norm().item()


def space(length):
    return np.array([[0, length], [length, 0]])


def test_gromov_wasserstein_of_two_point_spaces_is_half_the_squared_gap_difference():
    radials, template = golden_pair()
    assert gap(radials[0, 0]) == pytest.approx(1.414214, abs=1e-6)
    assert gap(template[0]) == pytest.approx(1.414214, abs=1e-6)
    mass = np.array([0.5, 0.5])
    for a, b in [(gap(radials[0, 0]), gap(template[0])), (0.3, 1.7), (0.0, 1.2), (1.9, 0.4)]:
        exact = ot.gromov.gromov_wasserstein2(space(a), space(b), mass, mass, "square_loss", G0=np.eye(2) / 2)
        assert exact == pytest.approx((a - b) ** 2 / 2, abs=1e-12)


def test_golden_plan():
    cost = torch.tensor([GOLDEN_COST], dtype=torch.float64)
    balanced = [[0.918529, 0.081471], [0.359513, 0.640487], [0.694772, 0.305228], [0.027186, 0.972814]]
    np.testing.assert_allclose(sinkhorn(cost, 0.5, 200, all_nodes(cost))[0], balanced, atol=1e-5)
    rows_only = [[0.880797, 0.119203], [0.268941, 0.731059], [0.598688, 0.401312], [0.017986, 0.982014]]
    np.testing.assert_allclose(sinkhorn(cost, 0.5, 0, all_nodes(cost))[0], rows_only, atol=1e-6)


def random_cost(k=3, nodes=12, templates=5, seed=8):
    return wasserstein_cost(unit(k, nodes, 2, 6, seed=seed), unit(templates, 2, 6, seed=seed + 1))


def test_plan_equals_pot():
    cost = random_cost()
    for epsilon in (0.05, 0.1, 0.5):
        plan = sinkhorn(cost, epsilon, 3000, all_nodes(cost))
        for m in range(3):
            exact = ot.sinkhorn(
                np.full(12, 1 / 12),
                np.full(5, 1 / 5),
                cost[m].numpy(),
                epsilon,
                numItermax=5000,
                stopThr=1e-13,
            )
            np.testing.assert_allclose(plan[m] / 12, exact, atol=1e-9)


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0])
def test_kernel_and_logarithms_agree(monkeypatch, epsilon):
    cost = random_cost()
    nodes = all_nodes(cost)
    nodes[1, 7:] = False
    nodes[2] = False
    by_kernel = sinkhorn(cost, epsilon, 15, nodes)
    monkeypatch.setattr(transport, "_SAFE_EXPONENT", -1.0)
    monkeypatch.setattr(transport, "_scale_kernel", None)
    torch.testing.assert_close(sinkhorn(cost, epsilon, 15, nodes), by_kernel, rtol=0, atol=1e-10)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_sum_to_one_and_padding_holds_nothing(epsilon, dtype):
    cost = random_cost().to(dtype)
    nodes = all_nodes(cost)
    nodes[1, 7:] = False
    nodes[2] = False
    plan = sinkhorn(cost, epsilon, 15, nodes)
    assert plan.dtype == dtype
    torch.testing.assert_close(plan.sum(dim=2), nodes.to(dtype), rtol=0, atol=1e-6)
    alone = sinkhorn(cost[1:2, :7], epsilon, 15, nodes[1:2, :7])
    torch.testing.assert_close(plan[1:2, :7], alone)


def test_columns_are_balanced():
    cost = random_cost(k=4, nodes=64, templates=8)
    plan = sinkhorn(cost, 0.1, 20, all_nodes(cost))
    np.testing.assert_allclose(plan.sum(dim=1), 64 / 8, rtol=0.01)


def test_small_regularisation_assigns_each_neighbourhood_to_one_template():
    cost = torch.tensor([[[0, 1.0], [0.9, 0.1], [0.2, 0.8], [2, 0]]], dtype=torch.float64)
    plan = sinkhorn(cost, 1e-3, 200, all_nodes(cost))
    np.testing.assert_allclose(plan[0], [[1, 0], [0, 1], [1, 0], [0, 1]], atol=1e-9)


def test_single_template_takes_everything():
    cost = random_cost(templates=1)
    torch.testing.assert_close(sinkhorn(cost, 0.02, 3, all_nodes(cost)), torch.ones_like(cost))


def test_no_gradient_passes_through_the_plan():
    cost = random_cost().requires_grad_()
    assert not sinkhorn(cost, 0.1, 5, all_nodes(cost)).requires_grad
