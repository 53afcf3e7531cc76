"""Workers of a cluster read the data that the driver reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from fedatlas.platform.federation.cluster import connected


@pytest.mark.ray
def test_workers_are_told_where_the_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDATLAS_DATA", "data")
    monkeypatch.setenv("FEDATLAS_OFFLINE", "1")

    def told() -> dict[str, str | None]:
        names = ("FEDATLAS_DATA", "FEDATLAS_OFFLINE", "OMP_NUM_THREADS")
        return {name: os.environ.get(name) for name in names}

    with connected(cpus=1) as cluster:
        assert cluster.cpus == 1
        assert ray.get(ray.remote(told).remote()) == {
            "FEDATLAS_DATA": str(tmp_path / "data"),
            "FEDATLAS_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
