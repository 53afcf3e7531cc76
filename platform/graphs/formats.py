"""Formats in which a user's graph is read. None of them can carry code.

==========================  ==================================================================================
file                        what it holds
==========================  ==================================================================================
``NAME.npz``                arrays `x` [n, f], `edge_index` [2, e], `y` [n]; optional `train_mask`,
                            `val_mask`, `test_mask` [n] or [s, n], `client` [n]. PyG's names, those of the
                            heterophilous sets (`node_features`, ...) and CSR parts (`x_data`,
                            `x_indices`, `x_indptr`, `x_shape`, likewise `adj_`) are understood.
``NAME.safetensors``        tensors with the same names.
``NAME.pt``                 a PyG `Data`, or a dictionary of tensors, saved by `torch.save`; read with
                            ``weights_only=True``.
``nodes.csv, edges.csv``    a folder with both, or a file whose name has `nodes` beside one with `edges`.
                            Nodes: `id`, `label`, optional `client` and `role`, all other columns features.
                            Edges: `source`, `target`.
``NAME.graphml``,           a networkx graph; node attributes as the columns of a nodes table, or `x` with a
``NAME.json``               list of numbers. JSON is networkx's node-link form.
``FOLDER/partition_0.pt``   one PyG file per client, as the FED-PUB code family writes them (also `data_0.pt`,
                            `subgraph0.pt`, `client_0.pt`): see `read_clients`.
==========================  ==================================================================================
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedatlas.platform.errors import DataError
from fedatlas.platform.graphs.graph import Array
from fedatlas.platform.graphs.own import SUFFIXES, Remark

_ALIASES: dict[str, tuple[str, ...]] = {
    "x": ("x", "features", "node_features", "attr"),
    "edge_index": ("edge_index", "edges", "adj"),
    "y": ("y", "labels", "node_labels", "label"),
    "train_mask": ("train_mask", "train_masks"),
    "val_mask": ("val_mask", "val_masks", "valid_mask", "validation_mask"),
    "test_mask": ("test_mask", "test_masks"),
    "client": ("client", "clients", "membership"),
}
"""Names under which an array is looked for, the first one first; `attr` and `adj` as CSR parts only."""
_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id", "node", "node_id", "name"),
    "label": ("label", "y", "class", "target"),
    "client": ("client",),
    "role": ("role", "split"),
}
ROLES = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "test": 2,
}
MASKS = ("train_mask", "val_mask", "test_mask")
CLIENT_FILE = re.compile(r"(?:partition|data|subgraph|client)_?(\d+)\.pt", re.IGNORECASE)
"""Names of per-client files; the number is the client."""
CATEGORIES = 50
"""A column of words with at most so many different ones is spread into one column per word."""


@dataclass
class RawGraph:
    """Arrays as a file has them, before anything is checked.

    Attributes:
        x: features [n, f], dense or CSR; None if there are none.
        edges: [2, e] node ids, in any direction.
        y: labels [n], numbers or words.
        masks: some of `MASKS`, each [n] or [s, n].
        client: client of each node [n], numbers or words.
        names: names of the nodes [n].
        remarks: what the reading has changed already.
    """

    x: Any
    edges: Array
    y: Any
    masks: dict[str, Array] = field(default_factory=dict)
    client: Array | None = None
    names: Array | None = None
    remarks: list[Remark] = field(default_factory=list)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that hold the graph of a path.

    Raises:
        DataError: there is nothing, or nothing that can be read.
    """
    if path.is_dir():
        tables = [path / f"{part}{end}" for end in (".csv", ".tsv") for part in ("nodes", "edges")]
        for pair in (tables[:2], tables[2:]):
            if all(file.is_file() for file in pair):
                return tuple(pair)
        found = _client_files(path)
        if found:
            return found
        raise DataError(
            f"{path} holds no graph: a folder must hold nodes.csv and edges.csv, or one PyG file per client "
            "(partition_0.pt, partition_1.pt, ...)"
        )
    if not path.is_file():
        raise DataError(
            f"there is no file {path}: give the path of a graph ({', '.join(SUFFIXES)}), a folder, or a name "
            "of `fedatlas data list`"
        )
    if path.suffix.lower() in (".csv", ".tsv"):
        return _pair(path)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: its format is not known; use one of {', '.join(SUFFIXES)}")
    return (path,)


