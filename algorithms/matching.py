"""Which nodes of different clients have the same neighbours, found from keyed hashes.

Hashes are 64 bits wide and depend on a secret of the clients. They stand for the encryption of a real
deployment: the server compares keys and learns no features and no ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.randomness import SERVER, stream

DECIMALS = 6
"""Feature rows are equal if they are after rounding to so many decimals."""

_BLOCK = 2**20
"""Pairs that `matches` looks at together."""


def id_fingerprints(cohort: Cohort) -> list[np.ndarray]:
    """Hash of each node's id in the whole graph, uint64 [n_m] per client."""
    (salt,) = _secret(cohort, "ids", 1)
    return [_scramble(ids.astype(np.uint64) + salt) for ids in cohort.node_ids]


def feature_fingerprints(cohort: Cohort) -> list[np.ndarray]:
    """Hash of each node's rounded feature row, uint64 [n_m] per client.

    The hash is a scrambled sum of secret multiples of the entries, so zeros cost nothing.
    """
    f, n, scale = cohort.task.features, cohort.width, 10.0**DECIMALS
    salt, *rest = _secret(cohort, "features", f + 1)
    multipliers = np.array(rest, dtype=np.uint64)
    if cohort.sparse_features is not None:
        matrix = cohort.sparse_features.scipy().astype(np.float64)
        matrix.data = np.rint(matrix.data * scale)
        sums = matrix.astype(np.int64).astype(np.uint64) @ np.tile(multipliers, len(cohort.clients))
    else:
        assert cohort.dense_features is not None
        values = cohort.dense_features.reshape(-1, f).cpu().numpy().astype(np.float64)
        sums = np.rint(values * scale).astype(np.int64).astype(np.uint64) @ multipliers
    scrambled = _scramble(sums + salt)
    return [scrambled[row * n : row * n + size] for row, size in enumerate(cohort.sizes)]


def neighbourhood_keys(cohort: Cohort, fingerprints: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Hash of the multiset of each connected node's neighbours, int64 per client, in node order.

    The fingerprints are added modulo 2^64, which does not depend on the order of neighbours, and scrambled.
    Isolated nodes are left out.
    """
    (salt,) = _secret(cohort, "neighbourhoods", 1)
    found = []
    for adjacency, own in zip(cohort.adjacencies, fingerprints, strict=True):
        sums = adjacency.astype(np.uint64) @ own
        keys = _scramble(sums + salt)[np.diff(adjacency.indptr) > 0]
        found.append(keys.view(np.int64))
    return found


def connected_nodes(cohort: Cohort) -> list[np.ndarray]:
    """Nodes with neighbours of each client, in order."""
    return [np.flatnonzero(np.diff(adjacency.indptr)) for adjacency in cohort.adjacencies]


def matches(
    keys: Sequence[np.ndarray], cap: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Ordered pairs (own, other) of entries of different clients with the same key.

    Entries are numbered through, client after client. Without the cap the relation is symmetric.

    Args:
        keys: one array for each of the M clients.
        cap: each entry gets at most so many others; which ones, `generator` draws.

    Returns:
        Two int64 arrays of the same length, sorted by `own`, then by `other`.
    """
    values = np.concatenate(keys)
    owner = np.repeat(np.arange(len(keys)), [len(part) for part in keys])
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])[: len(order)]
    pairs = []
    for members in np.split(order, starts[1:]):
        # Within a group entries are in client order.
        if len(members) < 2 or owner[members[0]] == owner[members[-1]]:
            continue
        step = max(1, _BLOCK // len(members))
        for first in range(0, len(members), step):
            rows = members[first : first + step]
            chosen = owner[rows][:, None] != owner[members]
            if len(members) > cap:
                draws = np.where(chosen, generator.random(chosen.shape), np.inf)
                chosen &= draws <= np.partition(draws, cap - 1, axis=1)[:, cap - 1 : cap]
            row, column = np.nonzero(chosen)
            pairs.append(np.stack([rows[row], members[column]]))
    found = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs], axis=1)
    own, other = found[:, np.lexsort((found[1], found[0]))]
    return own, other


def _secret(cohort: Cohort, purpose: str, count: int) -> np.ndarray:
    draw = stream(cohort.task.seed, SERVER, -1, f"fingerprint/{purpose}")
    return draw.integers(0, 2**64, count, dtype=np.uint64)


def _scramble(values: np.ndarray) -> np.ndarray:
    """Bijection of 64-bit words that spreads every bit (SplitMix64, Steele et al., OOPSLA 2014)."""
    mixed: np.ndarray = values ^ (values >> np.uint64(30))
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
