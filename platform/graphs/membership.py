"""Clients that a user brings: which nodes each of them holds, read from a file and written to one.

================  ============================================================================================
file              what it holds
================  ============================================================================================
``NAME.csv``      columns `node` and `client`, one row per node and client that holds it; optional `role`
                  (train, validation, test), the same in every client that holds the node. Without a header:
                  one client per line, line i for node i, as METIS writes its parts.
``NAME.npz``      `client`, int [n]; negative numbers stand for no client.
``NAME.json``     a mapping from client to the list of its nodes.
================  ============================================================================================

Nodes are named as in the graph's own file, or else numbered 0..n-1 in the whole graph, before any component
is left out. A file that `save` wrote says which graph it divides, and is refused for another.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedatlas.platform.errors import DataError, PartitionError
from fedatlas.platform.graphs.formats import MASKS, roles_to_masks
from fedatlas.platform.graphs.graph import Array, Split
from fedatlas.platform.graphs.own import path_of

ROLE_WORDS = ("train", "validation", "test")
_MARK = "# fedatlas partition"


@dataclass(frozen=True)
class Membership:
    """Rows of a membership file.

    Attributes:
        nodes: names of the nodes as written, one per row.
        clients: client of each row, 0..M-1.
        names: names of the clients, ordered by id.
        roles: role of each row, or None if the file has none.
        data_sha256: the graph that the file says it divides; empty if it does not say.
    """

    nodes: tuple[str, ...]
    clients: Array
    names: tuple[str, ...]
    roles: tuple[str, ...] | None
    data_sha256: str

    def sha256(self) -> str:
        """Hash of who holds what, whatever the order of the rows."""
        roles = self.roles or ("",) * len(self.nodes)
        rows = sorted(zip(self.nodes, self.clients.tolist(), roles, strict=True))
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def read(path: str) -> Membership:
    """Read a membership file.

    Raises:
        PartitionError: there is no such file, or it is not one.
    """
    file = path_of(path)
    try:
        stamp = file.stat()
    except OSError as error:
        raise PartitionError(
            f"partition={path}: there is no such file; name a mode (metis, random, ...), a file that "
            "`fedatlas partition DATASET --save FILE` wrote, or one with the columns node and client"
        ) from error
    return _read(str(file), stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=16)
def _read(path: str, changed: int, size: int) -> Membership:
    file = Path(path)
    try:
        if file.suffix.lower() == ".npz":
            return _from_array(file)
        if file.suffix.lower() == ".json":
            return _from_json(file)
        return _from_text(file.read_text(encoding="utf-8"), file.name)
    except (OSError, ValueError, KeyError, DataError) as error:
        raise PartitionError(f"partition={path} cannot be read: {error}") from error


def _from_array(file: Path) -> Membership:
    with np.load(file, allow_pickle=False) as arrays:
        if "client" not in arrays:
            raise ValueError(f"it has {', '.join(arrays.files)}, and needs an array `client` [n]")
        owner = np.asarray(arrays["client"]).reshape(-1)
    return _rows([str(place) for place in range(owner.size)], [str(each) for each in owner], None, "")


def _from_json(file: Path) -> Membership:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not all(isinstance(nodes, list) for nodes in content.values()):
        raise ValueError("it must map each client to a list of nodes")
    pairs = [(str(node), str(client)) for client, nodes in content.items() for node in nodes]
    return _rows([node for node, _ in pairs], [client for _, client in pairs], None, "")


def _from_text(text: str, where: str) -> Membership:
    import pandas as pd

    found = re.search(r"data_sha256=([0-9a-f]{64})", text.split("\n", 1)[0])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise ValueError("it is empty")
    if all(re.fullmatch(r"-?\d+", line) for line in lines):
        return _rows([str(place) for place in range(len(lines))], lines, None, "")
    table = pd.read_csv(
        io.StringIO("\n".join(lines)), sep=None, engine="python", dtype=str, keep_default_na=False
    )
    lower = {str(column).strip().lower(): column for column in table.columns}
    node = next((lower[name] for name in ("node", "id", "node_id", "name") if name in lower), None)
    if node is None or "client" not in lower:
        raise ValueError(
            f"it has the columns {', '.join(map(str, table.columns))}, and needs node and client"
        )
    roles = table[lower["role"]].str.strip().tolist() if "role" in lower else None
    if roles is not None:
        roles_to_masks(roles, where)
    return _rows(
        table[node].str.strip().tolist(),
        table[lower["client"]].str.strip().tolist(),
        roles,
        found.group(1) if found else "",
    )


def _rows(nodes: list[str], clients: list[str], roles: list[str] | None, sha256: str) -> Membership:
    from fedatlas.platform.graphs.checking import natural

    kept = [
        place for place, word in enumerate(clients) if word not in ("", "nan") and not word.startswith("-")
    ]
    names = sorted({clients[place] for place in kept}, key=natural)
    if not names:
        raise ValueError("it gives no node a client")
    number = {name: place for place, name in enumerate(names)}
    return Membership(
        nodes=tuple(nodes[place] for place in kept),
        clients=np.array([number[clients[place]] for place in kept], dtype=np.int64),
        names=tuple(names),
        roles=None if roles is None else tuple(roles[place].lower() for place in kept),
        data_sha256=sha256,
    )


def members(
    found: Membership, path: str, dataset: str, count: int, names: Array | None, sha256: str
) -> tuple[Array, ...]:
    """Nodes of each client in the whole graph, ascending.

    Args:
        found: content of the file.
        path, dataset: for messages.
        count: nodes of the whole graph.
        names: their names; None if they are numbers.
        sha256: hash of the data.

    Raises:
        PartitionError: a node does not exist, or the file divides another graph.
    """
    if found.data_sha256 not in ("", sha256):
        raise PartitionError(
            f"partition={path} divides a graph with sha256 {found.data_sha256[:12]}..., but {dataset} has "
            f"{sha256[:12]}...: make it again with `fedatlas partition {dataset} --save FILE`"
        )
    places = _places(found, path, dataset, count, names)
    return tuple(np.unique(places[found.clients == client]) for client in range(len(found.names)))


def split(found: Membership, path: str, dataset: str, count: int, names: Array | None) -> Split | None:
    """Roles of the whole graph's nodes; None if the file names none.

    Raises:
        PartitionError: a node has two roles, or a role has no node.
    """
    if found.roles is None:
        return None
    places = _places(found, path, dataset, count, names)
    masks = roles_to_masks(found.roles, path)
    out = np.zeros((3, count), dtype=bool)
    for role, key in enumerate(MASKS):
        out[role, places[masks[key]]] = True
    if (out.sum(axis=0) > 1).any():
        place = int(np.flatnonzero(out.sum(axis=0) > 1)[0])
        raise PartitionError(
            f"partition={path} gives node {place} two roles: a node has one in all its clients"
        )
    for role, word in enumerate(ROLE_WORDS):
        if not out[role].any():
            raise PartitionError(f"partition={path} has the column role, but no node with the role {word}")
    return Split(train=out[0], validation=out[1], test=out[2])


def _places(found: Membership, path: str, dataset: str, count: int, names: Array | None) -> Array:
    """Number of the node of each row."""
    if names is None:
        number = {str(place): place for place in range(count)}
        known = f"0 to {count - 1}"
    else:
        number = {str(name): place for place, name in enumerate(names)}
        known = f"for example {names[0]}"
    strangers = [node for node in found.nodes if node not in number]
    if strangers:
        raise PartitionError(
            f"partition={path} names {len(set(strangers))} nodes that {dataset} lacks, for example "
            f"'{strangers[0]}' (its nodes: {known})"
        )
    return np.array([number[node] for node in found.nodes], dtype=np.int64)


def save(
    path: Path,
    about: str,
    data_sha256: str,
    nodes: tuple[Array, ...],
    names: Array | None = None,
    roles: Split | None = None,
    client_names: tuple[str, ...] = (),
) -> None:
    """Write a membership file.

    Args:
        path: the file.
        about: what made the partition, for the first line.
        data_sha256: hash of the graph.
        nodes: nodes of each client, numbered in the whole graph.
        names: names of the nodes; None if they are numbers.
        roles: masks over the whole graph to write beside them; None to leave roles to whoever reads the file.
        client_names: names of the clients; numbers if empty.

    Raises:
        DataError: the file cannot be written.
    """
    lines = [f"{_MARK}: {about} data_sha256={data_sha256}", "node,client" + (",role" if roles else "")]
    for client, held in enumerate(nodes):
        called = client_names[client] if client_names else str(client)
        for node in held:
            word = str(node) if names is None else str(names[node])
            lines.append(f"{_quoted(word)},{_quoted(called)}" + (f",{_role(roles, node)}" if roles else ""))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error


def _role(roles: Split, node: int) -> str:
    masks = (roles.train, roles.validation, roles.test)
    return next((word for word, mask in zip(ROLE_WORDS, masks, strict=True) if mask[node]), "")


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if re.search(r'[",\s]', word) else word
