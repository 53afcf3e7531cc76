"""The terminal's view of a study's health, and the addresses of its page."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fedatlas.dashboards.health import Health, Unfinished
from fedatlas.dashboards.report import keep_page, report_path, write_report
from fedatlas.platform.tracking.operations import KIND_TAG
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps.commands.watch import MOST_LINES, health_table

Call = Callable[..., tuple[int, str]]


def shown(found: Health, cluster: str = "") -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(health_table("study", found, cluster))
    return capture.get()


def unfinished(status: str, **changes: object) -> Unfinished:
    values = {
        "label": "FedAvg [red]",
        "scenario": "Cora · metis · 10 clients",
        "seed": "0",
        "status": status,
        "run_id": "0" * 32,
        "error": "",
        "attempts": 1,
        "rounds_done": None,
        "rounds": 100,
        "started": 0.0,
        **changes,
    }
    return Unfinished(**values)  # type: ignore[arg-type]


def test_the_table_says_what_runs_what_failed_and_what_is_left() -> None:
    trials = (
        unfinished("FAILED", error="NonFiniteError: loss\nmore", attempts=2),
        unfinished("RUNNING", rounds_done=25),
        unfinished("RUNNING", rounds_done=130),
    )
    found = Health(7, 1, 2, 0, 1, 12, 8, 600.0, "10.0.0.1:6379", trials)
    text = shown(found, "Ray: 1 node, 2 of 2 CPUs reserved, 0 client actors")
    assert "study: 7 finished, 2 running, 1 failed, 1 started again" in text
    assert "8 of 12 trials have ended, about 10 min left" in text
    assert "2 of 2 CPUs reserved" in text
    assert "NonFiniteError: loss" in text
    assert "more" not in text
    assert "FedAvg [red]" in text
    assert "25 of 100 rounds" in text
    # Personal rounds come on top.
    assert "130 rounds" in text


def test_a_long_list_is_cut_and_counted() -> None:
    found = Health(0, 30, 0, 0, 0, None, None, None, "", tuple(unfinished("FAILED") for _ in range(30)))
    assert f"and {30 - MOST_LINES} more" in shown(found)


def test_watch_once_and_the_addresses_of_the_page(results: Path, fedatlas: Call) -> None:
    tracker = Tracker(lambda text: pytest.fail(text))
    tracker.describe("study", "What it is.")
    parent = tracker.open("study", "study sweep", {}, {KIND_TAG: "sweep"})
    tracker.close(parent, "FINISHED")
    code, printed = fedatlas("watch", "study", "--once")
    assert code == 0
    assert "study: 0 finished, 0 running, 0 failed" in printed
    store = Store()
    page = write_report(store, "study", report_path("study"))
    run = keep_page(store, "study", page)
    assert run == tracker.run_id(parent)
    code, printed = fedatlas("dashboard", "--print", "--port", "5999")
    assert code == 0
    number = store.experiment_id("study")
    assert "MLflow UI: http://127.0.0.1:5999" in printed
    assert page.as_uri() in printed
    assert f"http://127.0.0.1:5999/#/experiments/{number}/runs/{run}/artifacts/study.html" in printed


def test_a_taken_port_is_refused(results: Path, fedatlas: Call) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, printed = fedatlas("dashboard", "--port", str(port))
    assert code == 2
    assert f"--port {port + 1}" in printed
