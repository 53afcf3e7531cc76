"""How the axes of a study combine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import Study
from fedatlas.sweeps.axes import Axis, combine, shown

Write = Callable[..., str]
FEDGMC = {"algorithm": "fedgmc"}


def labels(study: Study) -> set[str]:
    return {str(resolved.experiment.label) for resolved in study.experiments}


def test_product_zip_and_list() -> None:
    assert Axis(product={"a": (1, 2), "b": (3, 4)}).combinations() == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]
    assert Axis(zip={"a": (1, 2), "b": (3, 4)}).combinations() == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert Axis(list=({}, {"a": 1})).combinations() == [{}, {"a": 1}]


def test_blocks_combine_by_product() -> None:
    assert combine([]) == [{}]
    blocks = [Axis(product={"a": (1, 2)}), Axis(list=({"b": 3}, {"c": 4}))]
    assert combine(blocks) == [{"a": 1, "b": 3}, {"a": 1, "c": 4}, {"a": 2, "b": 3}, {"a": 2, "c": 4}]


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.1, "0.1"), (True, "true"), (8, "8"), ("x", "x")])
def test_values_are_shown_as_in_yaml(value: Any, text: str) -> None:
    assert shown(value) == text


def test_an_axis_over_options_makes_rows_with_names_of_their_own(write_study: Write) -> None:
    axes = [{"product": {"hidden": [4, 8]}}, {"list": [{}, {"lr": 0.5}]}]
    study = Study(write_study(methods=["fedavg"], axes=axes, seeds=1))
    assert labels(study) == {
        *("FedAvg (hidden=4)", "FedAvg (hidden=8)"),
        *("FedAvg (hidden=4, lr=0.5)", "FedAvg (hidden=8, lr=0.5)"),
    }
    options = {
        (each.experiment.options["hidden"], each.experiment.options["lr"]) for each in study.experiments
    }
    assert options == {(4, 0.01), (8, 0.01), (4, 0.5), (8, 0.5)}


def test_an_axis_of_a_row_leaves_the_others_alone(write_study: Write) -> None:
    row = {**FEDGMC, "label": "ours", "axes": [{"list": [{}, {"tau": 2.0}, {"eta": 0.5}]}]}
    study = Study(write_study(methods=["local", row], seeds=1))
    assert labels(study) == {"Local", "ours", "ours (tau=2)", "ours (eta=0.5)"}


def test_an_axis_over_scenario_keys_keeps_the_names(write_study: Write) -> None:
    study = Study(write_study(methods=["local"], axes=[{"product": {"train_fraction": [0.1, 0.3]}}], seeds=1))
    assert labels(study) == {"Local"}
    assert {each.experiment.train_fraction for each in study.experiments} == {0.1, 0.3}


def test_scenarios_may_be_an_explicit_list(write_study: Write) -> None:
    scenarios = [
        {"dataset": "minesweeper", "partition": "random", "clients": 3},
        {"dataset": "cora", "partition": "metis", "clients": 10},
    ]
    path = write_study(datasets=[], partitions={}, methods=["local"], seeds=1, axes=[{"list": scenarios}])
    found = [each.experiment for each in Study(path).experiments]
    assert [(each.dataset, each.partition, each.clients) for each in found] == [
        ("minesweeper", "random", 3),
        ("cora", "metis", 10),
    ]


def test_rounds_and_epochs_per_data_set(write_study: Write) -> None:
    path = write_study(
        datasets=["minesweeper", "cora", "amazon-photo"],
        methods=["fedavg"],
        rounds={"minesweeper": 7},
        epochs={"cora": 2},
        seeds=1,
    )
    found = {each.experiment.dataset: each.experiment for each in Study(path).experiments}
    assert {name: (each.rounds, each.epochs) for name, each in found.items()} == {
        "minesweeper": (7, 1),
        "cora": (100, 2),
        "amazon-photo": (200, 2),
    }
    assert {each.experiment.rounds for each in Study(path, rounds=3).experiments} == {3}


def test_the_example_of_the_documentation_is_a_study(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    study = Study(str(path))
    # What is left out, in words: FedGMC on Cora with the row's own axis.
    assert "FedGMC (tau=0.5)" not in labels(study)
    assert {resolved.experiment.dataset for resolved in study.experiments} == {"cora"}
    assert {resolved.experiment.rounds for resolved in study.experiments} == {80}


def test_all_stands_for_every_method_without_a_row(write_study: Write) -> None:
    from fedatlas.algorithms.registry import ALGORITHMS

    row = {"algorithm": "fedopt", "label": "ours"}
    study = Study(write_study(methods=["all", row], seeds=1, partitions={"random": [4]}))
    found = [each.experiment for each in study.experiments]
    fitting = [name for name, kind in ALGORITHMS.items() if "node" in kind.levels]
    assert sorted(each.algorithm for each in found) == sorted(fitting)
    assert [each.label for each in found if each.algorithm == "fedopt"] == ["ours"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"axes": [{"products": {"lr": [1]}}]}, "axes.0.products"),
        ({"axes": [{"product": {"lr": [1]}, "zip": {"hidden": [8]}}]}, "one of the keys product, zip and li"),
        (
            {"axes": [{"zip": {"lr": [0.1, 0.2], "hidden": [8]}}]},
            "zip needs as many values .* hidden 1, lr 2",
        ),
        ({"axes": [{"product": {"lr": []}}]}, "lr has no value"),
        ({"axes": [{"product": {"lr": [0.1]}}, {"zip": {"lr": [0.2]}}]}, "two axes vary lr"),
        ({"axes": [{"product": {"dataset": ["cora"]}}]}, "an axis cannot vary dataset: the study has a key"),
        ({"axes": [{"product": {"clients": [4]}}]}, "an axis cannot vary clients"),
        ({"axes": [{"product": {"rounds": [4]}}]}, "an axis cannot vary rounds"),
        ({"axes": [{"product": {"seed": [4]}}]}, "an axis cannot vary seed"),
        ({"axes": [{"product": {"placement": ["inline"]}}]}, "an axis cannot vary placement"),
        ({"axes": [{"product": {"hidden": [4]}}]}, "an axis cannot vary hidden: a row of methods sets it"),
        ({"axes": [{"product": {"lrr": [4]}}]}, "option of local 'lrr': did you mean lr"),
        ({"datasets": []}, "datasets: the study needs datasets, or an axis with dataset"),
        ({"partitions": {}}, "partitions: the study needs partitions, or an axis with partition"),
        ({"rounds": {"cora": 3}}, "data set under rounds 'cora': valid: minesweeper"),
        ({"rounds": {"minesweeper": 0}}, "rounds"),
        (
            {"methods": [{**FEDGMC, "axes": [{"list": [{}, {"tau": 1.0}]}]}]},
            r"'FedGMC' and 'FedGMC \(tau=1\)' are the same trial",
        ),
        ({"methods": [{**FEDGMC, "axes": [{"product": {"clients": [3]}}]}]}, "cannot vary clients"),
        ({"answers": ["the FedGMC paper"]}, "answers: 'the FedGMC paper' must be 'PAPER table NUMBER'"),
        ({"answers": ["FedGMC table 3"]}, "published table 'FedGMC table 3': did you mean fedgmc table"),
        ({"export": True}, "local has nothing to export"),
        ({"concurrent": 0}, "concurrent"),
    ],
)
def test_bad_axes_are_named(write_study: Write, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Study(write_study(**changes))
