"""Raw files read and downloaded by the classes of PyG and OGB.

The classes get a private root with checked copies, never the data folder: they would trust a processed file
that lies there, and unpickle what they have just downloaded.
"""

from __future__ import annotations

import contextlib
import io
import socket
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.platform.graphs import formats
from fedatlas.platform.graphs.catalog import Entry
from fedatlas.platform.graphs.graph import Array

_TIMEOUT = 20.0
"""Seconds without an answer after which a download is given up."""


class _DownloadedError(Exception):
    """Raised in place of processing, once the raw files are there."""


def read(entry: Entry, root: Path) -> tuple[Array, Array, Array]:
    """Read a data set whose raw files lie below `root` in the layout of the library.

    Returns:
        Features float32 [n, f], edges int64 [2, e] as the library gives them, labels int64 [n].
    """
    with _quiet():
        if entry.library == "ogb":
            return _read_ogb(entry, root)
        if entry.library == "npz":
            raw = formats.read(root / entry.raw_folder / entry.files[0].name)
            pairs = raw.edges if raw.edges.shape[0] == 2 else raw.edges.T
            return np.asarray(raw.x, dtype=np.float32), pairs, np.asarray(raw.y, dtype=np.int64)
        data = _pyg_class(entry)(str(root), entry.library_name)[0]
        return (
            data.x.numpy().astype(np.float32, copy=False),
            data.edge_index.numpy(),
            data.y.numpy().astype(np.int64, copy=False),
        )


def download(entry: Entry, root: Path) -> None:
    """Let the library download the raw files of a data set below `root`, without reading them.

    Raises:
        Exception: whatever the library raises when there is no network.
    """
    earlier = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        with _quiet():
            if entry.library == "ogb":
                from ogb.nodeproppred import NodePropPredDataset

                # Parses CSV files only, nothing that could carry code.
                NodePropPredDataset(entry.library_name, str(root))
                return
            if entry.library == "npz":
                with urllib.request.urlopen(entry.url, timeout=_TIMEOUT) as answer:
                    (root / entry.files[0].name).write_bytes(answer.read())
                return
            fetch = type("Fetch", (_pyg_class(entry),), {"process": _stop})
            with contextlib.suppress(_DownloadedError):
                fetch(str(root), entry.library_name)
    finally:
        socket.setdefaulttimeout(earlier)


def _stop(dataset: object) -> None:
    raise _DownloadedError


def _pyg_class(entry: Entry) -> Any:
    from torch_geometric.datasets import Amazon, HeterophilousGraphDataset, Planetoid

    return {"planetoid": Planetoid, "amazon": Amazon, "heterophilous": HeterophilousGraphDataset}[
        entry.library
    ]


def _read_ogb(entry: Entry, root: Path) -> tuple[Array, Array, Array]:
    from ogb.nodeproppred import NodePropPredDataset

    folder = (root / entry.raw_folder).parent
    # Without its release mark, OGB asks on the terminal whether to delete the folder.
    (folder / "RELEASE_v1.txt").touch()
    (folder / "processed").mkdir()
    graph, labels = NodePropPredDataset(entry.library_name, str(root))[0]
    return (
        np.asarray(graph["node_feat"], dtype=np.float32),
        np.asarray(graph["edge_index"], dtype=np.int64),
        np.asarray(labels, dtype=np.int64).ravel(),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
