"""`run`, and what `fedatlas run` makes of bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fedatlas.platform.errors import ConfigurationError, NonFiniteError
from fedatlas.platform.tracking import journal, reading
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import run
from fedatlas.sweeps.commands.run import split_settings
from fedatlas.sweeps.experiment import experiment, resolve
from fedatlas.sweeps.interface import SINGLE_RUNS, Run

Call = Callable[..., tuple[int, str]]
SMALL: dict[str, Any] = {"partition": "random", "rounds": 3, "placement": "inline", "options": {"hidden": 8}}
PROMISED = {
    *("dataset", "partition", "clients", "algorithm", "backbone", "seed", "rounds", "placement"),
    *("data_kind", "best_round", "val_score", "test_score", "last_test_score", "client_test_scores"),
    *("seconds_per_round", "startup_seconds", "uplink_bytes_per_round", "downlink_bytes_per_round"),
    "run_id",
}


def small(**changes: Any) -> Run:
    said: list[str] = []
    values = {**SMALL, **changes}
    return run("minesweeper", 3, "fedavg", progress=False, announce=said.append, **values)


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Everything but wall time."""
    return table[[name for name in table.columns if not name.startswith("time/")]]


def test_a_run_without_tracking_leaves_files_and_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path))
    result = small(tracking=False)
    assert set(result.values) >= PROMISED
    assert result.values["run_id"] is None
    assert result.values["data_kind"] == "generated"
    assert not (tmp_path / "mlflow.db").exists()
    assert journal.pending() == []
    folder = tmp_path / "studies" / SINGLE_RUNS / result.values["fingerprint"]
    assert json.loads((folder / "summary.json").read_text()) == result.values
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "rounds.parquet"), result.rounds)


def test_summary_rounds_and_clients_tell_the_same(results: Path) -> None:
    values, rounds, clients = (small(tracking=False).__dict__[key] for key in ("values", "rounds", "clients"))
    best = values["best_round"]
    assert len(rounds) == 3
    assert best == int(rounds["val/score"].idxmax())
    assert values["test_score"] == rounds["test/score"][best]
    assert values["last_test_score"] == rounds["test/score"].iloc[-1]
    means = clients.groupby("round")["test"].mean()
    np.testing.assert_allclose(means, rounds["test/score"])
    assert values["client_test_scores"] == clients[clients["round"] == best]["test"].tolist()
    assert values["uplink_bytes_per_round"] == rounds["comm/uplink_bytes"].mean() > 0


def test_a_tracked_run_can_be_read_back_and_done_again(results: Path, tmp_path: Path) -> None:
    result = small()
    store = Store()
    [row] = reading.trials(store, SINGLE_RUNS).to_dict("records")
    assert row["run_id"] == result.values["run_id"]
    for key in (
        "test_score",
        "val_score",
        "best_round",
        "uplink_bytes_per_round",
        "seed",
        "algorithm",
        "metric",
    ):
        assert row[key] == result.values[key]
    pd.testing.assert_frame_equal(
        reading.rounds(store, [row["run_id"]]).drop(columns="run_id"), result.rounds
    )
    history = store.client.get_metric_history(row["run_id"], "test/score")
    assert [point.value for point in history] == result.rounds["test/score"].tolist()

    saved = yaml.safe_load(store.download(row["run_id"], "configuration.yaml", tmp_path / "x").read_text())
    saved.pop("method_version")
    again = small(tracking=False)
    assert resolve(experiment(saved)).fingerprint("data") == resolve(
        experiment({**SMALL, "dataset": "minesweeper", "clients": 3, "algorithm": "fedavg"})
    ).fingerprint("data")
    pd.testing.assert_frame_equal(numbers(again.rounds), numbers(result.rounds))


def test_a_run_that_breaks_is_marked_failed(results: Path) -> None:
    with pytest.raises(NonFiniteError) as caught:
        small(options={"lr": 1e30}, rounds=5)
    [row] = reading.trials(Store(), SINGLE_RUNS).to_dict("records")
    assert row["status"] == "FAILED"
    assert row["error"] == str(caught.value)
    assert f"client {caught.value.client} in {caught.value.when}" in row["error"]


