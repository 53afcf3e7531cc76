from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from pydantic import ValidationError

from fedatlas.platform.errors import ConfigurationError, PartitionError
from fedatlas.platform.graphs import federated, minesweeper
from fedatlas.platform.graphs.federated import Scenario, build, divide, preprocess
from fedatlas.platform.graphs.graph import Split
from fedatlas.platform.graphs.partition import MODES, Partition, partition
from fedatlas.platform.graphs.splits import random_split


def brute_force(graph, members):
    """Edges of the whole graph with both ends in `members`, in local numbering."""
    local = {node: number for number, node in enumerate(members.tolist())}
    pairs = graph.edges.T.tolist()
    return [[local[a], local[b]] for a, b in pairs if a in local and b in local]


@pytest.mark.parametrize("mode", MODES)
def test_clients_are_exactly_the_induced_subgraphs(blocks, mode):
    parts = partition(blocks, mode, 10)
    split = random_split(blocks.nodes, 0.2, 0.4, seed=0)

    divided = divide(blocks, parts, split)

    held = set()
    assert [part.client for part in divided.clients] == list(range(10))
    for part, members in zip(divided.clients, parts.members, strict=True):
        assert part.edges.T.tolist() == brute_force(blocks, members)
        assert part.edges.dtype == np.int64
        held |= {frozenset(pair) for pair in members[part.edges].T.tolist()}
        np.testing.assert_array_equal(part.nodes, members)
        np.testing.assert_array_equal(part.features, blocks.features[members])
        np.testing.assert_array_equal(part.labels, blocks.labels[members])
    edges = {frozenset(pair) for pair in blocks.edges.T.tolist()}
    assert divided.lost_edges == len(edges - held) > 0
    assert divided.partition_sha256 == parts.sha256()
    assert divided.sha256 == blocks.sha256()


def test_a_node_keeps_its_role_in_every_client_that_holds_it(blocks):
    split = random_split(blocks.nodes, 0.2, 0.4, seed=0)
    divided = divide(blocks, partition(blocks, "metis-overlap", 10), split)
    for role in ("train", "validation", "test"):
        seen = {}
        for part in divided.clients:
            for node, has_role in zip(part.nodes.tolist(), getattr(part, role).tolist(), strict=True):
                assert seen.setdefault(node, has_role) == has_role == getattr(split, role)[node]


def test_a_single_client_is_the_whole_graph(blocks):
    parts = partition(blocks, "metis", 1)
    (only,) = divide(blocks, parts, random_split(blocks.nodes, 0.2, 0.4, seed=0)).clients
    np.testing.assert_array_equal(only.edges, blocks.edges)
    np.testing.assert_array_equal(only.features, blocks.features)


def test_sparse_features_give_the_same_clients_as_dense_ones(blocks):
    parts, split = partition(blocks, "metis", 4), random_split(blocks.nodes, 0.2, 0.4, seed=0)
    sparse = divide(replace(blocks, features=sp.csr_array(blocks.features)), parts, split)
    for part, other in zip(divide(blocks, parts, split).clients, sparse.clients, strict=True):
        assert isinstance(other.features, sp.csr_array)
        np.testing.assert_array_equal(other.features.toarray(), part.features)


def test_clients_without_edges_are_held_and_their_edges_lost(make_graph):
    graph = make_graph([(0, 1), (2, 3)], nodes=4)
    everyone = np.ones(4, dtype=bool)
    parts = Partition("random", 2, (np.array([0, 2]), np.array([1, 3])))
    divided = divide(graph, parts, Split(train=everyone, validation=~everyone, test=~everyone))
    assert [part.edges.shape for part in divided.clients] == [(2, 0), (2, 0)]
    assert divided.lost_edges == 2


def test_clients_without_a_training_node_are_named(blocks):
    parts = partition(blocks, "metis", 6)
    train = np.ones(blocks.nodes, dtype=bool)
    train[parts.members[1]] = train[parts.members[4]] = False
    split = Split(train=train, validation=~train, test=np.zeros_like(train))

    message = (
        r"clients 1 and 4 have no training node \(handmade, clients=6, partition=metis\): use another seed"
    )
    with pytest.raises(PartitionError, match=message):
        divide(blocks, parts, split)

    assert len(divide(blocks, parts, split, allow_untrained=True).clients) == 6
    train[parts.members[4]] = True
    with pytest.raises(PartitionError, match="client 1 has no training node"):
        divide(blocks, parts, split)


