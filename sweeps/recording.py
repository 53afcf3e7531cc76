"""The one writer of results: files in the results folder, and the tracking store.

Trials hand their records over; only the process that drives a run or a study writes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedatlas.algorithms.references import short
from fedatlas.platform.federation.records import RoundRecord, RunResult, summarise
from fedatlas.platform.files import remove_partial, write_text_whole, written_whole
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.graphs.federated import metric_of
from fedatlas.platform.tracking.destination import redacted, results_folder
from fedatlas.platform.tracking.operations import (
    FINGERPRINT_TAG,
    IDENTITY_TAG,
    KIND_TAG,
    STUDY_TAG,
    SUMMARY_PREFIX,
)
from fedatlas.platform.tracking.tracker import Tracker, new_run_name
from fedatlas.sweeps import casestudy
from fedatlas.sweeps.execution import Planned, drop_checkpoint, export_path
from fedatlas.sweeps.provenance import tags

if TYPE_CHECKING:
    import pandas as pd

POINTS_PER_FLUSH = 2000
SUMMARY_FILE = "summary.json"
"""Of a finished trial."""
FAILURE_FILE = "failure.json"
"""Of a trial that failed for its own reasons: it is not tried again unless that is asked for."""
CONFIGURATION_FILE = "configuration.yaml"
STALE_TAG = "fedatlas.stale"
"""On runs whose code has changed since, with what has changed."""
CLIENTS_FILE = "federation.parquet"
"""Of a trial: what every client holds, see `fedatlas.platform.graphs.description.describe_clients`."""
MIXING_FILE = "mixing.parquet"
"""Of a trial of a personalised method: `round, client` and the shares `from_0 .. from_{M-1}`."""
RUN_ID_FILE = "run_id"
"""Beside the files of a trial: the local name of its tracked run, which the store keeps as `RUN_TAG`.

