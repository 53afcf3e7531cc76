"""Minesweeper, generated bit for bit (Platonov et al., ICLR 2023, arXiv 2302.11640).

The published data set is itself synthetic: a 100 x 100 board with 2,000 mines. Cell (i, j) is node
100 i + j, joined to its up to 8 neighbours. The label says whether the cell is a mine. Features are one-hot:
column 0 marks the 5,000 cells that are unknown, columns 1 to 6 the number of mines among the neighbours,
with 5 and more in column 6. The seeds 0 (mines) and 1 (unknown cells) are those of the published files.
"""

from __future__ import annotations

import numpy as np

from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import Array, Graph

_SIDE = 100
_CELLS = _SIDE * _SIDE
_MINES = 2_000
_UNKNOWN = 5_000
_LARGEST_COUNT = 5
_SPLITS = 10


def graph() -> Graph:
    """The Minesweeper graph: 10,000 nodes, 39,402 undirected edges, 7 features, 2 classes."""
    labels = _labels()
    return Graph(
        name="minesweeper",
        features=_features(labels),
        edges=undirected(_edges().T, _CELLS),
        labels=labels,
        classes=2,
        metric="auc",
        kind="generated",
    )


def arrays() -> dict[str, Array]:
    """The six arrays of the published `minesweeper.npz`, equal to it byte for byte.

    Returns:
        ``node_features`` float32 [10000, 7], ``node_labels`` int64 [10000], ``edges`` int64 [39402, 2] (each
        edge once, u < v) and ``train_masks``, ``val_masks``, ``test_masks`` bool [10, 10000].
    """
    labels = _labels()
    train, validation, test = _masks(labels)
    return {
        "node_features": _features(labels),
        "node_labels": labels,
        "edges": _edges(),
        "train_masks": train,
        "val_masks": validation,
        "test_masks": test,
    }


def _labels() -> Array:
    labels = np.zeros(_CELLS, dtype=np.int64)
    labels[np.random.default_rng(0).permutation(_CELLS)[:_MINES]] = 1
    return labels


def _features(labels: Array) -> Array:
    board = np.pad(labels.reshape(_SIDE, _SIDE), 1)
    counts = np.zeros((_SIDE, _SIDE), dtype=np.int64)
    for down in range(3):
        for right in range(3):
            if (down, right) != (1, 1):
                counts += board[down : down + _SIDE, right : right + _SIDE]
    column = 1 + np.minimum(counts.ravel(), _LARGEST_COUNT)
    column[np.random.default_rng(1).permutation(_CELLS)[:_UNKNOWN]] = 0
    features = np.zeros((_CELLS, _LARGEST_COUNT + 2), dtype=np.float32)
    features[np.arange(_CELLS), column] = 1
    return features


def _edges() -> Array:
    cells = np.arange(_CELLS).reshape(_SIDE, _SIDE)
    pairs = [
        (cells[:, :-1], cells[:, 1:]),
        (cells[:-1, :], cells[1:, :]),
        (cells[:-1, :-1], cells[1:, 1:]),
        (cells[:-1, 1:], cells[1:, :-1]),
    ]
    edges = np.concatenate([np.stack([low.ravel(), high.ravel()], axis=1) for low, high in pairs])
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]


def _masks(labels: Array) -> tuple[Array, Array, Array]:
    from sklearn.model_selection import train_test_split

    masks = np.zeros((3, _SPLITS, _CELLS), dtype=bool)
    for split in range(_SPLITS):
        train, rest = train_test_split(np.arange(_CELLS), test_size=0.5, random_state=split, stratify=labels)
        validation, test = train_test_split(rest, test_size=0.5, random_state=split, stratify=labels[rest])
        for mask, members in zip(masks[:, split], (train, validation, test), strict=True):
            mask[members] = True
    return masks[0], masks[1], masks[2]
