"""A password in `MLFLOW_TRACKING_URI` shows up nowhere: not printed, not logged, not stored."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.store import Store

FEDATLAS = Path(sys.executable).with_name("fedatlas")
SECRETS = ("s3cret", "t0ken")
STUDY = {
    "description": "A study for tests.",
    "datasets": ["minesweeper"],
    "partitions": {"random": [2]},
    "methods": ["local", {"algorithm": "fedavg", "options": {"lr": 1e9, "optimizer": "sgd"}, "label": "bad"}],
    "seeds": 1,
    "rounds": 3,
    "settings": {"placement": "inline"},
}
"""A trial that finishes and one that fails with an error text."""


def call(folder: Path, uri: str, *words: str) -> str:
    done = subprocess.run(
        [str(FEDATLAS), *words],
        env={
            **os.environ,
            "FEDATLAS_RESULTS": str(folder / "results"),
            "MLFLOW_TRACKING_URI": uri,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "COLUMNS": "300",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr


def leaks(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in SECRETS):
            yield str(path.relative_to(folder))


def write_study(folder: Path) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return str(path)


def check(folder: Path, uri: str, words: tuple[tuple[str, ...], ...], expected: str) -> None:
    printed = {line: call(folder, uri, *line) for line in words}
    for line, text in printed.items():
        assert not any(secret in text for secret in SECRETS), (line, text)
        assert "Traceback" not in text, (line, text)
    assert expected in "".join(printed.values())
    assert list(leaks(folder)) == []


ONE = ("run", "--dataset", "minesweeper", "--clients", "2", "--algorithm", "local", "--rounds", "1")


@pytest.mark.parametrize(
    "uri",
    [
        "http://joe:s3cret@127.0.0.1:1",
        pytest.param("http://127.0.0.1:1/?token=t0ken", marks=pytest.mark.slow),
        pytest.param("postgresql://joe:s3cret@127.0.0.1:1/db", marks=pytest.mark.slow),
        pytest.param("mysql+nosuch://joe:s3/cret@127.0.0.1/db?password=t0ken", marks=pytest.mark.slow),
        pytest.param("databricks://s3cret:t0ken@host", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_is_away_leaks_nothing(tmp_path: Path, uri: str) -> None:
    """Results go to the journal, and no command that looks for them says the password."""
    words = (ONE, ("sync",), ("report", "single-runs"), ("dashboard", "--print"), ("doctor",))
    check(tmp_path, uri, words, "Results go to the journal")


@pytest.mark.slow
def test_a_store_that_answers_leaks_nothing(tmp_path: Path, mlflow_server: Any) -> None:
    """Neither in parameters, tags, artifacts and pages, nor in what is printed."""
    study = write_study(tmp_path)
    uri = mlflow_server.uri.replace("://", "://joe:s3cret@") + "/?token=t0ken"
    uri = uri.removesuffix("/?token=t0ken")
    words = (
        ("sweep", study),
        ONE,
        ("report", "mine"),
        ("export", "mine", "--format", "csv"),
        ("watch", "mine", "--once"),
        ("dashboard", "--print"),
        ("doctor",),
        ("sweep", study, "--dry-run"),
    )
    check(tmp_path, uri, words, "failed")
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"mine.html", "summary.json", "failure.json", "rounds.parquet"} <= names


def test_a_traceback_does_not_show_it_either() -> None:
    """In a notebook an error is shown with what has caused it."""
    uri = f"http://joe:{SECRETS[0]}@127.0.0.1:1"
    with pytest.raises(TrackingError) as caught:
        Store(uri)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
