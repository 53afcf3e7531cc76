"""Class-wise knowledge reliability: how far a client's labelled nodes resemble their neighbourhoods.

FedTAD (Zhu et al., IJCAI 2024). Shapes: k clients of M, n padded nodes, f features, L walk lengths,
C classes.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.algorithms.features import dense_features
from fedatlas.platform.federation.cohort import Cohort

BLOCK_COLUMNS = 1024


def return_profile(adjacency: sp.csr_array, longest: int = 5) -> np.ndarray:
    """Probabilities that a random walk is back at its start after 1, ..., L steps, exact, [n, L].

        q_v[l] = (T^l)_vv,   T = A D^(-1)

    T is similar to S = D^(-1/2) A D^(-1/2), so both have these diagonals, and S being symmetric,
    (S^l)_vv = <S^a e_v, S^b e_v> for every a + b = l. Half of the powers are enough, in blocks of columns.

    Args:
        adjacency: binary symmetric [n, n] without self-loops; an isolated node returns with probability 0.
        longest: L >= 1.
    """
    n = adjacency.shape[0]
    degree = np.diff(adjacency.indptr).astype(np.float64)
    scale = np.zeros_like(degree)
    np.divide(1.0, np.sqrt(degree), where=degree > 0, out=scale)
    walk = sp.csr_array(adjacency.multiply(scale[:, None]).multiply(scale[None, :]))
    profile = np.zeros((n, longest))
    for start in range(0, n, BLOCK_COLUMNS):
        nodes = np.arange(start, min(start + BLOCK_COLUMNS, n))
        powers = [np.zeros((n, nodes.size))]
        powers[0][nodes, nodes - start] = 1.0
        while len(powers) <= (longest + 1) // 2:
            powers.append(walk @ powers[-1])
        for length in range(1, longest + 1):
            half = length // 2
            profile[nodes, length - 1] = np.einsum("nb,nb->b", powers[half], powers[length - half])
    return profile


def class_reliability(cohort: Cohort, longest: int = 5) -> Tensor:
    """Reliability of each client's knowledge of each class, [k, C]; 0 for a class without training nodes.

        f_v    = [x_v | q_v]
        phi[c] = sum over training nodes v of class c of (1 + sum_{u in N(v)} cos(f_v, f_u)) / (1 + |N(v)|)

    q_v is `return_profile`. An isolated node adds exactly 1. The sum over neighbours is one sparse product:
    with rows f^ of unit length, sum_u cos(f_v, f_u) = <f^_v, (A F^)_v>.

    Args:
        cohort: the clients.
        longest: number of walk lengths L.
    """
    features = dense_features(cohort)
    profiles = features.new_zeros(*features.shape[:2], longest)
    degrees = features.new_zeros(features.shape[:2])
    for row, adjacency in enumerate(cohort.adjacencies):
        profiles[row, : adjacency.shape[0]] = torch.from_numpy(return_profile(adjacency, longest))
        degrees[row, : adjacency.shape[0]] = torch.from_numpy(np.diff(adjacency.indptr).astype(np.float64))
    described = torch.nn.functional.normalize(torch.cat([features, profiles], dim=2), dim=2)
    neighbours = cohort.propagate(cohort.block_diagonal(cohort.adjacencies), described)
    alike = (1 + (described * neighbours).sum(dim=2)) / (1 + degrees)
    return torch.bmm(alike[:, None], cohort.class_indicator())[:, 0]


def normalised_reliability(reliability: Tensor) -> Tensor:
    """Share of each client in each class, [M, C]; columns sum to 1.

    Negative reliability (neighbours that point away from a node) counts as none. A class that no client
    knows is shared equally.

    Args:
        reliability: phi of all clients, [M, C].
    """
    positive = reliability.clamp(min=0)
    total = positive.sum(dim=0)
    return torch.where(total > 0, positive / total.clamp(min=1e-12), 1.0 / reliability.shape[0])