def test_an_unreachable_store_costs_nothing_but_a_sync(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    result = run("minesweeper", 3, "local", progress=False, announce=said.append, **{**SMALL, "rounds": 1})
    assert "fedatlas sync" in said[0]
    assert result.values["run_id"].startswith("run-")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    store = Store()
    assert journal.sync(store).pushed == 1
    [row] = reading.trials(store, SINGLE_RUNS).to_dict("records")
    assert (row["status"], row["test_score"]) == ("FINISHED", result.values["test_score"])


def test_settings_are_read_as_yaml_and_sorted_by_who_owns_them() -> None:
    texts = ["lr=1e-3", "hidden=16", "rounds=5", "precision=float64", "semantic=false", "label=x=y"]
    assert split_settings(texts) == {
        "rounds": 5,
        "precision": "float64",
        "label": "x=y",
        "options": {"lr": 0.001, "hidden": 16, "semantic": False},
    }
    for text in ("lr", "=3", "lr=[1"):
        with pytest.raises(ConfigurationError, match=f"--set {text}".replace("[", r"\[")):
            split_settings([text])


RUN = (
    *("run", "--dataset", "minesweeper", "--algorithm", "fedavg", "--rounds", "1"),
    *("--placement", "inline", "--no-tracking"),
)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--dataset", "minesweper"), "did you mean minesweeper"),
        (("--algorithm", "fedagv"), "did you mean fedavg"),
        (("--placement", "acters"), "did you mean actors"),
        (("--partition", "metiss"), "did you mean metis"),
        (("--backbone", "gnc"), "did you mean gin or gcn"),
        (("--set", "hiden=3"), "did you mean hidden"),
        (("--set", "lr"), "must be key=value"),
        (("--set", "lr=nan"), "lr=nan"),
        (("--set", "device=cuda"), "device=cuda: torch sees no GPU in this process: use device=cpu"),
        (("--clients", "20000"), "clients=20000 exceeds the 10000 nodes"),
        (("--clients", "0"), "clients=0"),
        (("--rounds", "0"), "rounds=0"),
        (("--dataset", "cora"), "ind.cora.x  sha256"),
    ],
)
def test_bad_input_is_named_without_a_traceback(
    no_data: None, fedatlas: Call, results: Path, words: tuple[str, ...], match: str
) -> None:
    import torch

    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, printed = fedatlas(*RUN, *words)
    assert code == 2
    assert match in printed
    assert "Traceback" not in printed
    assert "error: " in printed
    assert not (results / "studies").exists()


def test_set_may_name_what_has_an_option_of_its_own(fedatlas: Call, results: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "summary.json"
    words = ("--set", "seed=3", "--set", "clients=4", "--set", "partition=random", "--json", str(target))
    code, printed = fedatlas(*RUN, *words)
    assert code == 0, printed
    summary = json.loads(target.read_text())
    assert [summary[key] for key in ("seed", "clients", "partition")] == [3, 4, "random"]
    assert set(summary) >= PROMISED


def test_a_summary_that_cannot_be_written_does_not_look_like_a_failed_run(
    fedatlas: Call, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = ("--partition", "random", "--json", str(tmp_path / "file" / "summary.json"))
    code, printed = fedatlas(*RUN, *words)
    assert code == 2
    assert "the run is complete, but its summary cannot be written" in printed


def test_a_cluster_that_does_not_answer_is_named(
    fedatlas: Call, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    code, printed = fedatlas(*RUN, "--placement", "packed")
    assert code == 2
    assert "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1" in printed


def test_the_installed_command_ends_as_a_command_should(tmp_path: Path) -> None:
    """The same through a process of its own: exit code 2 and the message alone on stderr."""
    command = Path(sys.executable).with_name("fedatlas")
    environment = {**os.environ, "FEDATLAS_RESULTS": str(tmp_path / "file")}
    (tmp_path / "file").touch()
    words = [str(command), *RUN]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: results folder ")
    assert len(done.stderr.splitlines()) == 1
