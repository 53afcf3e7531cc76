"""Raw files read and downloaded by the classes of PyG and OGB.

The classes get a private root with checked copies, never the data folder: they would trust a processed file
that lies there, and unpickle what they have just downloaded.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedatlas.platform.graphs import formats
from fedatlas.platform.graphs.catalog import Entry
from fedatlas.platform.graphs.graph import Array, Features

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


def read_graphs(entry: Entry, root: Path) -> tuple[Features, Array, Array, Array]:
    """Read a set of graphs whose raw files lie below `root` in the layout of PyG.

    Returns:
        Features float32 [n, f] (one-hot node labels, attributes, or one-hot degrees), edges int64 [2, e] over
        all nodes, starts int64 [g + 1], labels int64 [g].
    """
    from torch_geometric.datasets import TUDataset

    _unpack(entry, root / entry.raw_folder)
    with _quiet():
        found = TUDataset(str(root), entry.library_name, use_node_attr=entry.node_features == "attributes")
        graphs = [found.get(number) for number in range(found.len())]
    sizes = [int(graph.num_nodes) for graph in graphs]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    edges = np.concatenate(
        [graph.edge_index.numpy() + start for graph, start in zip(graphs, starts, strict=False)], axis=1
    )
    labels = np.concatenate([graph.y.numpy().reshape(-1) for graph in graphs]).astype(np.int64)
    if entry.node_features == "degrees":
        return _one_hot_degrees(edges, int(starts[-1])), edges, starts, labels
    return np.concatenate([graph.x.numpy() for graph in graphs]).astype(np.float32), edges, starts, labels


def _one_hot_degrees(edges: Array, nodes: int) -> sp.csr_array:
    """Degrees 0..d of the nodes as rows of the identity, float32 [n, d + 1] with d the largest degree."""
    degrees = np.bincount(edges[0], minlength=nodes)
    parts = (np.ones(nodes, dtype=np.float32), degrees, np.arange(nodes + 1))
    return sp.csr_array(parts, shape=(nodes, int(degrees.max()) + 1))


def _unpack(entry: Entry, folder: Path) -> None:
    """Unpack the text files of an archive into its folder; names in the archive do not decide where to."""
    for raw in entry.files:
        if raw.name.endswith(".zip"):
            with zipfile.ZipFile(folder / raw.name) as archive:
                for member in archive.infolist():
                    name = Path(member.filename).name
                    if name.startswith(f"{entry.library_name}_") and name.endswith(".txt"):
                        with archive.open(member) as source, (folder / name).open("wb") as target:
                            shutil.copyfileobj(source, target)


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
    from torch_geometric.datasets import Amazon, HeterophilousGraphDataset, Planetoid, TUDataset

    classes = {
        "planetoid": Planetoid,
        "amazon": Amazon,
        "heterophilous": HeterophilousGraphDataset,
        "tu": TUDataset,
    }
    return classes[entry.library]


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
