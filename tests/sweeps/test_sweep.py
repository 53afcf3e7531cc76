"""Sweeps through a real Ray Tune on two CPUs, into a real store."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.actors import Fleet
from fedatlas.platform.federation.cluster import resources
from fedatlas.platform.tracking import journal, reading
from fedatlas.platform.tracking.operations import REPLACED_TAG
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import Study, preflight, run
from fedatlas.sweeps.driver import StudyOutcome, alone, run_study
from fedatlas.sweeps.execution import checkpoint_path
from fedatlas.sweeps.trial import FederatedTrial, FleetBroker

pytestmark = pytest.mark.ray

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]


def quiet(study: Study, **options: Any) -> StudyOutcome:
    return study.run(announce=lambda text: None, **options)


def nothing_is_left() -> None:
    """Fleets are closed before a sweep returns; Ray removes the trials' own groups a moment later."""
    table = ray.util.placement_group_table().values()
    assert {group["state"] for group in table if group["name"].startswith("fedatlas")} <= {"REMOVED"}
    end = time.monotonic() + 30
    while {key: ray.available_resources().get(key) for key in ("CPU", "GPU")} != {"CPU": 2, "GPU": 1}:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_sweep_tracks_its_trials_and_does_each_once(
    small_ray: None, results: Path, write_study: Write
) -> None:
    path = write_study()
    outcome = quiet(Study(path))
    assert (len(outcome.finished), outcome.failed, outcome.interrupted) == (4, {}, False)

    store = Store()
    trials = Study(path).results()
    assert trials["status"].tolist() == ["FINISHED"] * 4
    assert set(zip(trials["algorithm"], trials["seed"], strict=True)) == {
        (algorithm, seed) for algorithm in ("local", "fedavg") for seed in (0, 1)
    }
    [parent] = store.runs("small", "tags.`fedatlas.kind` = 'sweep'")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["mlflow.note.content"] == "A study for tests."
    assert parent.data.tags["fedatlas.trials"] == "4"
    experiment = store.client.get_experiment(parent.info.experiment_id)
    assert "Search them by `tags.dataset`" in experiment.tags["mlflow.note.content"]
    assert set(trials["parent_id"]) == {parent.info.run_id}
    for run_id in trials["run_id"]:
        names = {item.path for item in store.client.list_artifacts(run_id)}
        assert names == {
            "rounds.parquet",
            "clients.parquet",
            "federation.parquet",
            "configuration.yaml",
            "placement.txt",
        }
        tracked = store.client.get_run(run_id)
        assert (tracked.data.tags["dataset"], tracked.data.tags["partition"]) == ("minesweeper", "random")
        assert tracked.data.tags["clients"] == "3"
        assert tracked.data.tags["method"] in ("Local", "FedAvg")
        held = reading.artifact(store, run_id, tracked.info.artifact_uri, "federation.parquet").to_pandas()
        assert held["client"].tolist() == [0, 1, 2]
        assert held["histogram"].map(len).tolist() == [2, 2, 2]
    assert list((results / "tune").iterdir()) == []
    assert not list(results.glob("checkpoints/*/*"))
    # The sweep's own run carries the table.
    assert [item.path for item in store.client.list_artifacts(parent.info.run_id)] == ["small.csv"]
    table = pd.read_csv(results / "reports" / "small.csv")
    assert table["method"].tolist() == ["Local", "FedAvg"]
    assert table["n"].tolist() == [2, 2]

    # A trial is the same experiment as a run of its own.
    [fedavg] = trials[(trials["algorithm"] == "fedavg") & (trials["seed"] == 1)].to_dict("records")
    alone_ = run(
        "minesweeper",
        3,
        "fedavg",
        partition="random",
        seed=1,
        rounds=2,
        options={"hidden": 8},
        placement="inline",
        tracking=False,
        progress=False,
    )
    assert alone_.values["fingerprint"] == fedavg["fingerprint"]
    assert alone_.values["test_score"] == fedavg["test_score"]
    table = reading.rounds(store, [fedavg["run_id"]])
    assert table["test/score"].tolist() == alone_.rounds["test/score"].tolist()

    # Started again, there is nothing to do; with one seed more, only that seed.
    assert quiet(Study(path)).finished == []
    more = quiet(Study(path, seeds=3))
    assert {summary["seed"] for summary in more.finished} == {2}
    assert len(more.finished) == 2
    again = Study(path, seeds=3).results()
    assert len(again) == 6
    assert set(trials["run_id"]) < set(again["run_id"])
    nothing_is_left()