It is written before the run is opened, so that a run that died while it was opened is found too.
"""
LAST_FIGURE = "time/round_seconds"
"""The figure of a round that is logged last; it is always finite."""


def rounds_table(records: Sequence[RoundRecord]) -> pd.DataFrame:
    """One row per round with every tracked figure."""
    import pandas as pd

    return pd.DataFrame([{"round": record.round, **record.tracked()} for record in records])


def clients_table(records: Sequence[RoundRecord]) -> pd.DataFrame:
    """One row per round and client: `round`, `client`, `validation`, `test`."""
    import pandas as pd

    rows = [
        (record.round, client, validation, test)
        for record in records
        for client, (validation, test) in enumerate(
            zip(record.client_validation, record.client_test, strict=True)
        )
    ]
    return pd.DataFrame(rows, columns=["round", "client", "validation", "test"])


def mixing_table(records: Sequence[RoundRecord]) -> pd.DataFrame | None:
    """One row per kept round and client: how much it takes from each client; None if nothing was kept."""
    import pandas as pd

    rows = [
        {"round": record.round, "client": client, **{f"from_{m}": share for m, share in enumerate(shares)}}
        for record in records
        if record.mixing is not None
        for client, shares in enumerate(record.mixing)
    ]
    return pd.DataFrame(rows) if rows else None


def summary(planned: Planned, result: RunResult, placement: str, startup: float) -> dict[str, Any]:
    """Plain summary of a finished run: what `--json` writes. Scores in [0, 1], seconds, bytes.

    What is undefined is None, since JSON has no NaN.
    """
    given = planned.resolved.experiment
    figures = {key: _defined(value) for key, value in dataclasses.asdict(result).items()}
    return {
        "dataset": planned.resolved.data_name,
        "partition": planned.resolved.partition_name,
        "clients": given.clients,
        "algorithm": short(given.algorithm),
        "backbone": short(given.backbone or "") or None,
        "aggregation": planned.resolved.aggregation,
        "label": given.label,
        "seed": given.seed,
        "rounds": given.rounds,
        "epochs": given.epochs,
        "options": given.options,
        "method_version": planned.resolved.method_version,
        "placement": placement,
        "metric": metric_of(given),
        "data_kind": entry(given.dataset).kind,
        "fingerprint": planned.fingerprint,
        "data_sha256": planned.data_sha256,
        **figures,
        "startup_seconds": startup,
    }


def _defined(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_defined(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class Recording:
    """One run being written.

    Args:
        planned: the experiment.
        study: name of the study, and of the MLflow experiment.
        placement: placement kind and its arithmetic.
        tracker: None leaves the tracking store out.
        parent: local name or id of the parent run.

    Attributes:
        records: finished rounds.
        startup: seconds before round 0.
        partition_sha256: identity of the division.
        clients: what every client holds, rows of `CLIENTS_FILE`.
        logging: seconds spent in sending figures to the store so far.
    """

    planned: Planned
    study: str
    placement: str
    tracker: Tracker | None
    parent: str | None = None
    records: list[RoundRecord] = field(default_factory=list)
    startup: float = 0.0
    partition_sha256: str = ""
    clients: Sequence[dict[str, Any]] = ()
    logging: float = 0.0
    _run: str | None = None
    _waiting: list[tuple[str, float, int]] = field(default_factory=list)
    _logged_to: int = -1
    _again: bool = False

    @property
    def run_id(self) -> str | None:
        """MLflow id of the run; None without tracking."""
        return self.tracker.run_id(self._run) if self.tracker is not None and self._run is not None else None

    @property
    def folder(self) -> Path:
        """Folder of this run's files."""
        return results_folder() / "studies" / self.study / self.planned.fingerprint

    def open(self, previous: str | None = None) -> None:
        """Start a tracked run, or continue an interrupted one of the store.

        Args:
            previous: MLflow id of the interrupted run.
        """
        (self.folder / FAILURE_FILE).unlink(missing_ok=True)
        remove_partial(self.folder)
        if self.tracker is None:
            return
        resolved = self.planned.resolved
        params = resolved.params()
        described = {
            KIND_TAG: "trial",
            STUDY_TAG: self.study,
            FINGERPRINT_TAG: self.planned.fingerprint,
            IDENTITY_TAG: resolved.identity_hash(),
            "fedatlas.placement": self.placement,
            # Under short names too, for the search field of MLflow: tags.dataset = 'cora'.
            "dataset": resolved.experiment.dataset,
            "partition": resolved.experiment.partition,
            "clients": str(resolved.experiment.clients),
            "method": str(resolved.experiment.label),
            "seed": str(resolved.experiment.seed),
            "fedatlas.method_version": str(resolved.method_version),
            **tags(resolved.experiment, self.planned.data_sha256),
        }
        if previous is not None and self.tracker.store is not None:
            self._logged_to = self.tracker.last_step(previous, LAST_FIGURE)
            self._again = True
            self._run = self.tracker.resume(previous, params, described)
            return
        run = new_run_name()
        write_text_whole(self.folder / RUN_ID_FILE, run + "\n")
        self._run = self.tracker.open(self.study, resolved.cell, params, described, self.parent, run)

    def add(self, records: Sequence[RoundRecord]) -> None:
        """Take finished rounds, in order; rounds that are there already are passed over."""
        for record in records:
            if record.round < len(self.records):
                continue
            self.records.append(record)
            if record.round > self._logged_to:
                self._waiting += [
                    (key, value, record.round)
                    for key, value in record.tracked().items()
                    if math.isfinite(value)
                ]
        if len(self._waiting) >= POINTS_PER_FLUSH:
            self.flush()

    def flush(self) -> None:
        """Send waiting figures to the store."""
        begin = time.perf_counter()
        # If this is interrupted nothing more is sent: a run that goes on sends what the store lacks.
        waiting, self._waiting = self._waiting, []
        if waiting and self.tracker is not None and self._run is not None:
            again, self._again = self._again, False
            self.tracker.points(self._run, waiting, again)
        self.logging += time.perf_counter() - begin

    def finish(self) -> dict[str, Any]:
        """Write files and artifacts, mark the run finished, then write the summary and drop the checkpoint.

        A process that dies in between leaves a trial that is done again or is known to the store as finished,
        never one that seems finished and lacks results.
        """
        result = summarise(self.records)
        kind = self.placement.split(":", 1)[0]
        content = {
            **summary(self.planned, result, kind, self.startup),
            "logging_seconds_per_round": self.logging / len(self.records),
            "partition_sha256": self.partition_sha256,
            "run_id": self.run_id,
            "tracking_uri": None if self.tracker is None else redacted(self.tracker.uri),
        }
        paths = self._write_files()
        if self.tracker is not None and self._run is not None:
            last = len(self.records) - 1
            self._waiting += [
                (f"{SUMMARY_PREFIX}{key}", float(value), last)
                for key, value in content.items()
                if isinstance(value, int | float) and key in _SUMMARY_KEYS and math.isfinite(value)
            ]
            self.flush()
            for path in paths:
                self.tracker.file(self._run, path)
            self.tracker.close(self._run, "FINISHED", {"fedatlas.partition_sha256": self.partition_sha256})
        write_json(self.folder / SUMMARY_FILE, content)
        drop_checkpoint(self.study, self.planned.fingerprint)
        shutil.rmtree(export_path(self.study, self.planned.fingerprint), ignore_errors=True)
        return content

    def fail(self, error: str, killed: bool = False) -> None:
        """Mark the run failed (or killed, if it was stopped from outside) with its error."""
        if self.tracker is not None and self._run is not None:
            self.flush()
            self.tracker.close(
                self._run, "KILLED" if killed else "FAILED", {} if killed else {"fedatlas.error": error}
            )

    def _write_files(self) -> list[Path]:
        import pandas as pd

        self.folder.mkdir(parents=True, exist_ok=True)
        rounds, clients = self.folder / "rounds.parquet", self.folder / "clients.parquet"
        for path, table in ((rounds, rounds_table(self.records)), (clients, clients_table(self.records))):
            _write_table(path, table)
        configuration = self.folder / CONFIGURATION_FILE
        resolved = {
            **self.planned.resolved.experiment.model_dump(mode="json"),
            "method_version": self.planned.resolved.method_version,
        }
        write_text_whole(configuration, yaml.safe_dump(resolved, sort_keys=False))
        placement = self.folder / "placement.txt"
        write_text_whole(placement, self.placement + "\n")
        described = []
        for name, rows in (
            (CLIENTS_FILE, pd.DataFrame(list(self.clients)) if self.clients else None),
            (MIXING_FILE, mixing_table(self.records)),
        ):
            if rows is not None:
                _write_table(self.folder / name, rows)
                described.append(self.folder / name)
        staged = export_path(self.study, self.planned.fingerprint)
        tables = casestudy.merge(staged, self.folder / "casestudy") if staged.exists() else []
        return [rounds, clients, configuration, placement, *described, *tables]


def _write_table(path: Path, table: pd.DataFrame) -> None:
    with written_whole(path) as temporary:
        table.to_parquet(temporary, index=False)


_SUMMARY_KEYS = {entry.name for entry in dataclasses.fields(RunResult)} | {
    "startup_seconds",
    "logging_seconds_per_round",
}


def note_failure(study: str, planned: Planned, error: str) -> None:
    """Remember that a trial of a study failed for its own reasons."""
    path = results_folder() / "studies" / study / planned.fingerprint / FAILURE_FILE
    write_json(path, {"cell": planned.resolved.cell, "error": error})


def discard(study: str, fingerprint: str) -> None:
    """Forget what a trial has left in the results folder, so that it begins anew."""
    for name in (SUMMARY_FILE, FAILURE_FILE, RUN_ID_FILE):
        (results_folder() / "studies" / study / fingerprint / name).unlink(missing_ok=True)
    drop_checkpoint(study, fingerprint)
    shutil.rmtree(export_path(study, fingerprint), ignore_errors=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the whole new one.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot hold.
    """
    write_text_whole(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
