"""How a study stands, from a real store."""

from __future__ import annotations

import time

import pytest

from fedatlas.dashboards.health import duration, health
from fedatlas.platform.tracking.operations import TRIALS_TAG
from fedatlas.platform.tracking.reading import trials
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker

from .conftest import Write, trial_record


def test_counts_progress_and_remaining_time(write: Write, results: object) -> None:
    """Two of four trials have ended and one is half done: 1.5 of 2.5 the time so far is left."""
    store = write(
        "health",
        [trial_record("fedavg", 0.7), trial_record("fedper", None, status="FAILED", error="no")],
        **{TRIALS_TAG: "4"},
    )
    (sweep,) = store.runs("health", "tags.`fedatlas.kind` = 'sweep'")
    store.client.update_run(sweep.info.run_id, status="RUNNING")
    tracker = Tracker(lambda text: pytest.fail(text))
    tags = {"fedatlas.kind": "trial", "fedatlas.fingerprint": "under way"}
    record = trial_record("local", 0.5, rounds=10)
    run = tracker.open("health", "under way", record["params"], tags, sweep.info.run_id)
    tracker.points(run, [("time/round_seconds", 0.1, step) for step in range(5)])
    found = health(Store(), "health", trials(Store(), "health"))
    assert (found.finished, found.failed, found.running, found.retried) == (1, 1, 1, 0)
    assert (found.wanted, found.done) == (4, 2)
    spent = time.time() - sweep.info.start_time / 1000
    assert found.remaining_seconds == pytest.approx(spent * 1.5 / 2.5, rel=0.2, abs=0.5)
    failed, running = found.unfinished
    assert (failed.status, failed.error) == ("FAILED", "no")
    assert (running.rounds_done, running.rounds) == (5, 10)


def test_a_trial_that_was_started_again_counts_once(write: Write, results: object) -> None:
    store = write("again", [trial_record("fedavg", 0.7)])
    tracker = Tracker(lambda text: pytest.fail(text))
    tags = {"fedatlas.kind": "trial", "fedatlas.fingerprint": "again-0"}
    tracker.close(tracker.open("again", "earlier", {}, tags), "KILLED")
    found = health(store, "again", trials(store, "again"))
    assert (found.finished, found.failed, found.retried) == (1, 0, 1)
    assert found.remaining_seconds is None


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (600, "10 min"), (7200, "2.0 h")])
def test_times_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