def test_a_trial_that_breaks_is_named_and_the_others_finish(
    small_ray: None, results: Path, write_study: Write, fedatlas: Call
) -> None:
    methods = ["local", {"algorithm": "fedavg", "label": "Diverging", "options": {"lr": 1e30}}]
    path = write_study("diverging", methods=methods, seeds=1, rounds=3)
    code, printed = fedatlas("sweep", path)
    assert code == 1
    cell = "Diverging/minesweeper/random-3/seed-0"
    assert "1 trials failed" in printed
    assert f"{cell}: non-finite" in printed
    trials = Study(path).results().set_index("label")
    assert trials["status"].to_dict() == {"Local": "FINISHED", "Diverging": "FAILED"}
    assert "at client 0 in round 1" in trials.loc["Diverging", "error"]
    [parent] = Store().runs("diverging", "tags.`fedatlas.kind` = 'sweep'")
    assert parent.info.status == "FAILED"
    # What failed for its own reasons is tried again on request only.
    code, printed = fedatlas("sweep", path)
    assert code == 1
    assert "0 to run, 1 finished before, 1 failed before" in printed
    assert "1 trials failed before; --retry-failed tries them again" in printed
    assert f"{cell}: non-finite" in printed
    code, printed = fedatlas("sweep", path, "--retry-failed", "--dry-run")
    assert code == 0
    assert "1 to run, 1 finished before" in printed


def test_a_forced_sweep_runs_anew_what_has_finished(
    small_ray: None, results: Path, write_study: Write, fedatlas: Call
) -> None:
    path = write_study("again", methods=["local"], seeds=1, rounds=1)
    quiet(Study(path))
    [before] = Study(path).results().to_dict("records")
    code, printed = fedatlas("sweep", path, "--force")
    assert code == 0
    assert "1 to run, 0 finished before" in printed
    [after] = Study(path).results().to_dict("records")
    assert after["run_id"] != before["run_id"]
    assert (after["fingerprint"], after["test_score"]) == (before["fingerprint"], before["test_score"])
    store = Store()
    runs = {run.info.run_id: run for run in store.runs("again", "tags.`fedatlas.kind` = 'trial'")}
    assert {run_id for run_id, run in runs.items() if REPLACED_TAG in run.data.tags} == {before["run_id"]}
    newest, _ = store.runs("again", "tags.`fedatlas.kind` = 'sweep'")
    assert {item.path for item in store.client.list_artifacts(newest.info.run_id)} == {
        "again.csv",
        "again.html",
    }
    assert preflight_todo(path) == []


def test_a_study_may_keep_case_study_tables(small_ray: None, results: Path, write_study: Write) -> None:
    row = {"algorithm": "fedgmc", "options": {"hidden": 8, "templates": 4, "sampled_nodes": 6}}
    path = write_study("kept", methods=[row], seeds=1, rounds=3, export=True)
    outcome = quiet(Study(path))
    assert outcome.failed == {}
    [trial] = Study(path).results().to_dict("records")
    store = Store()
    names = {item.path for item in store.client.list_artifacts(trial["run_id"])}
    assert {"anchors.parquet", "class_means.parquet", "nodes.parquet", "templates.parquet"} <= names
    exported = run(
        "minesweeper",
        3,
        "fedgmc",
        partition="random",
        rounds=3,
        options=row["options"],
        placement="inline",
        tracking=False,
        progress=False,
        export=results / "alone",
    )
    assert exported.values["fingerprint"] == trial["fingerprint"]
    for file in (results / "alone").iterdir():
        kept = pd.read_parquet(results / "studies" / "kept" / trial["fingerprint"] / "casestudy" / file.name)
        pd.testing.assert_frame_equal(kept, pd.read_parquet(file))
        assert sorted(set(kept["round"])) == [0, 2]
    assert not list(results.glob("checkpoints/*/*"))


def test_packed_trials_share_a_fleet_and_leave_none(
    small_ray: None, results: Path, write_study: Write
) -> None:
    path = write_study("packed", settings={"placement": "packed"}, seeds=1)
    packed = quiet(Study(path), tracking=False)
    assert (len(packed.finished), packed.failed) == (2, {})
    assert {summary["placement"] for summary in packed.finished} == {"packed"}
    table = ray.util.placement_group_table().values()
    assert [group["state"] for group in table if group["name"].startswith("fedatlas-packed-")] == ["REMOVED"]
    nothing_is_left()
    for summary in packed.finished:
        inline = run(
            "minesweeper",
            3,
            summary["algorithm"],
            partition="random",
            rounds=2,
            placement="inline",
            options={"hidden": 8} if summary["algorithm"] == "fedavg" else {},
            tracking=False,
            progress=False,
        )
        assert inline.values["fingerprint"] == summary["fingerprint"]
        assert inline.values["test_score"] == summary["test_score"]
    # What ran without tracking is not finished for a sweep that tracks.
    assert quiet(Study(path), tracking=False).finished == []
    assert len(Study(path).experiments) == len(preflight_todo(path))


