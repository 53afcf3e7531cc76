"""Fixtures for tests that need real raw data files.

Tests never download and never touch the user's data folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedatlas.platform.graphs import store

_BESIDE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data" / "raw"


@pytest.fixture(scope="session", autouse=True)
def _isolated_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDATLAS_OFFLINE", "1")
        patch.setenv("FEDATLAS_DATA", str(tmp_path_factory.mktemp("no-data")))
        yield


@pytest.fixture(scope="session")
def raw_data() -> Path:
    """Folder of real raw files; tests that need it are skipped where it is missing."""
    folder = Path(os.environ.get("FEDATLAS_TEST_RAW", _BESIDE_REPOSITORY))
    if not folder.is_dir():
        pytest.skip(f"no raw data in {folder} (FEDATLAS_TEST_RAW names another folder)")
    return folder


@pytest.fixture(scope="session")
def data_store(raw_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data folder with all raw files imported; `FEDATLAS_DATA` names it until the session ends."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDATLAS_DATA", str(folder))
        store.import_folder(raw_data)
        yield folder
