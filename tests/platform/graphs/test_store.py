"""Raw files are found, checked and copied whole; wrong ones are refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedatlas.platform.errors import ConfigurationError, DataError
from fedatlas.platform.graphs import catalog, store

SETS_HERE = ("cora", "citeseer", "pubmed", "amazon-computers", "amazon-photo", "tolokers")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def files_below(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_data_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDATLAS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.data_folder() == tmp_path / "fedatlas"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.data_folder() == tmp_path / ".cache" / "fedatlas"
    monkeypatch.setenv("FEDATLAS_DATA", "~/graphs")
    assert store.data_folder() == tmp_path / "graphs"


def test_in_an_empty_folder_only_minesweeper_needs_nothing(folder: Path) -> None:
    states = {found.name: found.state for found in store.list_status()}
    names = catalog.names() + catalog.group_names()
    assert states == {name: "embedded" if name == "minesweeper" else "missing" for name in names}
    assert not folder.exists()


def test_verify_refuses_an_unknown_name(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown data set 'korra'"):
        store.verify(["cora", "korra"])


@pytest.mark.data
def test_import_finds_files_in_any_layout_and_changes_nothing_the_second_time(
    folder: Path, raw_data: Path
) -> None:
    first = store.import_folder(raw_data)
    states = {found.name: found.state for found in first.sets}
    assert {name: states[name] for name in SETS_HERE} == dict.fromkeys(SETS_HERE, "present")
    assert states["ogbn-arxiv"] == "missing"
    assert (folder / "Computers" / "raw" / "amazon_electronics_computers.npz").is_file()
    assert not first.refused

    before = files_below(folder)
    second = store.import_folder(raw_data)
    assert not second.imported
    assert {file.path for file in second.kept} == {file.path for file in first.imported}
    assert files_below(folder) == before


@pytest.mark.data
def test_import_mends_a_corrupt_file(folder: Path, raw_data: Path) -> None:
    store.import_folder(raw_data / "Cora")
    damaged = folder / "Cora" / "raw" / "ind.cora.graph"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert store.status("cora").state == "corrupt"
    report = store.import_folder(raw_data / "Cora")
    assert [file.path for file in report.imported] == [damaged]
    assert store.status("cora").state == "present"


@pytest.mark.data
def test_import_refuses_wrong_contents_and_takes_the_right_copy_beside_it(
    folder: Path, raw_data: Path, tmp_path: Path
) -> None:
    name = "ind.cora.test.index"
    wrong = tmp_path / "source" / "a" / name
    wrong.parent.mkdir(parents=True)
    wrong.write_text("1\n2\n")
    report = store.import_folder(tmp_path / "source")
    assert [file.path for file in report.refused] == [wrong]
    assert not report.imported
    assert not (folder / "Cora").exists()

    right = tmp_path / "source" / "b" / name
    right.parent.mkdir()
    right.write_bytes((raw_data / "Cora" / name).read_bytes())
    report = store.import_folder(tmp_path / "source")
    assert [file.raw.name for file in report.imported] == [name]
    assert (folder / "Cora" / "raw" / name).read_bytes() == right.read_bytes()


@pytest.mark.data
def test_imports_at_the_same_time_leave_whole_files_only(folder: Path, raw_data: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.import_folder, [raw_data / "CiteSeer"] * 4))
    assert store.status("citeseer").state == "present"
    assert len(files_below(folder)) == 8


def test_files_without_a_known_hash_need_their_sets_folder_above_them(folder: Path, tmp_path: Path) -> None:
    def write(where: str) -> Path:
        path = tmp_path / where / "raw" / "edge.csv.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(b"0,1\n"))
        return tmp_path / where

    assert not store.import_folder(write("products")).imported
    report = store.import_folder(write("arxiv"))
    assert [file.state for file in report.imported] == ["unverified"]
    assert (folder / "ogbn_arxiv" / "raw" / "edge.csv.gz").is_file()


def test_an_amazon_file_of_another_copy_is_marked_unverified(folder: Path) -> None:
    path = folder / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"another packaging")
    assert store.status("amazon-photo").state == "unverified"


def test_import_from_a_folder_that_does_not_exist(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        store.import_folder(tmp_path / "nowhere")


@pytest.mark.data
def test_import_into_an_unwritable_place_names_the_remedy(
    raw_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(DataError, match="set FEDATLAS_DATA"):
        store.import_folder(raw_data / "Cora")


@pytest.mark.data
def test_a_file_that_changes_between_check_and_copy_is_refused(
    folder: Path, raw_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine: Callable[[Path, Path], str] = store._copy_bytes

    def tampered(source: Path, target: Path) -> str:
        genuine(source, target)
        return "0" * 64

    monkeypatch.setattr(store, "_copy_bytes", tampered)
    with pytest.raises(DataError, match="changed while it was copied"):
        store.import_folder(raw_data / "Cora")
    assert not files_below(folder)
