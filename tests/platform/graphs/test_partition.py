from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest

from fedatlas.platform.errors import ConfigurationError, PartitionError
from fedatlas.platform.graphs import minesweeper
from fedatlas.platform.graphs import partition as partitioning
from fedatlas.platform.graphs.partition import metis_binding, partition
from fedatlas.platform.randomness import stream

DISJOINT = ("metis", "random", "louvain", "label-skew")


@pytest.mark.parametrize("mode", DISJOINT)
@pytest.mark.parametrize("clients", [1, 3, 5, 10])
def test_every_node_belongs_to_exactly_one_client(blocks, mode, clients):
    parts = partition(blocks, mode, clients)
    assert parts.mode == mode
    assert parts.clients == len(parts.members) == clients
    for nodes in parts.members:
        assert nodes.dtype == np.int64
        assert (np.diff(nodes) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(parts.members)), np.arange(blocks.nodes))


def sizes(graph, mode, clients):
    return np.array([len(nodes) for nodes in partition(graph, mode, clients).members])


def test_sizes_are_balanced(blocks):
    assert np.ptp(sizes(blocks, "random", 7)) <= 1
    # METIS lets the largest of its k-way parts exceed the mean by 3 %, plus rounding.
    assert sizes(blocks, "metis", 10).max() <= 600 / 10 * 1.03 + 1
    for clients in (2, 5, 9, 50, 599, 600):
        assert sizes(blocks, "louvain", clients).min() >= 1
        assert sizes(blocks, "louvain", clients).max() < 2 * 600 / clients


