"""Addresses of runs in the MLflow UI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from fedatlas.platform.tracking.destination import redacted

DEFAULT_UI = "http://127.0.0.1:5000"
"""Where `make dashboard` and `mlflow ui` listen."""


def ui_address(uri: str, given: str | None = None) -> str:
    """Address of the UI over a store: the one given, that of a tracking server, or `DEFAULT_UI`."""
    if given:
        return given.rstrip("/")
    return redacted(uri).rstrip("/") if uri.startswith(("http://", "https://")) else DEFAULT_UI


def runs_path(experiment_id: str, run_ids: Sequence[str]) -> str:
    """Path below the address: the page of one run, or the comparison of several."""
    if len(run_ids) == 1:
        return f"/#/experiments/{quote(experiment_id)}/runs/{quote(run_ids[0])}"
    runs, experiments = (
        quote(json.dumps(list(values), separators=(",", ":")), safe="")
        for values in (run_ids, [experiment_id])
    )
    return f"/#/compare-runs?runs={runs}&experiments={experiments}"
