"""Groups of clients, from distances or from feature vectors; both ways are deterministic.

Groups are numbered by their first member. Fewer clients than groups: every client is a group of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.randomness import SERVER, stream

RESTARTS = 10
ITERATIONS = 100


def average_linkage(distances: Tensor, groups: int) -> Tensor:
    """Group of each client by agglomerative clustering with average linkage, int64 [M].

    Args:
        distances: symmetric, finite, [M, M]; the diagonal is ignored.
        groups: number of groups; equal distances can give fewer.
    """
    # Every command imports the methods, few need this.
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(distances) <= groups:
        return torch.arange(len(distances))
    values = distances.double().cpu().numpy()
    tree = linkage(squareform((values + values.T) / 2, checks=False), "average")
    return _by_first_member(fcluster(tree, groups, "maxclust"))


def k_means(rows: Tensor, groups: int, restarts: int = RESTARTS) -> Tensor:
    """Group of each client by k-means, int64 [M]; the best of several starts of Lloyd's algorithm.

        min over assignments and centres  sum_m ||x_m - centre of m's group||^2

    Starts are drawn as in k-means++ (Arthur and Vassilvitskii, 2007) from a fixed stream over the rows in
    lexicographic order, so that the partition does not depend on the order of the clients. A group that
    loses its last member is given the row farthest from its centre.

    Args:
        rows: [M, d].
        groups: number of groups; fewer different rows give fewer.
    """
    points, inverse = np.unique(rows.double().cpu().numpy(), axis=0, return_inverse=True)
    if len(points) <= groups:
        return _by_first_member(inverse.ravel())
    counts = np.bincount(inverse.ravel()).astype(float)
    best, found = np.inf, np.zeros(len(points), dtype=np.int64)
    for start in range(restarts):
        labels, cost = _lloyd(points, counts, _spread_centres(points, counts, groups, start))
        # A later start has to be better by more than rounding.
        if cost < best * (1 - 1e-9):
            best, found = cost, labels
    return _by_first_member(found[inverse.ravel()])


def same_group(labels: Tensor) -> Tensor:
    """Indicator of pairs in one group, float64 [M, M]."""
    return (labels[:, None] == labels[None, :]).double()


def _spread_centres(points: np.ndarray, counts: np.ndarray, groups: int, start: int) -> np.ndarray:
    generator = stream(0, SERVER, start, "k-means")
    chosen = [int(generator.choice(len(points), p=counts / counts.sum()))]
    while len(chosen) < groups:
        nearest = _squared_distances(points, points[chosen]).min(axis=1) * counts
        chosen.append(int(generator.choice(len(points), p=nearest / nearest.sum())))
    return points[chosen]


def _lloyd(points: np.ndarray, counts: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    labels = np.full(len(points), -1)
    for _ in range(ITERATIONS):
        distances = _squared_distances(points, centres)
        new = distances.argmin(axis=1)
        for empty in np.setdiff1d(np.arange(len(centres)), new):
            alone = np.bincount(new, minlength=len(centres))[new] == 1
            own = np.where(alone, -1.0, distances[np.arange(len(points)), new])
            new[own.argmax()] = empty
        if np.array_equal(new, labels):
            break
        labels = new
        weights = (labels[:, None] == np.arange(len(centres))) * counts[:, None]
        centres = weights.T @ points / weights.sum(axis=0)[:, None]
    cost = _squared_distances(points, centres)[np.arange(len(points)), labels] @ counts
    return labels, float(cost)


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.square(points[:, None] - centres[None]).sum(axis=2)
    return found


def _by_first_member(labels: np.ndarray) -> Tensor:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse.ravel()])