@pytest.mark.parametrize("mode", [*DISJOINT, "metis-overlap"])
def test_the_seed_alone_decides(blocks, mode):
    first, again, other = (partition(blocks, mode, 5, seed).sha256() for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("clients", [5, 20])
def test_metis_is_the_k_way_algorithm_at_every_client_count(clients):
    """The oracle is pymetis called plainly, in a process where nothing else draws random numbers."""
    graph = minesweeper.graph()
    script = (
        "import sys, pymetis\n"
        "from fedatlas.platform.graphs import minesweeper\n"
        "neighbours = [[] for _ in range(10000)]\n"
        "for u, v in minesweeper.graph().edges.T.tolist(): neighbours[u].append(v)\n"
        "found = pymetis.part_graph(int(sys.argv[1]), neighbours, recursive=False,"
        " options=pymetis.Options(seed=5))\n"
        "print(*found.vertex_part)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(clients)],
        capture_output=True,
        text=True,
        check=True,
    )
    direct = [int(part) for part in done.stdout.split()]
    owner = np.empty(graph.nodes, dtype=int)
    for client, nodes in enumerate(partition(graph, "metis", clients, seed=5).members):
        owner[nodes] = client
    np.testing.assert_array_equal(owner, direct)


def test_other_threads_that_draw_random_numbers_do_not_change_a_metis_partition():
    """METIS draws from the C library's generator, which all threads of a process share."""
    graph = minesweeper.graph()
    quiet = partition(graph, "metis", 5).sha256()
    library = ctypes.CDLL(None)
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            library.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert partition(graph, "metis", 5).sha256() == quiet
    finally:
        stop.set()
        thread.join()


def test_metis_and_louvain_recover_planted_blocks(blocks):
    """Both cut far fewer edges than chance, which cuts nine of ten."""
    cut = {}
    for mode in DISJOINT:
        owner = np.empty(blocks.nodes, dtype=int)
        for client, nodes in enumerate(partition(blocks, mode, 12).members):
            owner[nodes] = client
        cut[mode] = np.mean(owner[blocks.edges[0]] != owner[blocks.edges[1]])
    assert cut["random"] > 0.85
    assert cut["metis"] < 0.35
    assert cut["louvain"] < 0.35


@pytest.mark.parametrize("clients", [5, 10, 30])
def test_overlapping_clients_are_five_half_draws_of_each_metis_part(blocks, clients):
    parts = partition(blocks, "metis", clients // 5, seed=2).members
    drawn = partition(blocks, "metis-overlap", clients, seed=2).members
    assert len(drawn) == clients
    for client, nodes in enumerate(drawn):
        part = parts[client // 5]
        order = stream(2, client, -1, "overlap").permutation(len(part))
        assert len(nodes) == len(part) // 2
        np.testing.assert_array_equal(nodes, np.sort(part[order[: len(part) // 2]]))


def test_draws_of_one_part_overlap_and_differ(blocks):
    first, second = partition(blocks, "metis-overlap", 5).members[:2]
    shared = len(np.intersect1d(first, second))
    assert 0 < shared < len(first)


def test_a_graph_without_edges_can_be_divided(make_graph):
    graph = make_graph(nodes=20)
    for mode in (*DISJOINT, "metis-overlap"):
        assert len(partition(graph, mode, 5).members) == 5


def test_the_hash_depends_on_who_holds_what(make_graph):
    parts = partition(make_graph(nodes=6), "random", 2)
    swapped = replace(parts, members=parts.members[::-1])
    joined = replace(parts, members=(np.concatenate(parts.members),))
    assert len({parts.sha256(), swapped.sha256(), joined.sha256()}) == 3


def test_metis_binding_names_version_and_algorithm():
    assert metis_binding() == f"pymetis {version('pymetis')}, k-way"


@pytest.mark.parametrize(
    ("mode", "clients", "message"),
    [
        ("metis", 0, "clients=0 must be at least 1"),
        ("random", -2, "clients=-2 must be at least 1"),
        ("louvain", 61, "clients=61 exceeds the 60 nodes of handmade: use at most 60 clients"),
        ("metis-overlap", 12, "clients=12 is not a multiple of 5, .* use clients=10 or clients=15"),
        ("metis-overlap", 1, "clients=1 is not a multiple of 5, .* use clients=5, or partition=metis"),
        (
            "metis",
            50,
            r"clients=50 needs 50 non-empty METIS parts; handmade gave \d+ "
            r"\(parts [\d, ]+ and .+ are empty\): use fewer clients or partition=random",
        ),
    ],
)
def test_a_division_that_cannot_be_is_explained(make_graph, mode, clients, message):
    path = make_graph([(node, node + 1) for node in range(59)], nodes=60)
    with pytest.raises(PartitionError, match=message):
        partition(path, mode, clients)


def test_one_empty_metis_part_is_named(monkeypatch, make_graph):
    monkeypatch.setattr(partitioning, "k_way", lambda *_: np.array([0, 2, 0, 2]))
    with pytest.raises(PartitionError, match=r"clients=3 .* handmade gave 2 \(part 1 is empty\): use fewer"):
        partition(make_graph(nodes=4), "metis", 3)


def test_half_of_a_part_of_one_node_is_refused(monkeypatch, make_graph):
    monkeypatch.setattr(partitioning, "k_way", lambda *_: np.array([0, 1, 1] + [1] * 7))
    with pytest.raises(PartitionError, match=r"half of each METIS part, but .* parts of one node \(0\)"):
        partition(make_graph(nodes=10), "metis-overlap", 10)


def test_an_unknown_mode_names_the_nearest(blocks):
    with pytest.raises(ConfigurationError, match="unknown partition 'meits': did you mean metis"):
        partition(blocks, "meits", 5)


def class_shares(graph, concentration):
    parts = partition(graph, "label-skew", 5, concentration=concentration)
    counts = [np.bincount(graph.labels[nodes], minlength=graph.classes) for nodes in parts.members]
    return np.array([row / row.sum() for row in counts])


def test_a_small_concentration_means_strong_skew(blocks):
    even = np.bincount(blocks.labels) / blocks.nodes
    weak, strong = (np.abs(class_shares(blocks, beta) - even).mean() for beta in (1000.0, 0.1))
    assert weak < 0.05
    assert strong > 0.15


def test_label_skew_leaves_every_client_ten_nodes_or_refuses(blocks):
    assert sizes(blocks, "label-skew", 10).min() >= 10
    with pytest.raises(
        PartitionError, match=r"concentration=0\.001 left one of clients=30 with fewer than 10"
    ):
        partition(blocks, "label-skew", 30, concentration=0.001)
