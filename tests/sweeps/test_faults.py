"""Everything that may die, at every moment that matters: the numbers stay, nothing is lost, twice or left.

Real parts throughout: `fedatlas sweep` in a process of its own, Ray, an MLflow server. The method of the
study is FedAvg that stops in one moment of round `STOP`, once, until the test has done its harm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedatlas.platform.tracking import journal, reading
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import run

pytestmark = [pytest.mark.ray]

FEDATLAS = Path(sys.executable).with_name("fedatlas")
STOP, ROUNDS = 26, 30
"""The checkpoint is that of round 25."""
SECONDS = 240.0
AWAY = float(os.environ.get("FEDATLAS_TEST_AWAY", "120"))
"""Seconds that a tracking server stays away."""

METHOD = '''
import os
import time
from pathlib import Path
from types import SimpleNamespace

from fedatlas.algorithms.fedavg import FedAvg
from fedatlas.platform.federation import checkpoint
from fedatlas.platform.tracking.store import Store


def stop(moment):
    """Wait until the test lets go, if this is its moment and nobody has been here."""
    folder = Path(os.environ.get("FAULT_FOLDER", "/nowhere"))
    if not folder.is_dir() or os.environ.get("FAULT_MOMENT") != moment:
        return
    own = folder / f"pid-{os.getpid()}"
    own.write_text(str(os.getpid()))
    try:
        os.link(own, folder / "reached")
    except FileExistsError:
        return
    while not (folder / "go").exists():
        time.sleep(0.02)


def half_written(descriptor):
    """Flush a checkpoint of which only a half has been written so far."""
    whole = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.ftruncate(descriptor, len(whole) // 2)
    stop("checkpoint")
    os.pwrite(descriptor, whole, 0)
    os.fsync(descriptor)


def half_logged(store, operation, again, _points=Store._points):
    """Log the figures of some rounds in two halves."""
    if max(step for _, _, step in operation.points) < STOP:
        return _points(store, operation, again)
    points = operation.points
    for number, part in enumerate((points[: len(points) // 2], points[len(points) // 2 :])):
        if number:
            stop("logging")
        _points(store, SimpleNamespace(run=operation.run, points=part, time=operation.time), again)


if "FAULT_FOLDER" in os.environ and not hasattr(checkpoint.os, "half"):
    checkpoint.os = SimpleNamespace(fdopen=os.fdopen, fsync=half_written, half=True)
    Store._points = half_logged
STOP = 26


class Stopping(FedAvg):
    name = "stopping"
    title = "Stopping"

    def update(self, client, cohort, round_number):
        if round_number == STOP:
            stop("training")
        return super().update(client, cohort, round_number)

    def aggregate(self, server, upload, round_number):
        folder = Path(os.environ.get("FAULT_FOLDER", "/nowhere"))
        if folder.is_dir():
            (folder / "coordinator").write_text(str(os.getpid()))
        if round_number == STOP:
            stop("aggregation")
        return super().aggregate(server, upload, round_number)
'''


class Sweep:
    """`fedatlas sweep` that stops in one moment.

    Attributes:
        process: of the driver.
        results: its results folder.
    """

    def __init__(self, study: str, results: Path, moment: str, *words: str, **environment: str) -> None:
        self.results = results
        self._faults = Path(environment.get("FAULT_FOLDER", results.parent / f"faults-{time.monotonic_ns()}"))
        self._faults.mkdir(exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [str(FEDATLAS), "sweep", study, "--no-report", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **inherited,
                "FEDATLAS_RESULTS": str(results),
                "FAULT_FOLDER": str(self._faults),
                "FAULT_MOMENT": moment,
                "COLUMNS": "200",
                **environment,
            },
            start_new_session=True,
            # A shell that runs the tests in the background has its children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def reached(self) -> int:
        """Wait for the moment; id of the process that has come there."""
        end = time.monotonic() + SECONDS
        while not (self._faults / "reached").exists():
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
            assert time.monotonic() < end
            time.sleep(0.02)
        return int((self._faults / "reached").read_text())

    @property
    def coordinator(self) -> int:
        """Id of the process of the trial."""
        return int((self._faults / "coordinator").read_text())

    def go(self) -> None:
        (self._faults / "go").touch()

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        printed, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, printed


def processes_of(results: Path) -> dict[int, str]:
    """All processes that descend from a sweep into this results folder: they inherit its environment."""
    marker = f"FEDATLAS_RESULTS={results}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def process_named(results: Path, name: str) -> int:
    """A worker that Ray has named after its actor; the only one."""
    [found] = [pid for pid, command in processes_of(results).items() if command.startswith(f"ray::{name}")]
    return found


def nothing_is_left(results: Path) -> None:
    """No process, no checkpoint, nothing half written."""
    end = time.monotonic() + SECONDS
    while left := processes_of(results):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert [path for path in (results / "checkpoints").rglob("*") if path.is_file()] == []
    assert [path for path in results.rglob("*") if path.name.endswith(".partial")] == []
    assert list((results / "tune").glob("*")) == []


@pytest.fixture(scope="module")
def method(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("method") / "stopping.py"
    path.write_text(METHOD)
    return f"{path}:Stopping"


@pytest.fixture(scope="module")
def undisturbed(method: str) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FAULT_FOLDER", raising=False)
        return run(
            "minesweeper",
            3,
            method,
            partition="random",
            rounds=ROUNDS,
            placement="inline",
            options={"hidden": 8},
            tracking=False,
            progress=False,
            announce=lambda text: None,
        ).rounds


@pytest.fixture
def study(write_study: Callable[..., str], method: str) -> str:
    return write_study(
        "faulty",
        methods=[{"algorithm": method, "options": {"hidden": 8}}],
        seeds=1,
        rounds=ROUNDS,
        settings={"placement": "packed", "clients_per_actor": 3},
    )


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Everything but wall time and memory."""
    return table[[name for name in table.columns if not name.startswith(("time/", "memory/", "run_id"))]]


