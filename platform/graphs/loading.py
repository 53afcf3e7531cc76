"""From a name to a `Graph` or `GraphSet`: generated, read from the data folder, or downloaded by PyG or OGB.

What the library made of the raw files is kept in the data folder as plain arrays under a name that contains
the hash of the raw files, so a second load needs neither torch nor any pickle.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedatlas.platform.errors import ConfigurationError, DataError
from fedatlas.platform.graphs import catalog, library, minesweeper, own, standins, store
from fedatlas.platform.graphs.catalog import Entry
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import Array, Features, Graph, GraphSet
from fedatlas.platform.graphs.preprocessing import compact

_CACHE_FORMAT = 1


def load(name: str, *, seed: int = 0) -> Graph:
    """The whole graph of a data set, before any preprocessing.

    Features are CSR where that is smaller (less than half of the entries are non-zero) and the matrix is wide
    enough to gain from it, else dense. Raw files are checked against their sha256 before anything reads
    them. Missing files are downloaded unless `FEDATLAS_OFFLINE` is set.

    Args:
        name: a name of the catalog, for example ``"cora"``, ``"minesweeper"`` or ``"standin:ogbn-arxiv"``,
            or the path of a graph that a user brings, see `fedatlas.platform.graphs.own`.
        seed: seed of a stand-in; published graphs do not depend on it.

    Raises:
        ConfigurationError: there is no such data set, or it is a set of graphs.
        DataError: files are missing and cannot be downloaded, are corrupt, or hold another graph.
    """
    if own.is_path(name):
        return own.load(name).graph
    entry = catalog.entry(name)
    if entry.level == "graph":
        raise ConfigurationError(f"{name} is a set of graphs: use load_graphs")
    if entry.kind == "stand-in":
        return standins.generate(name, seed)
    if entry.kind == "generated":
        return minesweeper.graph()
    found = _present(entry)
    cache = _cache_path(found)
    graph = _read_cache(entry, cache)
    if graph is None:
        graph = _read_raw(entry, found)
        _write_cache(graph, cache)
    return graph


def load_graphs(name: str) -> GraphSet:
    """A whole set of graphs, before any preprocessing; files are treated as by `load`.

    Args:
        name: a set of graphs of the catalog, for example ``"nci1"``, but no group.

    Raises:
        ConfigurationError: there is no such set of graphs.
        DataError: files are missing and cannot be downloaded, are corrupt, or hold other graphs.
    """
    entry = catalog.entry(name)
    if entry.level != "graph" or entry.members:
        raise ConfigurationError(f"{name} is {'a group' if entry.members else 'one graph'}, no set of graphs")
    found = _present(entry)
    cache = _cache_path(found)
    graphs = _read_cached_graphs(entry, cache)
    if graphs is None:
        with store.staged(entry) as root:
            features, edges, starts, labels = library.read_graphs(entry, root)
        edges = undirected(edges, int(starts[-1]))
        graphs = _graph_set(entry, compact(features), edges, starts, labels)
        _check_set(entry, graphs)
        _write_cache(graphs, cache)
    return graphs


def _present(entry: Entry) -> store.SetStatus:
    """State of a data set whose files are there and right; they are downloaded if they are missing."""
    found = store.status(entry.name)
    if found.state == "missing":
        found = _download(entry, found)
    if found.state == "corrupt":
        raise store.corrupt(found)
    return found


def _graph_set(entry: Entry, features: Features, edges: Array, starts: Array, labels: Array) -> GraphSet:
    return GraphSet(entry.name, features, edges, starts, labels, entry.classes, entry.metric, entry.kind)


def _check_set(entry: Entry, graphs: GraphSet) -> None:
    sizes = {
        "graphs": (graphs.graphs, entry.graphs),
        "nodes": (graphs.nodes, entry.nodes),
        "features": (graphs.features.shape[1], entry.features),
        "classes": (np.unique(graphs.labels).size, entry.classes),
        "undirected edges": (graphs.edges.shape[1] // 2, entry.edges),
    }
    _refuse_others(entry, sizes)


def _read_cached_graphs(entry: Entry, path: Path) -> GraphSet | None:
    """The graphs kept in a file, or None if there is none or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            # Edges are kept in half the width: COLLAB has 25 million.
            edges = arrays["edges"].astype(np.int64)
            features = _read_features(arrays, int(arrays["starts"][-1]), entry.features)
            graphs = _graph_set(entry, features, edges, arrays["starts"], arrays["labels"])
        _check_set(entry, graphs)
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, DataError):
        return None
    return graphs