def read(path: Path) -> RawGraph:
    """Read a graph.

    Raises:
        DataError: the file cannot be read, or lacks what a graph needs.
    """
    files = files_of(path)
    if path.is_dir() and files[0].suffix == ".pt":
        return read_clients(files)
    ending = files[0].suffix.lower()
    try:
        if ending in (".csv", ".tsv"):
            return _read_tables(*files)
        if ending in (".graphml", ".json"):
            return _from_networkx(_read_networkx(path))
        return _from_arrays(_read_arrays(path), path.name)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}") from error


def in_memory(given: Any) -> RawGraph:
    """A PyG `Data`, a networkx graph or a mapping of arrays as `read` returns it.

    Raises:
        DataError: it is none of them.
    """
    if isinstance(given, Mapping):
        return _from_arrays({str(key): _array(value) for key, value in given.items()}, "the mapping")
    if hasattr(given, "to_dict") and hasattr(given, "edge_index"):
        return _from_arrays(_tensors(given.to_dict()), "the Data object")
    if hasattr(given, "nodes") and hasattr(given, "edges"):
        return _from_networkx(given)
    raise DataError(
        f"a graph in memory must be a PyG Data, a networkx graph or a mapping of arrays, not {type(given)}"
    )


def as_arrays(raw: RawGraph) -> dict[str, Any]:
    """The same as the arrays of an npz file."""
    arrays: dict[str, Any] = {"edge_index": raw.edges, "y": _storable(raw.y), **raw.masks}
    if sp.issparse(raw.x):
        csr = sp.csr_array(raw.x)
        arrays |= {"x_data": csr.data, "x_indices": csr.indices, "x_indptr": csr.indptr}
        arrays["x_shape"] = np.array(csr.shape)
    elif raw.x is not None:
        arrays["x"] = np.asarray(raw.x)
    if raw.client is not None:
        arrays["client"] = _storable(raw.client)
    if raw.names is not None:
        arrays["names"] = _storable(raw.names)
    return arrays


# Arrays: npz, safetensors, PyG


def _read_arrays(path: Path) -> dict[str, Any]:
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as found:
            try:
                return {key: found[key] for key in found.files}
            except ValueError as error:
                raise DataError(
                    f"{path} holds Python objects, which could carry code and are not read: save plain "
                    "arrays, for example np.savez(FILE, x=..., edge_index=..., y=...)"
                ) from error
    if path.suffix.lower() == ".safetensors":
        from safetensors.numpy import load_file

        try:
            return dict(load_file(path))
        except Exception as error:
            raise DataError(f"{path} is no safetensors file: {error}") from error
    return _tensors(_unpickled(path))


def _unpickled(path: Path) -> dict[str, Any]:
    """Content of a torch file as a dictionary; only tensors, plain values and PyG's `Data` are let in."""
    import pickle

    import torch

    with torch.serialization.safe_globals(_pyg_classes()):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL (\S+)", str(error))
            which = f" ({found.group(1)})" if found else ""
            raise DataError(
                f"{path} holds Python objects that could carry code{which}, and is not read: save a PyG Data "
                "or a dictionary of tensors with torch.save, or an npz file"
            ) from error
        except (RuntimeError, EOFError) as error:
            raise DataError(f"{path} is no file of torch.save: {str(error).splitlines()[0]}") from error
    for _ in range(2):
        # {"client_data": Data, "client_id": 3} of FED-PUB, {"data": Data} of others.
        inner = (
            next((content[key] for key in ("client_data", "data") if key in content), None)
            if isinstance(content, Mapping)
            else None
        )
        content = content if inner is None else inner
    if isinstance(content, list | tuple) and content and hasattr(content[0], "edge_index"):
        # What an InMemoryDataset saves: (data, slices) of one graph.
        content = content[0]
    if hasattr(content, "to_dict"):
        content = content.to_dict()
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds {type(content).__name__}, not a PyG Data or a dictionary of tensors")
    return {str(key): value for key, value in content.items()}


