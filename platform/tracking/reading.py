"""Reading tracked trials back as tables."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG, SUMMARY_PREFIX
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

PARAMS = {
    "dataset": str,
    "partition": str,
    "clients": int,
    "algorithm": str,
    "backbone": str,
    "aggregation": str,
    "label": str,
    "seed": int,
    "rounds": int,
    "epochs": int,
}
TAGS = (
    "identity",
    "data_kind",
    "data_sha256",
    "partition_sha256",
    "metric",
    "commit",
    "version",
    "method_version",
    "placement",
    "error",
)
SUMMARY = (
    "best_round",
    "val_score",
    "test_score",
    "last_test_score",
    "worst_decile_test_score",
    "own_best_test_score",
    "undefined_test_clients",
    "seconds_per_round",
    "startup_seconds",
    "uplink_bytes_per_round",
    "downlink_bytes_per_round",
    "peak_memory_bytes",
)


def trials(store: Store, experiment: str) -> pd.DataFrame:
    """One row per trial of an experiment: of each fingerprint the newest finished run, else the newest.

    Columns: `run_id`, `parent_id`, `fingerprint`, `status` (MLflow's), the keys of `PARAMS`, `TAGS` and
    `SUMMARY` (scores in [0, 1], seconds, bytes; missing values where a trial has not finished), and `params`,
    the JSON of all parameters.
    """
    import pandas as pd

    chosen: dict[str, Any] = {}
    for run in store.runs(experiment, f"tags.`{KIND_TAG}` = 'trial'"):
        fingerprint = run.data.tags.get(FINGERPRINT_TAG, "")
        before = chosen.setdefault(fingerprint, run)
        if before.info.status != "FINISHED" and run.info.status == "FINISHED":
            chosen[fingerprint] = run
    rows = [_row(run, fingerprint) for fingerprint, run in chosen.items()]
    columns = ["run_id", "parent_id", "fingerprint", "status", *PARAMS, *TAGS, *SUMMARY, "params"]
    return pd.DataFrame(rows, columns=columns)


def _row(run: Any, fingerprint: str) -> dict[str, Any]:
    data = run.data
    row: dict[str, Any] = {
        "run_id": run.info.run_id,
        "parent_id": data.tags.get("mlflow.parentRunId"),
        "fingerprint": fingerprint,
        "status": run.info.status,
        "params": json.dumps(data.params, sort_keys=True),
    }
    row.update({key: kind(data.params[key]) for key, kind in PARAMS.items() if key in data.params})
    row.update({key: data.tags.get(f"fedatlas.{key}") for key in TAGS})
    row.update({key: data.metrics.get(f"{SUMMARY_PREFIX}{key}") for key in SUMMARY})
    return row


def rounds(store: Store, run_ids: Iterable[str]) -> pd.DataFrame:
    """Tracked figures of every round, one row per run and round, with column `run_id`."""
    return _artifact_tables(store, run_ids, "rounds.parquet")


def clients(store: Store, run_ids: Iterable[str]) -> pd.DataFrame:
    """Scores per run, round and client: columns `run_id`, `round`, `client`, `validation`, `test`."""
    return _artifact_tables(store, run_ids, "clients.parquet")


def _artifact_tables(store: Store, run_ids: Iterable[str], name: str) -> pd.DataFrame:
    import pandas as pd

    tables = []
    for run_id in run_ids:
        with tempfile.TemporaryDirectory() as folder:
            table = pd.read_parquet(store.download(run_id, name, Path(folder)))
        table.insert(0, "run_id", run_id)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"run_id": []})
