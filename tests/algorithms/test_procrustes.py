"""Orthogonal Procrustes through thin factors, against the p x p SVD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms.procrustes import RANK_TOLERANCE, calibrate, class_means, squared_distances
from fedatlas.algorithms.simplex import simplex_anchors


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def rotation(width, seed=0):
    return torch.linalg.qr(random(width, width, seed=seed))[0]


def full(means, anchors):
    """R = U V^T and the singular values of the p x p problem, over given columns."""
    U, sigma, Vt = torch.linalg.svd(anchors @ means.T)
    return U @ Vt, sigma


def everything(classes, clients=1):
    return torch.ones(clients, classes, dtype=torch.bool)


PRESENT = {
    "all classes": [True, True, True, True],
    "two classes absent": [True, False, True, False],
    "single class": [False, False, True, False],
}


def test_golden_procrustes(golden_anchors, golden_means):
    result = calibrate(golden_means[None], golden_anchors, everything(3))
    assert result.residual.item() == pytest.approx(1.640556, abs=1e-5)
    expected = [
        [0.637926, -0.258743, -0.217006],
        [-0.350210, 0.609973, -0.371986],
        [-0.287716, -0.351229, 0.588992],
    ]
    np.testing.assert_allclose(result.calibrated_means[0], expected, atol=1e-5)
    assert full(golden_means, golden_anchors)[1].tolist() == pytest.approx([1.193327, 1.056395, 0], abs=1e-5)

    two = calibrate(golden_means[None], golden_anchors, torch.tensor([[True, True, False]]))
    assert two.residual.item() == pytest.approx(0.261513, abs=1e-5)
    sigma = full(golden_means[:, :2], golden_anchors[:, :2])[1]
    assert sigma.tolist() == pytest.approx([1.139388, 0.794856, 0], abs=1e-5)


@pytest.mark.parametrize("present", PRESENT.values(), ids=PRESENT)
def test_thin_form_equals_the_full_svd(present):
    anchors, P, H = simplex_anchors(9, 4, seed=0), random(9, 4, seed=1), random(20, 9, seed=2)
    result = calibrate(P[None], anchors, torch.tensor([present]))
    R, sigma = full(P[:, present], anchors[:, present])

    torch.testing.assert_close(R @ R.T, torch.eye(9).double())
    residual = (R @ P[:, present] - anchors[:, present]).square().sum()
    torch.testing.assert_close(result.residual[0], residual)
    closed = P[:, present].square().sum() + anchors[:, present].square().sum() - 2 * sigma.sum()
    torch.testing.assert_close(result.residual[0], closed)

    for c in np.flatnonzero(present):
        labels = torch.full((1, 20), int(c))
        written = (H @ R.T - anchors[:, c]).square().sum(dim=1)
        distances = squared_distances(H[None], result.personal_anchors, labels)[0]
        torch.testing.assert_close(distances, written, rtol=0, atol=1e-10)

    span, _ = torch.linalg.qr(anchors[:, present])
    rank = int((sigma > 1e-9).sum())
    U, _, Vt = torch.linalg.svd(anchors[:, present] @ P[:, present].T)
    K = result.calibrated_means[0][:, present]
    torch.testing.assert_close(K, U[:, :rank] @ Vt[:rank] @ P[:, present], rtol=0, atol=1e-10)
    torch.testing.assert_close(span @ (span.T @ K), K, rtol=0, atol=1e-10)


def test_rank_deficient_means_use_the_determined_directions_only():
    anchors, P = simplex_anchors(9, 4, seed=0), random(9, 4, seed=1)
    P[:, 3] = P[:, 2]
    P[:, 1] = 2 * P[:, 2]
    result = calibrate(P[None], anchors, everything(4))
    U, sigma, Vt = torch.linalg.svd(anchors @ P.T)
    rank = int((sigma > RANK_TOLERANCE * sigma[0]).sum())
    assert rank == 2
    partial = U[:, :rank] @ Vt[:rank]
    torch.testing.assert_close(result.calibrated_means[0], partial @ P, rtol=0, atol=1e-10)
    torch.testing.assert_close(result.personal_anchors[0], partial.T @ anchors, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1e-9, 1e-5])
def test_nearly_vanishing_directions_are_dropped(size):
    anchors, P = simplex_anchors(9, 3, seed=0), random(9, 1, seed=1).expand(9, 3).clone()
    P[:, 0] *= 3
    exact = calibrate(P[None], anchors, everything(3))
    almost = calibrate((P + size * random(9, 3, seed=2))[None], anchors, everything(3))
    for name in ("personal_anchors", "calibrated_means"):
        torch.testing.assert_close(getattr(almost, name), getattr(exact, name), rtol=0, atol=10 * size)


def test_no_rotation_is_better():
    anchors, P = simplex_anchors(6, 4, seed=0), random(6, 4, seed=3)
    best = calibrate(P[None], anchors, everything(4)).residual.item()
    rotations = torch.linalg.qr(random(1000, 6, 6, seed=4))[0]
    others = (rotations @ P - anchors).square().sum(dim=(1, 2))
    assert best <= others.min().item()


def test_rotated_anchors_are_recovered():
    anchors, Q = simplex_anchors(8, 5, seed=0), rotation(8)
    result = calibrate((Q @ anchors)[None], anchors, everything(5))
    assert result.residual.abs().item() < 1e-12
    torch.testing.assert_close(result.calibrated_means[0], anchors)
    torch.testing.assert_close(result.personal_anchors[0], Q @ anchors)


def test_distances_between_means_are_preserved():
    anchors, P = simplex_anchors(8, 5, seed=0), random(8, 5, seed=5)
    some = torch.tensor([[True, True, False, True, False]])
    K = calibrate(P[None], anchors, some).calibrated_means[0][:, some[0]]
    torch.testing.assert_close(torch.cdist(K.T, K.T), torch.cdist(P[:, some[0]].T, P[:, some[0]].T))


def test_rotating_all_embeddings_changes_no_distance():
    anchors, H, Q = simplex_anchors(8, 3, seed=0), random(1, 30, 8, seed=6), rotation(8, seed=7)
    labels = torch.arange(30)[None] % 3
    indicator = torch.nn.functional.one_hot(labels, 3).double()

    def distances(values):
        means = class_means(values, indicator, indicator.sum(dim=1))
        return squared_distances(values, calibrate(means, anchors, everything(3)).personal_anchors, labels)

    torch.testing.assert_close(distances(H @ Q.T), distances(H))


def test_an_absent_class_changes_nothing():
    anchors, P = simplex_anchors(8, 4, seed=0), random(8, 4, seed=8)
    some = torch.tensor([[True, True, True, False]])
    with_absent = calibrate(P[None], anchors, some)
    without = calibrate(P[None, :, :3], anchors[:, :3], everything(3))
    torch.testing.assert_close(with_absent.residual, without.residual)
    for name in ("personal_anchors", "calibrated_means"):
        torch.testing.assert_close(getattr(with_absent, name)[..., :3], getattr(without, name))
        assert (getattr(with_absent, name)[..., 3] == 0).all()


def test_single_class_is_turned_onto_its_anchor():
    anchors, P = simplex_anchors(8, 4, seed=0), random(8, 4, seed=9)
    result = calibrate(P[None], anchors, torch.tensor([[False, True, False, False]]))
    length = P[:, 1].norm()
    torch.testing.assert_close(result.personal_anchors[0, :, 1], P[:, 1] / length)
    torch.testing.assert_close(result.calibrated_means[0, :, 1], length * anchors[:, 1])
    torch.testing.assert_close(result.residual[0], (length - 1).square())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dead_embeddings_keep_the_anchors(dtype):
    anchors = simplex_anchors(8, 4, seed=0)
    result = calibrate(torch.zeros(1, 8, 4, dtype=dtype), anchors, everything(4))
    torch.testing.assert_close(result.personal_anchors[0], anchors.to(dtype))
    assert (result.calibrated_means == 0).all()
    assert result.residual.item() == pytest.approx(4.0, abs=1e-5)


def test_client_without_classes_gives_zeros():
    result = calibrate(random(1, 8, 4), simplex_anchors(8, 4, seed=0), ~everything(4))
    for value in (result.personal_anchors, result.calibrated_means, result.residual):
        assert (value == 0).all()


def test_stacked_clients_equal_separate_ones():
    anchors, P = simplex_anchors(8, 4, seed=0), random(3, 8, 4, seed=10)
    P[2] = 0
    present = torch.tensor([[True] * 4, [True, False, True, True], [True] * 4])
    stacked = calibrate(P, anchors, present)
    for m in range(3):
        alone = calibrate(P[m : m + 1], anchors, present[m : m + 1])
        for name in ("personal_anchors", "calibrated_means", "residual"):
            torch.testing.assert_close(getattr(stacked, name)[m], getattr(alone, name)[0])


def test_nothing_is_differentiated():
    P = random(1, 8, 4).requires_grad_()
    result = calibrate(P, simplex_anchors(8, 4, seed=0), everything(4))
    assert not result.personal_anchors.requires_grad


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_non_negative_means_have_a_floor_of_one(classes):
    """min over P >= 0 of ||R P - Delta||^2 is 1: what a ReLU embedding cannot get below."""
    anchors = simplex_anchors(8, classes, seed=0)
    best = np.sqrt((classes - 1) / classes) * torch.eye(8, classes).double()
    attained = calibrate(best[None], anchors, everything(classes)).residual.item()
    assert attained == pytest.approx(1.0, abs=1e-12)
    others = random(500, 8, classes, seed=11).clamp(min=0) * torch.linspace(0.1, 1.5, 500)[:, None, None]
    assert calibrate(others, anchors, everything(classes, 500)).residual.min() >= 1.0


def test_class_means_are_means_over_training_nodes():
    values = random(2, 7, 3, seed=12)
    labels = torch.tensor([[0, 1, 1, 0, 2, 2, 0], [1, 1, 1, 0, 0, 2, 2]])
    train = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 0, 1, 0]]).bool()
    indicator = torch.nn.functional.one_hot(labels, 3).double() * train[..., None]
    means = class_means(values, indicator, indicator.sum(dim=1))
    for m in range(2):
        for c in range(3):
            rows = values[m, train[m] & (labels[m] == c)]
            expected = rows.mean(dim=0) if len(rows) else torch.zeros(3).double()
            torch.testing.assert_close(means[m, :, c], expected)


def test_turning_the_class_means_gives_the_calibrated_means(golden_anchors, golden_means):
    found = calibrate(golden_means[None], golden_anchors, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(found.turn(golden_means.T[None])[0].T, found.calibrated_means[0])


def test_turning_drops_what_is_outside_the_span_of_the_means():
    means, anchors = torch.eye(4).double()[:, :2], torch.eye(4).double()[:, 2:]
    found = calibrate(means[None], anchors, torch.ones(1, 2, dtype=torch.bool))
    turned = found.turn(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]).double())
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 0.0, 1.0, 2.0]]]).double())
