"""What a trial is expected to take."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import Study
from fedatlas.sweeps.costs import (
    SECONDS_PER_TRIAL,
    CostModel,
    Measured,
    finished_trials,
    fit,
    makespan,
    reckoned_round,
)
from fedatlas.sweeps.execution import planned
from fedatlas.sweeps.experiment import experiment, resolve
from fedatlas.sweeps.recording import Recording

from .conftest import two_rounds

Write = Callable[..., str]
METHODS = {"local": 1.0, "fedavg": 2.0, "fedprox": 4.0}
SETS = {"cora": 1.0, "pubmed": 3.0, "minesweeper": 0.5}


def measured(method: str, dataset: str, factor: float, clients: int = 10) -> Measured:
    seconds = factor * reckoned_round(dataset, "metis", clients, "gcn", 1, 128)
    where = f"{method}-{dataset}-{clients}"
    return Measured(where, dataset, "metis", clients, method, "gcn", 1, 128, "inline", seconds)


def ask(method: str, dataset: str, clients: int = 10) -> Any:
    values = {"dataset": dataset, "partition": "metis", "clients": clients, "algorithm": method}
    return resolve(experiment(values)).experiment


def test_nothing_finished_means_reckoned() -> None:
    model = fit([])
    cost = model.round_seconds(ask("fedavg", "cora"), "inline")
    assert (cost.seconds, cost.source) == (reckoned_round("cora", "metis", 10, "gcn", 1, 128), "reckoned")
    assert "no trial has finished yet" in model.describe()


def test_what_was_measured_is_taken_as_it_is() -> None:
    trials = [measured("fedavg", "cora", factor) for factor in (2.0, 3.0, 40.0)]
    cost = fit(trials).round_seconds(ask("fedavg", "cora"), "inline")
    assert cost.source == "measured"
    assert cost.seconds == pytest.approx(trials[1].seconds)
    # Another placement, or another number of epochs, is another thing.
    assert fit(trials).round_seconds(ask("fedavg", "cora"), "actors").source == "fitted"


def test_the_fit_finds_what_methods_and_sets_contribute() -> None:
    """Of nine pairs one is left out: its cost follows from its method's and its set's others."""
    grid = list(itertools.product(METHODS, SETS, (5, 10, 20)))
    seen = [
        measured(method, dataset, METHODS[method] * SETS[dataset], clients)
        for method, dataset, clients in grid
        if (method, dataset) != ("fedprox", "pubmed")
    ]
    model = fit(seen)
    given = ask("fedprox", "pubmed")
    cost = model.round_seconds(given, "inline")
    expected = 12.0 * reckoned_round("pubmed", "metis", 10, "gcn", 1, 128)
    assert cost.source == "fitted"
    # The effects are shrunk a little towards 0.
    assert cost.seconds == pytest.approx(expected, rel=0.35)
    assert 1.0 < model.error < 1.3
    assert f"fitted on {len(seen)} finished trials" in model.describe()
    # What no trial shares with it changes nothing but the mean.
    new = model.round_seconds(ask("fedper", "citeseer"), "actors")
    reckoned = reckoned_round("citeseer", "metis", 10, "gcn", 1, 128)
    assert math.log(new.seconds / reckoned) == pytest.approx(model.effects["mean"])


def test_a_trial_is_its_rounds_and_what_is_beside() -> None:
    given = ask("fedavg", "cora")
    round_ = CostModel().round_seconds(given, "inline").seconds
    assert CostModel().trial_seconds(given, "inline") == pytest.approx(SECONDS_PER_TRIAL + 100 * round_)


@pytest.mark.parametrize(
    ("seconds", "slots", "expected"),
    [([], 2, 0.0), ([3.0], 4, 3.0), ([1, 2, 3, 4], 1, 10.0), ([4, 3, 3, 2], 2, 6.0), ([5, 1, 1, 1], 2, 5.0)],
)
def test_longest_first(seconds: list[float], slots: int, expected: float) -> None:
    assert makespan(seconds, slots) == expected


def test_finished_trials_are_found_in_the_results_folder_and_in_the_store(
    write_study: Write, results: Path
) -> None:
    study = Study(write_study(seeds=1))
    for number, tracker in enumerate((Tracker(pytest.fail), None)):
        one = Recording(planned(study.experiments[number]), study.name, "inline: for a test", tracker)
        one.open()
        one.add(two_rounds())
        one.finish()
    (results / "studies" / "small" / "broken").mkdir()
    (results / "studies" / "small" / "broken" / "summary.json").write_text("{")
    here = {each.algorithm: each for each in finished_trials()}
    assert set(here) == {"local", "fedavg"}
    assert (here["fedavg"].hidden, here["fedavg"].placement, here["fedavg"].seconds) == (8, "inline", 0.3)
    # The untracked one is in the folder only, the tracked one in both.
    tracked = here["local"].fingerprint
    for path in results.glob("studies/*/*/summary.json"):
        path.unlink()
    [found] = finished_trials(Store())
    assert found == here["local"]
    assert found.fingerprint == tracked


def test_trials_of_what_is_unknown_now_are_passed_over(results: Path) -> None:
    folder = results / "studies" / "old" / "abc"
    folder.mkdir(parents=True)
    values = {
        "fingerprint": "abc",
        "dataset": "cora",
        "partition": "metis",
        "clients": 10,
        "algorithm": "gone",
        "backbone": "gcn",
        "epochs": 1,
        "placement": "inline",
        "seconds_per_round": 0.1,
    }
    (folder / "summary.json").write_text(json.dumps(values))
    assert finished_trials() == []
    (folder / "summary.json").write_text(
        json.dumps({**values, "algorithm": "fedavg", "seconds_per_round": None})
    )
    assert finished_trials() == []
    (folder / "summary.json").write_text(json.dumps({**values, "algorithm": "fedavg"}))
    [one] = finished_trials()
    assert np.isfinite(one.seconds)
