from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedatlas.platform.graphs import minesweeper
from fedatlas.platform.graphs.description import describe, describe_clients, homophily
from fedatlas.platform.graphs.federated import divide
from fedatlas.platform.graphs.partition import partition
from fedatlas.platform.graphs.splits import random_split
from fedatlas.sweeps.commands.partition import partition as command


def test_homophily_is_the_share_of_edges_within_a_class():
    edges = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    assert homophily(edges, np.array([0, 0, 0, 1])) == pytest.approx(2 / 3)
    assert math.isnan(homophily(edges[:, :0], np.array([0, 1])))


def test_the_whole_minesweeper_graph():
    summary = describe(minesweeper.graph())
    assert (summary.nodes, summary.edges, summary.isolated) == (10_000, 39_402, 0)
    assert (summary.features, summary.classes, summary.histogram) == (7, 2, (8_000, 2_000))
    # Platonov et al. (ICLR 2023) print 0.68.
    assert summary.homophily == pytest.approx(0.68, abs=0.005)


@pytest.mark.parametrize("mode", ["random", "metis-overlap"])
def test_clients_are_described_as_networkx_counts_them(blocks, mode):
    split = random_split(blocks.nodes, 0.2, 0.4, seed=0)
    divided = divide(blocks, partition(blocks, mode, 10), split)
    network = nx.Graph(blocks.edges.T.tolist())
    network.add_nodes_from(range(blocks.nodes))

    table = describe_clients(divided, blocks).set_index("client")

    for part in divided.clients:
        row = table.loc[part.client]
        nodes = set(part.nodes.tolist())
        inside = network.subgraph(nodes)
        incident = network.edges(nodes)
        assert row.nodes == len(nodes)
        assert row.edges == inside.number_of_edges()
        assert row.isolated == nx.number_of_isolates(inside)
        assert row.lost_edges == len({frozenset(edge) for edge in incident}) - row.edges
        assert (row.train, row.validation, row.test) == tuple(
            np.count_nonzero(mask[part.nodes]) for mask in (split.train, split.validation, split.test)
        )
        labels = blocks.labels[part.nodes].tolist()
        assert row.histogram == tuple(labels.count(label) for label in range(3))
        same = [blocks.labels[a] == blocks.labels[b] for a, b in inside.edges]
        assert row.homophily == pytest.approx(np.mean(same))


def test_a_lost_edge_counts_for_both_of_its_clients(blocks):
    divided = divide(blocks, partition(blocks, "metis", 5), random_split(blocks.nodes, 0.2, 0.4, seed=0))
    table = describe_clients(divided, blocks)
    assert table.lost_edges.sum() == 2 * divided.lost_edges
    assert table.edges.sum() + divided.lost_edges == describe(blocks).edges


def test_lost_edges_need_the_whole_graph(blocks):
    divided = divide(blocks, partition(blocks, "metis", 5), random_split(blocks.nodes, 0.2, 0.4, seed=0))
    assert "lost_edges" not in describe_clients(divided)


def test_the_command_prints_the_description(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    app = typer.Typer()
    app.command("partition")(command)

    printed = CliRunner().invoke(app, ["minesweeper", "--clients", "3"])

    assert printed.exit_code == 0, printed.output
    graph = minesweeper.graph()
    divided = divide(graph, partition(graph, "metis", 3), random_split(graph.nodes, 0.2, 0.4, seed=0))
    lines = [line.split() for line in printed.output.splitlines()]
    rows = describe_clients(divided, graph).itertuples()
    expected = [
        [row.client, row.nodes, row.edges, row.lost_edges, row.train, f"{row.homophily:.3f}"] for row in rows
    ]
    assert [line[:6] for line in lines if line and line[0].isdigit()] == [
        list(map(str, row)) for row in expected
    ]
    (total,) = (line for line in lines if line and line[0] == "all")
    assert total == ["all", "10000", "39402", str(divided.lost_edges), "0.683", "0:8000", "1:2000"]
