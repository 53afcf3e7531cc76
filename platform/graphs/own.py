"""Graphs that a user brings: a file or folder in place of a data set's name.

    fedatlas run --dataset karate.npz ...          arrays, see `fedatlas.platform.graphs.formats`
    fedatlas run --dataset hospital/ ...           nodes.csv and edges.csv, or one PyG file per client

What a file holds is checked once and kept in the data folder as plain arrays under a hash of its bytes, so
that a second load needs neither torch nor pandas. The identity of such a graph is the sha256 of its arrays:
neither its name nor its place matters.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from fedatlas.platform.errors import DataError
from fedatlas.platform.graphs import catalog
from fedatlas.platform.graphs.description import homophily
from fedatlas.platform.graphs.graph import Array, Features, Graph

OWN_PREFIX = "own:"
"""In tables and tracked runs, before the name of a graph that a user has brought."""
SUFFIXES = (".npz", ".pt", ".safetensors", ".csv", ".tsv", ".graphml", ".json")
ROUNDS = 100
EPOCHS = 1
SPLIT = (0.2, 0.4, 0.4)
"""Defaults where a published set has its protocol's."""
NOBODY = -1
"""Client of a node that no client holds."""
_CACHE_FORMAT = 2


@dataclass(frozen=True)
class Remark:
    """One thing that the check of a graph has found.

    Attributes:
        kind: ``repaired`` (the arrays differ from the file), ``noted`` (kept as it is) or ``advised`` (kept
            as it is, and likely to spoil results).
        what: what was found, with numbers.
        why: why that was done, or what follows from it.
    """

    kind: Literal["repaired", "noted", "advised"]
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class OwnGraph:
    """A graph that a user has brought, checked.

    Attributes:
        graph: the graph itself; labels of nodes without one are 0.
        labelled: bool [n], nodes that have a label; the others get no role.
        masks: bool [3, s, n], training, validation and test nodes of s splits; s = 0 without masks.
        clients: int64 [n], client of each node or `NOBODY`; None if the file names none.
        client_names: names of the clients, ordered by id.
        names: names of the nodes, str [n]; None if they are 0..n-1.
        remarks: what was repaired, noted or advised.
    """

    graph: Graph
    labelled: Array
    masks: Array
    clients: Array | None
    client_names: tuple[str, ...]
    names: Array | None
    remarks: tuple[Remark, ...]

    @cached_property
    def sha256(self) -> str:
        """Hash of all arrays that decide numbers: graph, labelled nodes, masks and clients."""
        digest = hashlib.sha256(self.graph.sha256().encode())
        for array in (self.labelled, self.masks, self.clients):
            if array is not None:
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @cached_property
    def entry(self) -> catalog.Entry:
        """What the catalog says of a published set: sizes from the graph, the protocol's defaults."""
        graph = self.graph
        edges = graph.edges.shape[1] // 2
        heterophilic = homophily(graph.edges, graph.labels) < 0.5
        return catalog.Entry(
            name=f"{OWN_PREFIX}{graph.name}",
            title=graph.name,
            family="heterophilic" if heterophilic else "homophilic",
            metric=graph.metric,
            nodes=graph.nodes,
            edges=edges,
            published_edges=edges,
            features=int(graph.features.shape[1]),
            classes=graph.classes,
            rounds=ROUNDS,
            epochs=EPOCHS,
            licence="not stated",
            publication="own",
            library="npz",
            library_name=graph.name,
            raw_folder="",
            files=(),
            split=SPLIT,
            kind="own",
        )

    @property
    def repaired(self) -> tuple[Remark, ...]:
        """The remarks on what differs from the file."""
        return tuple(each for each in self.remarks if each.kind == "repaired")


def is_path(name: str) -> bool:
    """Whether a data set or partition is given by a file or folder, and not by a name."""
    return "/" in name or os.sep in name or name.lower().endswith(SUFFIXES)


def path_of(name: str) -> Path:
    """The absolute path that a name stands for; `~` is the home folder."""
    return Path(name).expanduser().absolute()


