"""Tuned configurations in runs and studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import Study
from fedatlas.sweeps.tuned import filled, read_tuned

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]
BEST: dict[str, Any] = {
    "algorithm": "fedavg",
    "backbone": "gcn",
    "dataset": "minesweeper",
    "options": {"lr": 0.5, "hidden": 4},
    "found": {"validation": 0.9},
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        path = tmp_path / "best.yaml"
        path.write_text("# found by hand\n" + yaml.safe_dump({**BEST, **changes}))
        return path

    return write


def test_a_study_gives_it_to_the_rows_that_it_is_for(write: Callable[..., Path], write_study: Write) -> None:
    path = write_study(
        datasets=["minesweeper", "cora"],
        methods=["fedavg", {"algorithm": "fedavg", "backbone": "h2gcn", "label": "other"}],
        seeds=1,
    )
    found = {
        (each.experiment.label, each.experiment.dataset): each.experiment.options["lr"]
        for each in Study(path, tuned=[write()]).experiments
    }
    assert found == {
        ("FedAvg", "minesweeper"): 0.5,
        ("FedAvg", "cora"): 0.01,
        ("other", "minesweeper"): 0.01,
        ("other", "cora"): 0.01,
    }


def test_what_the_study_sets_goes_first_and_presets_last(
    write: Callable[..., Path], write_study: Write
) -> None:
    row = {"algorithm": "fedgmc", "options": {"hidden": 8}}
    tuned = write(algorithm="fedgmc", backbone=None)
    [one] = Study(write_study(methods=[row], seeds=1), tuned=[tuned]).experiments
    options = one.experiment.options
    # The row's hidden, the tuned lr, the preset's semantic weight.
    assert (options["hidden"], options["lr"], options["semantic_weight"]) == (8, 0.5, 0.01)


def test_a_run_takes_method_data_set_and_options_from_it(
    write: Callable[..., Path], results: Path, fedatlas: Call
) -> None:
    words = ("--clients", "3", "--partition", "random", "--rounds", "1", "--set", "hidden=8")
    code, printed = fedatlas("run", "--tuned", str(write()), *words, "--no-tracking")
    assert code == 0
    assert "FedAvg on minesweeper" in printed
    values = filled({"options": {"hidden": 8}, "algorithm": None}, read_tuned(write()))
    assert values == {
        "algorithm": "fedavg",
        "dataset": "minesweeper",
        "backbone": "gcn",
        "options": {"lr": 0.5, "hidden": 8},
    }


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--algorithm", "local"), "algorithm=local: the tuned configuration is for fedavg"),
        (("--dataset", "cora"), "dataset=cora: the tuned configuration is for fedavg"),
        (("--backbone", "h2gcn"), "backbone=h2gcn"),
    ],
)
def test_a_run_of_something_else_is_refused(
    write: Callable[..., Path], fedatlas: Call, words: tuple[str, ...], match: str
) -> None:
    code, printed = fedatlas("run", "--tuned", str(write()), *words)
    assert code == 2
    assert match in printed


def test_a_run_needs_a_method_and_a_data_set(fedatlas: Call) -> None:
    code, printed = fedatlas("run", "--dataset", "minesweeper")
    assert code == 2
    assert "--algorithm is missing" in printed


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"algorithm": "fedagv"}, "did you mean fedavg"),
        ({"dataset": "minesweper"}, "did you mean minesweeper"),
        ({"option": {}}, "option"),
        ({"options": {}}, "options"),
        ({"options": {"lrr": 1}}, "option of fedavg 'lrr'"),
        ({"dataset": "cora"}, r"tuned configuration of fedavg \(gcn\) on cora is for no trial of the study"),
    ],
)
def test_bad_files_are_named(
    write: Callable[..., Path], write_study: Write, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Study(write_study(methods=["fedavg"]), tuned=[write(**changes)])


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tuned(path)
    path.write_text("- a list")
    with pytest.raises(ConfigurationError, match="must be a mapping with keys algorithm"):
        read_tuned(path)