def test_a_scenario_is_loaded_preprocessed_split_and_divided():
    graph = minesweeper.graph()
    scenario = Scenario(dataset="minesweeper", clients=5, seed=3)

    built = build(scenario)

    expected = divide(graph, partition(graph, "metis", 5), random_split(graph.nodes, 0.2, 0.4, seed=3))
    assert built.sha256 == expected.sha256 == graph.sha256()
    assert built.partition_sha256 == expected.partition_sha256
    assert built.lost_edges == expected.lost_edges
    assert (built.metric, built.kind, built.classes, built.features) == ("auc", "generated", 2, 7)
    for part, other in zip(built.clients, expected.clients, strict=True):
        np.testing.assert_array_equal(part.train, other.train)
        np.testing.assert_array_equal(part.edges, other.edges)


def test_repetitions_share_the_partition_and_differ_in_the_split():
    first, second = (build(Scenario(dataset="minesweeper", clients=5, seed=seed)) for seed in (0, 1))
    assert first.partition_sha256 == second.partition_sha256
    assert (first.clients[0].train != second.clients[0].train).any()
    other = build(Scenario(dataset="minesweeper", clients=5, partition_seed=1))
    assert other.partition_sha256 != first.partition_sha256


def test_repetitions_divide_only_once(monkeypatch):
    calls = []
    monkeypatch.setattr(federated, "partition", lambda *given: calls.append(given) or partition(*given))
    federated._partition.cache_clear()
    for seed in range(3):
        build(Scenario(dataset="minesweeper", clients=4, seed=seed))
    assert len(calls) == 1


@pytest.fixture
def cora_like(monkeypatch, make_graph):
    """The data set ``cora`` replaced by a graph of two components, 30 and 10 nodes large."""
    path = [(node, node + 1) for node in range(39) if node != 29]
    graph = make_graph(path, nodes=40)
    monkeypatch.setattr(federated, "load", lambda name: replace(graph, name=name))
    caches = (federated._loaded, federated._whole, federated._partition)
    for cache in caches:
        cache.cache_clear()
    yield graph
    for cache in caches:
        cache.cache_clear()


def test_default_preprocessing_is_that_of_the_protocol(cora_like):
    whole = preprocess(Scenario(dataset="cora", clients=2))
    assert whole.nodes == 30
    np.testing.assert_allclose(whole.features.sum(axis=1), 1, rtol=1e-5)
    unscaled = preprocess(Scenario(dataset="cora", clients=2, features="none", component="all"))
    np.testing.assert_array_equal(unscaled.features, cora_like.features)


def roles(**changes):
    built = build(Scenario(dataset="cora", clients=1, component="all", **changes))
    (part,) = built.clients
    return part.train.sum(), part.validation.sum(), part.test.sum()


def test_fractions_default_to_the_published_ones_and_share_the_rest(cora_like):
    assert roles() == (8, 16, 16)
    assert roles(train_fraction=0.5) == (20, 10, 10)
    assert roles(train_fraction=0.5, test_fraction=0.1) == (20, 16, 4)
    assert roles(test_fraction=0.1) == (8, 28, 4)
    with pytest.raises(ConfigurationError, match=r"train_fraction=0.5 and test_fraction=0.5"):
        roles(train_fraction=0.5, test_fraction=0.5)


def test_built_clients_do_not_share_memory_with_the_cache(cora_like):
    scenario = Scenario(dataset="cora", clients=1, features="none")
    build(scenario).clients[0].features[:] = 0
    assert build(scenario).clients[0].features.all()


def test_every_client_of_a_scenario_trains_unless_allowed(cora_like):
    with pytest.raises(PartitionError, match="have no training node"):
        build(Scenario(dataset="cora", clients=20, partition="random"))
    assert (
        len(build(Scenario(dataset="cora", clients=20, partition="random", allow_untrained=True)).clients)
        == 20
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("partition", "meits", "unknown partition 'meits': did you mean metis"),
        ("features", "rows", "unknown features 'rows': did you mean row"),
        ("component", "biggest", "unknown component 'biggest'"),
    ],
)
def test_misspelt_choices_name_the_nearest(field, value, message):
    with pytest.raises(ConfigurationError, match=message):
        Scenario(dataset="cora", clients=2, **{field: value})


@pytest.mark.parametrize("wrong", [{"client": 3}, {"clients": 0}, {"partition_seed": -1}])
def test_unknown_fields_and_values_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        Scenario(**{"dataset": "cora", "clients": 2} | wrong)


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ConfigurationError, match="unknown data set 'minesweper': did you mean minesweeper"):
        build(Scenario(dataset="minesweper", clients=2))


MEASURE = """
import resource
from fedatlas.platform.graphs.federated import Scenario, build
built = build(Scenario(dataset="standin:ogbn-arxiv", clients=50, partition="metis-overlap"))
print(len(built.clients), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_fifty_overlapping_arxiv_clients_stay_under_three_gigabytes():
    """A dense adjacency of 169,343 nodes would be 115 GB."""
    printed = subprocess.run(
        [sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True
    ).stdout
    clients, kibibytes = map(int, printed.split())
    assert clients == 50
    assert kibibytes * 1024 < 3e9
