"""Structural templates: the refinement is optimal for equation 9 and closest to the radials."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch

from fedatlas.algorithms.templates import (
    TemplateStatistics,
    mean_cosine,
    random_templates,
    refine_templates,
    statistics,
    usage_entropy,
)
from fedatlas.algorithms.transport import sinkhorn, wasserstein_cost


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=-1)


def gaps(pairs):
    return (pairs[..., 0, :] - pairs[..., 1, :]).norm(dim=-1)


def total(each):
    return TemplateStatistics(each.mass.sum(0), each.gap.sum(0), each.atoms.sum(0))


def assigned_to(templates, clients=3, nodes=10, seed=0):
    """Radials, plan and total statistics of a few clients."""
    radials = unit(clients, nodes, 2, templates.shape[2], seed=seed)
    drawn = torch.ones(clients, nodes, dtype=torch.bool)
    plan = sinkhorn(wasserstein_cost(radials, templates), 0.1, 20, drawn)
    return radials, plan, total(statistics(radials, plan, templates))


def golden():
    half = np.sqrt(0.5)
    templates = torch.tensor([[[0, 1, 0], [half, 0, half]]], dtype=torch.float64)
    radials = torch.tensor([[[1, 0, 0], [0, 1, 0]], [[0.8, 0.6, 0], [0, 0.6, 0.8]]], dtype=torch.float64)
    return templates, radials[None], torch.tensor([[[0.7], [0.3]]], dtype=torch.float64)


def test_golden_step():
    templates, radials, plan = golden()
    sums = total(statistics(radials, plan, templates))
    np.testing.assert_allclose(sums.atoms[0], [[0.24, 0.88, 0], [0.70, 0.18, 0.24]], atol=1e-12)
    assert sums.mass.item() == pytest.approx(1.0)
    assert sums.gap.item() == pytest.approx(1.329361, abs=1e-6)
    assert np.arcsin(sums.gap.item() / 2) == pytest.approx(0.727066, abs=1e-6)

    new = refine_templates(templates, sums)
    np.testing.assert_allclose(new[0, 0], [0.107522, 0.992382, -0.060148], atol=1e-5)
    np.testing.assert_allclose(new[0, 1], [0.938814, 0.036334, 0.342501], atol=1e-5)
    assert (new * sums.atoms).sum().item() == pytest.approx(1.645012, abs=1e-5)
    assert gaps(new).item() == pytest.approx(1.329361, abs=1e-6)


def test_statistics_are_the_written_sums():
    templates = unit(4, 2, 5, seed=1)
    radials, plan, sums = assigned_to(templates)
    mass, gap, atoms = np.zeros(4), np.zeros(4), np.zeros((4, 2, 5))
    for m, b, q in np.ndindex(3, 10, 4):
        r, t, weight = radials[m, b].numpy(), templates[q].numpy(), plan[m, b, q].item()
        swap = r[0] @ t[1] + r[1] @ t[0] > r[0] @ t[0] + r[1] @ t[1]
        mass[q] += weight
        gap[q] += weight * np.linalg.norm(r[0] - r[1])
        atoms[q] += weight * (r[::-1] if swap else r)
    np.testing.assert_allclose(sums.mass, mass)
    np.testing.assert_allclose(sums.gap, gap)
    np.testing.assert_allclose(sums.atoms, atoms, atol=1e-12)


@pytest.mark.parametrize("rule", ["closest", "gap_only"])
def test_gap_is_that_of_the_gromov_wasserstein_barycentre(rule):
    templates = unit(3, 2, 6, seed=2)
    radials, plan, sums = assigned_to(templates)
    new = refine_templates(templates, sums, rule)
    torch.testing.assert_close(new.norm(dim=2), torch.ones(3, 2).double())
    torch.testing.assert_close(gaps(new), sums.gap / sums.mass)

    lengths = gaps(radials).reshape(-1).numpy()
    spaces = [np.array([[0, a], [a, 0]]) for a in lengths]
    mass = np.array([0.5, 0.5])
    for q in range(3):
        weights = plan[..., q].reshape(-1).numpy()
        barycentre = ot.gromov.gromov_barycenters(
            2,
            spaces,
            ps=[mass] * len(spaces),
            p=mass,
            lambdas=(weights / weights.sum()).tolist(),
            loss_fun="square_loss",
            init_C=np.array([[0, 1.0], [1.0, 0]]),
            tol=1e-12,
        )
        assert gaps(new)[q].item() == pytest.approx(barycentre[0, 1], abs=1e-9)


def gromov_objective(pairs, radials, plan):
    """Equation 9: sum F GW^2 over clients and nodes, for each of some pairs [N, 2, p]."""
    return (plan.reshape(1, -1) * (gaps(radials).reshape(1, -1) - gaps(pairs)[:, None]) ** 2 / 2).sum(dim=1)


def test_no_random_template_is_better():
    templates = unit(3, 2, 6, seed=3)
    radials, plan, sums = assigned_to(templates)
    new = refine_templates(templates, sums)
    others = unit(2000, 2, 6, seed=4)
    for q in range(3):
        best = gromov_objective(new[q : q + 1], radials, plan[..., q])
        assert best <= gromov_objective(others, radials, plan[..., q]).min()


def test_no_template_of_the_same_gap_is_closer_to_the_radials():
    templates = unit(3, 2, 4, seed=5)
    _, _, sums = assigned_to(templates)
    new = refine_templates(templates, sums)
    frames = torch.linalg.qr(random(20000, 4, 2, seed=6))[0]
    # Half of the candidates are near the solution, where a better one would have to be.
    near = torch.stack([new[:, 0] + new[:, 1], new[:, 0] - new[:, 1]], dim=2)
    near = near / near.norm(dim=1, keepdim=True).clamp(min=1e-12)
    for q in range(3):
        local = torch.linalg.qr(near[q] + 0.02 * random(20000, 4, 2, seed=7))[0]
        local = local * (local * near[q]).sum(dim=1, keepdim=True).sign()
        middle, across = torch.cat([frames, local]).unbind(dim=2)
        phi = torch.arcsin(gaps(new)[q] / 2)
        candidates = torch.stack(
            [phi.cos() * middle + phi.sin() * across, phi.cos() * middle - phi.sin() * across], dim=1
        )
        torch.testing.assert_close(gaps(candidates), gaps(new)[q].expand(len(candidates)))
        scores = (candidates * sums.atoms[q]).sum(dim=(1, 2))
        assert (new[q] * sums.atoms[q]).sum() >= scores.max() - 1e-12


def test_one_neighbourhood_is_reproduced():
    radials = unit(1, 1, 2, 5, seed=8)
    templates = unit(1, 2, 5, seed=9)
    new = refine_templates(templates, total(statistics(radials, torch.ones(1, 1, 1).double(), templates)))
    assert wasserstein_cost(radials, new).abs().item() < 1e-6


def test_vanishing_gap_gives_equal_halves():
    radials = unit(1, 1, 1, 5, seed=10).expand(1, 1, 2, 5)
    templates = unit(1, 2, 5, seed=11)
    new = refine_templates(templates, total(statistics(radials, torch.ones(1, 1, 1).double(), templates)))
    torch.testing.assert_close(new[0], radials[0, 0], rtol=0, atol=1e-6)
    again = refine_templates(new, TemplateStatistics(*(torch.ones(1).double(), torch.ones(1).double(), new)))
    torch.testing.assert_close(again.norm(dim=2), torch.ones(1, 2).double())
    assert gaps(again).item() == pytest.approx(1.0)


@pytest.mark.parametrize("sign", [1, -1], ids=["equal sums", "opposite sums"])
def test_a_direction_that_the_radials_leave_open_is_the_old_one(sign):
    """With M_1 = M_2 only the middle is known, with M_1 = -M_2 only the difference."""
    templates, direction = unit(1, 2, 5, seed=18), unit(5, seed=19)
    atoms = torch.stack([direction, sign * direction])[None]
    sums = TemplateStatistics(torch.ones(1).double(), torch.full((1,), 1.2).double(), atoms)
    new = refine_templates(templates, sums)
    old = templates[0, 0] - sign * templates[0, 1]
    other = torch.nn.functional.normalize(old - (old @ direction) * direction, dim=0)
    sin = 0.6
    cos = np.sqrt(1 - sin**2)
    known, open_ = (cos, sin) if sign == 1 else (sin, cos)
    torch.testing.assert_close(new[0, 0], known * direction + open_ * other, rtol=0, atol=1e-6)
    torch.testing.assert_close(new[0, 1], sign * (known * direction - open_ * other), rtol=0, atol=1e-6)


def test_opposite_halves_are_reproduced():
    direction = unit(1, 1, 1, 5, seed=12)
    radials = torch.cat([direction, -direction], dim=2)
    templates = unit(1, 2, 5, seed=13)
    new = refine_templates(templates, total(statistics(radials, torch.ones(1, 1, 1).double(), templates)))
    assert wasserstein_cost(radials, new).abs().item() < 1e-6


def test_gap_only_stays_in_the_plane_and_keeps_the_middle():
    templates = unit(3, 2, 6, seed=14)
    _, _, sums = assigned_to(templates)
    new = refine_templates(templates, sums, "gap_only")
    for q in range(3):
        basis, _ = torch.linalg.qr(templates[q].T)
        torch.testing.assert_close(new[q] @ basis @ basis.T, new[q], rtol=0, atol=1e-6)
        middle = torch.nn.functional.normalize(templates[q].sum(dim=0), dim=0)
        torch.testing.assert_close(
            torch.nn.functional.normalize(new[q].sum(dim=0), dim=0), middle, rtol=0, atol=1e-6
        )


def test_wasserstein_rule_moves_halves_towards_the_assigned_radials():
    templates = unit(3, 2, 6, seed=15)
    _, _, sums = assigned_to(templates)
    normalise = torch.nn.functional.normalize
    new = refine_templates(templates, sums, "wasserstein", momentum=0.9)
    torch.testing.assert_close(new, normalise(0.9 * templates + 0.1 * normalise(sums.atoms, dim=2), dim=2))
    torch.testing.assert_close(refine_templates(templates, sums, "wasserstein", momentum=1.0), templates)


@pytest.mark.parametrize("rule", ["closest", "gap_only", "wasserstein"])
def test_unused_template_stays(rule):
    templates = unit(3, 2, 6, seed=16)
    _, _, sums = assigned_to(templates)
    keep = torch.tensor([1.0, 0.0, 1.0]).double()
    fewer = TemplateStatistics(sums.mass * keep, sums.gap * keep, sums.atoms * keep[:, None, None])
    new = refine_templates(templates, fewer, rule)
    assert torch.equal(new[1], templates[1])
    torch.testing.assert_close(new[0], refine_templates(templates, sums, rule)[0])


def test_random_templates_are_unit_and_depend_on_the_seed():
    first = random_templates(5, 7, seed=0)
    torch.testing.assert_close(first.norm(dim=2), torch.ones(5, 2).double())
    assert torch.equal(first, random_templates(5, 7, seed=0))
    assert not torch.equal(first, random_templates(5, 7, seed=1))


def test_mean_cosine_is_one_at_collapse_and_the_written_mean_elsewhere():
    templates = unit(4, 2, 3, seed=17)
    written = [
        (templates[q, 0] @ templates[s, 0] + templates[q, 1] @ templates[s, 1]).item() / 2
        for q in range(4)
        for s in range(4)
        if q != s
    ]
    assert mean_cosine(templates) == pytest.approx(np.mean(written))
    assert mean_cosine(templates[:1].expand(4, 2, 3)) == pytest.approx(1.0)
    assert mean_cosine(templates[:1]) == 1.0


def test_usage_entropy_is_one_for_even_use_and_zero_for_a_single_template():
    assert usage_entropy(torch.full((4,), 2.5)) == pytest.approx(1.0)
    assert usage_entropy(torch.tensor([0.0, 3.0, 0.0])) == pytest.approx(0.0)
    share = np.array([0.5, 0.25, 0.25])
    expected = -(share * np.log(share)).sum() / np.log(3)
    assert usage_entropy(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(expected)
    assert usage_entropy(torch.zeros(3)) == 1.0
