"""Clients that a user brings, and partitions as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.platform.errors import ConfigurationError, DataError, PartitionError
from fedatlas.platform.graphs import formats, membership, own
from fedatlas.platform.graphs.federated import (
    Scenario,
    build,
    concrete,
    count_clients,
    data_sha256,
    placed,
)

BASE = {"dataset": "minesweeper", "partition": "random", "clients": 3}


def saved(path: Path, scenario: Scenario, roles: bool = False) -> str:
    found = placed(scenario)
    membership.save(
        path,
        "a test",
        data_sha256(scenario.dataset),
        found.members,
        found.names,
        found.split if roles else None,
        found.client_names,
    )
    return str(path)


def same(first: Any, second: Any, roles: bool = True) -> None:
    assert first.partition_sha256 == second.partition_sha256
    for one, other in zip(first.clients, second.clients, strict=True):
        for name in (
            "nodes",
            "features",
            "edges",
            "labels",
            *(("train", "validation", "test") if roles else ()),
        ):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("mode", ["metis", "metis-overlap", "random", "louvain"])
def test_a_saved_partition_gives_the_very_same_clients(tmp_path: Path, mode: str) -> None:
    scenario = Scenario(dataset="minesweeper", partition=mode, clients=5, seed=4)
    path = saved(tmp_path / "p.csv", scenario)
    assert count_clients("minesweeper", path) == 5
    same(build(scenario), build(Scenario(dataset="minesweeper", partition=path, clients=5, seed=4)))


def test_roles_of_a_file_hold_for_every_seed(tmp_path: Path) -> None:
    scenario = Scenario(**BASE, seed=4)
    path = saved(tmp_path / "p.csv", scenario, roles=True)
    for seed in (0, 1):
        again = Scenario(dataset="minesweeper", partition=path, clients=3, seed=seed)
        same(build(scenario), build(again))
        assert concrete(again)["split"] == "own"
    drawn = Scenario(dataset="minesweeper", partition=path, clients=3, seed=1, split="random")
    same(build(Scenario(**BASE, seed=1)), build(drawn))


def test_the_other_forms_say_the_same(tmp_path: Path) -> None:
    owner = np.arange(10_000) % 3
    (tmp_path / "parts.csv").write_text("\n".join(map(str, owner)) + "\n")
    np.savez(tmp_path / "parts.npz", client=owner)
    lists = {f"c{client}": np.flatnonzero(owner == client).tolist() for client in range(3)}
    (tmp_path / "parts.json").write_text(json.dumps(lists))
    rows = [f"{node}\tc{client}" for node, client in enumerate(owner)]
    (tmp_path / "parts.tsv").write_text("\n".join(["node\tclient", *reversed(rows)]))
    found = [
        build(Scenario(dataset="minesweeper", partition=str(path), clients=3))
        for path in sorted(tmp_path.glob("parts.*"))
    ]
    assert len(found) == 4
    for other in found[1:]:
        same(found[0], other)


def test_a_node_may_be_in_several_clients_or_in_none(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    rows = [
        f"{node},{client}" for client, nodes in enumerate((range(300), range(200, 500))) for node in nodes
    ]
    path.write_text("\n".join(["node,client", *rows, *rows[:5]]))
    found = build(Scenario(dataset="minesweeper", partition=str(path), clients=2))
    assert found.clients[0].nodes.tolist() == list(range(300))
    assert found.clients[1].nodes.tolist() == list(range(200, 500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,client\n0,a\n99999,b\n", "names 1 nodes that minesweeper lacks, for example '99999'"),
        ("node,group\n0,a\n", "needs node and client"),
        ("", "it is empty"),
        ("node,client\n0,\n1,-1\n", "gives no node a client"),
        ("node,client,role\n0,a,train\n1,b,exam\n", "role 'exam' of row 1 is not known"),
        ("node,client,role\n0,a,train\n0,b,test\n1,a,validation\n", "gives node 0 two roles"),
        ("node,client,role\n0,a,train\n1,b,test\n", "no node with the role validation"),
        (f"# x data_sha256={'0' * 64}\nnode,client\n0,a\n1,b\n", "divides a graph with sha256 000000000000"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(PartitionError, match=message):
        build(Scenario(dataset="minesweeper", partition=str(path), clients=2, allow_untrained=True))


def test_counts_and_settings_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.csv", Scenario(**BASE))
    with pytest.raises(PartitionError, match=r"clients=5: partition=own:p has 3 clients"):
        build(Scenario(dataset="minesweeper", partition=path, clients=5))
    with pytest.raises(PartitionError, match="minesweeper names no clients"):
        build(Scenario(dataset="minesweeper", partition="own", clients=5))
    with pytest.raises(PartitionError, match="there is no such file"):
        build(Scenario(dataset="minesweeper", partition="./nowhere.csv", clients=5))
    with pytest.raises(ConfigurationError, match="split=own: minesweeper has no masks"):
        build(Scenario(**BASE, split="own"))
    with pytest.raises(ConfigurationError, match="the score of minesweeper is auc"):
        concrete(Scenario(**BASE, metric="accuracy"))


def test_published_partitions_of_the_fedpub_family_are_rerun(tmp_path: Path) -> None:
    scenario = Scenario(dataset="minesweeper", partition="metis-overlap", clients=5)
    whole = build(scenario)
    formats.write_clients(whole, tmp_path / "run")
    folder = f"{tmp_path / 'run'}/"
    assert count_clients(folder, "own") == 5
    again = build(Scenario(dataset=folder, partition="own", clients=5))
    for one, other in zip(whole.clients, again.clients, strict=True):
        for name in ("features", "edges", "labels", "train", "validation", "test"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_plain_data_objects_under_other_names_are_read_too(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    whole = build(Scenario(**BASE))
    formats.write_clients(whole, tmp_path)
    for path in sorted(tmp_path.glob("partition_*.pt")):
        with torch.serialization.safe_globals(formats._pyg_classes()):
            content = torch.load(path, weights_only=True)
        assert isinstance(content["client_data"], Data)
        torch.save(content["client_data"], path.with_name(path.name.replace("partition_", "data_")))
        path.unlink()
    again = own.load(f"{tmp_path}/")
    assert again.client_names == ("0", "1", "2")
    (tmp_path / "data_1.pt").write_bytes(b"not a file of torch")
    with pytest.raises(DataError, match=r"data_1\.pt"):
        own.load(f"{tmp_path}/")
