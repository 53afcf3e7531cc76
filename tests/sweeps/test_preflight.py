"""What a study is going to do, found out without Ray and, for a dry run, without leaving a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from fedatlas.algorithms.fedavg import FedAvg
from fedatlas.platform.federation.placement import ACTOR_BYTES, Cluster, NodeResources, plan
from fedatlas.platform.tracking.destination import tracking_uri
from fedatlas.platform.tracking.operations import KIND_TAG, RUN_TAG
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import Study
from fedatlas.sweeps.driver import FOLDER_TAG, begin_anew, close_abandoned, mark_stale, place
from fedatlas.sweeps.execution import Planned, planned, request
from fedatlas.sweeps.preflight import TRIAL_BYTES, Preflight, check
from fedatlas.sweeps.recording import RUN_ID_FILE, Recording, note_failure

from .conftest import two_rounds

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]
WIDE = Cluster((NodeResources(64, 0, 1e12),))
ELSEWHERE = "http://joe:s3cret@127.0.0.1:1"


def look(study: Study, cluster: Cluster = WIDE, **options: Any) -> Preflight:
    values = {"uri": None, "tracking": None, **options}
    return check(study.experiments, cluster, study.name, **values)


def recording(study: Study, tracker: Tracker | None, number: int = 0) -> Recording:
    return Recording(planned(study.experiments[number]), study.name, "inline: for a test", tracker)


def finish(study: Study, tracker: Tracker | None, number: int = 0) -> dict[str, Any]:
    one = recording(study, tracker, number)
    one.open()
    one.add(two_rounds())
    return one.finish()


@pytest.mark.parametrize(
    ("settings", "cluster", "expected"),
    [
        ({"placement": "inline"}, Cluster((NodeResources(6, 0, 1e12),)), 6),
        ({"placement": "inline"}, Cluster((NodeResources(64, 0, 4.5 * TRIAL_BYTES),)), 4),
        ({"placement": "inline"}, Cluster((NodeResources(64, 0, 0.5 * TRIAL_BYTES),)), 1),
        ({"placement": "inline"}, WIDE, 20),
        # Three actors and a coordinator each.
        ({"placement": "auto"}, Cluster((NodeResources(16, 0, 1e12),)), 4),
        ({"placement": "auto"}, Cluster((NodeResources(15, 0, 1e12),)), 3),
        ({"placement": "auto"}, Cluster((NodeResources(64, 0, 7 * ACTOR_BYTES),)), 2),
        ({"placement": "actors", "client_gpus": 0.2}, Cluster((NodeResources(64, 2, 1e12),)), 3),
        # Two actors of two clients and of one; a GPU lies in one node.
        (
            {"placement": "packed", "clients_per_actor": 2, "client_gpus": 0.3},
            Cluster((NodeResources(8, 1, 1e12), NodeResources(8, 1, 1e12))),
            1,
        ),
        # Shares of a CPU: a second trial would take from the first.
        ({"placement": "actors"}, Cluster((NodeResources(3, 0, 1e12),)), 1),
    ],
)
def test_as_many_trials_at_once_as_can_be_placed(
    write_study: Write, results: Path, settings: dict[str, Any], cluster: Cluster, expected: int
) -> None:
    study = Study(write_study(settings=settings, methods=["local"], seeds=20))
    found = look(study, cluster)
    assert set(found.concurrency.values()) == {expected}
    [placed] = {placed.reason: placed for _, placed in found.todo}.values()
    if placed.kind != "inline":
        actors, cpus, gpus = placed.shape()
        assert actors * expected <= cluster.fits(cpus, gpus, ACTOR_BYTES)
        assert expected * (actors * cpus + 1) <= cluster.cpus
        together = plan(request(study.experiments[0].experiment, expected), cluster)
        assert together.groups == placed.groups


def test_a_trial_is_finished_for_the_store_it_was_tracked_in(
    write_study: Write, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    study = Study(write_study(methods=["local"], seeds=4))
    warnings: list[str] = []
    here, elsewhere = tracking_uri(), Tracker(warnings.append, ELSEWHERE)
    assert elsewhere.store is None
    tracked = finish(study, Tracker(pytest.fail), 0)
    journaled = finish(study, elsewhere, 1)
    untracked = finish(study, None, 2)
    assert (tracked["tracking_uri"], untracked["tracking_uri"]) == (here, None)
    assert "s3cret" not in journaled["tracking_uri"]
    one, two, three = (summary["fingerprint"] for summary in (tracked, journaled, untracked))
    # Whether a store answers does not change what is wanted.
    assert look(study, uri=here, tracking=Store()).finished == {one}
    assert look(study, uri=here).finished == {one}
    assert look(study, uri=ELSEWHERE).finished == {two}
    assert look(study, uri="http://127.0.0.1:2").finished == set()
    assert look(study, uri=None).finished == {one, two, three}
    # What another results folder has put into the store is finished too.
    (results / "studies" / "small" / one / "summary.json").unlink()
    assert look(study, uri=here, tracking=Store()).finished == {one}


def test_only_runs_of_this_results_folder_are_continued(
    write_study: Write, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver on the same server may be at work on the others."""
    study = Study(write_study(methods=["local"], seeds=3))
    tracker = Tracker(pytest.fail)
    ours = [recording(study, tracker, number) for number in (0, 1)]
    for each in ours:
        each.open()
    ours[1].fail("", killed=True)
    uri = tracking_uri()
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path / "others"))
    theirs = recording(study, tracker, 2)
    theirs.open()
    assert look(study, uri=uri, tracking=Store(uri)).interrupted == {
        theirs.planned.fingerprint: theirs.run_id
    }
    monkeypatch.setenv("FEDATLAS_RESULTS", str(results))
    found = look(study, uri=uri, tracking=Store(uri))
    assert found.interrupted == {each.planned.fingerprint: each.run_id for each in ours}
    assert len(found.todo) == 3


