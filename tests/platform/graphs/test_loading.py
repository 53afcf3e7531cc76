"""Graphs have the published counts, and nothing unchecked is ever unpickled."""

from __future__ import annotations

import gzip
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedatlas.platform.errors import ConfigurationError, DataError
from fedatlas.platform.graphs import catalog, library, store
from fedatlas.platform.graphs.loading import load

# Directed edges and class sizes (where published beside the files) as counted from the raw files.
COUNTS = {
    "cora": (2_708, 10_556, 1_433, 7),
    "citeseer": (3_327, 9_104, 3_703, 6),
    "pubmed": (19_717, 88_648, 500, 3),
    "amazon-computers": (13_752, 491_722, 767, 10),
    "amazon-photo": (7_650, 238_162, 745, 8),
    "minesweeper": (10_000, 78_804, 7, 2),
    "tolokers": (11_758, 1_038_000, 10, 2),
}
CLASS_SIZES = {
    "amazon-computers": [436, 2142, 1414, 542, 5158, 308, 487, 818, 2156, 291],
    "amazon-photo": [369, 1686, 703, 915, 882, 823, 1941, 331],
    "minesweeper": [8_000, 2_000],
    "tolokers": [9_192, 2_566],
}
NON_ZERO = {"pubmed": 988_031, "amazon-computers": 3_675_081, "amazon-photo": 1_979_909}


