"""Divergences of diagonal Gaussians against torch.distributions, golden values, and moments by sampling."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from fedatlas.algorithms.gaussians import jensen_shannon, kl, match_moments, reparameterise


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def draws(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair():
    """Means and log-variances of two Gaussians, [5, 3] each."""
    return [draws(5, 3, seed=seed) for seed in range(4)]


def test_kl_equals_that_of_torch(pair):
    mean, log_variance, mean_q, log_variance_q = pair
    theirs = kl_divergence(
        Normal(mean, torch.exp(log_variance / 2)), Normal(mean_q, torch.exp(log_variance_q / 2))
    )
    torch.testing.assert_close(kl(mean, log_variance, mean_q, log_variance_q), theirs)


def test_kl_to_itself_is_zero_and_otherwise_positive(pair):
    mean, log_variance, mean_q, log_variance_q = pair
    assert (kl(mean, log_variance, mean, log_variance) == 0).all()
    assert (kl(mean, log_variance, mean_q, log_variance_q) > 0).all()


def test_kl_broadcasts_to_all_pairs(pair):
    mean, log_variance, _, _ = pair
    every = kl(mean[:, None], log_variance[:, None], mean[None], log_variance[None])
    assert every.shape == (5, 5, 3)
    torch.testing.assert_close(every[1, 4], kl(mean[1], log_variance[1], mean[4], log_variance[4]))


def test_golden_jensen_shannon():
    """Means (0, 0) and (1, 0), log-variances (0, 0) and (ln 2, 0): JS .112779, S .837294."""
    divergence = jensen_shannon(
        tensor([0.0, 0.0]), tensor([0.0, 0.0]), tensor([1.0, 0.0]), tensor([math.log(2), 0.0])
    )
    assert float(divergence.sum()) == pytest.approx(0.112779, abs=1e-6)
    assert 1 - float(divergence.sum()) / math.log(2) == pytest.approx(0.837294, abs=1e-6)
    assert divergence[1] == 0


def test_jensen_shannon_is_symmetric_and_zero_for_equal_gaussians(pair):
    mean, log_variance, mean_q, log_variance_q = pair
    forth = jensen_shannon(mean, log_variance, mean_q, log_variance_q)
    torch.testing.assert_close(forth, jensen_shannon(mean_q, log_variance_q, mean, log_variance))
    assert (forth > 0).all()
    torch.testing.assert_close(
        jensen_shannon(mean, log_variance, mean, log_variance), torch.zeros_like(mean), rtol=0, atol=1e-15
    )


def test_jensen_shannon_has_no_bound():
    far = jensen_shannon(tensor([0.0]), tensor([0.0]), tensor([100.0]), tensor([0.0]))
    assert float(far) == pytest.approx(100**2 / 8)
    assert float(far) > math.log(2)


def test_a_sample_moves_with_mean_and_deviation(pair):
    mean, log_variance, noise, _ = pair
    torch.testing.assert_close(
        reparameterise(mean, log_variance, noise), mean + noise * torch.exp(log_variance).sqrt()
    )
    assert torch.equal(reparameterise(mean, log_variance, torch.zeros_like(mean)), mean)


def test_a_sample_has_gradients_in_both_parameters(pair):
    mean, log_variance, noise, _ = (each.requires_grad_() for each in pair)
    assert torch.autograd.gradcheck(lambda m, v: reparameterise(m, v, noise.detach()), (mean, log_variance))


def test_moments_of_one_component_are_its_own(pair):
    mean, log_variance, _, _ = pair
    found = match_moments(mean, log_variance, torch.eye(5, dtype=torch.float64) * 3)
    torch.testing.assert_close(found, (mean, log_variance))


def test_moments_agree_with_sampling():
    means, log_variances = draws(4, 2, seed=1), draws(4, 2, seed=2)
    weights = tensor([[1.0, 2.0, 0.0, 5.0]])
    mean, log_variance = match_moments(means, log_variances, weights)
    generator = torch.Generator().manual_seed(3)
    component = torch.multinomial(weights[0], 200_000, replacement=True, generator=generator)
    sample = reparameterise(means[component], log_variances[component], draws(200_000, 2, seed=4))
    torch.testing.assert_close(mean[0], sample.mean(dim=0), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.exp(log_variance[0]), sample.var(dim=0), rtol=0.02, atol=0)


def test_a_mixture_without_weight_is_finite(pair):
    mean, log_variance, _, _ = pair
    found = match_moments(mean, log_variance, torch.zeros(2, 5, dtype=torch.float64), floor=1e-4)
    assert torch.equal(found[0], torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(found[1], torch.full((2, 3), math.log(1e-4), dtype=torch.float64))
