"""A trial is the published method only if nothing that decides its numbers is otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.protocol import changed_options, is_plain, settings, tuned_training
from fedatlas.platform.graphs.catalog import entry, group_names, names

from .conftest import frame, trial_record


def plain(record: dict[str, Any]) -> bool:
    (trial,) = frame([record]).to_dict("records")
    row = {str(key): value for key, value in trial.items()}
    return is_plain(row, settings(row))


def given(record: dict[str, Any]) -> dict[str, str]:
    (trial,) = frame([record]).to_dict("records")
    return settings({str(key): value for key, value in trial.items()})


@pytest.mark.parametrize(
    ("algorithm", "dataset"),
    [
        (algorithm, dataset)
        for algorithm, kind in ALGORITHMS.items()
        for dataset in names() + group_names()
        if entry(dataset).level in kind.levels
    ],
)
def test_what_resolves_without_a_choice_is_plain(algorithm: str, dataset: str) -> None:
    assert plain(trial_record(algorithm, dataset=dataset))


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("fedavg", {"label": "FedAvg (H2GCN)"}),
        ("fedavg", {"backbone": "h2gcn"}),
        ("fedavg", {"method_hidden": 64}),
        ("fedavg", {"method_client_weights": "train_nodes"}),
        ("fedavg", {"method_shared": "encoder"}),
        ("fedavg", {"features": "l2"}),
        ("fedavg", {"precision": "float64"}),
        ("fedavg", {"rounds": 5}),
        ("fedavg", {"epochs": 3, "method_epochs": 3}),
        ("fedgmc", {"aggregation": "fedavg", "method_aggregation": "fedavg"}),
        ("fedgmc", {"method_semantic": False}),
        ("fedgmc", {"method_lr": 0.02}),
        ("fedgmc", {"method_forgotten": 1}),
    ],
    ids=str,
)
def test_another_setting_is_not_the_published_method(algorithm: str, change: dict[str, object]) -> None:
    assert not plain(trial_record(algorithm, **change))


def test_the_methods_default_is_as_good_as_its_preset() -> None:
    assert plain(trial_record("fedgmc", method_weight_decay=1e-6, method_activation="relu"))
    computers = {"dataset": "amazon-computers", "features": "row", "rounds": 200}
    assert plain(trial_record("fedgmc", **computers, epochs=3, method_epochs=3))


def test_a_missing_or_open_parameter_has_its_default() -> None:
    whole = given(trial_record("fedavg"))
    record = trial_record("fedavg", features="default", train_fraction=None, test_fraction=None)
    for key in (
        "uncut",
        "client_features",
        "precision",
        "backbone",
        "aggregation",
        "method.shared",
        "rounds",
    ):
        del record["params"][key]
    assert given(record) == whole
    assert plain(record)


def test_the_option_says_the_aggregation_where_nothing_else_does() -> None:
    record = trial_record("fedgmc", method_aggregation="none")
    del record["params"]["aggregation"]
    assert given(record)["aggregation"] == "none"


def test_an_open_test_share_is_half_of_what_training_leaves() -> None:
    assert given(trial_record("fedavg", train_fraction=0.5, test_fraction=None))["test_fraction"] == "0.25"


def test_changed_options_and_tuned_settings_are_named() -> None:
    changed = given(trial_record("fedgmc", method_semantic=False))
    assert changed_options("fedgmc", "cora", changed) == {"semantic": "False"}
    assert tuned_training(changed) == {"weight_decay": "0.0005", "activation": "elu", "input_dropout": "0.5"}
    assert tuned_training(given(trial_record("fedavg"))) == {}


def test_what_the_registry_and_the_catalog_do_not_have_is_never_plain() -> None:
    record = trial_record("fedavg")
    record["params"] |= {"algorithm": "old", "dataset": "mine"}
    assert not plain(record)
    assert changed_options("old", "mine", given(record)) == {}