def _pyg_classes() -> list[Any]:
    """The classes that a saved `Data` consists of; none of them runs anything when it is restored."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

    return [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage, NodeStorage, EdgeStorage]


def _tensors(content: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among some values, as arrays; whatever else a file has is of no use here."""
    found = {key: _array(value) for key, value in content.items() if hasattr(value, "shape")}
    return {key: value for key, value in found.items() if value is not None}


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().to_dense()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return value if sp.issparse(value) else np.asarray(value)


def _from_arrays(arrays: Mapping[str, Any], where: str) -> RawGraph:
    found = {key: _found(arrays, names) for key, names in _ALIASES.items()}
    for key in ("edge_index", "y"):
        if found[key] is None:
            raise DataError(
                f"{where} lacks `{key}` (it has {', '.join(arrays) or 'nothing'}): a graph needs x [n, f], "
                "edge_index [2, e] and y [n]"
            )
    edges = found["edge_index"]
    if sp.issparse(edges):
        edges = np.stack(sp.coo_array(edges).coords)
    return RawGraph(
        x=found["x"],
        edges=edges,
        y=found["y"],
        masks={key: found[key] for key in MASKS if found[key] is not None},
        client=found["client"],
        names=arrays.get("names"),
    )


def _found(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in arrays:
            return arrays[name]
        parts = [f"{name}_{part}" for part in ("data", "indices", "indptr", "shape")]
        if all(part in arrays for part in parts):
            data, indices, indptr, shape = (arrays[part] for part in parts)
            return sp.csr_array((data, indices, indptr), shape=tuple(int(each) for each in shape))
    return None


def _storable(values: Any) -> Array:
    """Words as fixed-width text, since an array of objects would be a pickle."""
    array = np.asarray(values)
    return array.astype(np.str_) if array.dtype == object else array


# Tables and networkx


def _pair(path: Path) -> tuple[Path, Path]:
    """Nodes and edges files from one of them."""
    for here, there in (("nodes", "edges"), ("edges", "nodes")):
        if here in path.name.lower():
            other = path.with_name(re.sub(here, there, path.name, flags=re.IGNORECASE))
            if other.is_file():
                return (path, other) if here == "nodes" else (other, path)
            raise DataError(f"{path} needs {other.name} beside it: the other half of the graph")
    raise DataError(f"{path}: name the files ...nodes.csv and ...edges.csv, so that each finds the other")


def _read_tables(nodes: Path, edges: Path) -> RawGraph:
    import pandas as pd

    mark = "\t" if nodes.suffix.lower() == ".tsv" else ","
    names = _columns(pd.read_csv(nodes, sep=mark, nrows=0, comment="#").columns)
    words = {column: str.strip for key, column in names.items() if key in ("id", "client", "role")}
    table = pd.read_csv(nodes, sep=mark, comment="#", converters=words, skipinitialspace=True)
    pairs = pd.read_csv(edges, sep=mark, comment="#", dtype=str, keep_default_na=False, skipinitialspace=True)
    if pairs.shape[1] < 2:
        raise DataError(f"{edges} needs two columns, source and target; it has {list(pairs.columns)}")
    lower = {str(column).lower(): column for column in pairs.columns}
    first, second = lower.get("source", pairs.columns[0]), lower.get("target", pairs.columns[1])
    ends = np.stack([pairs[first].to_numpy(dtype=object), pairs[second].to_numpy(dtype=object)])
    raw = _from_table(table, ends, f"{nodes.name}")
    unused = [str(column) for column in pairs.columns if column not in (first, second)]
    if unused:
        raw.remarks.append(
            Remark(
                "repaired",
                f"edge columns {', '.join(unused)} left out",
                "edges carry no weights or features here",
            )
        )
    return raw


def _columns(columns: Iterable[Any]) -> dict[str, str]:
    """Which column is what."""
    lower = {str(column).strip().lower(): str(column) for column in columns}
    found = {}
    for key, names in _COLUMNS.items():
        column = next((lower[name] for name in names if name in lower), None)
        if column is not None:
            found[key] = column
    return found


def _from_table(table: Any, ends: Array, where: str) -> RawGraph:
    """A graph from a table of nodes and edges between their ids.

    Args:
        table: DataFrame, one row per node.
        ends: [2, e] ids as text.
        where: name for messages.
    """
    names = _columns(table.columns)
    if "label" not in names:
        raise DataError(
            f"{where} has no column `label`: it needs one, empty for nodes whose class is not known "
            f"(columns: {', '.join(map(str, table.columns))})"
        )
    count = len(table)
    ids = (
        table[names["id"]].astype(str).to_numpy(dtype=object)
        if "id" in names
        else np.arange(count).astype(str)
    )
    number = {name: place for place, name in enumerate(ids)}
    if len(number) < count:
        twice = table[names["id"]][table[names["id"]].duplicated()].iloc[0]
        raise DataError(f"{where} has the node id '{twice}' more than once: every node needs one row")
    strangers = [str(end) for end in ends.ravel() if str(end) not in number]
    if strangers:
        raise DataError(
            f"the edges name {len(set(strangers))} nodes that {where} lacks, for example '{strangers[0]}': "
            "add their rows, or remove the edges"
        )
    edges = np.array([[number[str(end)] for end in side] for side in ends], dtype=np.int64).reshape(2, -1)
    remarks: list[Remark] = []
    x = _features(table.drop(columns=list(names.values())), remarks, where)
    raw = RawGraph(x, edges, table[names["label"]].to_numpy(), remarks=remarks)
    plain = ids.tolist() == [str(place) for place in range(count)]
    raw.names = None if plain else ids.astype(np.str_)
    if "client" in names:
        raw.client = table[names["client"]].astype(str).to_numpy(dtype=object)
    if "role" in names:
        raw.masks = roles_to_masks(table[names["role"]].astype(str).tolist(), where)
    return raw


def roles_to_masks(roles: Sequence[str], where: str) -> dict[str, Array]:
    """Masks from one word per node: train, val or validation, test, or nothing.

    Raises:
        DataError: another word.
    """
    numbers = np.full(len(roles), -1)
    for place, word in enumerate(roles):
        word = word.strip().lower()
        if word in ROLES:
            numbers[place] = ROLES[word]
        elif word not in ("", "none", "nan", "-"):
            raise DataError(
                f"{where}: role '{word}' of row {place} is not known; use train, validation, test or nothing"
            )
    return {mask: numbers == role for role, mask in enumerate(MASKS)}


def _features(table: Any, remarks: list[Remark], where: str) -> Array | None:
    """All columns as numbers: lists are spread, words become one column each."""
    import pandas as pd

    blocks: list[Array] = []
    for column in table.columns:
        values = table[column]
        if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            blocks.append(values.to_numpy(dtype=np.float64)[:, None])
            continue
        if all(isinstance(value, list | tuple | np.ndarray) for value in values):
            widths = {len(value) for value in values}
            if len(widths) > 1:
                raise DataError(f"{where}: `{column}` has lists of different lengths ({sorted(widths)[:5]})")
            blocks.append(np.array(values.tolist(), dtype=np.float64))
            continue
        kinds = sorted(values.dropna().astype(str).unique())
        if len(kinds) > CATEGORIES:
            raise DataError(
                f"{where}: column `{column}` has {len(kinds)} different words, for example '{kinds[0]}': "
                "a feature must be a number; remove the column or turn it into numbers"
            )
        text = values.astype(str).to_numpy(dtype=object)
        blocks.append(np.stack([text == kind for kind in kinds], axis=1).astype(np.float64))
        remarks.append(
            Remark(
                "repaired", f"column {column} spread into {len(kinds)} columns of 0 and 1", "it holds words"
            )
        )
    return np.concatenate(blocks, axis=1) if blocks else None


def _read_networkx(path: Path) -> Any:
    import networkx as nx  # type: ignore[import-untyped]

    if path.suffix.lower() == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "nodes" not in content:
            raise DataError(f"{path} is no node-link file: write it with networkx.node_link_data")
        return nx.node_link_graph(content, edges="links" if "links" in content else "edges")
    try:
        return nx.read_graphml(path)
    except (SyntaxError, nx.NetworkXError) as error:
        raise DataError(f"{path} is no GraphML file: {error}") from error


def _from_networkx(network: Any) -> RawGraph:
    import pandas as pd

    nodes = list(network.nodes)
    rows = [{**dict(network.nodes[node]), "id": str(node)} for node in nodes]
    if not rows:
        raise DataError("the network has no node")
    pairs = [(str(first), str(second)) for first, second, *_ in network.edges]
    ends = np.array(pairs, dtype=object).reshape(-1, 2).T
    table = pd.DataFrame(rows)
    for column in {"client", "role"} & set(table.columns):
        table[column] = table[column].fillna("").astype(str)
    return _from_table(table, ends, "the network")


# One file per client


def _client_files(folder: Path) -> tuple[Path, ...]:
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("*.pt")):
        match = CLIENT_FILE.fullmatch(path.name)
        if match:
            number = int(match.group(1))
            if number in found:
                raise DataError(
                    f"{folder} has two files of client {number}: {found[number].name}, {path.name}"
                )
            found[number] = path
    return tuple(found[number] for number in sorted(found))