def check(study: str, store: Store, undisturbed: pd.DataFrame) -> None:
    """One trial, finished once, with the numbers of a run that nothing happened to."""
    found = reading.trials(store, "faulty")
    assert found["status"].tolist() == ["FINISHED"]
    runs = list(store.runs("faulty", "tags.`fedatlas.kind` = 'trial'"))
    assert [each.info.status for each in runs] == ["FINISHED"]
    run_id = runs[0].info.run_id
    pd.testing.assert_frame_equal(
        numbers(reading.rounds(store, [run_id])), numbers(undisturbed), check_exact=True
    )
    for key in ("val/score", "test/score", "comm/uplink_bytes", "time/round_seconds"):
        history = store.client.get_metric_history(run_id, key)
        assert [point.step for point in history] == list(range(ROUNDS)), key
        if key != "time/round_seconds":
            assert [point.value for point in history] == undisturbed[key].tolist()
    for each in store.runs("faulty", "tags.`fedatlas.kind` = 'sweep'"):
        assert each.info.status in ("FINISHED", "KILLED")


MOMENTS = ("training", "aggregation", "checkpoint", "logging")


def cases(*short: tuple[str, str], others: tuple[str, ...]) -> list[Any]:
    """All pairs of victim and moment; those that are not named are slow."""
    return [
        pytest.param(victim, moment, marks=() if (victim, moment) in short else pytest.mark.slow)
        for victim in others
        for moment in MOMENTS
    ]


@pytest.mark.parametrize(("victim", "moment"), cases(("trial", "checkpoint"), others=("client", "trial")))
def test_a_process_that_dies_is_replaced(
    victim: str, moment: str, results: Path, study: str, undisturbed: pd.DataFrame
) -> None:
    """A client actor, or the process of the trial, which is the coordinator: the study goes on by itself."""
    sweep = Sweep(study, results, moment)
    reached = sweep.reached()
    pid = process_named(results, "CohortActor") if victim == "client" else sweep.coordinator
    assert moment != "training" or victim != "client" or pid == reached
    os.kill(pid, signal.SIGKILL)
    sweep.go()
    code, printed = sweep.end()
    assert code == 0, printed
    check(study, Store(), undisturbed)
    nothing_is_left(results)


DRIVER = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}


@pytest.mark.parametrize(("how", "moment"), cases(("SIGTERM", "logging"), others=tuple(DRIVER)))
def test_a_driver_that_is_stopped_goes_on_when_it_is_started_again(
    how: str, moment: str, results: Path, study: str, undisturbed: pd.DataFrame
) -> None:
    sweep = Sweep(study, results, moment)
    sweep.reached()
    if how == "Ctrl-C":
        os.killpg(sweep.process.pid, signal.SIGINT)
    else:
        sweep.process.send_signal(DRIVER[how])
    time.sleep(0.5)
    sweep.go()
    code, printed = sweep.end()
    assert code == {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "Ctrl-C": 130}[how], printed
    if how != "SIGKILL":
        assert "Run the same command to go on" in printed
        assert "Traceback" not in printed
        store = Store()
        for kind in ("trial", "sweep"):
            runs = store.runs("faulty", f"tags.`fedatlas.kind` = '{kind}'")
            assert {each.info.status for each in runs} == {"KILLED"}
    again = Sweep(study, results, "never")
    code, printed = again.end()
    assert code == 0, printed
    check(study, Store(), undisturbed)
    nothing_is_left(results)


