"""A clock that is set back in mid-run: times do not go back, and what is newer stays newer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.clock import Clock
from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG, REPLACED_TAG
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker

HOUR = 3600.0
TRIAL = {KIND_TAG: "trial", FINGERPRINT_TAG: "f"}


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - HOUR)


def test_a_clock_follows_the_wall_clock() -> None:
    clock, before = Clock(), time.time()
    assert int(before * 1000) <= clock.now() <= time.time() * 1000 + 1


def test_it_goes_on_when_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, elapsed = 1000.0, 50.0
    monkeypatch.setattr(time, "time", lambda: wall)
    monkeypatch.setattr(time, "monotonic", lambda: elapsed)
    clock = Clock()
    wall, elapsed = 1002.0, 52.0
    assert clock.now() == 1_002_000
    wall, elapsed = 1002.0 - HOUR, 55.0
    assert clock.now() == 1_005_000
    wall, elapsed = 1003.0, 56.0
    assert clock.now() == 1_006_000
    # Set forward, or woken up: followed.
    wall, elapsed = 1002.0 + HOUR, 57.0
    assert clock.now() == 1_002_000 + HOUR * 1000


def failing(text: str) -> None:
    raise AssertionError(text)


def test_a_run_never_ends_before_it_begins(results: Path, request: pytest.FixtureRequest) -> None:
    run = Tracker(failing).open("study", "trial", {}, TRIAL)
    request.getfixturevalue("set_back")
    # Another process goes on with it, and knows nothing of the clock before.
    store = Store()
    [begun] = store.runs("study")
    other = Tracker(failing)
    other_clock = Clock()
    other.resume(begun.info.run_id, {}, {})
    assert other_clock.now() < begun.info.start_time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedatlas.platform.tracking.tracker._CLOCK", other_clock)
        other.close(begun.info.run_id, "FINISHED")
    [ended] = store.runs("study")
    assert ended.info.status == "FINISHED"
    assert ended.info.end_time >= ended.info.start_time
    assert run


def test_a_run_that_was_done_anew_stands_for_its_trial(
    results: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(failing)
    old = tracker.open("study", "trial", {}, TRIAL)
    tracker.close(old, "FINISHED")
    store = Store()
    store.client.set_tag(tracker.run_id(old), REPLACED_TAG, "true")
    request.getfixturevalue("set_back")
    monkeypatch.setattr("fedatlas.platform.tracking.tracker._CLOCK", Clock())
    new = tracker.open("study", "trial", {}, TRIAL)
    # Until it has finished, the old result counts.
    assert reading.trials(store, "study")["run_id"].tolist() == [tracker.run_id(old)]
    tracker.close(new, "FINISHED")
    starts = {each.info.run_id: each.info.start_time for each in store.runs("study")}
    assert starts[tracker.run_id(new)] < starts[tracker.run_id(old)]
    assert reading.trials(store, "study")["run_id"].tolist() == [tracker.run_id(new)]
