"""The accountant and the ring by themselves."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.platform.federation.messages import Upload
from fedatlas.platform.federation.privacy import Privacy, epsilon
from fedatlas.platform.federation.secure_aggregation import BITS, masked, unmasked


def exact_delta(multiplier, epsilon_):
    """Of one Gaussian release, in closed form (Balle and Wang, ICML 2018)."""
    half = 1 / (2 * multiplier)
    return norm.cdf(half - epsilon_ * multiplier) - math.exp(epsilon_) * norm.cdf(
        -half - epsilon_ * multiplier
    )


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (4.0, 1), (10.0, 100), (50.0, 100), (2.0, 25)])
def test_epsilon_is_an_upper_bound_close_to_the_exact_value(multiplier, rounds):
    """R releases with multiplier z are one with z / sqrt(R)."""
    spent = epsilon(multiplier, rounds, 1e-5)
    whole = multiplier / math.sqrt(rounds)
    assert exact_delta(whole, spent) <= 1e-5
    assert exact_delta(whole, 0.75 * spent) > 1e-5


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta():
    assert epsilon(2.0, 10, 1e-5) < epsilon(2.0, 11, 1e-5)
    assert epsilon(3.0, 10, 1e-5) < epsilon(2.0, 10, 1e-5)
    assert epsilon(2.0, 10, 1e-3) < epsilon(2.0, 10, 1e-5)


def test_the_masked_sum_is_the_sum_of_the_rounded_numbers_exactly():
    values = (
        torch.randn(5, 3, 2, dtype=torch.float64) * torch.tensor([1e-9, 1.0, 1e6, -3.0, 0.1])[:, None, None]
    )
    fields = {"weights/w": values, "size/n": torch.tensor([3, 0, 7, 2, 1], dtype=torch.int32)}
    parts = [
        masked({name: value[rows] for name, value in fields.items()}, clients, range(5), 7, 2)
        for rows, clients in ((slice(0, 2), (0, 1)), (slice(2, 5), (2, 3, 4)))
    ]
    arrived = Upload({name: torch.cat([part[name] for part in parts]) for name in fields})
    sums = unmasked(arrived, 5, torch.float64).fields
    step = 2.0**BITS
    assert torch.equal(sums["weights/w"][0], (values * step).round().sum(dim=0) / step)
    assert sums["size/n"].tolist() == [13.0]
    assert (arrived.fields["weights/w"] != (values * step).round().to(torch.int64)).all()


def test_a_missing_upload_is_refused_and_its_masks_would_not_cancel():
    values = {"weights/w": torch.ones(3, 4)}
    arrived = masked(values, (0, 1, 2), (0, 1, 2), 0, 0)
    two = Upload({"weights/w": arrived["weights/w"][:2]})
    with pytest.raises(FedatlasError, match="2 of 3 uploads of weights/w have arrived"):
        unmasked(two, 3, torch.float64)
    assert (unmasked(two, 2, torch.float64).fields["weights/w"].abs() > 1e3).any()


def test_a_number_that_does_not_fit_the_ring_is_refused():
    with pytest.raises(FedatlasError, match=r"weights/w has a value of 1e\+10.*must stay below"):
        masked({"weights/w": torch.full((2, 1), 1e10)}, (0, 1), (0, 1), 0, 0)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (Privacy(noise_multiplier=1.0), "noise_multiplier=1 is in units of clip_norm"),
        (Privacy(clip_norm=1.0), "clip_norm=1: Counting as configured sends no update"),
        (Privacy(secure_aggregation=True), "the server of Counting needs value of each client by itself"),
    ],
)
def test_what_a_method_does_not_declare_is_refused(privacy, message, counting):
    with pytest.raises(ConfigurationError, match=message):
        privacy.require(counting(), 3)
