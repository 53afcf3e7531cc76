"""The journal is pushed once and in order, wherever the last push stopped."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fedatlas.platform.errors import FedatlasError, TrackingError
from fedatlas.platform.tracking import journal, reading
from fedatlas.platform.tracking.operations import CloseRun, LogPoints, OpenRun, Operation
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker

TIME = 1_700_000_000_000


def opened(run: str, parent: str | None = None) -> OpenRun:
    return OpenRun(run, "study", run, parent, {"seed": "0"}, {"fedatlas.kind": "trial"}, TIME)


def write(*operations: Operation) -> None:
    for operation in operations:
        journal.append(operation)


def test_parents_go_first_though_their_children_are_older(results: Path) -> None:
    write(opened("run-child", "run-parent"), opened("run-parent"))
    pushed: list[str] = []
    store = Store()
    assert journal.sync(store, pushed.append).pushed == 2
    assert pushed == ["run-parent", "run-child"]
    child = store.client.get_run(store.run_id("run-child"))
    assert child.data.tags["mlflow.parentRunId"] == store.run_id("run-parent")


def test_a_second_push_does_nothing(results: Path) -> None:
    write(opened("run-a"), CloseRun("run-a", "FINISHED", {}, TIME))
    journal.sync(Store())
    store = Store()
    assert journal.sync(store) == journal.SyncReport(0, ())
    assert len(list(store.runs("study"))) == 1


def test_a_child_written_after_its_parent_was_pushed_finds_it(results: Path) -> None:
    write(opened("run-parent"))
    journal.sync(Store())
    write(opened("run-child", "run-parent"), CloseRun("run-parent", "FINISHED", {}, TIME))
    store = Store()
    assert journal.sync(store).pushed == 2
    parent, child = (store.client.get_run(store.run_id(run)) for run in ("run-parent", "run-child"))
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.info.status == "FINISHED"
    assert len(list(store.runs("study"))) == 2


class Dying(Store):
    """A store that is lost after some operations: before the next one, or after it but unheard."""

    def __init__(self, operations: int, error: type[BaseException], unheard: bool) -> None:
        super().__init__()
        self._left = operations
        self._error = error
        self._unheard = unheard

    def apply(self, operation: Operation, again: bool = False) -> None:
        self._left -= 1
        if self._left < 0:
            if self._unheard:
                super().apply(operation, again)
            raise self._error("the store is gone")
        super().apply(operation, again)


class Overtaken(Store):
    """A store during whose work the run goes on: each of the first operations is followed by another."""

    def __init__(self, more: list[Operation]) -> None:
        super().__init__()
        self._more = more

    def apply(self, operation: Operation, again: bool = False) -> None:
        super().apply(operation, again)
        if self._more:
            journal.append(self._more.pop(0))


def points(run: str, step: int) -> LogPoints:
    return LogPoints(run, [("loss", step / 4, step)], TIME + step)


def test_what_is_written_while_a_journal_is_pushed_is_pushed_too(results: Path) -> None:
    write(opened("run-a"), points("run-a", 0))
    store = Overtaken([points("run-a", 1), CloseRun("run-a", "FINISHED", {}, TIME)])
    assert journal.sync(store) == journal.SyncReport(1, ())
    history = store.client.get_metric_history(store.run_id("run-a"), "loss")
    assert [point.step for point in history] == [0, 1]
    assert store.client.get_run(store.run_id("run-a")).info.status == "FINISHED"
    assert journal.pending() == []


def test_a_run_that_writes_while_sync_runs_again_and_again_loses_nothing(results: Path) -> None:
    write(opened("run-a"))
    writer = threading.Thread(target=lambda: [journal.append(points("run-a", step)) for step in range(150)])
    writer.start()
    while writer.is_alive():
        assert journal.sync(Store()).failed == ()
    writer.join()
    store = Store()
    assert journal.sync(store).failed == ()
    [run] = store.runs("study")
    history = store.client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, step / 4) for step in range(150)]
    assert journal.pending() == []


def test_two_pushes_at_once_push_once(results: Path) -> None:
    write(opened("run-a"), *(points("run-a", step) for step in range(20)))
    stores = [Store(), Store()]
    pushes = [threading.Thread(target=journal.sync, args=(store,)) for store in stores]
    for push in pushes:
        push.start()
    for push in pushes:
        push.join()
    [run] = stores[0].runs("study")
    history = stores[0].client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == list(range(20))


def test_a_push_that_ended_between_two_files_does_not_hide_what_comes_later(results: Path) -> None:
    write(opened("run-a"), points("run-a", 0))
    journal.sync(Store())
    (journal.journal_folder() / "run-a.progress").write_text(json.dumps({"applied": 2, "run_id": None}))
    write(points("run-a", 1), points("run-a", 2))
    store = Store()
    assert journal.sync(store).pushed == 1
    [run] = store.runs("study")
    history = store.client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == [0, 1, 2]


@pytest.mark.parametrize("error", [TrackingError, KeyboardInterrupt])
@pytest.mark.parametrize("unheard", [False, True])
@pytest.mark.parametrize("operations", [0, 1, 2])
def test_an_interrupted_push_goes_on_where_it_stopped(
    results: Path, operations: int, unheard: bool, error: type[BaseException]
) -> None:
    write(
        opened("run-a"),
        LogPoints("run-a", [("loss", 1.0, 0), ("loss", 2.0, 1)], TIME),
        CloseRun("run-a", "FINISHED", {}, TIME),
    )
    dying = Dying(operations, error, unheard)
    if error is TrackingError:
        assert journal.sync(dying).failed == ("run-a: the store is gone",)
    else:
        with pytest.raises(KeyboardInterrupt):
            journal.sync(dying)
    store = Store()
    assert journal.sync(store) == journal.SyncReport(1, ())
    [run] = store.runs("study")
    assert run.info.status == "FINISHED"
    history = store.client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(0, 1.0), (1, 2.0)]
    assert not list(journal.journal_folder().glob("run-a*"))


def test_a_refused_run_does_not_keep_others_back(results: Path) -> None:
    write(LogPoints("0" * 32, [("a", 1.0, 0)], TIME), opened("run-a"))
    report = journal.sync(Store())
    assert report.pushed == 1
    assert len(report.failed) == 1
    assert "refused LogPoints" in report.failed[0]
    assert [path.stem for path in journal.pending()] == ["0" * 32]


def test_a_last_line_cut_off_is_left_out_and_another_is_an_error(results: Path) -> None:
    write(opened("run-a"), LogPoints("run-a", [("loss", 1.0, 0)], TIME))
    path = journal.journal_folder() / "run-a.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert journal.read(path) == [opened("run-a")]
    path.write_text(whole[:20] + "\n" + whole)
    with pytest.raises(FedatlasError, match=r"run-a\.jsonl line 1 cannot be read"):
        journal.read(path)


def test_what_follows_a_line_cut_off_is_kept(results: Path) -> None:
    """A run that goes on after a crash writes a line of its own, not behind half a line."""
    write(opened("run-a"))
    path = journal.journal_folder() / "run-a.jsonl"
    with path.open("a") as file:
        file.write('{"operation": "LogPoi')
    write(CloseRun("run-a", "FINISHED", {}, TIME))
    assert journal.read(path) == [opened("run-a"), CloseRun("run-a", "FINISHED", {}, TIME)]


def test_an_unreadable_journal_does_not_keep_others_back(results: Path) -> None:
    write(opened("run-a"), opened("run-b"))
    path = journal.journal_folder() / "run-b.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    report = journal.sync(Store())
    assert report.pushed == 1
    assert "run-b.jsonl line 1 cannot be read" in report.failed[0]
    assert path.exists()


def test_trials_rounds_and_clients_come_back_as_tables(results: Path, write_trial: Any) -> None:
    tracker = Tracker(pytest.fail)
    write_trial(tracker, fingerprint="f1", score=0.4, status="FAILED")
    newest = write_trial(tracker, fingerprint="f1", score=0.5)
    # Begun again, by another driver perhaps: what is finished stands.
    write_trial(tracker, fingerprint="f1", score=0.9, status="KILLED")
    other = write_trial(tracker, fingerprint="f2", score=0.7)
    failed = write_trial(tracker, fingerprint="f3", score=0.2, status="FAILED")
    store = Store()
    table = reading.trials(store, "study").set_index("fingerprint")
    assert sorted(table.index) == ["f1", "f2", "f3"]
    assert table.loc["f1", "run_id"] == tracker.run_id(newest)
    assert table.loc["f3", "error"] == "it broke"
    assert table.loc["f2", ["dataset", "clients", "seed", "test_score"]].tolist() == [
        "minesweeper",
        3,
        1,
        0.7,
    ]
    assert json.loads(table.loc["f2", "params"])["method.lr"] == "0.01"
    ids = [tracker.run_id(run) for run in (newest, other)]
    rounds = reading.rounds(store, ids)
    assert rounds["run_id"].tolist() == [ids[0]] * 2 + [ids[1]] * 2
    assert rounds["test/score"].tolist() == pytest.approx([0.4, 0.5, 0.6, 0.7])
    assert list(reading.clients(store, ids).columns) == ["run_id", "round", "client", "validation", "test"]
    assert reading.rounds(store, []).columns.tolist() == ["run_id"]
    assert reading.trials(store, "no such study").empty
    with pytest.raises(TrackingError, match=r"rounds\.parquet"):
        reading.rounds(store, ["0" * 32])
    assert tracker.run_id(failed)
