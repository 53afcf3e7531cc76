"""The one form in which edges are kept: both directions, sorted, no duplicate, no self-loop."""

from __future__ import annotations

import numpy as np

from fedatlas.platform.graphs.graph import Array


def undirected(pairs: Array, nodes: int) -> Array:
    """Symmetric, duplicate-free edge list without self-loops.

    Args:
        pairs: int64 [2, e], in any order and direction.
        nodes: number of nodes n; the ids are 0..n-1.

    Returns:
        int64 [2, 2m] for m undirected edges, sorted by source, then target.
    """
    source, target = pairs[:, pairs[0] != pairs[1]].astype(np.int64)
    keys = np.unique(np.concatenate([source * nodes + target, target * nodes + source]))
    return np.stack([keys // nodes, keys % nodes])