def preflight_todo(path: str) -> list[Any]:
    found: list[Any] = []
    quiet(Study(path), dry_run=True, before=lambda preflight: found.extend(preflight.todo))
    return found


def test_a_trial_on_other_data_than_planned_fails(small_ray: None, results: Path, write_study: Write) -> None:
    """A node whose data folder holds something else must not add its numbers to the study."""
    study = Study(write_study("elsewhere", methods=["local"], seeds=2))
    found = preflight.check(study.experiments, resources(), study.name, uri=None, tracking=None)
    (first, placed), second = found.todo
    other = replace(first, data_sha256="0" * 64)
    outcome = run_study(study.name, replace(found, todo=((other, placed), second)), None)
    assert len(outcome.finished) == 1
    [error] = outcome.failed.values()
    assert "minesweeper on node" in error
    for words in ("0" * 64, first.data_sha256, "FEDATLAS_DATA must name the same data on every node"):
        assert words in error


def test_a_fleet_that_is_given_back_keeps_no_data(small_ray: None, results: Path, write_study: Write) -> None:
    study = Study(write_study("kept", settings={"placement": "packed"}, methods=["local"], seeds=1))
    found = preflight.check(study.experiments, resources(), study.name, uri=None, tracking=None)
    [(work, placed)] = found.todo
    fleet = Fleet(placed)
    broker = ray.remote(FleetBroker).options(num_cpus=0).remote([fleet])
    try:
        trial = FederatedTrial({"position": 0})
        trial.setup({"position": 0}, found.todo, [checkpoint_path(study.name, work.fingerprint)], broker)
        while not (report := trial.step())["done"]:
            pass
        assert report["error"] == ""
        [actor] = fleet.actors()
        with pytest.raises(RuntimeError, match="the actor has no clients"):
            ray.get(actor.state.remote())
        # A fleet whose actors died is given back all the same.
        trial.reset_config({"position": 0})
        trial._start()
        ray.kill(actor)
        trial.cleanup()
        assert ray.get(broker.lease.remote(7)).actors()
    finally:
        ray.kill(broker)
        fleet.close()
    nothing_is_left()


def test_the_command_for_the_ui_works_where_no_environment_is_activated(
    small_ray: None, results: Path, write_study: Write, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(results))
    code, printed = fedatlas("sweep", write_study("shown", methods=["local"], seeds=1, rounds=1))
    assert code == 0
    [line] = [line for line in printed.splitlines() if line.startswith("MLflow UI: ")]
    command, *words = shlex.split(line.removeprefix("MLflow UI: "))
    assert words == ["ui", "--backend-store-uri", f"sqlite:///{results / 'mlflow.db'}"]
    assert os.access(command, os.X_OK)


def test_missing_data_stop_a_sweep_unless_only_the_rest_is_wanted(
    no_data: None, small_ray: None, results: Path, write_study: Write, fedatlas: Call
) -> None:
    path = write_study("mixed", datasets=["cora", "minesweeper"], seeds=1)
    code, printed = fedatlas("sweep", path, "--dry-run")
    assert code == 2
    assert "4 trials: 2 to run, 0 finished before, 2 on missing data" in printed
    assert "missing cora: " in printed
    assert "--available-only" in printed
    code, printed = fedatlas("sweep", path, "--dry-run", "--available-only")
    assert code == 0


def test_a_placement_that_can_never_be_given_stops_before_the_start(
    small_ray: None, results: Path, write_study: Write, fedatlas: Call
) -> None:
    path = write_study("huge", settings={"placement": "actors", "client_cpus": 2})
    code, printed = fedatlas("sweep", path)
    assert code == 2
    assert "need 6 CPUs" in printed
    assert list(Store().runs("huge")) == []


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("quickstrt",), "did you mean quickstart"),
        (("missing.yaml",), "does not exist"),
        (("quickstart", "--only", "minesweper"), "did you mean minesweeper"),
        (("quickstart", "--algorithms", "fedagv"), "did you mean fedavg"),
        (("quickstart", "--placement", "acters"), "did you mean actors"),
        (("quickstart", "--seeds", "0"), "seeds=0"),
    ],
)
def test_bad_input_is_named_without_a_traceback(
    fedatlas: Call, results: Path, words: tuple[str, ...], match: str
) -> None:
    code, printed = fedatlas("sweep", *words)
    assert code == 2
    assert match in printed
    assert "Traceback" not in printed


