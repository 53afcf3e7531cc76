"""What happens to a whole graph before it is divided: largest component, feature scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from fedatlas.platform.errors import DataError, unknown_name
from fedatlas.platform.graphs.graph import Array, Features, Graph

Scaling: TypeAlias = Literal["none", "row", "l2", "binary", "standard"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
_NARROW = 64
"""Below this width a sparse matrix gains nothing."""


def compact(features: Features) -> Features:
    """CSR where that is smaller (wide, less than half of the entries are non-zero), else as given."""
    wide = features.shape[1] >= _NARROW
    if not isinstance(features, np.ndarray):
        gains = wide and features.nnz < 0.5 * features.shape[0] * features.shape[1]
        return features if gains else features.toarray()
    if wide and np.count_nonzero(features) < 0.5 * features.size:
        return sp.csr_array(features)
    return features


def largest_component(graph: Graph) -> Graph:
    """Subgraph of the largest connected component, its nodes renumbered in their old order.

    Of components of equal size the one with the smallest node id is kept. A connected graph is returned
    as it is.

    Args:
        graph: n nodes.

    Source: FED-PUB (Baek et al., ICML 2023), data preparation of its published code.
    """
    kept = in_largest_component(graph)
    if kept.all():
        return graph
    number = np.cumsum(kept) - 1
    # An edge never leaves a component: one end decides, and the order of the edges survives.
    edges = number[graph.edges[:, kept[graph.edges[0]]]]
    return replace(graph, features=graph.features[kept], edges=edges, labels=graph.labels[kept])


def in_largest_component(graph: Graph) -> Array:
    """Which nodes `largest_component` keeps, bool [n]."""
    count, component = connected_components(graph.adjacency(), directed=False)
    if count <= 1:
        return np.ones(graph.nodes, dtype=bool)
    kept: Array = component == np.argmax(np.bincount(component))
    return kept


def scale_features(graph: Graph, mode: str) -> Graph:
    """Graph whose features are scaled node by node; dense stays dense and sparse stays sparse.

    Rows of zeros stay zero. ``standard`` works column by column instead, over all nodes of the graph, and
    makes sparse features dense; no label and no role enters.

    Args:
        graph: features X [n, f].
        mode: ``none`` (unchanged), ``row`` (X_i / sum_j X_ij: every row sums to 1), ``l2``
            (X_i / ||X_i||_2), ``binary`` (1 where X_ij is not 0) or ``standard`` ((X_ij - m_j) / s_j with
            mean m_j and population standard deviation s_j of column j; 0 in constant columns).

    Raises:
        ConfigurationError: the mode does not exist.
        DataError: ``row`` with negative features, whose sum may vanish.
    """
    if mode not in SCALINGS:
        raise unknown_name("feature scaling", mode, SCALINGS)
    if mode == "none":
        return graph
    if mode == "standard":
        scaled = _standardised(graph.features)
    elif mode == "binary":
        scaled = graph.features != 0
    elif sp.issparse(graph.features):
        scaled = sp.csr_array(sp.diags_array(1 / _row_sizes(graph, mode)) @ graph.features)
    else:
        scaled = graph.features * (1 / _row_sizes(graph, mode))[:, None]
    return replace(graph, features=scaled.astype(np.float32))


def _standardised(features: Features) -> Array:
    dense = features if isinstance(features, np.ndarray) else features.toarray()
    values: Array = dense.astype(np.float64)
    spread = values.std(axis=0)
    # A constant column may have a spread of rounding errors.
    constant = values.min(axis=0) == values.max(axis=0)
    scaled: Array = np.where(constant, 0.0, (values - values.mean(axis=0)) / np.where(constant, 1.0, spread))
    return scaled


def _row_sizes(graph: Graph, mode: str) -> Array:
    """Sum or Euclidean norm of each row, float64 [n]; 1 for rows of zeros."""
    features = graph.features.astype(np.float64)
    if mode == "l2":
        sizes = np.sqrt((features * features).sum(axis=1))
    else:
        if features.min() < 0:
            raise DataError(
                f"features=row needs non-negative features; {graph.name} has negative ones: "
                "use features=l2 or features=none"
            )
        sizes = features.sum(axis=1)
    return np.where(sizes == 0, 1.0, sizes)
