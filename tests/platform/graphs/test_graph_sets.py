"""Sets of graphs have the published counts and are divided as the scenario says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedatlas.platform.errors import ConfigurationError, DataError
from fedatlas.platform.graphs import catalog, store
from fedatlas.platform.graphs.federated import Scenario, build, concrete, data_sha256
from fedatlas.platform.graphs.graph import runs
from fedatlas.platform.graphs.loading import load, load_graphs

# Graphs, nodes, directed edges, features and class sizes as published and counted from the raw files.
COUNTS = {
    "mutag": (188, 3_371, 7_442, 7, [63, 125]),
    "ptc-mr": (344, 4_915, 10_108, 18, [192, 152]),
    "enzymes": (600, 19_580, 74_564, 3, [100] * 6),
    "imdb-binary": (1_000, 19_773, 193_062, 136, [500, 500]),
    "letter-high": (2_250, 10_507, 20_250, 2, [150] * 15),
}


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_sets_have_the_published_counts(data_store: Path, name: str) -> None:
    for _ in range(2):  # from the raw files, then from the cache
        found = load_graphs(name)
        sizes = (found.graphs, found.nodes, found.edges.shape[1], found.features.shape[1])
        assert (*sizes, np.bincount(found.labels).tolist()) == COUNTS[name]
        owner = np.repeat(np.arange(found.graphs), np.diff(found.starts))
        np.testing.assert_array_equal(owner[found.edges[0]], owner[found.edges[1]])


@pytest.mark.data
def test_graphs_equal_those_of_pyg(data_store: Path, tmp_path: Path) -> None:
    from torch_geometric.datasets import TUDataset

    found = load_graphs("mutag")
    with store.staged(catalog.entry("mutag")) as root:
        dataset = TUDataset(str(root), "MUTAG")
    for number in (0, 57, 187):
        theirs = dataset[number]
        nodes, features, edges, starts = found.select(np.array([number]))
        assert starts.tolist() == [0, theirs.num_nodes]
        np.testing.assert_array_equal(nodes, np.arange(found.starts[number], found.starts[number + 1]))
        np.testing.assert_array_equal(features, theirs.x.numpy())
        order = np.lexsort(theirs.edge_index.numpy()[::-1])
        np.testing.assert_array_equal(edges, theirs.edge_index.numpy()[:, order])
        assert found.labels[number] == int(theirs.y)


@pytest.mark.data
def test_sets_without_features_have_one_hot_degrees(data_store: Path) -> None:
    found = load_graphs("imdb-binary")
    assert sp.issparse(found.features)
    degrees = np.bincount(found.edges[0], minlength=found.nodes)
    np.testing.assert_array_equal(found.features.argmax(axis=1).ravel(), degrees)
    np.testing.assert_array_equal(found.features.sum(axis=1), np.ones(found.nodes))


@pytest.mark.data
def test_an_archive_is_unpacked_in_a_private_folder(data_store: Path) -> None:
    assert load_graphs("dd").nodes == 334_925
    assert [path.name for path in (data_store / "DD" / "raw").iterdir()] == ["DD.zip"]


@pytest.mark.data
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_clients_of_one_set(data_store: Path, partition: str) -> None:
    scenario = Scenario(dataset="ptc-mr", partition=partition, clients=5)
    first, other = build(scenario), build(scenario.model_copy(update={"seed": 1}))
    assert first.level == "graph"
    assert sum(client.items for client in first.clients) == 344
    assert sum(client.size for client in first.clients) == 4_915
    assert first.partition_sha256 == other.partition_sha256
    assert first.sha256 == data_sha256("ptc-mr")
    nodes = np.concatenate([client.nodes for client in first.clients])
    assert len(np.unique(nodes)) == 4_915
    for client in first.clients:
        assert client.classes is None
        roles = client.train.astype(int) + client.validation + client.test
        assert (roles == 1).all()
        assert client.starts is not None
        assert client.starts[-1] == client.size


@pytest.mark.data
def test_a_group_gives_each_client_a_set_with_its_own_features_and_classes(data_store: Path) -> None:
    found = build(Scenario(dataset="chem", partition="cross-dataset", clients=7))
    names = catalog.entry("chem").members
    assert (found.features, found.classes) == (53, 2)
    for client, name in zip(found.clients, names, strict=True):
        entry = catalog.entry(name)
        assert (client.items, client.features.shape[1], client.classes) == (
            entry.graphs,
            entry.features,
            entry.classes,
        )
        assert abs(client.test.sum() - 0.1 * entry.graphs) <= 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "nci1"}, "partition=metis does not divide nci1, .*: use partition=iid or dirichlet"),
        (
            {"dataset": "cora", "partition": "iid"},
            "partition=iid does not divide cora, which is one graph: use partition=metis or",
        ),
        (
            {"dataset": "chem", "partition": "iid"},
            "partition=iid does not divide chem, .*: use partition=cross-dataset",
        ),
        ({"dataset": "chem", "partition": "cross-dataset"}, "chem has 7 sets, .*: use clients=7"),
        ({"dataset": "nci1", "partition": "iid", "features": "row"}, "use features=default"),
        ({"dataset": "nci1", "partition": "iid", "client_features": "rotated"}, "use client_features=same"),
        ({"dataset": "nci1", "partition": "iid", "uncut": True}, "none of which is cut"),
        ({"dataset": "nci1", "partition": "iid", "concentration": 0.1}, "belongs to partition=label-skew or"),
    ],
)
def test_scenarios_that_do_not_fit_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        concrete(Scenario.model_validate({"clients": 10, **values}))


def test_the_concentration_of_seal_is_the_default() -> None:
    filled = concrete(Scenario(dataset="nci1", partition="dirichlet", clients=10))
    given = {key: value for key, value in filled.items() if value is not None}
    assert given == {"features": "none", "train_fraction": 0.8, "test_fraction": 0.1, "concentration": 0.01}


def test_one_graph_and_sets_of_graphs_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(ConfigurationError, match="mutag is a set of graphs"):
        load("mutag")
    with pytest.raises(ConfigurationError, match="cora is one graph"):
        load_graphs("cora")
    with pytest.raises(ConfigurationError, match="chem is a group"):
        load_graphs("chem")


def test_a_missing_set_names_its_files(no_data: None) -> None:
    with pytest.raises(DataError, match=r"(?s)data set 'mutag' is missing.*MUTAG_A.txt  sha256 "):
        load_graphs("mutag")


def test_runs() -> None:
    assert runs(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert runs(np.array([], dtype=int), np.array([], dtype=int)).tolist() == []