class Trap:
    """An object whose unpickling creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.marker), "w")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def cora(folder: Path, raw_data: Path) -> Path:
    """A data folder with the raw files of Cora only."""
    store.import_folder(raw_data / "Cora")
    return folder


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_published_ones(name: str, data_store: Path) -> None:
    graph = load(name)
    nodes, edges, features, classes = COUNTS[name]
    assert (graph.nodes, graph.edges.shape, graph.features.shape) == (nodes, (2, edges), (nodes, features))
    assert (graph.name, graph.classes, np.unique(graph.labels).size) == (name, classes, classes)
    assert (graph.features.dtype, graph.edges.dtype, graph.labels.dtype) == (np.float32, np.int64, np.int64)
    assert graph.kind == ("generated" if name == "minesweeper" else "real")
    if name in CLASS_SIZES:
        assert np.bincount(graph.labels).tolist() == CLASS_SIZES[name]
    if name in NON_ZERO:
        assert sp.issparse(graph.features)
        assert graph.features.nnz == NON_ZERO[name]


@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "citeseer", "amazon-photo", "tolokers"])
def test_edges_are_sorted_symmetric_without_loops(name: str, data_store: Path) -> None:
    graph = load(name)
    keys = graph.edges[0] * graph.nodes + graph.edges[1]
    assert np.all(np.diff(keys) > 0)
    assert np.array_equal(np.sort(graph.edges[1] * graph.nodes + graph.edges[0]), keys)
    assert np.all(graph.edges[0] != graph.edges[1])


@pytest.mark.data
def test_second_load_gives_the_same_graph_without_the_library(
    cora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("cora")
    monkeypatch.setattr(library, "read", pytest.fail)
    assert load("cora").sha256() == first.sha256()


@pytest.mark.data
def test_damaged_arrays_are_made_anew(cora: Path) -> None:
    first = load("cora")
    (kept,) = (cora / "arrays").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert load("cora").sha256() == first.sha256()
    assert kept.stat().st_size > 1000


@pytest.mark.data
def test_generated_minesweeper_is_what_pyg_reads_from_the_published_file(data_store: Path) -> None:
    entry = catalog.entry("minesweeper")
    with store.staged(entry) as root:
        features, edges, labels = library.read(entry, root)
    graph = load("minesweeper")
    np.testing.assert_array_equal(graph.features, features)
    np.testing.assert_array_equal(graph.edges, edges)
    np.testing.assert_array_equal(graph.labels, labels)


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


@pytest.mark.data
def test_tampered_pickle_is_refused_and_never_executed(cora: Path, tmp_path: Path) -> None:
    raw = cora / "Cora" / "raw" / "ind.cora.graph"
    raw.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(DataError) as refusal:
        load("cora")
    message = str(refusal.value)
    assert str(raw) in message
    assert catalog.entry("cora").files[6].sha256[0] in message
    assert str(store.status("cora").select("corrupt")[0].sha256) in message
    assert "fedatlas data import" in message
    assert not (tmp_path / "sprung").exists()


@pytest.mark.data
def test_pickle_swapped_after_the_check_is_not_executed(
    cora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = store.status("cora")
    raw = cora / "Cora" / "raw" / "ind.cora.x"
    raw.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with monkeypatch.context() as patch:
        answers = iter([checked])
        genuine = store.status
        patch.setattr(store, "status", lambda name: next(answers, None) or genuine(name))
        with pytest.raises(DataError, match=r"ind\.cora\.x"):
            load("cora")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.data
def test_processed_file_of_unknown_origin_is_not_read(cora: Path, tmp_path: Path) -> None:
    processed = cora / "Cora" / "processed"
    processed.mkdir()
    for name in ("data.pt", "pre_transform.pt", "pre_filter.pt"):
        (processed / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert load("cora").nodes == 2_708
    assert not (tmp_path / "sprung").exists()


@pytest.mark.data
def test_kept_arrays_with_a_pickle_inside_are_not_executed(cora: Path, tmp_path: Path) -> None:
    first = load("cora")
    (kept,) = (cora / "arrays").iterdir()
    np.savez(kept, edges=np.array([Trap(tmp_path / "sprung")], dtype=object), labels=first.labels)
    assert load("cora").sha256() == first.sha256()
    assert not (tmp_path / "sprung").exists()


@pytest.mark.data
def test_downloaded_files_are_checked_before_they_are_read(
    folder: Path, raw_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_geometric.datasets import Planetoid

    monkeypatch.delenv("FEDATLAS_OFFLINE")

    def download(dataset: Planetoid) -> None:
        for path in (raw_data / "Cora").iterdir():
            shutil.copyfile(path, Path(dataset.raw_dir) / path.name)
        if tampered:
            trap = pickle.dumps(Trap(tmp_path / "sprung"))
            (Path(dataset.raw_dir) / "ind.cora.allx").write_bytes(trap)

    monkeypatch.setattr(Planetoid, "download", download)
    tampered = True
    with pytest.raises(DataError, match=r"the download brought other files: ind\.cora\.allx"):
        load("cora")
    assert not (tmp_path / "sprung").exists()

    tampered = False
    assert load("cora").nodes == 2_708
    assert store.status("cora").state == "present"


def test_failed_download_says_so_and_names_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(entry: catalog.Entry, root: Path) -> None:
        raise OSError("no route to host")

    monkeypatch.delenv("FEDATLAS_OFFLINE")
    monkeypatch.setattr(library, "download", no_network)
    with pytest.raises(DataError, match="download failed: no route to host"):
        load("tolokers")


@pytest.mark.parametrize("name", ["cora", "questions", "ogbn-arxiv"])
def test_missing_files_are_named_with_hash_place_and_command(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "download", pytest.fail)
    with pytest.raises(DataError) as refusal:
        load(name)
    message = str(refusal.value)
    entry = catalog.entry(name)
    assert f"'{name}'" in message
    assert str(folder / entry.raw_folder) in message
    assert "fedatlas data import FOLDER" in message
    for raw in entry.files:
        assert raw.name in message
        assert all(digest in message for digest in raw.sha256)
    assert (f"standin:{name}" in message) == (f"standin:{name}" in catalog.standin_names())


def test_unverified_file_that_cannot_be_read_is_a_data_error(folder: Path) -> None:
    path = folder / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a zip archive")
    with pytest.raises(DataError, match=r"cannot be read from .*amazon_electronics_photo\.npz"):
        load("amazon-photo")


@pytest.mark.data
def test_unverified_file_with_another_graph_is_refused(folder: Path, raw_data: Path) -> None:
    path = folder / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    shutil.copyfile(raw_data / "Amazon-Computers" / "amazon_electronics_computers.npz", path)
    with pytest.raises(DataError, match="13752 nodes instead of 7650"):
        load("amazon-photo")


def test_ogb_files_are_read_as_they_are(tmp_path: Path) -> None:
    raw = tmp_path / "ogbn_arxiv" / "raw"
    raw.mkdir(parents=True)
    tables = {
        "edge": "0,1\n2,1\n",
        "node-feat": "0.5,1.0\n-1.5,2.0\n0.25,3.0\n",
        "node-label": "4\n0\n1\n",
        "node_year": "2015\n2016\n2017\n",
        "num-node-list": "3\n",
        "num-edge-list": "2\n",
    }
    for name, text in tables.items():
        (raw / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    features, edges, labels = library.read(catalog.entry("ogbn-arxiv"), tmp_path)
    assert features.tolist() == [[0.5, 1.0], [-1.5, 2.0], [0.25, 3.0]]
    assert features.dtype == np.float32
    assert edges.tolist() == [[0, 2], [1, 1]]
    assert labels.tolist() == [4, 0, 1]


@pytest.mark.data
def test_processes_that_load_at_once_agree(cora: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        graphs = pool.map(load, ["cora", "cora"])
    assert graphs[0].sha256() == graphs[1].sha256() == load("cora").sha256()
    assert len(list((cora / "arrays").iterdir())) == 1


def test_standins_and_minesweeper_need_no_data(folder: Path) -> None:
    assert load("minesweeper").nodes == 10_000
    assert load("standin:roman-empire", seed=3).kind == "stand-in"
    assert not folder.exists()


def test_unknown_name_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="unknown data set"):
        load("korra")