def title(name: str) -> str:
    """Name of an own graph or partition for people: that of its file or folder without endings."""
    path = path_of(name)
    stem = path.name.split(".", 1)[0] or path.name
    # `hospital/nodes.csv` is called after its folder.
    return path.parent.name if stem.lower() == "nodes" and path.parent.name else stem


def load(name: str) -> OwnGraph:
    """Read and check a graph, or take it from the data folder if the same bytes were read before.

    Args:
        name: path of a file or folder.

    Raises:
        DataError: there is no such file, its format is not known, or what it holds is no usable graph.
    """
    from fedatlas.platform.graphs import formats

    path = path_of(name)
    files = formats.files_of(path)
    stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _load(str(path), stamps)


def entry(name: str) -> catalog.Entry:
    """An entry like those of the catalog, filled in from the graph."""
    return load(name).entry


@lru_cache(maxsize=8)
def _load(path: str, stamps: tuple[tuple[str, int, int], ...]) -> OwnGraph:
    from fedatlas.platform.graphs import checking, formats, store

    digest = hashlib.sha256(f"{_CACHE_FORMAT}".encode())
    for file, _, _ in stamps:
        digest.update(f"/{Path(file).name}/".encode())
        with open(file, "rb") as reader:
            digest.update(hashlib.file_digest(reader, "sha256").digest())
    cache = store.data_folder() / "own" / f"{digest.hexdigest()[:32]}.npz"
    found = _read_cache(cache, title(path))
    if found is None:
        found = checking.check(formats.read(Path(path)), title(path))
        _write_cache(found, cache)
    return found


def _read_cache(path: Path, name: str) -> OwnGraph | None:
    """The graph kept in a file, or None if there is none or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            labels = arrays["labels"]
            features: Features
            if "indptr" in arrays:
                parts = (arrays["data"], arrays["indices"], arrays["indptr"])
                features = sp.csr_array(parts, shape=(labels.size, int(arrays["width"])))
            else:
                features = arrays["features"]
            remarks = json.loads(str(arrays["remarks"]))
            return OwnGraph(
                graph=Graph(
                    name, features, arrays["edges"], labels, int(arrays["classes"]), "accuracy", "own"
                ),
                labelled=arrays["labelled"],
                masks=arrays["masks"],
                clients=arrays.get("clients"),
                client_names=tuple(str(each) for each in arrays["client_names"]),
                names=arrays.get("names"),
                remarks=tuple(Remark(*each) for each in remarks),
            )
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
        return None


def _write_cache(own: OwnGraph, path: Path) -> None:
    graph = own.graph
    arrays: dict[str, Any] = {
        "edges": graph.edges,
        "labels": graph.labels,
        "classes": np.int64(graph.classes),
        "labelled": own.labelled,
        "masks": own.masks,
        "client_names": np.array(own.client_names, dtype=np.str_),
        "remarks": np.array(json.dumps([(each.kind, each.what, each.why) for each in own.remarks])),
    }
    arrays |= {
        key: value for key, value in (("clients", own.clients), ("names", own.names)) if value is not None
    }
    if sp.issparse(graph.features):
        arrays |= {part: getattr(graph.features, part) for part in ("data", "indices", "indptr")}
        arrays["width"] = np.int64(graph.features.shape[1])
    else:
        arrays["features"] = np.asarray(graph.features)
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: dict[str, Any]) -> bool:
    """Write arrays so that a reader sees the whole file or none; False where the folder cannot be written."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = file.name
            np.savez(file, **arrays)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def keep(given: Any, name: str = "graph") -> Path:
    """Check a graph that is in memory and keep it in the data folder; what is returned is a `dataset`.

    Args:
        given: a PyG `Data`, a networkx graph, or a mapping of arrays with the keys of an npz file.
        name: its name in tables.

    Raises:
        DataError: it is no usable graph, or the data folder cannot be written.
    """
    from fedatlas.platform.graphs import checking, formats, store

    raw = formats.in_memory(given)
    own = checking.check(raw, name)
    path = store.data_folder() / "own" / own.sha256[:16] / f"{name}.npz"
    if not path.is_file() and not write_arrays(path, formats.as_arrays(raw)):
        raise DataError(f"cannot write {path}: set FEDATLAS_DATA to a folder you can write")
    return path
