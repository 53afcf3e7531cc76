"""Graphs that a user brings: every format gives the same graph, and what is wrong is refused or reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.platform.errors import DataError
from fedatlas.platform.graphs import formats, own
from fedatlas.platform.graphs.federated import Scenario, build
from fedatlas.platform.graphs.loading import load

NODES = 12


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    own._load.cache_clear()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Two rings of six nodes, edges in both directions, features that say the class, three clients."""
    ring = np.array([(i, (i + 1) % 6) for i in range(6)])
    pairs = np.concatenate([ring, ring + 6])
    y = np.arange(NODES) % 2
    return {
        "x": np.stack([y, 1 - y, np.arange(NODES) / NODES], axis=1).astype(np.float32),
        "edge_index": np.concatenate([pairs, pairs[:, ::-1]]).T,
        "y": y,
        "client": np.arange(NODES) // 4,
    }


def masks() -> dict[str, np.ndarray]:
    role = np.arange(NODES) // 2 % 3
    return {f"{word}_mask": role == number for number, word in enumerate(("train", "val", "test"))}


def save_npz(path: Path, **values: Any) -> str:
    np.savez(path, **values)
    return str(path)


def table(folder: Path, values: dict[str, np.ndarray]) -> str:
    folder.mkdir()
    rows = ["id,label,client,a,b,c"]
    for i in range(NODES):
        x = ",".join(str(v) for v in values["x"][i])
        rows.append(f"{i},{values['y'][i]},{values['client'][i]},{x}")
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    pairs = [f"{a},{b}" for a, b in values["edge_index"].T]
    (folder / "edges.csv").write_text("\n".join(["source,target", *pairs]) + "\n")
    return str(folder) + "/"


def network(values: dict[str, np.ndarray]) -> nx.Graph:
    graph = nx.Graph()
    for i in range(NODES):
        x = {f"x{column}": float(value) for column, value in enumerate(values["x"][i])}
        graph.add_node(i, label=int(values["y"][i]), client=int(values["client"][i]), **x)
    graph.add_edges_from(values["edge_index"].T.tolist())
    return graph


def pyg(values: dict[str, np.ndarray]) -> Any:
    from torch_geometric.data import Data

    return Data(**{key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in values.items()})


def written(form: str, folder: Path, values: dict[str, np.ndarray]) -> str:
    path = folder / f"g.{form}"
    if form == "npz":
        return save_npz(path, **values)
    if form == "csr.npz":
        x = sp.csr_array(values["x"])
        parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
        return save_npz(path, **parts, **{key: value for key, value in values.items() if key != "x"})
    if form == "platonov.npz":
        renamed = {"node_features": values["x"], "node_labels": values["y"], "client": values["client"]}
        return save_npz(path, edges=values["edge_index"].T, **renamed)
    if form == "pt":
        torch.save(pyg(values), path)
    elif form == "dict.pt":
        torch.save({key: torch.from_numpy(np.ascontiguousarray(v)) for key, v in values.items()}, path)
    elif form == "safetensors":
        from safetensors.numpy import save_file

        save_file({key: np.ascontiguousarray(value) for key, value in values.items()}, path)
    elif form == "graphml":
        nx.write_graphml(network(values), path)
    elif form == "json":
        path.write_text(json.dumps(nx.node_link_data(network(values), edges="edges")))
    elif form == "folder":
        return table(folder / "g", values)
    return str(path)


FORMS = ("npz", "csr.npz", "platonov.npz", "pt", "dict.pt", "safetensors", "graphml", "json", "folder")


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_graph(tmp_path: Path, arrays: dict[str, np.ndarray], form: str) -> None:
    reference = own.load(save_npz(tmp_path / "reference.npz", **arrays))
    found = own.load(written(form, tmp_path, arrays))
    assert found.sha256 == reference.sha256
    assert found.graph.nodes, found.graph.classes == (NODES, 2)
    assert found.clients is not None
    assert found.clients.tolist() == arrays["client"].tolist()


def test_name_and_place_are_no_part_of_the_identity(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    first = own.load(save_npz(tmp_path / "one.npz", **arrays))
    (tmp_path / "deep").mkdir()
    second = own.load(save_npz(tmp_path / "deep" / "other.npz", **arrays))
    assert (first.graph.name, second.graph.name) == ("one", "other")
    assert first.sha256 == second.sha256


@pytest.mark.parametrize("change", ["x", "y", "edge_index", "client", "train_mask"])
def test_every_array_is_part_of_the_identity(
    tmp_path: Path, arrays: dict[str, np.ndarray], change: str
) -> None:
    before = {**arrays, **masks()}
    first = own.load(save_npz(tmp_path / "g.npz", **before))
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "x": lambda x: x + 1,
        "y": lambda y: 1 - y,
        "edge_index": lambda e: e[:, 1 : NODES - 1],
        "client": lambda c: c[::-1],
        "train_mask": lambda m: m & (np.arange(NODES) > 0),
    }
    after = {**before, change: changes[change](before[change])}
    assert own.load(save_npz(tmp_path / "g.npz", **after)).sha256 != first.sha256


