"""Clusters of clients: minimum cuts of similarity graphs, and distances between short sequences."""

from __future__ import annotations

import torch
from torch import Tensor


def minimum_cut(weights: Tensor) -> Tensor:
    """One side of the global minimum cut of a complete graph, bool [n].

    The cut is the partition into two non-empty sides with the least sum of weights between them (Stoer and
    Wagner, J. ACM 1997). The side returned is the smaller one; of two equal ones, that without node 0.

    Args:
        weights: symmetric non-negative edge weights [n, n], n >= 2; the diagonal is ignored.

    Raises:
        ValueError: fewer than two nodes, or a negative weight.
    """
    # Imported here, because client processes never cut.
    import networkx as nx  # type: ignore[import-untyped]

    n = weights.shape[0]
    if n < 2:
        raise ValueError(f"a graph of {n} nodes has no cut")
    values = weights.tolist()
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    for i in range(n):
        for j in range(i + 1, n):
            if values[i][j] < 0:
                raise ValueError(f"weight {values[i][j]} of the pair ({i}, {j}) is negative")
            graph.add_edge(i, j, weight=values[i][j])
    _, (first, second) = nx.stoer_wagner(graph)
    side = torch.zeros(n, dtype=torch.bool)
    side[first] = True
    other = len(second) < len(first) or (len(second) == len(first) and 0 in first)
    return ~side if other else side


def cosines(gram: Tensor) -> Tensor:
    """Cosine similarities [n, n] of vectors given by their inner products; 0 for a zero vector.

    The product of two norms is bounded below by 1e-12.
    """
    norms = gram.diagonal().clamp(min=0.0).sqrt()
    return gram / (norms[:, None] * norms[None, :]).clamp(min=1e-12)


def warping_distances(sequences: Tensor) -> Tensor:
    """Dynamic time warping distance of every pair of sequences, [n, d] -> [n, n].

    With D(0, 0) = 0 and D = infinity elsewhere on the border,

        D(i, j) = (a_i - b_j)^2 + min(D(i-1, j), D(i, j-1), D(i-1, j-1)),

    and the distance is sqrt(D(d, d)); there is no window (Sakoe and Chiba, IEEE TASSP 1978).
    """
    n, d = sequences.shape
    costs = (sequences[:, None, :, None] - sequences[None, :, None, :]).square()
    endless = sequences.new_full((n, n), torch.inf)
    above = [sequences.new_zeros(n, n)] + [endless] * d
    for i in range(d):
        row = [endless]
        for j in range(d):
            best = torch.minimum(torch.minimum(above[j + 1], row[j]), above[j])
            row.append(costs[:, :, i, j] + best)
        above = row
    return above[d].sqrt()


def standardised(sequences: Tensor) -> Tensor:
    """Each sequence divided by its population standard deviation, [n, d]; a constant one is left alone."""
    spread = sequences.std(dim=1, keepdim=True, correction=0)
    return sequences / torch.where(spread > 0, spread, torch.ones_like(spread))
