"""What an experiment is, and when two are the same."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedatlas.algorithms import presets
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.catalog import entry
from fedatlas.sweeps import experiment as module
from fedatlas.sweeps.experiment import EXECUTION_FIELDS, Experiment, Resolved, experiment, resolve

GIVEN: dict[str, Any] = {"dataset": "minesweeper", "clients": 3, "algorithm": "fedavg"}


def resolved(**changes: Any) -> Resolved:
    return resolve(experiment({**GIVEN, **changes}))


def test_nothing_is_left_open() -> None:
    full = resolved().experiment
    published = entry("minesweeper")
    assert (full.rounds, full.epochs, full.label) == (published.rounds, published.epochs, "FedAvg")
    assert full.backbone == "gcn"
    assert full.options == resolved().method().configuration.model_dump(mode="json")
    assert resolve(full) == resolved()


def test_what_is_given_beats_the_preset_and_the_preset_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"rounds": 7, "epochs": 5, "features": "row", "lr": 0.5}
    monkeypatch.setattr(module, "preset", lambda algorithm, dataset: dict(tuned))
    found = resolved().experiment
    assert (found.rounds, found.epochs, found.features) == (7, 5, "row")
    assert (found.options["lr"], found.options["epochs"]) == (0.5, 5)
    found = resolved(rounds=9, epochs=2, features="none", options={"lr": 0.25}).experiment
    assert (found.rounds, found.epochs, found.features) == (9, 2, "none")
    assert (found.options["lr"], found.options["epochs"]) == (0.25, 2)


@pytest.mark.parametrize(
    ("algorithm", "dataset"),
    [
        (algorithm, dataset)
        for algorithm, kind in ALGORITHMS.items()
        for dataset in ("minesweeper", "cora", "ogbn-arxiv", "roman-empire", "nci1", "chem", "biosncv")
        if entry(dataset).level in kind.levels
    ],
)
def test_every_shipped_preset_is_valid(algorithm: str, dataset: str) -> None:
    tuned = presets.preset(algorithm, dataset)
    published = entry(dataset)
    values = {"dataset": dataset, "clients": len(published.members) or 3, "algorithm": algorithm}
    if published.level == "graph":
        values["partition"] = "cross-dataset" if published.members else "iid"
    found = resolve(experiment(values)).experiment
    for key, value in tuned.items():
        place = found.model_dump() if key in presets.EXPERIMENT_KEYS else found.options
        assert place[key] == value


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"algorithm": "seal"}, "algorithm=seal does not fit minesweeper, .*: use one of local, fedavg"),
        (
            {"dataset": "nci1", "partition": "iid", "algorithm": "fedgmc"},
            "algorithm=fedgmc does not fit nci1, which is graphs to classify: use one of local, .*, seal",
        ),
        ({"dataset": "nci1", "partition": "iid", "backbone": "gcn"}, "use backbone=gat or backbone=gin"),
        ({"dataset": "nci1"}, "partition=metis does not divide nci1"),
        ({"dataset": "minesweper"}, "data set 'minesweper': did you mean minesweeper"),
        ({"algorithm": "fedagv"}, "algorithm 'fedagv': did you mean fedavg"),
        ({"backbone": "gnc"}, "backbone 'gnc': did you mean gin or gcn"),
        ({"placement": "pakced"}, "placement 'pakced': did you mean packed"),
        ({"partition": "metiss"}, "partition 'metiss': did you mean metis"),
        ({"device": "gpu"}, "device 'gpu': did you mean cpu"),
        ({"round": 3}, "configuration key 'round': did you mean rounds"),
        ({"options": {"hiden": 3}}, "option of fedavg 'hiden': did you mean hidden"),
        ({"options": {"lr": "fast"}}, "lr='fast'"),
        ({"options": {"rounds": 3}}, "rounds is a setting of the experiment"),
        ({"clients": 0}, "clients=0"),
        ({"clients": "many"}, "clients='many'"),
        ({"rounds": 0}, "rounds=0"),
        ({"evaluation": "before"}, "evaluation='before'"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"client_gpus": -1}, "client_gpus=-1"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        resolved(**changes)


def test_the_fingerprint_does_not_depend_on_where_it_runs_or_what_it_is_called() -> None:
    reference = resolved().fingerprint("data")
    elsewhere = {
        "placement": "packed",
        "clients_per_actor": 2,
        "client_cpus": 0.5,
        "client_gpus": 0.1,
        "device": "cpu",
        "label": "Another name",
    }
    assert set(elsewhere) - {"label"} == set(EXECUTION_FIELDS)
    assert resolved(**elsewhere).fingerprint("data") == reference
    for key, value in elsewhere.items():
        assert resolved(**{key: value}).fingerprint("data") == reference


def test_the_fingerprint_is_that_of_the_defaults_written_out() -> None:
    full = resolved().experiment
    spelled = resolved(
        rounds=full.rounds, epochs=full.epochs, backbone="gcn", options={"lr": full.options["lr"]}
    )
    assert spelled.fingerprint("data") == resolved().fingerprint("data")


def test_the_fingerprint_changes_with_everything_that_decides_the_numbers() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"dataset": "tolokers"},
        {"clients": 4},
        {"algorithm": "local"},
        {"backbone": "h2gcn"},
        {"partition": "random"},
        {"partition_seed": 1},
        {"seed": 1},
        {"rounds": 3},
        {"epochs": 7},
        {"features": "row"},
        {"component": "all"},
        {"train_fraction": 0.3},
        {"allow_untrained": True},
        {"evaluation": "after_aggregate"},
        {"weighting": "nodes"},
        {"precision": "float64"},
        {"options": {"lr": 0.123}},
    ]
    prints = {resolved(**change).fingerprint("data") for change in changes}
    prints.add(resolved().fingerprint("other data"))
    prints.add(resolved().model_copy(update={"method_version": 99}).fingerprint("data"))
    assert len(prints) == len(changes) + 2


def test_every_key_is_identity_or_execution() -> None:
    versions = {"method_version", "protocol_version", "metis"}
    noisy = {"clip_norm": 1.0, "noise_multiplier": 1.0, "secure_aggregation": True}
    skewed = resolved(partition="label-skew", participation=0.5, **noisy)
    identity = set(skewed.identity()) - versions
    # Set for own graphs alone: see test_own_graphs.py.
    assert identity == set(Experiment.model_fields) - set(EXECUTION_FIELDS) - {"label", "split", "metric"}


def test_what_a_data_set_decides_is_part_of_the_identity() -> None:
    full = resolved().experiment
    assert (full.features, full.train_fraction, full.test_fraction) == ("none", 0.2, 0.4)
    assert resolved(features="none").fingerprint("data") == resolved().fingerprint("data")
    assert resolved(dataset="cora").experiment.features == "row"
    assert "metis" in resolved().identity()
    assert "metis" not in resolved(partition="random").identity()


def test_the_uncut_reference_has_one_feature_order() -> None:
    with pytest.raises(ConfigurationError, match="client_features must be 'same'"):
        resolved(uncut=True, client_features="permuted")


def test_params_are_flat_and_leave_execution_out() -> None:
    params = resolved(placement="packed").params()
    assert not set(params) & set(EXECUTION_FIELDS)
    assert params["method.lr"] == resolved().experiment.options["lr"]
    assert all(not isinstance(value, dict) for value in params.values())


def test_an_experiment_is_frozen() -> None:
    with pytest.raises(ValidationError):
        resolved().experiment.seed = 3  # type: ignore[misc]


def test_concentration_belongs_to_label_skew() -> None:
    assert resolved(partition="label-skew").experiment.concentration == 0.5
    assert resolved().experiment.concentration is None
    with pytest.raises(ConfigurationError, match=r"concentration=0\.1 belongs to partition=label-skew"):
        resolved(concentration=0.1)


def test_an_option_among_the_settings_is_sent_where_it_belongs() -> None:
    with pytest.raises(
        ConfigurationError, match=r"lr is an option of fedavg, .*: write options: \{lr: \.\.\.\}"
    ):
        experiment({**GIVEN, "lr": 0.1})
    with pytest.raises(ConfigurationError, match="unknown configuration key 'roundz': did you mean rounds"):
        experiment({**GIVEN, "roundz": 1})


def test_participation_is_refused_where_the_server_needs_everybody() -> None:
    assert resolved(participation=0.5).experiment.participation == 0.5
    with pytest.raises(ConfigurationError, match=r"participation=0\.5: Local needs all clients"):
        resolved(algorithm="local", participation=0.5)


def test_a_key_that_is_not_set_is_not_part_of_the_identity() -> None:
    assert "participation" not in resolved().identity()
    assert "hops" not in resolved().identity()["options"]
    assert resolved(participation=1.0).identity() != resolved().identity()
