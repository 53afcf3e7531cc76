"""A sweep that is stopped from outside and started again leaves what an undisturbed one leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import Study, run

pytestmark = [pytest.mark.ray, pytest.mark.slow]

FEDATLAS = Path(sys.executable).with_name("fedatlas")
ROUNDS = 150
SECONDS = 300.0


def start(study: str, results: Path) -> subprocess.Popen[str]:
    """`fedatlas sweep` in a process group of its own, as a terminal starts it."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [str(FEDATLAS), "sweep", study, "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "FEDATLAS_RESULTS": str(results), "COLUMNS": "200"},
        start_new_session=True,
        # A shell that runs the tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_checkpoint(process: subprocess.Popen[str], results: Path) -> Path:
    end = time.monotonic() + SECONDS
    while not (found := list((results / "checkpoints").glob("stopped/*.pt"))):
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[0]


def processes_of(results: Path) -> list[str]:
    """All processes that descend from a sweep into this results folder: they inherit its environment."""
    marker = f"FEDATLAS_RESULTS={results}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def wait_for_children_to_end(results: Path) -> None:
    end = time.monotonic() + SECONDS
    while left := processes_of(results):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Everything but wall time."""
    return table[[name for name in table.columns if not name.startswith(("time/", "memory/", "run_id"))]]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_sweep_goes_on_from_its_checkpoint(
    how: signal.Signals, results: Path, write_study: Callable[..., str]
) -> None:
    path = write_study("stopped", methods=["fedavg", "local"], seeds=1, rounds=ROUNDS)
    process = start(path, results)
    checkpoint = Checkpoint.load(wait_for_checkpoint(process, results))
    if how == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, how)
    printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    if how == signal.SIGINT:
        # Ray ends what a killed driver leaves within a minute; the restart must not mind.
        wait_for_children_to_end(results)
        assert "Run the same command to go on" in printed
        assert "Traceback" not in printed
    begun = {run.info.run_id for run in Store().runs("stopped", "tags.`fedatlas.kind` = 'trial'")}
    assert begun

    second = start(path, results)
    printed, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, printed

    store = Store()
    trials = Study(path).results()
    assert sorted(trials["status"]) == ["FINISHED", "FINISHED"]
    sweeps = store.runs("stopped", "tags.`fedatlas.kind` = 'sweep'")
    assert [run.info.status for run in sweeps] == ["FINISHED", "KILLED"]
    tracked = {run.info.run_id for run in store.runs("stopped", "tags.`fedatlas.kind` = 'trial'")}
    assert begun <= tracked == set(trials["run_id"])  # Continued, not begun anew.
    tables = {}
    for trial in trials.to_dict("records"):
        table = reading.rounds(store, [trial["run_id"]])
        tables[trial["algorithm"]] = table
        undisturbed = run(
            "minesweeper",
            3,
            trial["algorithm"],
            partition="random",
            rounds=ROUNDS,
            placement="inline",
            tracking=False,
            progress=False,
        )
        pd.testing.assert_frame_equal(numbers(table), numbers(undisturbed.rounds), check_exact=True)
        history = store.client.get_metric_history(trial["run_id"], "test/score")
        assert [point.step for point in history] == list(range(ROUNDS))
        assert [point.value for point in history] == undisturbed.rounds["test/score"].tolist()
    # The wall times of the rounds before the checkpoint are those of the process that was stopped.
    kept = [record.seconds["round"] for record in checkpoint.records]
    assert any(table["time/round_seconds"].tolist()[: len(kept)] == kept for table in tables.values())
    assert not list((results / "checkpoints").glob("*/*"))
