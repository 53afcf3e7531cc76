"""Studies as jobs of a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import Study, submission
from fedatlas.sweeps.submission import Submitted, submission_address, submit

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]


class Client:
    """Stands for Ray's client: remembers what was submitted, with the files as they were then."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def submit_job(self, **job: Any) -> str:
        folder = job["runtime_env"].get("working_dir")
        sent = {path.name: path.read_text() for path in Path(folder).iterdir()} if folder else {}
        self.jobs.append({**job, "sent": sent})
        return "raysubmit_1"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(submission, "_client", lambda address: made)
    for name in submission.PASSED_ON:
        monkeypatch.delenv(name, raising=False)
    return made


def test_the_command_of_the_job_is_that_of_the_study(
    client: Client, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    words = ("--seeds", "2", "--only", "minesweeper,clients=5|10", "--available-only", "--force")
    code, printed = fedatlas("submit", "heterophilic", *words)
    assert code == 0
    [job] = client.jobs
    assert job["entrypoint"] == (
        "fedatlas sweep heterophilic --seeds 2 --only 'minesweeper,clients=5|10' --available-only --force"
    )
    assert (job["runtime_env"], job["sent"]) == ({}, {})
    assert "as raysubmit_1: fedatlas sweep" in printed
    assert "ray job logs --address http://head:8265 --follow raysubmit_1" in printed


def test_files_and_variables_go_along(
    client: Client, write_study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tmp_path / "elsewhere" / "best.yaml"
    tuned.parent.mkdir()
    tuned.write_text("algorithm: fedavg")
    study = write_study("mine")
    monkeypatch.setenv("FEDATLAS_RESULTS", "/shared/results")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    done = submit("http://head:8265", study, ["--tuned", str(tuned)], [tuned])
    assert done == Submitted("raysubmit_1", "http://head:8265", done.entrypoint)
    assert done.entrypoint == (
        "env FEDATLAS_RESULTS=/shared/results MLFLOW_TRACKING_URI=http://mlflow:5000 "
        "fedatlas sweep mine.yaml --tuned best.yaml"
    )
    assert client.jobs[0]["sent"] == {"mine.yaml": Path(study).read_text(), "best.yaml": "algorithm: fedavg"}
    twin = tmp_path / "mine.yaml"
    with pytest.raises(FedatlasError, match="two of the files have the same name"):
        submit("http://head:8265", str(twin), [], [tuned.with_name("mine.yaml")])


def test_a_password_travels_in_a_file_and_not_in_the_command(
    client: Client, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray shows the command of a job in its dashboard, its logs and the process list."""
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    monkeypatch.setenv("FEDATLAS_RESULTS", "/shared/results")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://joe:s3cret'x@mlflow:5000")
    code, printed = fedatlas("submit", "quickstart")
    assert code == 0
    [job] = client.jobs
    wanted = ". ./variables.sh && env FEDATLAS_RESULTS=/shared/results fedatlas sweep quickstart"
    assert job["entrypoint"] == wanted
    assert "s3cret" not in printed
    shown = subprocess.run(
        ["sh", "-c", ". /dev/stdin && printenv MLFLOW_TRACKING_URI"],
        input=job["sent"]["variables.sh"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "http://joe:s3cret'x@mlflow:5000\n"


@pytest.mark.parametrize(
    ("address", "match"),
    [
        (None, "RAY_ADDRESS is not set: it must be the address of the dashboard"),
        ("head:6379", "RAY_ADDRESS=head:6379 is where drivers join"),
    ],
)
def test_other_addresses_are_refused(address: str | None, match: str) -> None:
    with pytest.raises(FedatlasError, match=match):
        submission_address(address)


def test_a_study_is_checked_before_it_is_sent(
    client: Client, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    code, printed = fedatlas("submit", "heterophilic", "--only", "cora")
    assert code == 2
    assert "data set or method of this study 'cora'" in printed
    assert client.jobs == []


def test_a_cluster_that_does_not_answer_is_named(fedatlas: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    code, printed = fedatlas("submit", "quickstart")
    assert code == 2
    assert "no cluster takes jobs at RAY_ADDRESS=http://127.0.0.1:1" in printed


def test_a_cluster_that_has_just_come_up_is_asked_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, answers = client.submit_job, iter(["No available agent to submit job, please try again later."])

    def not_yet(**job: Any) -> str:
        for answer in answers:
            raise RuntimeError(answer)
        return taken(**job)

    monkeypatch.setattr(client, "submit_job", not_yet)
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.0)
    assert submit("http://head:8265", "quickstart", []).job == "raysubmit_1"
    monkeypatch.setattr(submission, "START_SECONDS", 0.0)
    answers = iter(["No available agent to submit job"])
    with pytest.raises(FedatlasError, match="took no job: No available agent"):
        submit("http://head:8265", "quickstart", [])


@pytest.fixture
def head(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Ray cluster of one node with a dashboard; its address."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as free:
        free.bind(("", 0))
        # Jobs are started by an agent, whose usual port another Ray of this machine may have.
        agent = free.getsockname()[1]
    arguments = {"include_dashboard": True, "dashboard_port": 0, "dashboard_agent_listen_port": agent}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **arguments})
    try:
        yield f"http://{cluster.head_node.webui_url}"
    finally:
        cluster.shutdown()


@pytest.mark.ray
@pytest.mark.slow
def test_a_submitted_study_runs_on_the_cluster(
    head: str, results: Path, write_study: Write, fedatlas: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", head)
    path = write_study("sent", methods=["local"], seeds=2)
    code, printed = fedatlas("submit", path, "--wait")
    assert code == 0, printed
    assert "sent: 1 scenarios, 2 trials: 2 to run, 0 finished before" in printed
    assert "2/2 done" in printed
    monkeypatch.delenv("RAY_ADDRESS")
    assert Study(path).results()["status"].tolist() == ["FINISHED"] * 2
    [parent] = Store().runs("sent", "tags.`fedatlas.kind` = 'sweep'")
    assert parent.info.status == "FINISHED"