def test_a_run_that_died_while_it_was_opened_is_continued_with_all_it_needs(
    write_study: Write, results: Path
) -> None:
    study = Study(write_study(methods=["local"], seeds=1))
    store = Store()
    trial = recording(study, Tracker(pytest.fail))
    trial.folder.mkdir(parents=True)
    (trial.folder / RUN_ID_FILE).write_text("run-begun\n")
    tags = {
        RUN_TAG: "run-begun",
        "fedatlas.kind": "trial",
        "fedatlas.fingerprint": trial.planned.fingerprint,
        "fedatlas.commit": "of long ago",
    }
    run_id = store.client.create_run(store.experiment_id(study.name), tags=tags).info.run_id

    found = look(study, uri=tracking_uri(), tracking=store)
    assert found.interrupted == {trial.planned.fingerprint: run_id}
    trial.open(run_id)
    trial.add(two_rounds())
    assert trial.finish()["run_id"] == run_id
    fresh = recording(Study(write_study("fresh", methods=["local"], seeds=1)), Tracker(pytest.fail))
    fresh.open()
    continued, new = (store.client.get_run(each.run_id).data for each in (trial, fresh))
    assert continued.params == new.params
    assert len(new.params) > 10
    for key in ("fedatlas.commit", "fedatlas.placement", "fedatlas.identity", "fedatlas.torch"):
        assert continued.tags[key] == new.tags[key]


def test_what_failed_is_tried_again_on_request_only(write_study: Write, results: Path) -> None:
    study = Study(write_study(methods=["local"], seeds=2))
    tracker = Tracker(pytest.fail)
    trial = recording(study, tracker)
    trial.open()
    note_failure(study.name, trial.planned, "out of luck")
    trial.fail("out of luck")
    for options in ({"uri": tracking_uri(), "tracking": Store()}, {"uri": None, "tracking": None}):
        found = look(study, **options)
        assert found.failed == {trial.planned.resolved.cell: "out of luck"}
        assert [work.resolved.experiment.seed for work, _ in found.todo] == [1]
        assert len(look(study, retry_failed=True, **options).todo) == 2
        assert len(look(study, force=True, **options).todo) == 2
    # Once it runs again, the failure is of the past.
    again = recording(study, tracker)
    again.open()
    again.add(two_rounds())
    again.finish()
    found = look(study)
    assert (found.failed, len(found.finished)) == ({}, 1)


def test_what_is_to_run_anew_is_not_finished_any_more(write_study: Write, results: Path) -> None:
    """A forced sweep that dies goes on without being forced."""
    study = Study(write_study(methods=["local"], seeds=2))
    summaries = [finish(study, Tracker(pytest.fail), number) for number in (0, 1)]
    forced = look(study, uri=tracking_uri(), tracking=Store(), force=True)
    assert (len(forced.todo), forced.finished) == (2, set())
    begin_anew(study.name, forced, Store())
    assert len(look(study, uri=tracking_uri(), tracking=Store()).todo) == 2
    finish(study, Tracker(pytest.fail), 0)
    found = look(study, uri=tracking_uri(), tracking=Store())
    assert found.finished == {summaries[0]["fingerprint"]}