def _download(entry: Entry, found: store.SetStatus) -> store.SetStatus:
    if os.environ.get("FEDATLAS_OFFLINE", "0") not in ("", "0"):
        raise store.missing(found, "FEDATLAS_OFFLINE forbids to download it")
    with tempfile.TemporaryDirectory(prefix="fedatlas-") as root:
        try:
            library.download(entry, Path(root))
        # OGB leaves by `exit`, and every library under it fails in its own way.
        except (Exception, SystemExit) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise store.missing(found, f"download failed: {reason}") from error
        report = store.import_folder(Path(root))
    refused = [file for file in report.refused if file.raw in entry.files]
    if refused:
        hashes = ", ".join(f"{file.raw.name} with sha256 {file.sha256}" for file in refused)
        raise store.missing(store.status(entry.name), f"the download brought other files: {hashes}")
    found = store.status(entry.name)
    if found.state == "missing":
        raise store.missing(found, "the download was incomplete")
    return found


def _read_raw(entry: Entry, found: store.SetStatus) -> Graph:
    with store.staged(entry) as root:
        try:
            features, edges, labels = library.read(entry, root)
        except Exception as error:
            if found.state == "present":
                raise
            files = ", ".join(str(file.path) for file in found.select("unverified"))
            raise DataError(
                f"data set '{entry.name}' cannot be read from {files}: {error}; "
                "delete them and import the files again"
            ) from error
    graph = Graph(
        name=entry.name,
        features=compact(features),
        edges=undirected(edges, labels.size),
        labels=labels,
        classes=entry.classes,
        metric=entry.metric,
        kind=entry.kind,
    )
    _check_sizes(entry, graph, edges.shape[1])
    return graph


def _check_sizes(entry: Entry, graph: Graph, listed: int | None = None) -> None:
    """Compare a graph with the catalog; where that has no edge count, the edges listed in the files."""
    sizes = {
        "nodes": (graph.nodes, entry.nodes),
        "features": (graph.features.shape[1], entry.features),
        "classes": (np.unique(graph.labels).size, entry.classes),
        "undirected edges": (graph.edges.shape[1] // 2, entry.edges),
    }
    if entry.edges is None and listed is not None:
        sizes["listed edges"] = (listed, entry.published_edges)
    _refuse_others(entry, sizes)


def _refuse_others(entry: Entry, sizes: dict[str, tuple[int, int | None]]) -> None:
    """Raise if a number read differs from the one wanted, where that is known."""
    wrong = [
        f"{got} {what} instead of {want}" for what, (got, want) in sizes.items() if want not in (None, got)
    ]
    if wrong:
        raise DataError(
            f"the raw files of '{entry.name}' hold another graph ({', '.join(wrong)}): "
            "delete them and import the published ones"
        )


def _cache_path(found: store.SetStatus) -> Path:
    content = "/".join(f"{file.raw.name}={file.sha256}" for file in found.files)
    key = hashlib.sha256(f"{_CACHE_FORMAT}/{content}".encode()).hexdigest()[:16]
    return store.data_folder() / "arrays" / f"{found.name}-{key}.npz"


def _read_cache(entry: Entry, path: Path) -> Graph | None:
    """The graph kept in a file, or None if there is none or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            graph = Graph(
                name=entry.name,
                features=_read_features(arrays, arrays["labels"].size, entry.features),
                edges=arrays["edges"],
                labels=arrays["labels"],
                classes=entry.classes,
                metric=entry.metric,
                kind=entry.kind,
            )
        _check_sizes(entry, graph)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, DataError):
        return None
    return graph


def _read_features(arrays: Mapping[str, Array], nodes: int, width: int) -> Features:
    if "indptr" in arrays:
        return sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(nodes, width))
    return arrays["features"]


def _write_cache(graph: Graph | GraphSet, path: Path) -> None:
    arrays: dict[str, Any] = {"edges": graph.edges, "labels": graph.labels}
    if isinstance(graph, GraphSet):
        arrays |= {"edges": graph.edges.astype(np.int32), "starts": graph.starts}
    if sp.issparse(graph.features):
        arrays |= {part: getattr(graph.features, part) for part in ("data", "indices", "indptr")}
    else:
        arrays["features"] = np.asarray(graph.features)
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = file.name
            np.savez(file, **arrays)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        # A data folder that several users share may be read-only: the next load reads the raw files again.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
