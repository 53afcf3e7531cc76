"""The programs that the benchmarks compare with compute what this project computes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedatlas.platform.federation.coordinator import Coordinator
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import execution
from fedatlas.sweeps.experiment import experiment, resolve

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_the_plain_loop_scores_every_client_as_we_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same clients, same initial weights, no dropout: the same ROC-AUC in every round."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "programs"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    peers, loop = importlib.import_module("peers"), importlib.import_module("loop")
    values = {
        "dataset": "minesweeper",
        "clients": 3,
        "algorithm": "fedavg",
        "backbone": "gcn",
        "rounds": 6,
        "epochs": 1,
        "options": {"dropout": 0.0, "hidden": 16},
    }
    peers.export(values, tmp_path / "federation.npz")
    resolved = resolve(experiment(values))
    work = execution.job(resolved, build(resolved.scenario()))
    coordinator = Coordinator(work, InlineRuntime(), execution.planned(resolved).schedule(None, every=0))
    coordinator.start()
    theirs = loop.rounds(loop.read(tmp_path / "federation.npz"), dropout=0.0)
    for _ in range(6):
        record = coordinator.advance()
        ours = np.stack([record.client_validation, record.client_test], axis=1)
        assert ours == pytest.approx(np.array(next(theirs)), abs=1e-4)


WITHOUT_RAY = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "mlflow", "torch_geometric", "ogb"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
program, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_path(program, run_name="__main__")
"""


def test_the_gpu_check_needs_neither_ray_nor_mlflow(tmp_path: Path) -> None:
    """Without a GPU it compares float64 and float32; `seal` needs data that are not there."""
    words = ("--methods", "fedavg,fedgmc,seal", "--clients", "3", "--rounds", "2", "--timed", "1")
    command = [sys.executable, "-c", WITHOUT_RAY, str(BENCHMARKS / "gpu_check.py"), *words]
    nothing = {**os.environ, "FEDATLAS_DATA": str(tmp_path), "FEDATLAS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=nothing)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  ok") == 2
    assert "skipped" in done.stdout
    assert "all within tolerance" in done.stdout
