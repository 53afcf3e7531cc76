"""Semantic anchors: geometry of the simplex and of its refinement."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedatlas.algorithms import procrustes, simplex
from fedatlas.algorithms.simplex import gram_error, refine_anchors, repulsion, simplex_anchors
from fedatlas.platform.errors import ConfigurationError

CLASSES = (2, 3, 7, 18)


def pulled(anchors, offset, losses, tau=1.0, eta=0.1, counts=None):
    """Refine with one client whose means are the anchors plus an offset [p, C]."""
    means = (anchors + offset)[None]
    losses = torch.as_tensor(losses, dtype=torch.float64)[None]
    counts = torch.ones_like(losses) if counts is None else torch.as_tensor(counts)[None]
    return refine_anchors(anchors, means, losses, counts, tau, eta)


def weights_of(anchors, losses, tau=1.0, counts=None):
    """The difficulty weights gamma [C], read off an uncapped step.

    Every class is pulled by a unit vector orthogonal to the simplex, so the new anchor leans that way by
    gamma_i and keeps 1 + kappa of its own direction.
    """
    classes = anchors.shape[1]
    kappa = (classes - 1) / (2 * classes)
    basis, _ = torch.linalg.qr(torch.cat([anchors[:, :-1], torch.eye(len(anchors)).double()], dim=1))
    aside = basis[:, classes - 1]
    step = pulled(anchors, aside[:, None].expand_as(anchors), losses, tau, 1e9, counts)
    return (1 + kappa) * (aside @ step.anchors) / (anchors * step.anchors).sum(dim=0)


def test_golden_simplex(monkeypatch, golden_anchors):
    class Identity:
        @staticmethod
        def standard_normal(shape):
            return np.eye(*shape)

    monkeypatch.setattr(simplex, "stream", lambda *key: Identity)
    anchors = simplex_anchors(3, 3, seed=0)
    torch.testing.assert_close(anchors, golden_anchors)
    assert anchors[0, 0].item() == pytest.approx(0.816497, abs=1e-6)
    assert anchors[0, 1].item() == pytest.approx(-0.408248, abs=1e-6)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("width", [18, 64])
def test_anchors_are_a_simplex(classes, width):
    anchors = simplex_anchors(width, classes, seed=5)
    gram = anchors.T @ anchors
    expected = classes / (classes - 1) * torch.eye(classes).double() - 1 / (classes - 1)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-12)
    assert gram_error(anchors) < 1e-12
    assert anchors.sum(dim=1).abs().max() < 1e-12
    assert torch.linalg.matrix_rank(anchors) == classes - 1


def test_two_anchors_are_antipodal():
    anchors = simplex_anchors(5, 2, seed=0)
    torch.testing.assert_close(anchors[:, 0], -anchors[:, 1])


def test_anchors_depend_on_the_seed_only():
    assert torch.equal(simplex_anchors(8, 4, seed=3), simplex_anchors(8, 4, seed=3))
    assert not torch.equal(simplex_anchors(8, 4, seed=3), simplex_anchors(8, 4, seed=4))


def test_more_classes_than_dimensions_are_refused():
    with pytest.raises(ConfigurationError, match=r"hidden=4 .* 5 .*at least 5"):
        simplex_anchors(4, 5, seed=0)
    with pytest.raises(ConfigurationError, match="at least 2 classes"):
        simplex_anchors(4, 1, seed=0)


@pytest.mark.parametrize("classes", [2, 3, 7, 18, 40])
def test_repulsion_at_the_simplex_is_radial(classes):
    anchors = simplex_anchors(64, classes, seed=1)
    torch.testing.assert_close(repulsion(anchors), (classes - 1) / (2 * classes) * anchors)


def test_repulsion_is_the_written_sum():
    anchors = torch.nn.functional.normalize(
        torch.randn(6, 4, dtype=torch.float64, generator=seeded(0)), dim=0
    )
    for i in range(4):
        expected = sum(
            -anchors[:, j] / (anchors[:, i] - anchors[:, j]).square().sum() for j in range(4) if j != i
        )
        torch.testing.assert_close(repulsion(anchors)[:, i], expected)


def test_coinciding_anchors_stay_finite():
    anchors = simplex_anchors(6, 3, seed=0)
    anchors[:, 1] = anchors[:, 0]
    step = pulled(anchors, torch.zeros_like(anchors), torch.ones(3))
    assert step.anchors.isfinite().all()
    torch.testing.assert_close(step.anchors.norm(dim=0), torch.ones(3).double())


def test_golden_refinement(golden_anchors, golden_means):
    K = procrustes.calibrate(golden_means[None], golden_anchors, torch.ones(1, 3, dtype=torch.bool))
    losses = torch.tensor([[0.1, 0.2, 0.4]], dtype=torch.float64)
    step = refine_anchors(golden_anchors, K.calibrated_means, losses, torch.ones(1, 3), tau=1.0, eta=0.1)
    columns = [
        [0.816489, -0.411286, -0.405203],
        [-0.402926, 0.816474, -0.413547],
        [-0.396127, -0.420250, 0.816378],
    ]
    np.testing.assert_allclose(step.anchors.T, columns, atol=1e-5)
    gram = step.anchors.T @ step.anchors
    np.testing.assert_allclose(gram[[0, 0, 1], [1, 2, 2]], [-0.497219, -0.481389, -0.521124], atol=1e-5)
    assert step.capped_share == 1.0


def test_golden_difficulty_weights():
    gamma = weights_of(simplex_anchors(8, 3, seed=0), [0.1, 0.2, 0.4])
    np.testing.assert_allclose(gamma, [0.289433, 0.319873, 0.390694], atol=1e-6)


@pytest.mark.parametrize("eta", [0.01, 0.1, 0.3, 0.9])
def test_step_length_is_bounded(eta):
    bound = 2 * math.sin(math.asin(eta) / 2)
    generator = seeded(1)
    for classes in (2, 3, 7):
        anchors = simplex_anchors(9, classes, seed=2)
        for scale in (0.1, 1.0, 100.0):
            offset = scale * torch.randn(anchors.shape, dtype=torch.float64, generator=generator)
            step = pulled(anchors, offset, torch.rand(classes, generator=generator), eta=eta)
            assert (step.anchors - anchors).norm(dim=0).max() <= bound + 1e-12
            torch.testing.assert_close(step.anchors.norm(dim=0), torch.ones(classes).double())


def test_step_bound_is_attained_by_a_move_that_lands_at_a_right_angle():
    # The angle between d and d + x with |x| = eta is largest where x is orthogonal to d + x.
    eta, anchors = 0.3, simplex_anchors(4, 2, seed=0)
    basis, _ = torch.linalg.qr(torch.cat([anchors[:, :1], torch.eye(4).double()], dim=1))
    aside = basis[:, 1:2]
    angle = math.asin(eta)
    move = eta * (-math.sin(angle) * anchors + math.cos(angle) * aside)
    offset = (1e6 * move - repulsion(anchors)) * 2  # gamma is 1/2 for two equally difficult classes
    step = pulled(anchors, offset, torch.zeros(2), eta=eta)
    length = (step.anchors - anchors).norm(dim=0)
    np.testing.assert_allclose(length, 2 * math.sin(angle / 2), atol=1e-9)
    assert length[0].item() == pytest.approx(0.3035, abs=1e-4)


def test_zero_step_changes_nothing():
    anchors = simplex_anchors(8, 4, seed=0)
    step = pulled(anchors, torch.randn(8, 4, generator=seeded(2)).double(), torch.rand(4), eta=0.0)
    torch.testing.assert_close(step.anchors, anchors)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("eta", [0.1, 0.5, 10.0])
def test_simplex_is_a_fixed_point_without_pull(classes, eta):
    anchors = simplex_anchors(32, classes, seed=0)
    step = pulled(anchors, torch.zeros_like(anchors), torch.rand(classes, generator=seeded(3)), eta=eta)
    torch.testing.assert_close(step.anchors, anchors)
    assert step.capped_share == float(eta < (classes - 1) / (2 * classes))


def test_difficult_classes_weigh_more():
    gamma = weights_of(simplex_anchors(8, 4, seed=0), [0.1, 2.0, 0.5, 1.0])
    assert gamma.argsort().tolist() == [0, 2, 3, 1]
    assert gamma.sum().item() == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(gamma, torch.softmax(torch.tensor([0.1, 2.0, 0.5, 1.0]).double(), 0))


def test_high_temperature_weighs_all_classes_alike():
    gamma = weights_of(simplex_anchors(8, 4, seed=0), [0.1, 2.0, 0.5, 1.0], tau=1e9)
    np.testing.assert_allclose(gamma, 0.25, atol=1e-8)


def test_class_absent_everywhere_gets_no_weight():
    gamma = weights_of(simplex_anchors(8, 4, seed=0), [0.1, 9.0, 0.5, 1.0], counts=[3, 0, 1, 2])
    assert gamma[1].abs() < 1e-12
    torch.testing.assert_close(gamma[[0, 2, 3]], torch.softmax(torch.tensor([0.1, 0.5, 1.0]).double(), 0))


def test_means_and_losses_are_averaged_over_the_holders_only():
    anchors = simplex_anchors(8, 3, seed=0)
    generator = seeded(4)
    means = torch.randn(3, 8, 3, dtype=torch.float64, generator=generator)
    losses = torch.rand(3, 3, dtype=torch.float64, generator=generator)
    counts = torch.tensor([[5, 0, 1], [2, 0, 0], [1, 4, 0]])
    merged_means = torch.stack([means[:, :, 0].mean(0), means[2, :, 1], means[0, :, 2]], dim=1)
    merged_losses = torch.stack([losses[:, 0].mean(), losses[2, 1], losses[0, 2]])
    step = refine_anchors(anchors, means, losses, counts, 1.0, 0.1)
    merged = refine_anchors(anchors, merged_means[None], merged_losses[None], torch.ones(1, 3), 1.0, 0.1)
    torch.testing.assert_close(step.anchors, merged.anchors)


def test_no_client_with_training_nodes_leaves_repulsion_only():
    anchors = simplex_anchors(8, 3, seed=0)
    step = refine_anchors(anchors, torch.zeros(2, 8, 3), torch.zeros(2, 3), torch.zeros(2, 3), 1.0, 0.1)
    torch.testing.assert_close(step.anchors, anchors)


@pytest.mark.parametrize("classes", CLASSES)
def test_repulsion_restores_equidistance(classes):
    noise = 0.1 * torch.randn(32, classes, dtype=torch.float64, generator=seeded(5)) / math.sqrt(32)
    anchors = torch.nn.functional.normalize(simplex_anchors(32, classes, seed=0) + noise, dim=0)
    assert gram_error(anchors) > 1e-3
    nobody = torch.zeros(1, classes)
    for _ in range(100):
        anchors = refine_anchors(anchors, torch.zeros(1, 32, classes), nobody, nobody, 1.0, 0.1).anchors
    assert gram_error(anchors) < 1e-3


@pytest.mark.parametrize(("classes", "bound"), [(2, 0.1), (3, 0.05), (7, 0.05), (18, 0.05)])
def test_anchors_stay_near_the_simplex_under_a_steady_pull(classes, bound):
    """Class means half a unit off in random directions: the anchors move there, and keep their angles."""
    start = anchors = simplex_anchors(64, classes, seed=0)
    aside = torch.randn(64, classes, dtype=torch.float64, generator=seeded(6))
    means = start + 0.5 * torch.nn.functional.normalize(aside, dim=0)
    losses = torch.rand(1, classes, dtype=torch.float64, generator=seeded(7))
    for _ in range(80):
        anchors = refine_anchors(anchors, means[None], losses, torch.ones(1, classes), 1.0, 0.1).anchors
        assert gram_error(anchors) < bound
    assert (anchors - start).norm(dim=0).min() > 0.1


def seeded(seed):
    return torch.Generator().manual_seed(seed)
