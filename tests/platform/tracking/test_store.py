"""Operations in, MLflow entities out: through a real database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.operations import (
    RUN_TAG,
    CloseRun,
    LogFile,
    LogPoints,
    OpenRun,
    Operation,
    from_plain,
    to_plain,
)
from fedatlas.platform.tracking.store import Store, _batches

TIME = 1_700_000_000_000


def open_run(run: str = "run-a", parent: str | None = None, **params: str) -> OpenRun:
    return OpenRun(run, "study", f"name of {run}", parent, params, {"tag": "value"}, TIME)


def test_operations_survive_json() -> None:
    operations: list[Operation] = [
        open_run(lr="0.1"),
        LogPoints("run-a", [("val/score", 0.5, 0)], TIME),
        LogFile("run-a", "/a/b"),
        CloseRun("run-a", "FAILED", {"fedatlas.error": "x"}, TIME),
    ]
    assert [from_plain(to_plain(operation)) for operation in operations] == operations


def test_a_run_comes_back_as_it_went_in(results: Path, tmp_path: Path) -> None:
    store = Store()
    file = tmp_path / "placement.txt"
    file.write_text("inline")
    store.apply(open_run("run-p"))
    store.apply(open_run("run-a", "run-p", lr="0.1", long="x" * 6000))
    store.apply(LogPoints("run-a", [("val/score", 0.5, 0), ("val/score", 0.75, 1)], TIME))
    store.apply(LogFile("run-a", str(file)))
    store.apply(CloseRun("run-a", "FAILED", {"fedatlas.error": "e" * 9000}, TIME + 5))
    run = store.client.get_run(store.run_id("run-a"))
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FAILED", TIME, TIME + 5)
    assert run.info.run_name == "name of run-a"
    assert run.data.params["lr"] == "0.1"
    assert len(run.data.params["long"]) == 5000
    assert run.data.tags["mlflow.parentRunId"] == store.run_id("run-p")
    assert len(run.data.tags["fedatlas.error"]) == 4000
    history = store.client.get_metric_history(run.info.run_id, "val/score")
    assert [(point.step, point.value, point.timestamp) for point in history] == [
        (0, 0.5, TIME),
        (1, 0.75, TIME),
    ]
    assert store.last_step(run.info.run_id, "val/score") == 1
    assert store.last_step(run.info.run_id, "no/such") == -1
    assert store.download(run.info.run_id, "placement.txt", tmp_path / "x").read_text() == "inline"
    assert (results / "artifacts" / "study").is_dir()


def test_many_metrics_and_params_arrive_in_batches(results: Path) -> None:
    store = Store()
    store.apply(open_run("run-a", **{f"key{number}": str(number) for number in range(250)}))
    store.apply(LogPoints("run-a", [("loss", step / 4, step) for step in range(2500)], TIME))
    history = store.client.get_metric_history(store.run_id("run-a"), "loss")
    assert [(point.step, point.value) for point in history] == [(step, step / 4) for step in range(2500)]
    assert len(store.client.get_run(store.run_id("run-a")).data.params) == 250


def test_opening_twice_continues_the_run_that_was_begun(results: Path) -> None:
    """What `sync` does when it died, or the store did, between a run and its parameters."""
    first = Store()
    first.apply(open_run(lr="0.1"))
    second = Store()
    second.apply(open_run(lr="0.1", epochs="2"))
    assert second.run_id("run-a") == first.run_id("run-a") != "run-a"
    [run] = second.runs("study")
    assert run.data.params == {"lr": "0.1", "epochs": "2"}
    assert run.data.tags[RUN_TAG] == "run-a"


def test_a_continued_run_gets_what_it_lacks_and_the_tags_of_now(results: Path) -> None:
    """It may have died before it had parameters, and another version of the code goes on with it."""
    store = Store()
    store.apply(open_run(label="A", lr="0.1"))
    run_id = store.run_id("run-a")
    again = Store()
    for _ in range(2):
        again.resume("run-b", run_id, {"label": "B", "lr": "0.1", "epochs": "2"}, {"tag": "new", "more": "x"})
    run = store.client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert run.data.params == {"label": "A", "lr": "0.1", "epochs": "2"}
    assert {key: run.data.tags[key] for key in ("tag", "more", RUN_TAG)} == {
        "tag": "new",
        "more": "x",
        RUN_TAG: "run-a",
    }
    assert again.run_id("run-b") == run_id


def test_a_deleted_experiment_is_brought_back(results: Path) -> None:
    store = Store()
    store.apply(open_run("run-a"))
    store.client.delete_experiment(store.experiment_id("study"))
    again = Store()
    again.apply(open_run("run-b"))
    assert len(list(again.runs("study", "tags.tag = 'value'"))) >= 1


def test_runs_come_newest_first(results: Path) -> None:
    store = Store()
    for number in range(3):
        tags = {"fedatlas.fingerprint": "f" if number else "g"}
        store.apply(OpenRun(f"run-{number}", "study", str(number), None, {}, tags, TIME + number))
    assert [run.info.run_name for run in store.runs("study")] == ["2", "1", "0"]
    found = store.runs("study", "tags.`fedatlas.fingerprint` = 'f'")
    assert [run.info.run_name for run in found] == ["2", "1"]
    assert list(store.runs("no such study")) == []


def test_refusals_are_tracking_errors(results: Path, tmp_path: Path) -> None:
    store = Store()
    with pytest.raises(TrackingError, match="refused LogPoints"):
        store.apply(LogPoints("run-unknown", [("a", 1.0, 0)], TIME))
    store.apply(open_run("run-a"))
    with pytest.raises(TrackingError, match="refused LogFile"):
        store.apply(LogFile("run-a", str(tmp_path / "missing")))
    with pytest.raises(TrackingError, match=r"cannot give artifact rounds\.parquet of run"):
        store.download(store.run_id("run-a"), "rounds.parquet", tmp_path)
    with pytest.raises(TrackingError, match="refused to continue"):
        store.resume("run-b", "0" * 32, {}, {})


@pytest.mark.parametrize("uri", ["http://joe:s3cret@127.0.0.1:1", "nosuch://joe:s3cret@host", "mlruns"])
def test_a_store_that_cannot_be_reached_says_so_without_secrets(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match="cannot be reached") as caught:
        Store(uri)
    assert "s3cret" not in str(caught.value)


def test_a_new_database_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the first seconds used to leave a schema that could be neither used nor mended."""
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    connect = Store._connect

    def interrupted(self: Store, uri: str) -> None:
        with sqlite3.connect(uri.removeprefix("sqlite:///")) as half:
            half.execute("CREATE TABLE experiments (half INTEGER)")
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "_connect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Store, "_connect", connect)
    store = Store()
    store.apply(open_run())
    assert [path.name for path in tmp_path.iterdir() if not path.is_dir()] == ["mlflow.db"]
    assert len(list(Store().runs("study"))) == 1


def test_what_may_have_been_logged_before_is_logged_once(results: Path) -> None:
    """A server that dies, or a process that is killed, leaves it open how much has arrived."""
    store = Store()
    store.apply(OpenRun("run-a", "study", "a", None, {}, {}, TIME))
    points = [(key, step / 4, step) for step in range(4) for key in ("loss", "val/score")]
    store.apply(LogPoints("run-a", points[:5], TIME))
    store.apply(LogPoints("run-a", points, TIME + 1), again=True)
    for key in ("loss", "val/score"):
        history = store.client.get_metric_history(store.run_id("run-a"), key)
        assert [(point.step, point.value) for point in history] == [(step, step / 4) for step in range(4)]


def test_a_step_is_stored_whole_or_not_at_all() -> None:
    points = [(f"k{key}", 0.0, step) for step in range(7) for key in range(300)]
    batches = list(_batches(points))
    assert [len(batch) for batch in batches] == [900, 900, 300]
    assert [point for batch in batches for point in batch] == points
    wide = [(f"k{key}", 0.0, 0) for key in range(2500)]
    assert [len(batch) for batch in _batches(wide)] == [1000, 1000, 500]
