"""Fixtures for tests that need real raw data files, or a results folder of their own.

Tests never download and never touch the user's data and results folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedatlas.platform.graphs import federated, store

_BESIDE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data" / "raw"


@pytest.fixture(scope="session", autouse=True)
def _isolated_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDATLAS_OFFLINE", "1")
        # Test clusters declare GPUs that do not exist.
        patch.setenv("FEDATLAS_FAKE_GPUS", "1")
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


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty data folder, whatever other tests have imported and loaded."""

    def forget() -> None:
        for cache in (
            *(federated._loaded, federated._loaded_graphs),
            *(federated._whole, federated._partition),
        ):
            cache.cache_clear()

    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "no-data"))
    forget()
    yield
    forget()


@pytest.fixture(scope="session")
def _migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making its schema takes seconds, copying it none."""
    from fedatlas.platform.tracking.store import Store

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDATLAS_RESULTS", str(path.parent))
        Store(f"sqlite:///{path}")
    return path


@pytest.fixture
def results(tmp_path: Path, _migrated_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results folder with an MLflow store in it."""
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(_migrated_store, folder / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDATLAS_RESULTS", str(folder))
    return folder


class MLflowServer:
    """A real MLflow server on a port of this machine, which can be ended and started again.

    Attributes:
        uri: its address.
        folder: with its database and artifacts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> str:
        """URI of what it has stored, for reading without it."""
        return f"sqlite:///{self.folder / 'server.db'}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
                *("--workers", "1", "--backend-store-uri", self.database),
                *("--artifacts-destination", str(self.folder / "server-artifacts")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                key: value
                for key, value in os.environ.items()
                if key not in ("MLFLOW_TRACKING_URI", "FEDATLAS_RESULTS")
            },
        )
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None
                time.sleep(0.3)
        raise AssertionError("the MLflow server does not answer")

    def kill(self) -> None:
        """End it and its workers, which share its process group, without notice."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[MLflowServer]:
    """An MLflow server that runs already."""
    folder = tmp_path / "mlflow-server"
    folder.mkdir()
    server = MLflowServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