def test_the_second_load_comes_from_the_data_folder(
    tmp_path: Path, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("folder", tmp_path, {**arrays})
    first = own.load(path)
    own._load.cache_clear()
    monkeypatch.setattr(formats, "read", lambda path: pytest.fail("read again"))
    second = own.load(path)
    assert second.sha256 == first.sha256
    assert second.remarks == first.remarks
    assert second.client_names == first.client_names


def test_a_changed_file_is_read_again(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = save_npz(tmp_path / "g.npz", **arrays)
    before = build(Scenario(dataset=path, partition="random", clients=2, seed=3, allow_untrained=True))
    save_npz(tmp_path / "g.npz", **{**arrays, "x": arrays["x"] * 2})
    after = build(Scenario(dataset=path, partition="random", clients=2, seed=3, allow_untrained=True))
    assert np.array_equal(after.clients[0].features, 2 * before.clients[0].features)
    assert after.sha256 != before.sha256


# Repairs


def remarks(path: str) -> str:
    return "\n".join(f"{each.kind} {each}" for each in own.load(path).remarks)


def test_what_is_repaired_is_reported(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    one_way = arrays["edge_index"][:, :NODES]
    untidy = np.concatenate([one_way, one_way[:, :3], [[5], [5]]], axis=1)
    path = save_npz(tmp_path / "g.npz", x=arrays["x"], edge_index=untidy.T, y=3 + 4 * arrays["y"])
    text = remarks(path)
    assert "repaired 1 self-loops removed" in text
    assert "repaired 3 repeated edges merged" in text
    assert "repaired 12 of 12 stored edges had one direction" in text
    assert "repaired edge_index turned from [e, 2] to [2, e]" in text
    assert "repaired classes numbered (3 -> 0, 7 -> 1)" in text
    plain = own.load(save_npz(tmp_path / "plain.npz", **{k: arrays[k] for k in ("x", "edge_index", "y")}))
    assert own.load(path).sha256 == plain.sha256


def test_words_become_columns_and_classes(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    rows = [f"n{i},{'yes' if i % 2 else 'no'},{'red' if i < 5 else 'blue'},{i}" for i in range(NODES)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,colour,size", *rows]))
    (folder / "edges.csv").write_text("source,target,weight\nn0,n1,0.5\nn1,n2,0.1\n")
    found = own.load(str(folder) + "/")
    assert np.asarray(found.graph.features)[0].tolist() == [0, 1, 0]
    assert np.asarray(found.graph.features)[11].tolist() == [1, 0, 11]
    assert found.graph.labels.tolist() == [i % 2 for i in range(NODES)]
    assert found.names is not None
    text = remarks(str(folder) + "/")
    assert "column colour spread into 2 columns" in text
    assert "edge columns weight left out" in text
    assert "noted 9 isolated nodes" in text


def test_clients_are_named_and_large_features_advised(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    homes = np.array(["north" if i % 3 else "south" for i in range(NODES)])
    text = remarks(save_npz(tmp_path / "g.npz", **{**arrays, "x": 100 * arrays["x"] + 50, "client": homes}))
    assert "noted 2 clients named by the file (north -> 0, south -> 1)" in text
    assert "advised features reach" in text
    assert "use features=standard" in text
    assert "advised" not in remarks(save_npz(tmp_path / "small.npz", **arrays))


def test_nodes_without_a_label_get_no_role(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    y = arrays["y"].astype(np.float64)
    y[[1, 4]] = np.nan
    path = save_npz(tmp_path / "g.npz", **{**arrays, "y": y})
    assert "2 nodes without a label" in remarks(path)
    for seed in range(5):
        graph = build(Scenario(dataset=path, partition="own", clients=3, seed=seed, allow_untrained=True))
        roles = sum(part.train.sum() + part.validation.sum() + part.test.sum() for part in graph.clients)
        assert roles == NODES - 2
        for part in graph.clients:
            held = np.isin(part.nodes, [1, 4])
            assert not (part.train | part.validation | part.test)[held].any()


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": lambda x: np.where(x == 0, np.nan, x)},
            "13 values that are NaN or infinite, the first at node 0, column 0",
        ),
        ({"x": lambda x: x[:-1]}, r"x has shape \(11, 3\), but there are 12 labels"),
        ({"x": lambda x: x[:, 0]}, r"x has shape \(12,\)"),
        ({"edge_index": lambda e: e + 1}, "names nodes 1 to 12, .* must start at 0"),
        ({"edge_index": lambda e: e - 20}, "names nodes -20 to"),
        ({"edge_index": lambda e: e + 0.5}, "no node ids"),
        ({"edge_index": lambda e: np.zeros((3, 4), dtype=int)}, r"shape \(3, 4\); it must be \[2, e\]"),
        ({"y": lambda y: y * 0}, "has 1 class among"),
        ({"y": lambda y: y + 0.5}, "no class number"),
        ({"y": lambda y: np.ones((NODES, 3))}, "a node must have one class"),
        ({"client": lambda c: c[:-1]}, "client has 11 entries"),
        ({"train_mask": lambda m: ~m}, "nodes are in two masks"),
        ({"val_mask": lambda m: m & False}, "val_mask holds no node"),
        ({"test_mask": lambda m: m[:-1]}, "test_mask has shape"),
    ],
    ids=str,
)
def test_what_cannot_be_mended_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], change: dict[str, Any], message: str
) -> None:
    values = {**arrays, **masks()}
    ((key, alter),) = change.items()
    with pytest.raises(DataError, match=message):
        own.load(save_npz(tmp_path / "g.npz", **{**values, key: alter(values[key])}))


def test_missing_parts_are_named(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match="lacks `y`"):
        own.load(save_npz(tmp_path / "a.npz", x=arrays["x"], edge_index=arrays["edge_index"]))
    with pytest.raises(DataError, match="has no node features"):
        own.load(save_npz(tmp_path / "b.npz", y=arrays["y"], edge_index=arrays["edge_index"]))
    with pytest.raises(DataError, match=r"there is no file .*missing\.npz"):
        load(str(tmp_path / "missing.npz"))
    (tmp_path / "my-nodes.csv").write_text("label,a\n0,1\n1,0\n")
    with pytest.raises(DataError, match=r"needs my-edges\.csv beside it"):
        load(str(tmp_path / "my-nodes.csv"))
    (tmp_path / "my-edges.csv").write_text("source,target\n0,9\n")
    with pytest.raises(DataError, match=r"name 1 nodes that my-nodes\.csv lacks, for example '9'"):
        load(str(tmp_path / "my-nodes.csv"))


class Harmful:
    """Runs a command when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.witness,))


def test_no_file_can_run_code(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    witness = tmp_path / "harmed"
    torch.save({"x": torch.ones(2, 2), "y": Harmful(witness)}, tmp_path / "g.pt")
    with pytest.raises(DataError, match="could carry code"):
        load(str(tmp_path / "g.pt"))
    np.savez(
        tmp_path / "g.npz", x=arrays["x"], edge_index=arrays["edge_index"], y=np.array([Harmful(witness)])
    )
    with pytest.raises(DataError, match="could carry code"):
        load(str(tmp_path / "g.npz"))
    assert not witness.exists()


def test_graphs_in_memory_are_kept_under_their_hash(arrays: dict[str, np.ndarray]) -> None:
    for given in (arrays, pyg(arrays), network(arrays)):
        path = own.keep(given, "mine")
        assert own.load(str(path)).graph.name == "mine"
        assert own.keep(given, "mine") == path
    assert own.keep(arrays) == own.keep(pyg(arrays))


# Masks and clients of the file


def test_masks_of_the_file_are_used_and_may_be_several(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    given = masks()
    several = {key: np.stack([mask, np.roll(mask, 2)]) for key, mask in given.items()}
    path = save_npz(tmp_path / "g.npz", **arrays, **several)
    for seed in (0, 1, 2):
        graph = build(Scenario(dataset=path, partition="own", clients=3, seed=seed, allow_untrained=True))
        train = np.concatenate([part.nodes[part.train] for part in graph.clients])
        assert sorted(train) == np.flatnonzero(several["train_mask"][seed % 2]).tolist()
    drawn = Scenario(dataset=path, partition="own", clients=3, split="random", allow_untrained=True)
    assert sum(part.train.sum() for part in build(drawn).clients) == round(0.2 * NODES)


def test_pieces_are_kept_unless_the_largest_is_asked_for(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    path = save_npz(tmp_path / "g.npz", **arrays)
    whole = build(Scenario(dataset=path, partition="random", clients=2, allow_untrained=True))
    assert sum(part.size for part in whole.clients) == NODES
    part = Scenario(dataset=path, partition="random", clients=2, component="largest", allow_untrained=True)
    assert sum(each.size for each in build(part).clients) == 6


@pytest.mark.data
@pytest.mark.parametrize("name", ["actor", "chameleon-filtered", "squirrel-filtered"])
def test_further_published_sets_need_their_entry_alone(data_store: Path, name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEDATLAS_DATA", str(data_store))
    graph = load(name)
    assert (graph.metric, graph.kind, graph.classes) == ("accuracy", "real", 5)
