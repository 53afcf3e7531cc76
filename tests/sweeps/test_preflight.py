"""What a study is going to do, found out without Ray and, for a dry run, without leaving a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from fedatlas.platform.federation.placement import ACTOR_BYTES, Cluster, NodeResources, plan
from fedatlas.platform.tracking.destination import tracking_uri
from fedatlas.platform.tracking.operations import RUN_TAG
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import Study
from fedatlas.sweeps.execution import Planned, planned, request
from fedatlas.sweeps.preflight import TRIAL_BYTES, Preflight, check
from fedatlas.sweeps.recording import RUN_ID_FILE, Recording

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
