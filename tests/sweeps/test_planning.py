"""Plans of studies: what they hold, send and take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from fedatlas.platform.errors import PlacementError
from fedatlas.platform.federation.placement import Cluster, NodeResources
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import Study
from fedatlas.sweeps.costs import CostModel
from fedatlas.sweeps.execution import planned
from fedatlas.sweeps.planning import Plans, plan_studies
from fedatlas.sweeps.recording import Recording
from fedatlas.sweeps.rehearsal import traffic

from .conftest import two_rounds

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]
FOUR = Cluster((NodeResources(4, 0, 1e12),))


def plans(*studies: Study, cluster: Cluster = FOUR) -> Plans:
    return plan_studies(
        [(each.name, each.experiments, each.file.concurrent) for each in studies], cluster, CostModel()
    )


def test_sizes_bytes_and_time(write_study: Write, results: Path) -> None:
    study = Study(write_study())
    [plan] = plans(study).studies
    assert (plan.scenarios, plan.methods, plan.seeds, plan.whole.trials) == (1, 2, 2, 4)
    local, fedavg = plan.by_method
    assert (local.name, local.trials, local.bytes) == ("Local", 2, 0.0)
    expected = traffic(study.experiments[-1].experiment)
    assert fedavg.uplink == (expected.uplink, expected.uplink)
    assert fedavg.bytes == 2 * expected.total(rounds=2)
    assert [part.name for part in plan.by_dataset] == ["minesweeper"]
    seconds = [CostModel().trial_seconds(each.experiment, "inline") for each in study.experiments]
    assert plan.whole.seconds == pytest.approx(sum(seconds))
    # Four inline trials on four CPUs run at once.
    assert plan.concurrent == 4
    assert plan.seconds == pytest.approx((max(seconds), max(seconds)))
    assert plan.whole.sources == {"reckoned": 4}


def test_a_study_may_bound_what_runs_at_once(write_study: Write, results: Path) -> None:
    [plan] = plans(Study(write_study(concurrent=1))).studies
    assert plan.concurrent == 1
    assert plan.seconds[0] == pytest.approx(plan.whole.seconds)


def test_several_studies_run_one_after_another(write_study: Write, results: Path) -> None:
    one, other = Study(write_study("one")), Study(write_study("other", methods=["local"]))
    first, second, both = plans(one, other).studies
    assert both.name == "one + other"
    assert (both.whole.trials, both.scenarios) == (6, 1)
    assert both.seconds[0] == pytest.approx(first.seconds[0] + second.seconds[0])
    assert {part.name: part.trials for part in both.by_method} == {"Local": 4, "FedAvg": 2}


def test_what_has_finished_costs_nothing_more(write_study: Write, results: Path) -> None:
    study = Study(write_study())
    one = Recording(planned(study.experiments[0]), study.name, "inline: for a test", Tracker(pytest.fail))
    one.open()
    one.add(two_rounds())
    one.finish()
    [plan] = plans(study, cluster=Cluster((NodeResources(1, 0, 1e12),))).studies
    assert plan.whole.finished == 1
    assert plan.seconds[1] < plan.seconds[0]


def test_a_plan_that_can_never_be_placed_is_refused(write_study: Write, results: Path) -> None:
    study = Study(write_study(settings={"placement": "actors", "client_cpus": 2}))
    with pytest.raises(PlacementError, match="need 6 CPUs"):
        plans(study)


def test_the_command_needs_no_data_and_leaves_no_trace(
    no_data: None, write_study: Write, fedatlas: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path / "results"))
    file = tmp_path / "plan.json"
    path = write_study(datasets=["cora", "minesweeper"])
    code, printed = fedatlas("plan", path, "quickstart", "--seeds", "10", "--json", str(file))
    assert code == 0
    assert "small: 2 scenarios, 2 methods, 10 seeds: 40 trials" in printed
    assert "small + quickstart: 3 scenarios, 3 methods, 10 seeds: 70 trials" in printed
    assert "no trial has finished yet: times are reckoned" in printed
    assert not ray.is_initialized()
    assert not (tmp_path / "results").exists()
    figures = json.loads(file.read_text())
    assert [each["whole"]["trials"] for each in figures["studies"]] == [40, 30, 70]


def test_available_only_leaves_out_what_is_missing(
    no_data: None, write_study: Write, fedatlas: Call, results: Path
) -> None:
    path = write_study(datasets=["cora", "minesweeper"])
    code, printed = fedatlas("plan", path, "--available-only")
    assert code == 0
    assert "small: left out 4 trials on missing data (cora)" in printed
    assert "small: 1 scenarios, 2 methods, 2 seeds: 4 trials" in printed
    code, printed = fedatlas("plan", path, "--available-only", "--only", "cora")
    assert code == 2
    assert "no data set of small is here (cora): bring one with `fedatlas data import FOLDER`" in printed


def test_both_large_studies_are_66_scenarios(results: Path) -> None:
    names = ["local", "fedavg"]
    studies = [
        Study(name, seeds=10, algorithms=names, without=("label=FedAvg (H2GCN)",))
        for name in ("homophilic", "heterophilic")
    ]
    whole = plans(*studies).studies[-1]
    assert (whole.scenarios, whole.methods, whole.seeds) == (66, 2, 10)
    assert whole.whole.trials == 66 * 2 * 10
