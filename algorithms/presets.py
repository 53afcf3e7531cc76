"""Settings per method and data set, read from `presets.yaml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from fedatlas.algorithms.registry import algorithm_type
from fedatlas.platform.documents import read_yaml
from fedatlas.platform.graphs.catalog import STANDIN_PREFIX

EXPERIMENT_KEYS = ("rounds", "epochs", "features", "backbone")
EVERY = "every method"
"""Heading in the file for settings that hold for all methods on a data set."""


@cache
def _presets() -> dict[str, dict[str, dict[str, Any]]]:
    text = files("fedatlas.algorithms").joinpath("presets.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, dict[str, Any]]] = read_yaml(text, "presets.yaml")
    return loaded


def preset(algorithm: str, dataset: str) -> dict[str, Any]:
    """What differs from the defaults for a method on a data set; a stand-in has its original's settings.

    Keys are options of the method, or one of `EXPERIMENT_KEYS`; the method's own settings go before those of
    every method. Options that the method does not have (the calibration weights in the reference row) are
    left out.
    """
    name = dataset.removeprefix(STANDIN_PREFIX)
    values = {
        **_presets().get(EVERY, {}).get(name, {}),
        **_presets().get(algorithm, {}).get(name, {}),
    }
    known = {*algorithm_type(algorithm).configuration_type.model_fields, *EXPERIMENT_KEYS}
    return {key: value for key, value in values.items() if key in known}
