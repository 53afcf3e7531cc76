"""The programs that the benchmarks compare with compute what this project computes."""

from __future__ import annotations

import importlib
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
