"""Checks of a graph that a user brings: what is refused, what is repaired, noted or advised.

Refused is what cannot be mended without guessing: NaN, node ids out of range, arrays of different lengths,
masks that overlap, one class. Repaired is what has one meaning: an edge stored once, a self-loop, names of
classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from fedatlas.platform.errors import DataError
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.formats import MASKS, RawGraph
from fedatlas.platform.graphs.graph import Array, Features, Graph
from fedatlas.platform.graphs.own import NOBODY, OwnGraph, Remark
from fedatlas.platform.graphs.preprocessing import compact

LISTED = 12
"""Names that a remark lists; of more it gives the number."""
LARGE_FEATURE = 10
"""Above it networks of this protocol hardly learn; standardised features stay below."""


def check(raw: RawGraph, name: str) -> OwnGraph:
    """Check a graph and bring it into the one form in which graphs are kept.

    Args:
        raw: as read.
        name: its name.

    Raises:
        DataError: names what is wrong, where, and what to do.
    """
    remarks = list(raw.remarks)
    labels, labelled, classes = _labels(raw.y, name, remarks)
    count = labels.size
    features = _features(raw.x, count, name, remarks)
    edges = _edges(raw.edges, count, name, remarks)
    masks = _masks(raw.masks, count, labelled, name, remarks)
    clients, client_names = _clients(raw.client, count, name, remarks)
    graph = Graph(name, features, edges, labels, classes, "accuracy", "own")
    _note_structure(graph, labelled, remarks)
    return OwnGraph(graph, labelled, masks, clients, client_names, raw.names, tuple(remarks))


def _labels(given: Any, name: str, remarks: list[Remark]) -> tuple[Array, Array, int]:
    """Labels 0..C-1 [n], which of them are known, and C."""
    values = np.asarray(given)
    if values.ndim == 2 and values.shape[1] > 1:
        if not (np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all()):
            raise DataError(
                f"{name}: y has shape {values.shape}; a node must have one class; give y [n] of numbers"
            )
        remarks.append(
            Remark("repaired", f"y of shape {values.shape} turned into class numbers", "it is one-hot")
        )
        values = values.argmax(axis=1)
    values = values.reshape(-1)
    if values.size == 0:
        raise DataError(f"{name} has no node: give y [n], the class of each of n nodes")
    if values.dtype.kind in "fiub":
        numbers = values.astype(np.float64)
        known = np.isfinite(numbers) & (numbers >= 0)
        if (numbers[known] != np.round(numbers[known])).any():
            place = int(np.flatnonzero(known & (numbers != np.round(numbers)))[0])
            raise DataError(
                f"{name}: label {numbers[place]:g} of node {place} is no class number: only classes can be "
                "learned; give classes 0, 1, 2, ..."
            )
        kinds = np.unique(numbers[known]).astype(np.int64)
        found = np.searchsorted(kinds, np.where(known, numbers, kinds[0] if kinds.size else 0))
        shown = [str(kind) for kind in kinds]
        renamed = kinds.tolist() != list(range(kinds.size))
    else:
        words = np.array(["" if _is_nothing(value) else str(value).strip() for value in values], dtype=object)
        known = words != ""
        shown = sorted(set(words[known]), key=natural)
        place_of = {word: place for place, word in enumerate(shown)}
        found = np.array([place_of.get(word, 0) for word in words])
        renamed = True
    if len(shown) < 2:
        raise DataError(
            f"{name} has {len(shown)} class{'' if len(shown) == 1 else 'es'} among its labels: "
            "classification needs at least two"
        )
    if renamed:
        remarks.append(Remark("repaired", f"classes numbered{_numbers(shown)}", "classes are 0..C-1 here"))
    if not known.all():
        remarks.append(
            Remark(
                "noted",
                f"{np.count_nonzero(~known)} nodes without a label (empty, NaN or negative)",
                "they stay in the graph and are never used to train, validate or test",
            )
        )
    return np.where(known, found, 0).astype(np.int64), known, len(shown)


def _is_nothing(value: Any) -> bool:
    return (
        value is None or (isinstance(value, float) and np.isnan(value)) or str(value).strip() in ("", "nan")
    )


def natural(word: str) -> tuple[int, float, str]:
    """Sort key: numbers by size, before words."""
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)


def _features(given: Any, count: int, name: str, remarks: list[Remark]) -> Features:
    if given is None:
        raise DataError(
            f"{name} has no node features (x [n, f], or columns beside the label): methods need some; "
            "degrees are a start where nothing is known"
        )
    sparse = sp.issparse(given)
    values = sp.csr_array(given) if sparse else np.asarray(given)
    if values.ndim != 2 or values.shape[0] != count:
        raise DataError(
            f"{name}: x has shape {tuple(values.shape)}, but there are {count} labels; it must be [n, f]"
        )
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name}: x holds {values.dtype}, not numbers: give float32 [n, f]")
    entries = values.data if sparse else values
    wrong = ~np.isfinite(np.asarray(entries, dtype=np.float64))
    if wrong.any():
        where = ""
        if not sparse:
            rows, columns = np.nonzero(wrong)
            where = f", the first at node {rows[0]}, column {columns[0]}"
        raise DataError(
            f"{name}: x has {np.count_nonzero(wrong)} values that are NaN or infinite{where}: replace them "
            "(by the column's mean, or by 0 with a column that marks them)"
        )
    if np.abs(np.asarray(entries, dtype=np.float64)).max(initial=0) > float(np.finfo(np.float32).max):
        raise DataError(f"{name}: x has values beyond the range of float32: scale them")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single: Any = values.astype(np.float32)
    if sparse:
        single.sum_duplicates()
        single.eliminate_zeros()
    out = compact(single if sparse else np.ascontiguousarray(single))
    _note_features(out, remarks)
    return out


def _note_features(features: Features, remarks: list[Remark]) -> None:
    dense = np.asarray(
        abs(features).max(axis=0).todense() if sp.issparse(features) else np.abs(features).max(axis=0)
    )
    empty = int(np.count_nonzero(dense == 0))
    if empty:
        remarks.append(Remark("noted", f"{empty} feature columns are zero everywhere", "they carry nothing"))
    large = float(dense.max(initial=0))
    if large > LARGE_FEATURE:
        remarks.append(
            Remark(
                "advised",
                f"features reach {large:.3g}",
                "training wants values of size one: use features=standard (every column to mean 0 and "
                "deviation 1), row or l2",
            )
        )


def _edges(given: Any, count: int, name: str, remarks: list[Remark]) -> Array:
    values = np.asarray(given)
    if values.size == 0:
        remarks.append(Remark("noted", "no edges", "every node is alone"))
        return np.zeros((2, 0), dtype=np.int64)
    if values.ndim != 2 or 2 not in values.shape:
        raise DataError(f"{name}: edge_index has shape {values.shape}; it must be [2, e]")
    if values.shape[0] != 2:
        values = values.T
        remarks.append(
            Remark("repaired", "edge_index turned from [e, 2] to [2, e]", "the form that PyG uses")
        )
    if (
        values.dtype.kind not in "iu"
        and (values.astype(np.float64) != np.round(values.astype(np.float64))).any()
    ):
        raise DataError(f"{name}: edge_index holds numbers that are no node ids: give whole numbers from 0")
    pairs = values.astype(np.int64)
    least, most = int(pairs.min()), int(pairs.max())
    if least < 0 or most >= count:
        counted = f"; ids seem to start at 1, they must start at 0" if (least, most) == (1, count) else ""  # noqa: F541
        raise DataError(
            f"{name}: edge_index names nodes {least} to {most}, but there are nodes 0 to {count - 1}{counted}"
        )
    loops = int(np.count_nonzero(pairs[0] == pairs[1]))
    if loops:
        remarks.append(
            Remark("repaired", f"{loops} self-loops removed", "backbones add their own where they need them")
        )
    straight = pairs[:, pairs[0] != pairs[1]]
    keys = straight[0] * count + straight[1]
    distinct = np.unique(keys)
    if distinct.size < keys.size:
        remarks.append(
            Remark(
                "repaired",
                f"{keys.size - distinct.size} repeated edges merged",
                "edges carry no weights here",
            )
        )
    back = (distinct % count) * count + distinct // count
    single = int(np.count_nonzero(~np.isin(back, distinct)))
    if single:
        remarks.append(
            Remark(
                "repaired",
                f"{single} of {distinct.size} stored edges had one direction and got the other",
                "all methods here treat graphs as undirected",
            )
        )
    return undirected(pairs, count)


def _masks(given: dict[str, Array], count: int, labelled: Array, name: str, remarks: list[Remark]) -> Array:
    """Training, validation and test nodes [3, s, n]."""
    if not given:
        return np.zeros((3, 0, count), dtype=bool)
    if "train_mask" not in given or "test_mask" not in given:
        raise DataError(
            f"{name} has {', '.join(given)} and lacks train_mask or test_mask: give both, or no mask at all"
        )
    stacked: dict[str, Array] = {}
    for key, value in given.items():
        mask = np.asarray(value)
        if mask.dtype != bool:
            if not np.isin(mask, (0, 1)).all():
                raise DataError(f"{name}: {key} must hold true and false, or 0 and 1")
            mask = mask.astype(bool)
        mask = np.atleast_2d(mask)
        if mask.shape[1] != count and mask.shape[0] == count:
            mask = mask.T
        if mask.shape[1] != count:
            raise DataError(f"{name}: {key} has shape {np.asarray(value).shape}, but there are {count} nodes")
        stacked[key] = mask
    train, test = stacked["train_mask"], stacked["test_mask"]
    if "val_mask" not in stacked:
        stacked["val_mask"] = ~(train | test) if train.shape == test.shape else train
        remarks.append(
            Remark("repaired", "nodes that neither train nor test now validate", "there is no val_mask")
        )
    if len({mask.shape for mask in stacked.values()}) > 1:
        raise DataError(f"{name}: the masks have different shapes ({[m.shape for m in stacked.values()]})")
    masks = np.stack([stacked[key] for key in MASKS])
    twice = int(np.count_nonzero(masks.sum(axis=0) > 1))
    if twice:
        raise DataError(
            f"{name}: {twice} nodes are in two masks: training, validation and test nodes must be apart"
        )
    unknown = masks & ~labelled
    if unknown.any():
        masks = masks & labelled
        remarks.append(
            Remark(
                "repaired",
                f"{int(unknown[:, 0].sum())} nodes without a label left out of the masks",
                "no truth",
            )
        )
    for role, key in enumerate(MASKS):
        if not masks[role].any(axis=1).all():
            raise DataError(f"{name}: {key} holds no node: give every mask one, or no mask at all")
    sizes = [int(mask.sum()) for mask in masks[:, 0]]
    splits = (
        f"{masks.shape[1]} splits, seed s takes split s modulo {masks.shape[1]}"
        if masks.shape[1] > 1
        else "one"
    )
    remarks.append(
        Remark(
            "noted",
            f"masks of the file: {sizes[0]} train, {sizes[1]} validate, {sizes[2]} test ({splits})",
            "used unless split=random",
        )
    )
    return masks


def _clients(
    given: Array | None, count: int, name: str, remarks: list[Remark]
) -> tuple[Array | None, tuple[str, ...]]:
    """Client of each node, numbered by name; numbers sort as numbers."""
    if given is None:
        return None, ()
    values = np.asarray(given).reshape(-1)
    if values.size != count:
        raise DataError(f"{name}: client has {values.size} entries, but there are {count} nodes")
    words = ["" if _is_nothing(value) else _word(value) for value in values]
    kinds = sorted({word for word in words if word}, key=natural)
    if not kinds:
        raise DataError(f"{name}: no node has a client: fill the column or array `client`, or leave it out")
    number = {word: place for place, word in enumerate(kinds)}
    out = np.array([number.get(word, NOBODY) for word in words], dtype=np.int64)
    alone = int(np.count_nonzero(out == NOBODY))
    nobody = f", {alone} nodes in none" if alone else ""
    numbers = "" if all(word == str(place) for place, word in enumerate(kinds)) else _numbers(kinds)
    what = f"{len(kinds)} clients named by the file{numbers}{nobody}"
    remarks.append(Remark("noted", what, "partition=own gives each its nodes"))
    return out, tuple(kinds)


def _numbers(words: Sequence[str]) -> str:
    """Which number stands for which word, in brackets."""
    text = ", ".join(f"{word} -> {place}" for place, word in enumerate(words[:LISTED]))
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return f" ({text}{more})"


def _word(value: Any) -> str:
    """A client's name; negative numbers stand for none, and 3.0 is 3."""
    if isinstance(value, int | float | np.integer | np.floating):
        return "" if value < 0 else f"{value:g}" if float(value) != round(float(value)) else str(int(value))
    return str(value).strip()


def _note_structure(graph: Graph, labelled: Array, remarks: list[Remark]) -> None:
    isolated = graph.nodes - np.unique(graph.edges[0]).size
    if isolated:
        remarks.append(
            Remark("noted", f"{isolated} isolated nodes", "kept: a model sees their own features only")
        )
    components, of = connected_components(graph.adjacency(), directed=False)
    if components > 1:
        largest = int(np.bincount(of).max())
        remarks.append(
            Remark(
                "noted",
                f"{components} connected components, the largest of {largest} nodes",
                "all are kept (component=largest keeps that one)",
            )
        )
    counts = np.bincount(graph.labels[labelled], minlength=graph.classes)
    rare = np.flatnonzero(counts < 10)
    if rare.size:
        remarks.append(
            Remark("noted", f"{rare.size} classes have fewer than 10 nodes", "most clients will not see them")
        )
