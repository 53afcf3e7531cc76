"""Sets of graphs are dealt out completely, evenly where they should be, and the same for every seed."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.platform.errors import ConfigurationError, PartitionError
from fedatlas.platform.graphs.dealing import deal, quotas, quotas_sha256, role_counts

HISTOGRAM = np.array([203, 157, 41])


@pytest.mark.parametrize("mode", ["iid", "dirichlet"])
@pytest.mark.parametrize("clients", [1, 7, 10])
def test_every_graph_is_dealt_once_and_roles_have_their_shares(mode: str, clients: int) -> None:
    wanted = quotas(HISTOGRAM, mode, clients, 0.8, 0.1)
    assert wanted.shape == (clients, 3, 3)
    assert (wanted >= 0).all()
    np.testing.assert_array_equal(wanted.sum(axis=0), role_counts(HISTOGRAM, 0.8, 0.1))
    assert wanted.sum(axis=(0, 2))[1:].tolist() == [40, 40]


def test_iid_clients_have_equally_many_of_each_class_and_role() -> None:
    wanted = quotas(HISTOGRAM, "iid", 10, 0.8, 0.1)
    for counts in (wanted, wanted.sum(axis=2)):
        assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1


def test_only_training_graphs_are_skewed_and_all_clients_have_equally_many() -> None:
    wanted = quotas(HISTOGRAM, "dirichlet", 10, 0.8, 0.1, concentration=0.01)
    np.testing.assert_array_equal(wanted[:, 1:], quotas(HISTOGRAM, "iid", 10, 0.8, 0.1)[:, 1:])
    sizes = wanted[:, 0].sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    largest = wanted[:, 0].max(axis=1) / sizes
    even = quotas(HISTOGRAM, "dirichlet", 10, 0.8, 0.1, concentration=1e4)[:, 0]
    assert largest.mean() > 0.8 > (even.max(axis=1) / sizes).mean()


def test_with_a_tiny_concentration_a_client_has_one_class_until_that_is_gone() -> None:
    wanted = quotas(np.array([600, 600]), "dirichlet", 10, 0.8, 0.1, seed=2, concentration=1e-4)[:, 0]
    favourite = wanted.argmax(axis=1)
    fewer = np.bincount(favourite, minlength=2).argmin()
    others = wanted[favourite == fewer][:, 1 - fewer]
    assert (others == 0).all()


def test_the_partition_seed_draws_the_shares_and_nothing_else() -> None:
    first, again, other = (quotas(HISTOGRAM, "dirichlet", 10, 0.8, 0.1, seed) for seed in (0, 0, 1))
    assert quotas_sha256(first) == quotas_sha256(again) != quotas_sha256(other)


def test_dealing_gives_each_client_its_quota_and_seeds_differ() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], HISTOGRAM))
    wanted = quotas(HISTOGRAM, "dirichlet", 6, 0.8, 0.1)
    dealt = deal(labels, wanted, seed=4)
    np.testing.assert_array_equal(np.sort(np.concatenate([ids for ids, _ in dealt])), np.arange(labels.size))
    for client, (ids, roles) in enumerate(dealt):
        for role in range(3):
            found = np.bincount(labels[ids[roles == role]], minlength=3)
            np.testing.assert_array_equal(found, wanted[client, role])
    assert any((a[0] != b[0]).any() for a, b in zip(dealt, deal(labels, wanted, seed=5), strict=True))


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(PartitionError, match="clients=400 exceeds the 321 graphs to train on"):
        quotas(HISTOGRAM, "iid", 400, 0.8, 0.1)
    with pytest.raises(ConfigurationError, match="must be above 0 and leave a part"):
        quotas(HISTOGRAM, "iid", 4, 0.9, 0.1)
    with pytest.raises(ConfigurationError, match="unknown partition of a set of graphs 'iiid': did you mean"):
        quotas(HISTOGRAM, "iiid", 4, 0.8, 0.1)
