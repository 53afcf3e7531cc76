"""Hyperparameter search: on validation scores alone, and what it finds is what a run gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.platform.graphs.federated import build
from fedatlas.platform.graphs.graph import FederatedGraph
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import run, search, tune
from fedatlas.sweeps.driver import alone
from fedatlas.sweeps.experiment import Resolved, experiment, resolve
from fedatlas.sweeps.search import METRIC, ROUNDS, Evaluated, Search, SearchTrial, blind, tried_before
from fedatlas.sweeps.spaces import space_of

Call = Callable[..., tuple[int, str]]
SETTING: dict[str, Any] = {
    "dataset": "minesweeper",
    "partition": "random",
    "clients": 3,
    "algorithm": "fedavg",
    "rounds": 4,
    "placement": "inline",
    "options": {"hidden": 8},
}


@pytest.fixture
def resolved() -> Resolved:
    return resolve(experiment(SETTING))


def reports(resolved: Resolved, seeds: tuple[int, ...] = (0,), **options: Any) -> list[dict[str, Any]]:
    """What a configuration reports to the search."""
    trial = SearchTrial(options)
    trial.setup(options, resolved, seeds)
    out = [trial.step()]
    while not out[-1]["done"]:
        out.append(trial.step())
    return out


def scrambled(federated: FederatedGraph) -> FederatedGraph:
    """Other labels on every test node, which nobody may look at."""
    clients = []
    for graph in federated.clients:
        labels = graph.labels.copy()
        labels[graph.test] = federated.classes - 1 - labels[graph.test]
        clients.append(replace(graph, labels=labels))
    return replace(federated, clients=tuple(clients))


def test_clients_of_a_search_hold_no_test_node(resolved: Resolved) -> None:
    whole = build(resolved.scenario())
    hidden = blind(whole)
    assert not any(graph.test.any() for graph in hidden.clients)
    for graph, before in zip(hidden.clients, whole.clients, strict=True):
        assert before.test.any()
        for mask in ("train", "validation"):
            np.testing.assert_array_equal(getattr(graph, mask), getattr(before, mask))


def test_no_test_score_exists_in_a_search(resolved: Resolved) -> None:
    trial = SearchTrial({"lr": 0.01})
    trial.setup({"lr": 0.01}, resolved, (0, 1))
    report = trial.step()
    assert set(report) == {METRIC, ROUNDS, "error", "done"}
    assert len(trial._runs) == 2
    for coordinator in trial._runs:
        for record in coordinator.records:
            assert math.isnan(record.test)
            assert all(math.isnan(score) for score in record.client_test)
            assert np.isfinite(record.validation)


def test_labels_of_test_nodes_change_nothing(resolved: Resolved, monkeypatch: pytest.MonkeyPatch) -> None:
    before = reports(resolved, lr=0.05)
    monkeypatch.setattr(search, "build", lambda scenario: scrambled(build(scenario)))
    assert reports(resolved, lr=0.05) == before


def test_a_configuration_scores_as_the_run_of_it_does(resolved: Resolved) -> None:
    found = reports(resolved, seeds=(0, 1), lr=0.05)[-1]
    scores = [
        run(
            **{**SETTING, "options": {"hidden": 8, "lr": 0.05}, "seed": seed},
            tracking=False,
            progress=False,
            announce=lambda text: None,
        ).values["val_score"]
        for seed in (0, 1)
    ]
    assert found == {METRIC: pytest.approx(np.mean(scores)), ROUNDS: 4, "error": "", "done": True}


def test_a_configuration_that_diverges_has_the_lowest_score(resolved: Resolved) -> None:
    last = reports(resolved, lr=1e30)[-1]
    assert (last[METRIC], last["done"]) == (0.0, True)
    assert "non-finite" in last["error"]


def test_a_process_is_used_for_one_configuration_after_another(resolved: Resolved) -> None:
    trial = SearchTrial({"lr": 0.05})
    trial.setup({"lr": 0.05}, resolved, (0,))
    trial.step()
    assert trial.reset_config({"lr": 0.01})
    found = [trial.step()]
    while not found[-1]["done"]:
        found.append(trial.step())
    assert found == reports(resolved, lr=0.01)


def test_weighting_by_test_nodes_is_refused(results: Path) -> None:
    with pytest.raises(ConfigurationError, match="which a search must not see: use weighting=uniform"):
        tune("minesweeper", 3, "fedavg", weighting="test_nodes")


def test_the_name_of_a_search_says_what_decides_its_scores(resolved: Resolved, results: Path) -> None:
    one = Search(resolved, space_of("fedavg", ["lr"]), 4)
    assert one.name.startswith("tune-fedavg-minesweeper-random-3-")
    # More configurations of the same search go into the same folder.
    assert one.name == replace(one, configurations=9, sampler_seed=3, concurrent=1).name
    assert one.name != replace(one, seeds=(0, 1)).name
    assert one.name != replace(one, space=space_of("fedavg", ["lr", "hidden"])).name
    assert tried_before(one) == []


def test_a_search_runs_once_at_a_time(resolved: Resolved, results: Path) -> None:
    name = Search(resolve(experiment({**SETTING, "options": {}})), space_of("fedavg"), 20).name
    with alone(name, "search"), pytest.raises(FedatlasError, match=f"search {name} is being run by process"):
        tune("minesweeper", 3, "fedavg", partition="random", rounds=4)


@pytest.mark.ray
@pytest.mark.slow
def test_a_search_finds_writes_and_goes_on(small_ray: None, results: Path, fedatlas: Call) -> None:
    output = results / "best.yaml"
    words = [
        *("tune", "--dataset", "minesweeper", "--algorithm", "fedavg", "--clients", "3"),
        *("--partition", "random", "--rounds", "4", "--set", "hidden=8", "--search", "lr,dropout"),
        *("--output", str(output), "--concurrent", "1"),
    ]
    code, printed = fedatlas(*words, "--configurations", "3")
    assert code == 0
    assert "of 3 configurations" in printed
    [folder] = (results / "searches").iterdir()
    tried = [Evaluated(**yaml.safe_load(line)) for line in (folder / "tried.jsonl").read_text().splitlines()]
    assert len(tried) == 3
    # It starts from the present values.
    assert tried[0].options == {"lr": 0.01, "dropout": 0.5}
    assert all(0.0 <= each.options["dropout"] <= 0.8 and each.options["lr"] > 0 for each in tried)

    best = yaml.safe_load(output.read_text())
    complete = [each for each in tried if each.rounds == 4]
    winner = max(complete, key=lambda each: each.validation)
    assert (best["algorithm"], best["backbone"], best["dataset"]) == ("fedavg", "gcn", "minesweeper")
    assert best["options"] == {"hidden": 8, **winner.options}
    assert not [key for key in [*best, *best["found"]] if "test" in key]
    code, printed = fedatlas(
        *("run", "--tuned", str(output), "--clients", "3", "--partition", "random", "--rounds", "4"),
        *("--no-tracking", "--json", str(results / "run.json")),
    )
    assert code == 0
    assert yaml.safe_load((results / "run.json").read_text())["val_score"] == pytest.approx(winner.validation)

    store = Store()
    [parent] = store.runs(folder.name, "tags.`fedatlas.kind` = 'search'")
    children = list(store.runs(folder.name, "tags.`fedatlas.kind` = 'configuration'"))
    assert len(children) == 3
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {parent.info.run_id}
    assert not [key for child in children for key in child.data.metrics if "test" in key]

    # Started again with one more, it tries one more, and then no other.
    before = (folder / "tried.jsonl").read_text()
    for _ in range(2):
        code, printed = fedatlas(*words, "--configurations", "4")
        assert code == 0
        after = (folder / "tried.jsonl").read_text()
        assert after.startswith(before)
        assert len(after.splitlines()) == 4
