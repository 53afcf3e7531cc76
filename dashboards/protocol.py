"""What a trial ran with, and whether that is the published method under the papers' protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedatlas.algorithms.presets import EXPERIMENT_KEYS, preset
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.algorithms.weight_sharing import WeightSharingConfiguration
from fedatlas.dashboards.literature import NO_REPDEC, PLUS_REPDEC
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation import privacy
from fedatlas.platform.graphs import own
from fedatlas.platform.graphs.catalog import entry

OPTION = "method."
"""Prefix of a method's options among the tracked parameters."""
TRAINING = ("lr", "weight_decay", "hidden", "activation", "input_dropout", "dropout")
"""Options that are tuned per data set and that no method owns."""
_ALWAYS = {
    "component": "largest",
    "evaluation": "after_local",
    "weighting": "uniform",
    "client_features": "same",
    "uncut": "False",
    "concentration": "None",
    "participation": "None",
    "partition_seed": "0",
    "precision": "float32",
}
_OPEN = {"features": "default", "train_fraction": "None", "test_fraction": "None"}


@cache
def protocol(dataset: str) -> Mapping[str, str]:
    """Settings of the papers' protocol as they are tracked; without rounds and epochs for an unknown set.

    For a graph that a user has brought, the defaults of such graphs.
    """
    if dataset.startswith(own.OWN_PREFIX):
        train, _, test = own.SPLIT
        defaults = {"component": "all", "features": "none", "rounds": own.ROUNDS, "epochs": own.EPOCHS}
        return {**_ALWAYS, **_as_tracked({**defaults, "train_fraction": train, "test_fraction": test})}
    try:
        published = entry(dataset)
    except ConfigurationError:
        return {**_ALWAYS, **_OPEN}
    train, _, test = published.split
    return {
        **_ALWAYS,
        "component": "largest" if published.level == "node" else "None",
        "features": "row" if published.row_normalise else "none",
        "train_fraction": str(train),
        "test_fraction": str(test),
        "rounds": str(published.rounds),
        "epochs": str(published.epochs),
    }


def settings(trial: Mapping[str, Any]) -> dict[str, str]:
    """Tracked parameters of a trial; one that is missing or left open has the protocol's or method's default.

    Args:
        trial: columns `dataset`, `algorithm` and `params` of `fedatlas.platform.tracking.reading.trials`.
    """
    tracked: dict[str, str] = json.loads(trial["params"])
    given = {key: value for key, value in tracked.items() if _OPEN.get(key) != value}
    if "train_fraction" in given and "test_fraction" not in given:
        given["test_fraction"] = str((1 - float(given["train_fraction"])) / 2)
    usual = dict(protocol(str(trial["dataset"])))
    if (algorithm := str(trial["algorithm"])) in ALGORITHMS:
        usual |= {OPTION + key: value for key, value in _defaults(algorithm).items()}
        usual["backbone"] = _backbone(algorithm, str(trial["dataset"]))
    # Tracked twice: by its own name and as an option.
    if (option := f"{OPTION}aggregation") in usual:
        aggregation = given.get("aggregation", given.get(option, usual[option]))
        usual |= {"aggregation": aggregation, option: aggregation}
    return {**usual, **given}


def is_plain(trial: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    """Whether a trial is the method as published, so that a printed figure may stand beside it.

    The label is the method's title and the backbone its own; every option is the method's default or its
    preset for the data set; rounds, epochs and features are the preset's or the protocol's; training is in
    float32. The conventions of the scenario are the column's matter.

    Args:
        trial: columns `dataset`, `algorithm` and `label`.
        given: its `settings`.
    """
    algorithm, dataset = str(trial["algorithm"]), str(trial["dataset"])
    method = ALGORITHMS.get(algorithm)
    if method is None or trial["label"] != method.title:
        return False
    return _as_published(algorithm, dataset, given) and not changed_options(algorithm, dataset, given)


def printed(trial: Mapping[str, Any], given: Mapping[str, str]) -> str | None:
    """Name under which `fedatlas.dashboards.literature` has a trial's figure, or None.

    That of a plain method is its key. On graphs, ``fedavg+repdec`` is the row labelled ``FedAvg + RepDec``
    that differs by its `repdec` alone, and ``seal-no-repdec`` the one labelled ``SEAL w/o RepDec``, with
    `repdec=0`.

    Args:
        trial: columns `dataset`, `algorithm` and `label`.
        given: its `settings`.
    """
    if is_plain(trial, given):
        return str(trial["algorithm"])
    algorithm, dataset = str(trial["algorithm"]), str(trial["dataset"])
    method = ALGORITHMS.get(algorithm)
    if method is None or not _as_published(algorithm, dataset, given):
        return None
    changed = changed_options(algorithm, dataset, given)
    if set(changed) != {"repdec"}:
        return None
    off = changed["repdec"] in ("0.0", "None")
    ending = NO_REPDEC if off else PLUS_REPDEC
    label = f"{method.title} w/o RepDec" if off else f"{method.title} + RepDec"
    return algorithm + ending if trial["label"] == label else None


def _as_published(algorithm: str, dataset: str, given: Mapping[str, str]) -> bool:
    """Whether all but the label and the method's options are the published ones."""
    usual, tuned = protocol(dataset), preset(algorithm, dataset)
    return (
        given["backbone"] == _backbone(algorithm, dataset)
        and given["precision"] == usual["precision"]
        and not protection(given)
        and all(
            given.get(key) in (usual.get(key), str(tuned.get(key, usual.get(key))))
            for key in EXPERIMENT_KEYS
            if key != "backbone"
        )
    )


def protection(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of clipping, noise and secure aggregation; none where uploads travel as they are."""
    return {key: given[key] for key in privacy.SETTINGS if given.get(key, "None") != "None"}


def changed_options(algorithm: str, dataset: str, given: Mapping[str, str]) -> dict[str, str]:
    """Options that are neither the method's default nor its preset for the data set; epochs are no option."""
    if algorithm not in ALGORITHMS:
        return {}
    default, tuned = _defaults(algorithm), _presets(algorithm, dataset)
    options = {key.removeprefix(OPTION): value for key, value in given.items() if key.startswith(OPTION)}
    return {
        key: value
        for key, value in options.items()
        if key not in EXPERIMENT_KEYS and value not in (default.get(key), tuned.get(key))
    }


def tuned_training(given: Mapping[str, str]) -> dict[str, str]:
    """The `TRAINING` options that are not the protocol's defaults."""
    usual = _as_tracked(WeightSharingConfiguration.model_validate({}).model_dump(mode="json"))
    options = {key: given.get(OPTION + key) for key in TRAINING}
    return {key: value for key, value in options.items() if value is not None and value != usual[key]}


def _backbone(algorithm: str, dataset: str) -> str:
    return str(preset(algorithm, dataset).get("backbone", ALGORITHMS[algorithm].default_backbone))


@cache
def _defaults(algorithm: str) -> Mapping[str, str]:
    return _as_tracked(ALGORITHMS[algorithm].configuration_type().model_dump(mode="json"))


@cache
def _presets(algorithm: str, dataset: str) -> Mapping[str, str]:
    kind = ALGORITHMS[algorithm].configuration_type
    options = {key: value for key, value in preset(algorithm, dataset).items() if key in kind.model_fields}
    return _as_tracked(kind(**options).model_dump(mode="json"))


def _as_tracked(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}
