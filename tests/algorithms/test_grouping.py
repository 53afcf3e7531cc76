"""Groups against naive agglomeration and against all partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedatlas.algorithms.grouping import average_linkage, k_means, same_group


def partition(labels):
    """Groups as sets of members."""
    return {frozenset(np.flatnonzero(np.asarray(labels) == label)) for label in set(np.asarray(labels))}


def distances_of(points):
    return torch.cdist(points, points)


def merged(distances, groups):
    """Average linkage as it is defined: join the two groups with the least mean distance between members."""
    parts = [[m] for m in range(len(distances))]
    while len(parts) > groups:
        first, second = min(
            itertools.combinations(range(len(parts)), 2),
            key=lambda pair: float(distances[parts[pair[0]]][:, parts[pair[1]]].mean()),
        )
        parts[first] += parts.pop(second)
    return {frozenset(part) for part in parts}


def inertia(points, labels):
    return sum(
        float((points[labels == label] - points[labels == label].mean(dim=0)).square().sum())
        for label in labels.unique()
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_average_linkage_equals_naive_agglomeration(seed, groups):
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    distances = distances_of(points)
    assert partition(average_linkage(distances, groups)) == merged(distances, groups)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_k_means_finds_the_best_of_all_partitions_with_enough_starts(seed, groups):
    points = torch.randn(7, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    best = min(inertia(points, torch.tensor(each)) for each in itertools.product(range(groups), repeat=7))
    assert inertia(points, k_means(points, groups, restarts=100)) == pytest.approx(best)
    assert (
        best - 1e-9 <= inertia(points, k_means(points, groups)) <= inertia(points, k_means(points, groups, 1))
    )


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_clients_permutes_the_assignments_only(seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(12, generator=generator)
    for group in (lambda p: k_means(p, 3), lambda p: average_linkage(distances_of(p), 3)):
        first = same_group(group(points))
        assert torch.equal(same_group(group(points[order])), first[order][:, order])


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_fewer_clients_than_groups_are_groups_of_their_own(clients):
    points = torch.arange(clients, dtype=torch.float64)[:, None]
    assert k_means(points, 3).tolist() == list(range(clients))
    assert average_linkage(distances_of(points), 3).tolist() == list(range(clients))


def test_equal_clients_share_a_group():
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert k_means(points, 3).tolist() == [0, 1, 0, 1]
    assert k_means(torch.ones(5, 2), 3).tolist() == [0] * 5
    assert average_linkage(torch.zeros(4, 4), 2).tolist() == [0] * 4


def test_groups_are_numbered_by_their_first_member():
    points = torch.tensor([[9.0], [0.0], [5.0], [0.1], [9.1]])
    assert k_means(points, 3).tolist() == [0, 1, 2, 1, 0]
    assert average_linkage(distances_of(points), 3).tolist() == [0, 1, 2, 1, 0]


def test_a_group_without_members_is_filled_again(monkeypatch):
    """Two starting centres at one place leave one of them empty."""
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0]], dtype=torch.float64)
    monkeypatch.setattr(
        "fedatlas.algorithms.grouping._spread_centres", lambda *_: np.array([[0.0], [0.0], [0.0]])
    )
    assert len(k_means(points, 3).unique()) == 3


def test_pairs_in_one_group_are_marked():
    assert same_group(torch.tensor([0, 1, 0])).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
