"""The generated Minesweeper is the published one, byte for byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedatlas.platform.graphs import minesweeper
from fedatlas.platform.graphs.graph import Array

PUBLISHED = {
    "node_features": "e59ad15495d6d5ae532c61572ab4a974906124add34c081c3aba09ff1284efdb",
    "node_labels": "b324395d32c926531430b96939ee44d86ca2b856a1f9f99ff9443faf1ec260f3",
    "edges": "6d8aee14222a04ff00a23d12106e4a644cebf390c0ac3230113746f78306e3fc",
    "train_masks": "f0b8b8560107e554e0d5d57b297239e83de1a295abc4c9539e6c7343d04d6dbe",
    "val_masks": "6ae5f895c257757888eefa186beb42df76aad107fbc4aefe546052aeb606adc2",
    "test_masks": "3d6334da53208f91c0fe0d66cae7116012c3ee73bce50c2fcc6ed12e69efddea",
}


@pytest.fixture(scope="module")
def arrays() -> dict[str, Array]:
    return minesweeper.arrays()


@pytest.mark.parametrize("name", PUBLISHED)
def test_array_has_the_published_bytes(arrays: dict[str, Array], name: str) -> None:
    assert hashlib.sha256(np.ascontiguousarray(arrays[name]).tobytes()).hexdigest() == PUBLISHED[name]


@pytest.mark.data
def test_arrays_equal_the_published_file(arrays: dict[str, Array], raw_data: Path) -> None:
    with np.load(raw_data / "Minesweeper" / "minesweeper.npz", allow_pickle=False) as published:
        assert set(arrays) == set(published.files)
        for name in published.files:
            assert arrays[name].dtype == published[name].dtype
            np.testing.assert_array_equal(arrays[name], published[name])


def test_graph_holds_the_arrays_with_both_directions(arrays: dict[str, Array]) -> None:
    graph = minesweeper.graph()
    assert graph.kind == "generated"
    assert graph.edges.shape == (2, 78_804)
    forward = graph.edges[:, graph.edges[0] < graph.edges[1]]
    np.testing.assert_array_equal(forward, arrays["edges"].T)
    np.testing.assert_array_equal(graph.features, arrays["node_features"])
    np.testing.assert_array_equal(graph.labels, arrays["node_labels"])