def test_results_of_an_earlier_version_are_stale_and_not_mixed(
    write_study: Write, results: Path, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_study(methods=["local", "fedavg"], seeds=2)
    for number in range(4):
        finish(Study(path), Tracker(pytest.fail), number)
    monkeypatch.setattr(FedAvg, "version", FedAvg.version + 1)
    study = Study(path)
    found = look(study, uri=tracking_uri(), tracking=Store())
    assert (len(found.finished), len(found.todo), len(found.stale)) == (2, 2, 2)
    change = f"fedavg was version {FedAvg.version - 1}, is {FedAvg.version}"
    assert {each.change for each in found.stale} == {change}
    assert set(study.results()["algorithm"]) == {"local"}
    code, printed = fedatlas("sweep", path, "--dry-run")
    assert code == 0
    assert f"stale: 2 finished trials, not used ({change})" in printed
    mark_stale(found, Store())
    runs = Store().runs("small", "tags.`fedatlas.stale` LIKE 'fedavg was%'")
    assert {run.info.run_id for run in runs} == {each.run_id for each in found.stale}
    # Trials of another form of the study, here with other rounds, are not stale.
    assert look(Study(path, rounds=7)).stale == ()


def test_the_run_of_a_sweep_that_was_killed_is_ended(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tracker = Tracker(pytest.fail)
    tags = {KIND_TAG: "sweep", FOLDER_TAG: place()}
    ours = tracker.open("small", "small sweep", {}, tags)
    theirs = tracker.open("small", "small sweep", {}, {**tags, FOLDER_TAG: "elsewhere:/results"})
    close_abandoned(tracker, "small")
    status = {run: Store().client.get_run(tracker.run_id(run)).info.status for run in (ours, theirs)}
    assert status == {ours: "KILLED", theirs: "RUNNING"}


def test_the_longest_trials_come_first_as_measured(write_study: Write, results: Path) -> None:
    study = Study(write_study(seeds=2))
    finish(Study(write_study("other", seeds=1)), None, 1)
    found = look(study, Cluster((NodeResources(1, 0, 1e12),)))
    experiments = [work.resolved.experiment for work, _ in found.todo]
    costs = [found.costs.trial_seconds(given, "inline") for given in experiments]
    assert costs == sorted(costs, reverse=True)
    sources = {given.algorithm: found.costs.round_seconds(given, "inline").source for given in experiments}
    assert sources == {"local": "fitted", "fedavg": "measured"}
    assert "fitted on 1 finished trials" in found.costs.describe()
    # On one CPU, one after another.
    assert found.estimated_seconds() == pytest.approx(sum(costs))


def test_a_study_may_bound_the_trials_at_once(write_study: Write, results: Path) -> None:
    study = Study(write_study(methods=["local"], seeds=20))
    assert set(look(study, concurrent=3).concurrency.values()) == {3}


def test_results_need_no_data(no_data: None, write_study: Write, results: Path) -> None:
    path = write_study(datasets=["cora"], methods=["local"], seeds=2)
    study = Study(path)
    for number, data in ((0, "old"), (1, "same"), (0, "new")):
        resolved = study.experiments[number]
        work = Planned(resolved, data, resolved.fingerprint(data))
        trial = Recording(work, study.name, "inline: for a test", Tracker(pytest.fail))
        trial.open()
        trial.add(two_rounds())
        trial.finish()
    found = study.results()
    assert found.set_index("seed")["data_sha256"].to_dict() == {0: "new", 1: "same"}
    assert found["status"].tolist() == ["FINISHED"] * 2
    assert Study(path, rounds=9).results().empty


def test_data_that_cannot_be_read_are_missing(
    no_data: None, write_study: Write, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose right hash is not known may hold anything; only reading it tells."""
    monkeypatch.setenv("FEDATLAS_OFFLINE", "0")
    path = Path(os.environ["FEDATLAS_DATA"]) / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a zip archive")
    study = Study(write_study(datasets=["amazon-photo", "cora", "minesweeper"], methods=["local"], seeds=1))
    found = look(study, download=False)
    assert set(found.missing) == {"amazon-photo", "cora"}
    assert "cannot be read" in found.missing["amazon-photo"]
    assert "FEDATLAS_OFFLINE forbids to download it" in found.missing["cora"]
    assert (len(found.todo), found.left_out) == (1, 2)
    assert os.environ["FEDATLAS_OFFLINE"] == "0"
    monkeypatch.delenv("FEDATLAS_OFFLINE")
    look(study, download=False)
    assert "FEDATLAS_OFFLINE" not in os.environ


def test_a_dry_run_leaves_no_trace(
    write_study: Write, fedatlas: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path / "results"))
    code, printed = fedatlas("sweep", write_study(), "--dry-run")
    assert code == 0
    assert "4 to run, 0 finished before" in printed
    assert not ray.is_initialized()
    assert not (tmp_path / "results").exists()


def test_a_dry_run_reads_the_store_that_is_there(
    write_study: Write, fedatlas: Call, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = write_study()
    summary = finish(Study(path), Tracker(pytest.fail))
    (results / "studies" / "small" / summary["fingerprint"] / "summary.json").unlink()
    code, printed = fedatlas("sweep", path, "--dry-run")
    assert code == 0
    assert "3 to run, 1 finished before" in printed
    assert not ray.is_initialized()
