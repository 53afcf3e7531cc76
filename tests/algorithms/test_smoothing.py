"""Kernel smoothing: golden values, limits, and the agreement of its three forms."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import poisson

from fedatlas.algorithms import smoothing
from fedatlas.algorithms.smoothing import chunked, dense, series, series_terms, smooth, window
from fedatlas.platform.errors import ConfigurationError

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def drawn(kind="uniform", sizes=(40, 23), width=5, dtype=torch.float64, seed=0):
    """Scores in [-1, 1], values and node mask of clients of different sizes; padding holds large numbers."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    scores = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    if kind == "cluster":
        scores = 0.8 + 0.1 * scores
    if kind == "outlier":
        scores = 0.98 + 0.02 * scores
        scores[:, 0] = -1.0
    values = torch.randn(*shape, width, generator=generator, dtype=torch.float64)
    nodes = torch.arange(shape[1])[None, :] < torch.tensor(sizes)[:, None]
    scores, values = scores.masked_fill(~nodes, -0.3), values.masked_fill(~nodes[..., None], 77.0)
    return scores.to(dtype), values.to(dtype), nodes


def with_gradients(form, scores, values, *rest):
    """z and the gradients of sum(c * z) to scores and values, for a fixed random c."""
    scores, values = (tensor.clone().requires_grad_() for tensor in (scores, values))
    z = form(scores, values, *rest)
    c = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(z.dtype)
    return z.detach(), *torch.autograd.grad((c * z).sum(), (scores, values))


def assert_close(found, expected, tolerance):
    """Within `tolerance` of the largest entry of each expected tensor."""
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other.double()).abs().max()) <= tolerance * float(other.abs().max())


def test_golden_values():
    scores = torch.tensor([[1.0, 0.0, 0.707107]], dtype=torch.float64)
    values = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    nodes = torch.ones(1, 3, dtype=torch.bool)
    expected = [[0.839050, 0.562491], [0.493520, 0.813676], [0.759725, 0.636421]]
    for kernel in ("exact", "series", "auto"):
        z = smooth(scores, values, nodes, 1.0, kernel)[0]
        torch.testing.assert_close(z, torch.tensor(expected, dtype=z.dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [dense, chunked, lambda *a: series(*a, terms=25)])
def test_rows_sum_to_one_and_the_kernel_is_symmetric(form):
    scores, _, nodes = drawn(sizes=(30,))
    rows = form(scores, torch.eye(30, dtype=torch.float64)[None], nodes, 1.0)[0]
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(30, dtype=torch.float64))
    # kappa_ii = 1, so a row times 1 / its diagonal is the kernel before normalisation.
    kernel = rows / rows.diagonal()[:, None]
    torch.testing.assert_close(kernel, kernel.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["exact", "auto"])
def test_a_wide_kernel_gives_the_mean_and_a_narrow_one_the_node_itself(kernel):
    scores, values, nodes = drawn(sizes=(60, 33))
    z = smooth(scores, values, nodes, 1e6, kernel)
    for client, size in enumerate((60, 33)):
        mean = values[client, :size].mean(dim=0).expand(size, -1)
        torch.testing.assert_close(z[client, :size], mean, rtol=0, atol=1e-9)
    z = smooth(scores, values, nodes, 1e-6, kernel)
    torch.testing.assert_close(z, values * nodes[..., None], rtol=0, atol=1e-12)


def test_one_node_and_equal_scores():
    values = torch.randn(1, 7, 3, dtype=torch.float64)
    one = torch.arange(7)[None] < 1
    torch.testing.assert_close(smooth(torch.zeros(1, 7).double(), values, one, 1.0)[:, :1], values[:, :1])
    every = torch.ones(1, 7, dtype=torch.bool)
    z = smooth(torch.full((1, 7), 0.4).double(), values, every, 1e-3, "series")
    torch.testing.assert_close(z, values.mean(dim=1, keepdim=True).expand_as(z))


@pytest.mark.parametrize("kind", ["uniform", "cluster", "outlier"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 10.0])
def test_the_three_forms_agree_with_their_gradients(kind, sigma):
    scores, values, nodes = drawn(kind)
    expected = with_gradients(dense, scores, values, nodes, sigma)
    for entries in (1, 200, 1 << 20):
        assert_close(with_gradients(chunked, scores, values, nodes, sigma, entries), expected, 1e-12)
    assert_close(with_gradients(smooth, scores, values, nodes, sigma, "series"), expected, 1e-8)
    assert_close(with_gradients(series, scores, values, nodes, sigma, 60), expected, 1e-8)


@pytest.mark.parametrize("kind", ["uniform", "cluster", "outlier"])
@pytest.mark.parametrize("sigma", [1.0, 2.0, 10.0])
def test_the_forms_agree_in_single_precision(kind, sigma):
    """The scores are rounded first: with sigma = 10 they matter by less than that."""
    scores, values, nodes = drawn(kind, sizes=(300, 180), dtype=torch.float32)
    expected = with_gradients(dense, scores.double(), values.double(), nodes, sigma)
    for form in ("exact", "series"):
        assert_close(with_gradients(smooth, scores, values, nodes, sigma, form), expected, 1e-4)


def test_gradients_are_those_of_finite_differences():
    scores, values, nodes = drawn(sizes=(6, 4), width=2)
    for kernel in ("exact", "series"):

        def function(s, h, kernel=kernel):
            return smooth(s, h, nodes, 0.7, kernel)

        # The middle of the range moves with the outermost scores, which must not show.
        assert torch.autograd.gradcheck(function, (scores.requires_grad_(), values.requires_grad_()))