@pytest.mark.parametrize(("away", "moment"), cases(others=("for good", "for a while")))
def test_a_server_that_dies_loses_nothing(
    away: str, moment: str, results: Path, study: str, undisturbed: pd.DataFrame, mlflow_server: Any
) -> None:
    """The study ends with a journal, and `fedatlas sync` pushes it once the server is back."""
    sweep = Sweep(study, results, moment, MLFLOW_TRACKING_URI=mlflow_server.uri)
    sweep.reached()
    mlflow_server.kill()
    sweep.go()
    if away == "for a while":
        time.sleep(AWAY)
        mlflow_server.start()
    code, printed = sweep.end()
    assert code == 0, printed
    assert "Results go to the journal" in printed
    assert journal.pending()
    if away == "for good":
        mlflow_server.start()
    store = Store(mlflow_server.uri)
    report = journal.sync(store)
    assert report.failed == ()
    assert not journal.pending()
    check(study, store, undisturbed)
    nothing_is_left(results)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_node_that_dies_is_done_without(
    moment: str,
    results: Path,
    tmp_path: Path,
    study: str,
    undisturbed: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Driver and trial are on the head, the client actors on the node that dies; another one comes."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    # Workers inherit the environment of their node.
    monkeypatch.setenv("FAULT_FOLDER", str(folder))
    monkeypatch.setenv("FAULT_MOMENT", moment)
    notice = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    size = {"memory": 4 * 10**9}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": notice, **size},
    )
    try:
        node = cluster.add_node(num_cpus=2, **size)
        cluster.wait_for_nodes()
        where = {"RAY_ADDRESS": cluster.address, "FAULT_FOLDER": str(folder)}
        sweep = Sweep(study, results, moment, **where)
        sweep.reached()
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=2, **size)
        sweep.go()
        code, printed = sweep.end()
        assert code == 0, printed
        check(study, Store(), undisturbed)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        groups = ray.util.placement_group_table().values()
        assert {group["state"] for group in groups} <= {"REMOVED"}
    finally:
        ray.shutdown()
        cluster.shutdown()
    nothing_is_left(results)


CLOCK = """
import os
import time

_real = time.time
_set_back = os.environ.get("CLOCK_IS_SET_BACK", "/nowhere")
time.time = lambda: _real() - 3600 * os.path.exists(_set_back)
"""
"""What Python runs first: the wall clock goes back an hour once a file is there."""


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(
    results: Path, tmp_path: Path, study: str, undisturbed: pd.DataFrame
) -> None:
    """While a sweep is dead, in mid-run, and between a trial and its repetition."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join([str(tmp_path / "python"), os.environ.get("PYTHONPATH", "")])
    mark = tmp_path / "set-back"

    def begin(moment: str, *words: str) -> Sweep:
        return Sweep(study, results, moment, *words, PYTHONPATH=path, CLOCK_IS_SET_BACK=str(mark))

    def finish(sweep: Sweep, count: int) -> str:
        """Id of the run that counts, of so many."""
        code, printed = sweep.end()
        assert code == 0, printed
        store = Store()
        runs = list(store.runs("faulty", "tags.`fedatlas.kind` = 'trial'"))
        assert [each.info.status for each in runs] == ["FINISHED"] * count
        for each in [*runs, *store.runs("faulty", "tags.`fedatlas.kind` = 'sweep'")]:
            assert each.info.end_time >= each.info.start_time
        [shown] = reading.trials(store, "faulty")["run_id"]
        table = reading.rounds(store, [shown])
        pd.testing.assert_frame_equal(numbers(table), numbers(undisturbed), check_exact=True)
        assert (table.filter(like="time/").dropna(axis=1) >= 0).all(axis=None)
        return str(shown)

    killed = begin("training")
    killed.reached()
    killed.process.kill()
    killed.go()
    killed.end()
    mark.touch()
    first = finish(begin("never"), 1)
    check(study, Store(), undisturbed)

    mark.unlink()
    sweep = begin("training", "--force")
    sweep.reached()
    mark.touch()
    sweep.go()
    second = finish(sweep, 2)
    third = finish(begin("never", "--force"), 3)
    assert len({first, second, third}) == 3
    nothing_is_left(results)
