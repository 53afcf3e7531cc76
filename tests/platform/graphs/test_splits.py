from __future__ import annotations

import numpy as np
import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.splits import random_split
from fedatlas.platform.randomness import SERVER, stream


@pytest.mark.parametrize(("train", "test"), [(0.2, 0.4), (0.05, 0.475), (0.6, 0.2)])
@pytest.mark.parametrize("nodes", [1, 7, 2485, 10_000])
def test_every_node_has_one_role_and_the_counts_are_rounded(nodes, train, test):
    split = random_split(nodes, train, test, seed=3)
    roles = split.train.astype(int) + split.validation + split.test
    np.testing.assert_array_equal(roles, np.ones(nodes))
    assert split.train.sum() == round(train * nodes)
    assert split.test.sum() == round(test * nodes)


def test_one_permutation_gives_train_then_test_then_validation():
    order = stream(11, SERVER, -1, "split").permutation(100)
    split = random_split(100, 0.2, 0.4, seed=11)
    assert set(np.flatnonzero(split.train)) == set(order[:20])
    assert set(np.flatnonzero(split.test)) == set(order[20:60])
    assert set(np.flatnonzero(split.validation)) == set(order[60:])


def test_the_seed_alone_decides():
    first, again, other = (random_split(500, 0.2, 0.4, seed).train for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(("train", "test"), [(0, 0.4), (0.5, 0.5), (0.2, 0), (1.5, -0.25)])
def test_fractions_that_leave_nothing_are_refused(train, test):
    with pytest.raises(ConfigurationError, match=rf"train_fraction={train:g} and test_fraction={test:g}"):
        random_split(100, train, test, seed=0)
