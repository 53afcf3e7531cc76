"""Reading tracked trials back as tables."""

from __future__ import annotations

import gc
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG, REPLACED_TAG, SUMMARY_PREFIX
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

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
    "stale",
    "hardware",
    "python",
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
    "logging_seconds_per_round",
    "uplink_bytes_per_round",
    "downlink_bytes_per_round",
    "preparation_seconds",
    "preparation_uplink_bytes",
    "preparation_downlink_bytes",
    "peak_memory_bytes",
    "epsilon",
)


_RUN = (
    *("run_id", "parent_id", "experiment_id", "fingerprint", "status"),
    *("artifacts", "attempts", "started", "ended"),
)


def trials(store: Store, experiment: str) -> pd.DataFrame:
    """One row per trial of an experiment: of each fingerprint the newest finished run, else the newest.

    A run that was done anew counts as older than what replaced it, whatever the clock said.

    Columns: `run_id`, `parent_id`, `experiment_id`, `fingerprint`, `status` (MLflow's), `artifacts` (their
    address), `attempts` (runs of the fingerprint), `started` and `ended` (seconds since 1970), the keys of
    `PARAMS`, `TAGS` and `SUMMARY` (scores in [0, 1], seconds, bytes; missing values where a trial has not
    finished), and `params`, the JSON of all parameters.
    """
    import pandas as pd

    chosen: dict[str, Any] = {}
    attempts: Counter[str] = Counter()
    with _uncollected():
        for run in store.runs(experiment, f"tags.`{KIND_TAG}` = 'trial'"):
            fingerprint = run.data.tags.get(FINGERPRINT_TAG, "")
            before = chosen.setdefault(fingerprint, run)
            attempts[fingerprint] += 1
            if _counts(run) > _counts(before):
                chosen[fingerprint] = run
    rows = [_row(run, fingerprint, attempts[fingerprint]) for fingerprint, run in chosen.items()]
    return pd.DataFrame(rows, columns=[*_RUN, *PARAMS, *TAGS, *SUMMARY, "params"])


def _counts(run: Any) -> tuple[bool, bool]:
    """Which of two runs of a trial stands for it, before their age."""
    return run.info.status == "FINISHED", REPLACED_TAG not in run.data.tags


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles: among the objects of many runs that takes longer than reading them."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _row(run: Any, fingerprint: str, attempts: int) -> dict[str, Any]:
    data = run.data
    row: dict[str, Any] = {
        "run_id": run.info.run_id,
        "parent_id": data.tags.get("mlflow.parentRunId"),
        "experiment_id": run.info.experiment_id,
        "fingerprint": fingerprint,
        "status": run.info.status,
        "artifacts": run.info.artifact_uri,
        "attempts": attempts,
        "started": None if run.info.start_time is None else run.info.start_time / 1000,
        "ended": None if run.info.end_time is None else run.info.end_time / 1000,
        "params": json.dumps(data.params, sort_keys=True),
    }
    row.update({key: kind(data.params[key]) for key, kind in PARAMS.items() if key in data.params})
    row.update({key: data.tags.get(f"fedatlas.{key}") for key in TAGS})
    row.update({key: data.metrics.get(f"{SUMMARY_PREFIX}{key}") for key in SUMMARY})
    return row


def artifact(
    store: Store, run_id: str, address: str | None, name: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """A Parquet artifact of a run.

    Args:
        store: where it is downloaded from unless the address is a folder of this machine.
        run_id: MLflow id.
        address: of the run's artifacts, column `artifacts` of `trials`.
        name: of the file.
        columns: the ones that are read; all by default.

    Raises:
        TrackingError: there is no such artifact, or it cannot be read.
    """
    import pyarrow.parquet as pq

    if address is not None and address.startswith("file:"):
        # Asking MLflow for each of ten thousand files takes longer than reading them.
        path = Path(url2pathname(urlparse(address).path)) / name
        try:
            return pq.ParquetFile(path).read(columns=columns and list(columns), use_threads=False)
        except (OSError, ValueError) as error:
            raise TrackingError(f"artifact {name} of run {run_id} cannot be read: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            return pq.read_table(
                store.download(run_id, name, Path(folder)), columns=columns and list(columns)
            )
        except (OSError, ValueError) as error:
            raise TrackingError(f"artifact {name} of run {run_id} cannot be read: {error}") from error


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
