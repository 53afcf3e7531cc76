"""Runs written through a real tracker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG
from fedatlas.platform.tracking.tracker import Tracker

WriteTrial = Callable[..., str]


@pytest.fixture
def write_trial(tmp_path: Path) -> WriteTrial:
    """Writes a whole trial: parameters, two rounds, two tables, an end. Returns its local name."""

    def write(
        tracker: Tracker,
        parent: str | None = None,
        fingerprint: str = "f1",
        score: float = 0.5,
        status: str = "FINISHED",
        experiment: str = "study",
    ) -> str:
        params = {"dataset": "minesweeper", "clients": 3, "seed": 1, "method.lr": 0.01}
        tags = {KIND_TAG: "trial", FINGERPRINT_TAG: fingerprint, "fedatlas.metric": "auc"}
        run = tracker.open(experiment, f"trial {fingerprint}", params, tags, parent)
        tracker.points(run, [("test/score", score - 0.1, 0), ("test/score", score, 1)])
        tracker.points(run, [("summary/test_score", score, 1)])
        folder = tmp_path / f"{fingerprint}-{score}"
        folder.mkdir()
        pd.DataFrame({"round": [0, 1], "test/score": [score - 0.1, score]}).to_parquet(
            folder / "rounds.parquet"
        )
        pd.DataFrame(
            {"round": [0, 1], "client": [0, 0], "validation": [0.3, 0.4], "test": [0.1, 0.2]}
        ).to_parquet(folder / "clients.parquet")
        for name in ("rounds.parquet", "clients.parquet"):
            tracker.file(run, folder / name)
        tracker.close(run, status, {"fedatlas.error": "it broke"} if status == "FAILED" else {})  # type: ignore[arg-type]
        return run

    return write