def read_clients(files: Sequence[Path]) -> RawGraph:
    """The union of the clients' own graphs, which share no edge: client m holds the nodes of file m.

    A file is a PyG `Data`, or a dictionary with one under `client_data` (FED-PUB's code) or `data`; it has
    `x`, `edge_index`, `y` and the three masks. A node that several files hold is one node in each of them.

    Raises:
        DataError: a file cannot be read, or does not fit the others.
    """
    parts = [_from_arrays(_tensors(_unpickled(file)), file.name) for file in files]
    widths = {
        file.name: None if part.x is None else part.x.shape[-1]
        for file, part in zip(files, parts, strict=True)
    }
    if len(set(widths.values())) > 1:
        raise DataError(f"the clients' features differ in width: {widths}")
    for file, part in zip(files, parts, strict=True):
        absent = [mask for mask in MASKS if mask not in part.masks]
        if absent:
            raise DataError(f"{file} lacks {', '.join(absent)}: each client's file needs the three masks")
    sizes = [np.asarray(part.y).reshape(len(part.y), -1).shape[0] for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    x = None if parts[0].x is None else np.concatenate([np.asarray(part.x) for part in parts])
    return RawGraph(
        x=x,
        edges=np.concatenate([part.edges + start for part, start in zip(parts, starts, strict=True)], axis=1),
        y=np.concatenate([np.asarray(part.y) for part in parts]),
        masks={mask: np.concatenate([part.masks[mask].reshape(-1) for part in parts]) for mask in MASKS},
        client=np.repeat(np.arange(len(parts)), sizes),
        remarks=[
            Remark("noted", f"{len(parts)} clients, one per file", "edges between clients are not in them")
        ],
    )


def write_clients(federated: Any, folder: Path) -> None:
    """Write each client as the FED-PUB code family does: ``partition_m.pt`` with `client_data`, `client_id`.

    Args:
        federated: a `FederatedGraph`.
        folder: made if it is not there.

    Raises:
        DataError: the folder cannot be written.
    """
    import torch
    from torch_geometric.data import Data

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in federated.clients:
            x = part.features.toarray() if sp.issparse(part.features) else part.features
            data = Data(
                x=torch.from_numpy(np.ascontiguousarray(x)),
                edge_index=torch.from_numpy(np.ascontiguousarray(part.edges)),
                y=torch.from_numpy(part.labels),
                train_mask=torch.from_numpy(part.train),
                val_mask=torch.from_numpy(part.validation),
                test_mask=torch.from_numpy(part.test),
            )
            torch.save(
                {"client_data": data, "client_id": part.client}, folder / f"partition_{part.client}.pt"
            )
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}") from error
