"""A tracker never stops a run: what the store does not take is in the journal."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedatlas.platform.tracking import journal, reading
from fedatlas.platform.tracking.operations import LogPoints
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def test_an_unreachable_store_is_told_once_and_loses_nothing(results: Path, write_trial: Any) -> None:
    warnings: list[str] = []
    tracker = Tracker(warnings.append, NOWHERE)
    assert tracker.store is None
    parent = tracker.open("study", "sweep", {}, {"fedatlas.kind": "sweep"})
    child = write_trial(tracker, parent)
    tracker.close(parent, "FINISHED")
    assert tracker.run_id(child) == child  # No MLflow id is claimed.
    assert len(warnings) == 1
    assert "fedatlas sync" in warnings[0]
    assert {path.stem for path in journal.pending()} == {parent, child}

    store = Store()
    report = journal.sync(store)
    assert (report.pushed, report.failed) == (2, ())
    [row] = reading.trials(store, "study").to_dict("records")
    assert (row["status"], row["test_score"], row["clients"]) == ("FINISHED", 0.5, 3)
    [sweep] = store.runs("study", "tags.`fedatlas.kind` = 'sweep'")
    assert row["parent_id"] == sweep.info.run_id


def test_the_same_through_the_journal_as_through_the_store(results: Path, write_trial: Any) -> None:
    direct = Tracker(pytest.fail)
    write_trial(direct, score=0.6, experiment="direct")
    write_trial(Tracker(lambda text: None, NOWHERE), score=0.7, experiment="later")
    store = Store()
    journal.sync(store)
    one, other = (reading.trials(store, name).iloc[0] for name in ("direct", "later"))
    for key in ("fingerprint", "status", "params", "metric", "dataset", "seed"):
        assert one[key] == other[key]
    tables = [reading.rounds(store, [row["run_id"]]) for row in (one, other)]
    assert tables[0]["test/score"].tolist() == pytest.approx([0.5, 0.6])
    assert tables[1]["test/score"].tolist() == pytest.approx([0.6, 0.7])


def test_points_of_a_continued_run_reach_the_store(results: Path, write_trial: Any) -> None:
    tracker = Tracker(pytest.fail)
    run_id = tracker.run_id(write_trial(tracker, status="KILLED"))
    again = Tracker(pytest.fail)
    run = again.resume(run_id, {}, {})
    assert again.last_step(run_id, "test/score") == 1
    again.points(run, [("test/score", 0.9, 2)])
    again.close(run, "FINISHED")
    assert again.store is not None
    stored = again.store.client.get_run(run_id)
    assert (stored.info.status, stored.data.metrics["test/score"]) == ("FINISHED", 0.9)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real MLflow server on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
            *("--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}"),
            *("--artifacts-destination", str(tmp_path / "server-artifacts")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.3)
        yield uri, process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and its workers, which share its process group."""
    import os
    import signal

    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_server_that_dies_in_mid_run_loses_nothing(
    server: tuple[str, subprocess.Popen[bytes]], results: Path, tmp_path: Path
) -> None:
    uri, process = server
    warnings: list[str] = []
    tracker = Tracker(warnings.append, uri)
    parent = tracker.open("study", "sweep", {}, {"fedatlas.kind": "sweep"})
    run = tracker.open("study", "trial", {"seed": 0}, {"fedatlas.kind": "trial"}, parent)
    tracker.points(run, [("test/score", 0.1, 0)])
    assert warnings == []
    run_id = tracker.run_id(run)
    assert run_id != run

    _end(process)
    tracker.points(run, [("test/score", 0.2, 1)])
    assert tracker.store is None
    late = tracker.open("study", "late trial", {"seed": 1}, {"fedatlas.kind": "trial"}, parent)
    for each in (run, late, parent):
        tracker.points(each, [("test/score", 0.3, 2)])
        tracker.close(each, "FINISHED")
    assert tracker.last_step(run_id, "test/score") == -1
    assert tracker.resume(run_id, {}, {}) == run_id
    assert len(warnings) == 1
    # What the server knows is named by its id there, what it does not know by its local name.
    assert {path.stem for path in journal.pending()} == {run_id, tracker.run_id(parent), late}

    store = Store(f"sqlite:///{tmp_path / 'server.db'}")
    report = journal.sync(store)
    assert (report.pushed, report.failed) == (3, ())
    history = store.client.get_metric_history(run_id, "test/score")
    assert [(point.step, point.value) for point in history] == [(0, 0.1), (1, 0.2), (2, 0.3)]
    trials = list(store.runs("study", "tags.`fedatlas.kind` = 'trial'"))
    assert [trial.info.status for trial in trials] == ["FINISHED"] * 2
    parents = {trial.data.tags["mlflow.parentRunId"] for trial in trials}
    assert parents == {tracker.run_id(parent)}


@pytest.mark.slow
def test_a_server_keeps_files_that_the_driver_sends(
    server: tuple[str, subprocess.Popen[bytes]], results: Path, write_trial: Any
) -> None:
    uri, _ = server
    tracker = Tracker(pytest.fail, uri)
    run_id = tracker.run_id(write_trial(tracker))
    assert tracker.store is not None
    assert reading.rounds(tracker.store, [run_id])["test/score"].tolist() == pytest.approx([0.4, 0.5])


def test_journal_names_a_run_that_the_store_half_opened_by_its_local_name(results: Path) -> None:
    """If a run's parameters are refused, all its operations stay together in the journal."""
    warnings: list[str] = []
    tracker = Tracker(warnings.append)
    run = tracker.open("study", "trial", {"bad key\x00": "1"}, {})
    tracker.points(run, [("a", 1.0, 0)])
    assert len(warnings) == 1
    [path] = journal.pending()
    assert path.stem == run
    assert isinstance(journal.read(path)[1], LogPoints)