def test_a_study_runs_once_at_a_time(results: Path, write_study: Write, fedatlas: Call) -> None:
    path = write_study("twice")
    with alone("twice"):
        with pytest.raises(FedatlasError, match=f"study twice is being run by process {os.getpid()} on "):
            quiet(Study(path))
        code, printed = fedatlas("sweep", path)
        assert code == 2
        assert "FEDATLAS_RESULTS" in printed
        with alone("another"):
            pass
    with alone("twice"):
        pass


def test_sync_says_what_it_did(
    results: Path, fedatlas: Call, monkeypatch: pytest.MonkeyPatch, small_ray: None, write_study: Write
) -> None:
    assert fedatlas("sync") == (0, "nothing to push\n")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://joe:s3cret@127.0.0.1:1")
    path = write_study("later", methods=["local"], seeds=1, rounds=1)
    code, printed = fedatlas("sweep", path)
    assert code == 0
    assert "push them later with `fedatlas sync`" in printed
    assert "s3cret" not in printed
    code, printed = fedatlas("sync")
    assert code == 2
    assert "cannot be reached" in printed
    assert "s3cret" not in printed
    assert len(journal.pending()) == 2

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    code, printed = fedatlas("sync")
    assert code == 0
    assert "pushed 2 of 2 runs" in printed
    assert Study(path).results()["status"].tolist() == ["FINISHED"]
    # What was pushed is finished.
    assert preflight_todo(path) == []


@pytest.mark.slow
def test_ctrl_c_in_the_driver_ends_trials_and_marks_them_to_go_on(
    small_ray: None, results: Path, write_study: Write
) -> None:
    path = write_study("stopped", methods=["local"], seeds=1, rounds=60)

    def interrupt(progress: Any) -> None:
        if progress.rounds_done:
            raise KeyboardInterrupt

    outcome = quiet(Study(path), show=interrupt)
    assert outcome.interrupted
    [row] = Study(path).results().to_dict("records")
    assert row["status"] == "KILLED"
    [parent] = Store().runs("stopped", "tags.`fedatlas.kind` = 'sweep'")
    assert parent.info.status == "KILLED"
    nothing_is_left()
    rest = quiet(Study(path))
    assert len(rest.finished) == 1
    [again] = Study(path).results().to_dict("records")
    assert (again["run_id"], again["status"]) == (row["run_id"], "FINISHED")
    history = Store().client.get_metric_history(row["run_id"], "test/score")
    assert [point.step for point in history] == list(range(60))


@pytest.mark.slow
def test_a_trial_whose_process_dies_gets_its_fleet_back(
    small_ray: None, results: Path, write_study: Write
) -> None:
    study = Study(write_study("dying", settings={"placement": "packed"}, seeds=1, rounds=80))
    killed: list[int] = []

    def kill(progress: Any) -> None:
        if progress.rounds_done and not killed:
            killed.extend(_trial_processes())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    outcome = quiet(study, tracking=False, show=kill)
    assert len(killed) == 1
    assert (len(outcome.finished), outcome.failed) == (2, {})
    nothing_is_left()


@pytest.mark.slow
def test_a_trial_whose_process_keeps_dying_fails_alone(
    small_ray: None, results: Path, write_study: Write
) -> None:
    study = Study(write_study("hopeless", settings={"placement": "packed"}, seeds=1, rounds=80))

    def kill(progress: Any) -> None:
        if not progress.failed and progress.running and not progress.done:
            for process in _trial_processes():
                os.kill(process, signal.SIGKILL)

    outcome = quiet(study, show=kill)
    assert len(outcome.failed) == 1
    assert "process died 3 times" in next(iter(outcome.failed.values()))
    assert len(outcome.finished) == 1
    assert sorted(study.results()["status"]) == ["FAILED", "FINISHED"]
    nothing_is_left()


def _trial_processes() -> list[int]:
    """Tune's trial processes below this one: Ray's node process is our child."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
            number = int(folder.name)
            if (
                title.startswith(b"ray::")
                and b"FederatedTrial" in title
                and os.getpid() in _ancestors(number)
            ):
                found.append(number)
        except OSError:
            continue
    return found


def _ancestors(process: int) -> list[int]:
    out = []
    while process > 1:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        process = int(fields[1])
        out.append(process)
    return out


def test_results_are_a_table_before_anything_ran(results: Path, write_study: Write) -> None:
    table = Study(write_study("never")).results()
    assert isinstance(table, pd.DataFrame)
    assert table.empty