@pytest.mark.parametrize("form", [dense, chunked, lambda *a: smooth(*a, "series")])
def test_padding_neither_gives_nor_receives(form):
    scores, values, nodes = drawn(sizes=(40, 23))
    z, to_scores, to_values = with_gradients(form, scores, values, nodes, 0.7)
    alone = form(scores[1:, :23], values[1:, :23], nodes[1:, :23], 0.7)
    torch.testing.assert_close(z[1, :23], alone[0], rtol=0, atol=1e-10)
    assert not z[1, 23:].any()
    assert not to_scores[1, 23:].any()
    assert not to_values[1, 23:].any()


def test_padding_far_from_every_node_stays_finite():
    scores, values, nodes = drawn("cluster", sizes=(20, 5))
    found = with_gradients(smooth, scores, values, nodes, 1e-3)
    assert all(tensor.isfinite().all() for tensor in found)


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.7, 1.0, 2.0, 10.0])
def test_errors_of_the_series_are_within_the_bound(dtype, sigma):
    """One node at the other end of the range has the smallest possible denominator."""
    checked = 0
    for kind in ("uniform", "cluster", "outlier"):
        scores, values, nodes = drawn(kind, sizes=(500,), dtype=dtype)
        radius = float(smoothing.centre(scores, nodes).abs().max())
        terms = series_terms(sigma, radius, 500, dtype)
        if terms is None:
            continue
        checked += 1
        error = smooth(scores, values, nodes, sigma, "series") - dense(
            scores.double(), values.double(), nodes, sigma
        )
        rate = 2 * (radius / sigma) ** 2
        amplification = min(500, math.exp(2 * rate))
        entry = (8 * rate + 6 + terms + math.log2(500)) * UNIT[dtype]
        assert 2 * amplification * entry <= 2.1 * math.sqrt(UNIT[dtype])
        assert float(error.norm(dim=2).max()) <= 2 * amplification * entry * float(values.norm(dim=2).max())
    assert checked


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize(("sigma", "radius"), [(0.5, 0.6), (1.0, 1.0), (1.0, 0.2), (10.0, 1.0)])
def test_the_series_has_as_many_terms_as_its_remainder_needs(dtype, sigma, radius):
    terms = series_terms(sigma, radius, 100, dtype)
    if terms is None:
        assert (dtype, sigma) == (torch.float32, 0.5)
        return
    rate, steepness = 2 * (radius / sigma) ** 2, max(1.0, 4 * radius / sigma**2)

    def remainder(count):
        return steepness * poisson.sf(count - 2, rate)  # P(Poisson >= count - 1)

    assert remainder(terms) <= UNIT[dtype]
    assert remainder(terms - 1) > UNIT[dtype] / 4


def test_the_series_is_refused_where_it_cancels():
    assert series_terms(0.1, 1.0, 1000, torch.float64) is None
    assert series_terms(0.5, 1.0, 1000, torch.float32) is None
    assert series_terms(0.5, 1.0, 1000, torch.float64) == 44
    assert series_terms(1.0, 1.0, 100_000, torch.float32) == 16
    assert series_terms(1.0, 1.0, 100_000, torch.float64) == 25
    scores, values, nodes = drawn(dtype=torch.float32)
    with pytest.raises(ConfigurationError, match=r"kernel=series cannot represent sigma=0\.3 for 40 nodes"):
        smooth(scores, values, nodes, 0.3, "series")
    exact = smooth(scores, values, nodes, 0.3, "exact")
    assert torch.equal(smooth(scores, values, nodes, 0.3, "auto"), exact)


def test_auto_takes_the_series_for_many_nodes(monkeypatch):
    def refused(*arguments):
        raise AssertionError("the exact kernel was used")

    monkeypatch.setattr(smoothing, "chunked", refused)
    smooth(*drawn(sizes=(300, 200)), 1.0)
    with pytest.raises(AssertionError):
        smooth(*drawn(sizes=(30, 20)), 1.0)


@pytest.mark.parametrize("kernel", ["exact", "series"])
def test_a_shift_of_all_scores_changes_nothing(kernel):
    scores, values, nodes = drawn("cluster")
    expected = with_gradients(smooth, scores, values, nodes, 0.5, kernel)
    assert_close(with_gradients(smooth, scores - 1.3, values, nodes, 0.5, kernel), expected, 1e-10)


def test_hard_sorting_by_hand():
    scores = torch.tensor([[0.3, -0.2, 0.9, 0.1, 5.0]], dtype=torch.float64)
    values = torch.tensor([[[1.0], [2.0], [3.0], [4.0], [99.0]]], dtype=torch.float64)
    nodes = torch.tensor([[True, True, True, True, False]])
    taps = torch.tensor([[0.5, 1.0, 0.25]], dtype=torch.float64)
    # In order of score: 2, 4, 1, 3.
    z = window(scores, values, nodes, taps)[0, :, 0]
    expected = [0.5 * 4 + 1 + 0.25 * 3, 2 + 0.25 * 4, 0.5 * 1 + 3, 0.5 * 2 + 4 + 0.25 * 1, 0]
    torch.testing.assert_close(z, torch.tensor(expected, dtype=torch.float64))


def test_hard_sorting_has_no_gradient_to_the_scores():
    scores, values, nodes = drawn()
    taps = torch.full((2, 5), 0.2, dtype=torch.float64, requires_grad=True)
    scores.requires_grad_()
    values.requires_grad_()
    total = window(scores, values, nodes, taps).square().sum()
    to_scores, to_values, to_taps = torch.autograd.grad(total, (scores, values, taps), allow_unused=True)
    assert to_scores is None
    assert to_values[nodes].abs().min() > 0
    assert not to_values[~nodes].any()
    assert to_taps.abs().min() > 0
