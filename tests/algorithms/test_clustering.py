"""Cuts are minimal, and warping distances are those of the recursion."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from fedatlas.algorithms.clustering import cosines, minimum_cut, standardised, warping_distances


def cut_weight(weights, side):
    return float(weights[side][:, ~side].sum())


def random_weights(n, seed):
    values = torch.from_numpy(np.random.default_rng(seed).random((n, n)))
    return (values + values.T) / 2


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_no_cut_is_lighter(n, seed):
    weights = random_weights(n, seed)
    every = [
        torch.tensor(sides)
        for sides in itertools.product([False, True], repeat=n)
        if any(sides) and not all(sides)
    ]
    side = minimum_cut(weights)
    assert 0 < int(side.sum()) <= n / 2
    assert cut_weight(weights, side) == pytest.approx(min(cut_weight(weights, other) for other in every))


def test_two_blocks_are_separated():
    blocks = torch.tensor([0, 1, 0, 0, 1, 1, 0])
    weights = torch.where(blocks[:, None] == blocks[None, :], 2.0, 0.1)
    torch.testing.assert_close(minimum_cut(weights), blocks == 1)


def test_a_cut_of_equal_weights_takes_one_node_off():
    assert int(minimum_cut(torch.ones(6, 6)).sum()) == 1


def test_of_two_halves_the_side_without_the_first_node_is_returned():
    blocks = torch.tensor([1, 0, 0, 1])
    weights = torch.where(blocks[:, None] == blocks[None, :], 2.0, 0.1)
    assert minimum_cut(weights).tolist() == [False, True, True, False]


def test_a_graph_without_any_weight_has_a_cut():
    assert 0 < int(minimum_cut(torch.zeros(4, 4)).sum()) < 4


def test_renaming_nodes_renames_the_cut():
    weights, order = random_weights(7, 3), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    side, renamed = minimum_cut(weights), minimum_cut(weights[order][:, order])
    assert renamed.equal(side[order]) or renamed.equal(~side[order])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(1, 1), "1 nodes has no cut"),
        (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), r"-1\.0 .*\(0, 1\)"),
    ],
)
def test_graphs_that_cannot_be_cut_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        minimum_cut(weights)


def test_cosines_are_symmetric_with_unit_diagonal_and_zero_for_zero_vectors():
    vectors = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 9)))
    vectors[3] = 0
    found = cosines(vectors @ vectors.T)
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, found.T)
    assert found[3].eq(0).all()


def warping(first, second):
    """The recursion of one pair, written out."""
    table = np.full((len(first) + 1, len(second) + 1), np.inf)
    table[0, 0] = 0
    for i, a in enumerate(first, 1):
        for j, b in enumerate(second, 1):
            table[i, j] = (a - b) ** 2 + min(table[i - 1, j], table[i, j - 1], table[i - 1, j - 1])
    return math.sqrt(table[-1, -1])


def test_warping_distances_are_those_of_the_recursion():
    sequences = torch.from_numpy(np.random.default_rng(0).random((4, 6)))
    found = warping_distances(sequences)
    for i, j in itertools.product(range(4), repeat=2):
        assert float(found[i, j]) == pytest.approx(warping(sequences[i].numpy(), sequences[j].numpy()))


def test_warping_golden_values():
    """A delay costs nothing but its ends: (0, 0, 1, 2) and (0, 1, 2, 2) warp onto each other exactly."""
    sequences = torch.tensor([[0.0, 0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    found = warping_distances(sequences)
    assert found.diagonal().eq(0).all()
    assert found[0, 1] == 0
    torch.testing.assert_close(found[0, 2], torch.tensor(5.0).sqrt())
    torch.testing.assert_close(found[1, 2], torch.tensor(9.0).sqrt())


def test_standardised_sequences_have_unit_spread():
    sequences = torch.tensor([[1.0, 3.0], [2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(
        standardised(sequences), torch.tensor([[1.0, 3.0], [2.0, 2.0]], dtype=torch.float64)
    )
    torch.testing.assert_close(standardised(10 * sequences)[0], sequences[0])
