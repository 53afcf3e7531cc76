"""Settings per method and data set, read from `presets.yaml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from fedatlas.algorithms.registry import algorithm_type
from fedatlas.platform.documents import read_yaml
from fedatlas.platform.graphs.catalog import STANDIN_PREFIX

EXPERIMENT_KEYS = ("rounds", "epochs", "features")


@cache
def _presets() -> dict[str, dict[str, dict[str, Any]]]:
    text = files("fedatlas.algorithms").joinpath("presets.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, dict[str, Any]]] = read_yaml(text, "presets.yaml")
    return loaded


def preset(algorithm: str, dataset: str) -> dict[str, Any]:
    """What differs from the defaults for a method on a data set; a stand-in has its original's settings.

    Keys are options of the method, or one of `EXPERIMENT_KEYS`. Options that the method does not have (the
    calibration weights in the reference row) are left out.
    """
    values = _presets().get(algorithm, {}).get(dataset.removeprefix(STANDIN_PREFIX), {})
    known = {*algorithm_type(algorithm).configuration_type.model_fields, *EXPERIMENT_KEYS}
    return {key: value for key, value in values.items() if key in known}
