"""What is written of a run: files that any reader takes, and figures that are logged once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import Study
from fedatlas.sweeps.commands.output import run_summary
from fedatlas.sweeps.execution import checkpoint_path, planned
from fedatlas.sweeps.recording import Recording, write_json

from .conftest import two_rounds

NAN = math.nan


@pytest.fixture
def trial(write_study: Callable[..., str], results: Path) -> Callable[..., Recording]:
    work = planned(Study(write_study(methods=["local"], seeds=1)).experiments[0])

    def make(study: str = "small", tracker: Tracker | None = None) -> Recording:
        return Recording(work, study, "inline: for a test", tracker)

    return make


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_undefined_scores_are_null(trial: Callable[..., Recording], results: Path, tmp_path: Path) -> None:
    records = [
        replace(record, validation=NAN, test=NAN, client_validation=(NAN,) * 3, client_test=(NAN, NAN, 0.5))
        for record in two_rounds()
    ]
    one = trial()
    one.add(records)
    values = one.finish()
    path = one.folder / "summary.json"
    assert json.loads(path.read_text(), parse_constant=refuse) == values
    assert values["best_round"] == -1
    assert values["test_score"] is values["val_score"] is None
    assert values["client_test_scores"] == [None, None, 0.5]
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    console.print(run_summary(values))
    assert "undefined at round -1" in console.export_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"score": NAN})
    assert not (tmp_path / "x.json").exists()


def test_a_continued_run_logs_each_round_once_though_its_scores_are_undefined(
    trial: Callable[..., Recording],
) -> None:
    """The last figure of a round tells that the round is complete, and time is always defined."""
    tracker = Tracker(pytest.fail)
    records = [replace(record, validation=NAN) for record in two_rounds()]
    assert list(records[0].tracked())[-1] == "time/round_seconds"
    first = trial(tracker=tracker)
    first.open()
    first.add(records[:1])
    first.flush()
    # Round 1 was cut off: its scores arrived, its last figures did not.
    assert first.run_id is not None
    store = Store()
    store.client.log_metric(first.run_id, "test/score", records[1].test, step=1)
    second = trial(tracker=tracker)
    second.open(first.run_id)
    second.add(records)
    second.finish()
    assert second.run_id == first.run_id
    history: dict[str, Any] = {
        key: [point.step for point in store.client.get_metric_history(first.run_id, key)]
        for key in ("time/round_seconds", "comm/uplink_bytes", "val/score")
    }
    assert history == {"time/round_seconds": [0, 1], "comm/uplink_bytes": [0, 1], "val/score": []}


def test_a_finished_run_removes_the_checkpoint_of_its_own_study(trial: Callable[..., Recording]) -> None:
    one = trial("small")
    paths = [checkpoint_path(study, one.planned.fingerprint) for study in ("small", "other")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
    one.add(two_rounds())
    one.finish()
    assert [path.exists() for path in paths] == [False, True]
