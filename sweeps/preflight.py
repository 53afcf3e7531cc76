"""What a study would do, worked out before any process starts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from fedatlas.platform.errors import DataError, PlacementError
from fedatlas.platform.federation.placement import Cluster, PlacementPlan, PlacementRequest, plan
from fedatlas.platform.graphs.federated import data_sha256
from fedatlas.platform.tracking.destination import redacted, results_folder
from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG, REPLACED_TAG, RUN_TAG
from fedatlas.sweeps.costs import CostModel, finished_trials, fit, makespan
from fedatlas.sweeps.execution import Planned, request
from fedatlas.sweeps.experiment import EXECUTION_FIELDS, Experiment, Resolved
from fedatlas.sweeps.recording import (
    CONFIGURATION_FILE,
    FAILURE_FILE,
    RUN_ID_FILE,
    SUMMARY_FILE,
)

if TYPE_CHECKING:
    from fedatlas.platform.tracking.store import Store

TRIAL_BYTES = 1e9
"""Memory in bytes that is left to an inline trial: its process with torch and Ray, the graph and all clients.

Chosen, not measured for every data set; see `fedatlas.platform.federation.placement.ACTOR_BYTES` for a
process that has only imported torch.
"""
VERSIONS = ("protocol_version", "method_version", "metis")
"""Parts of an identity that the code decides and not the study."""


@dataclass(frozen=True)
class Stale:
    """A finished trial of the study whose code has changed since.

    Attributes:
        fingerprint: its folder.
        cell: name of the trial.
        change: what is another version now, in words.
        run_id: MLflow id, or None.
    """

    fingerprint: str
    cell: str
    change: str
    run_id: str | None


@dataclass(frozen=True)
class Preflight:
    """The state of a study before it runs.

    Attributes:
        todo: trials to run with their placement, longest first.
        finished: fingerprints of trials that are there already.
        interrupted: fingerprint -> MLflow id of trials that were begun from this results folder.
        failed: cell -> error of trials that failed before and are not to be tried again.
        stale: finished trials of the same settings that an earlier version of the code has computed.
        missing: data set -> why it cannot be read, and what to do.
        left_out: trials on missing data sets.
        cells: scenarios of the study (data set, partition, clients).
        concurrency: shape of a placement -> trials at the same time.
        costs: expected wall time of trials.
    """

    todo: tuple[tuple[Planned, PlacementPlan], ...]
    finished: frozenset[str]
    interrupted: dict[str, str]
    missing: dict[str, str]
    left_out: int
    cells: int
    concurrency: dict[tuple[int, float, float], int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stale: tuple[Stale, ...] = ()
    costs: CostModel = field(default_factory=CostModel)

    def estimated_seconds(self) -> float:
        """Expected duration of what is to do: placements of one shape run after those of another."""
        groups: dict[tuple[int, float, float], list[float]] = {}
        for work, placed in self.todo:
            cost = self.costs.trial_seconds(work.resolved.experiment, placed.kind)
            groups.setdefault(placed.shape(), []).append(cost)
        return sum(makespan(costs, self.concurrency.get(shape, 1)) for shape, costs in groups.items())


@dataclass(frozen=True)
class Known:
    """Trials of a study that have run.

    Attributes:
        done: fingerprints of finished ones.
        begun: fingerprint -> MLflow id of interrupted ones that may be continued.
        failed: fingerprint -> error.
    """

    done: frozenset[str] = frozenset()
    begun: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def check(
    experiments: Sequence[Resolved],
    cluster: Cluster,
    study: str,
    *,
    uri: str | None,
    tracking: Store | None,
    download: bool = True,
    concurrent: int | None = None,
    force: bool = False,
    retry_failed: bool = False,
) -> Preflight:
    """Look at data, finished trials and resources.

    Args:
        experiments: all trials of the study.
        cluster: what there is to run on.
        study: name of the study.
        uri: tracking URI that a finished trial must have been written for; None if tracking is not wanted.
        tracking: where finished trials are looked up, besides the results folder; None if unreachable.
        download: bring data sets that are missing.
        concurrent: upper bound of trials at the same time.
        force: everything is to do, whatever has run.
        retry_failed: what failed before is to do too.

    Raises:
        PlacementError: a trial can never be placed.
    """
    hashes, missing = read_hashes({resolved.experiment.dataset for resolved in experiments}, download)
    known = Known() if force else known_trials(tracking, uri, study)
    costs = fit(finished_trials())
    todo: list[tuple[Planned, PlacementPlan]] = []
    found: set[str] = set()
    failed: dict[str, str] = {}
    left_out = 0
    placing = Placing(cluster, len(experiments), concurrent)
    current: set[str] = set()
    for resolved in experiments:
        if resolved.experiment.dataset in missing:
            left_out += 1
            continue
        sha256 = hashes[resolved.experiment.dataset]
        work = Planned(resolved, sha256, resolved.fingerprint(sha256))
        current.add(work.fingerprint)
        if work.fingerprint in known.done:
            found.add(work.fingerprint)
        elif work.fingerprint in known.failed and not retry_failed:
            failed[named(work, failed)] = known.failed[work.fingerprint]
        else:
            todo.append((work, placing.place(resolved.experiment)))
    todo.sort(key=lambda item: -costs.trial_seconds(item[0].resolved.experiment, item[1].kind))
    return Preflight(
        todo=tuple(todo),
        finished=frozenset(found),
        interrupted=dict(known.begun),
        missing=missing,
        left_out=left_out,
        cells=scenarios(experiments),
        concurrency=placing.concurrency,
        failed=failed,
        stale=_stale(experiments, study, current),
        costs=costs,
    )


def named(work: Planned, taken: Mapping[str, str]) -> str:
    """Name of a trial among others: variants of a scenario share that of their cell."""
    name = work.resolved.cell
    return f"{name} ({work.fingerprint})" if name in taken else name


def scenarios(experiments: Sequence[Resolved]) -> int:
    """Number of different scenarios (data set, partition, clients)."""
    given = (resolved.experiment for resolved in experiments)
    return len(Counter((each.dataset, each.partition, each.clients) for each in given))


class Placing:
    """Places trials on a cluster.

    Args:
        cluster: what there is.
        trials: how many there are in all.
        concurrent: upper bound of trials at the same time.

    Attributes:
        concurrency: shape of a placement -> trials at the same time.
    """

    def __init__(self, cluster: Cluster, trials: int, concurrent: int | None = None) -> None:
        self._cluster = cluster
        self._trials = min(trials, concurrent or trials)
        self._places: dict[PlacementRequest, PlacementPlan] = {}
        self.concurrency: dict[tuple[int, float, float], int] = {}

    def place(self, given: Experiment) -> PlacementPlan:
        """Where the clients of a trial live.

        Raises:
            PlacementError: nowhere, ever.
        """
        asked = request(given)
        if asked not in self._places:
            placed, runs = _place(given, self._cluster, self._trials)
            self._places[asked] = placed
            self.concurrency[placed.shape()] = max(runs, self.concurrency.get(placed.shape(), 0))
        return self._places[asked]


def read_hashes(datasets: set[str], download: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Hash of every data set that can be read; why the others cannot.

    Args:
        datasets: names or paths.
        download: bring those that are missing.
    """
    hashes: dict[str, str] = {}
    missing: dict[str, str] = {}
    with nullcontext() if download else _offline():
        for name in sorted(datasets):
            try:
                hashes[name] = data_sha256(name)
            except DataError as error:
                missing[name] = str(error)
    return hashes, missing


@contextmanager
def _offline() -> Iterator[None]:
    """Forbid downloads for the length of a block."""
    before = os.environ.get("FEDATLAS_OFFLINE")
    os.environ["FEDATLAS_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDATLAS_OFFLINE"]
        else:
            os.environ["FEDATLAS_OFFLINE"] = before


def known_trials(tracking: Store | None, uri: str | None, study: str) -> Known:
    """What has run of a study.

    Args:
        tracking: store to look into besides the results folder.
        uri: tracking URI that a finished trial must have been written for; None for any.
        study: name of the study.
    """
    folder = results_folder() / "studies" / study
    done: set[str] = set()
    for path in folder.glob(f"*/{SUMMARY_FILE}"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        # A trial that ran without tracking, or into another store, is not finished for a study that tracks.
        if uri is None or summary.get("tracking_uri") == redacted(uri):
            done.add(path.parent.name)
    failed = {
        path.parent.name: str(json.loads(path.read_text(encoding="utf-8"))["error"])
        for path in folder.glob(f"*/{FAILURE_FILE}")
    }
    begun: dict[str, str] = {}
    if tracking is not None:
        for run in tracking.runs(study, f"tags.`{KIND_TAG}` = 'trial'"):
            fingerprint = run.data.tags.get(FINGERPRINT_TAG, "")
            if run.data.tags.get(REPLACED_TAG):
                continue
            if run.info.status == "FINISHED":
                done.add(fingerprint)
            elif run.info.status in ("RUNNING", "KILLED"):
                # Another driver may be at work on a run that is not in this results folder.
                ours = folder / fingerprint / RUN_ID_FILE
                if ours.is_file() and ours.read_text(encoding="utf-8").strip() == run.data.tags.get(RUN_TAG):
                    begun[fingerprint] = run.info.run_id
    return Known(
        frozenset(done),
        {key: value for key, value in begun.items() if key not in done},
        {key: value for key, value in failed.items() if key not in done},
    )


def _stale(experiments: Sequence[Resolved], study: str, current: set[str]) -> tuple[Stale, ...]:
    """Finished trials of the results folder that differ from one of the study in nothing but versions."""
    folders = [
        path.parent
        for path in (results_folder() / "studies" / study).glob(f"*/{SUMMARY_FILE}")
        if path.parent.name not in current
    ]
    if not folders:
        return ()
    now = {_settings(resolved.identity()): resolved for resolved in experiments}
    found = []
    for folder in folders:
        try:
            then = yaml.load((folder / CONFIGURATION_FILE).read_text(encoding="utf-8"), _LOADER)
            summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, ValueError):
            continue
        resolved = now.get(_settings(then))
        if resolved is not None:
            before, after = then.get("method_version"), resolved.method_version
            change = f"{resolved.experiment.algorithm} was version {before}, is {after}"
            if before == after:
                change = "data, protocol or METIS were others"
            found.append(Stale(folder.name, resolved.cell, change, summary.get("run_id")))
    return tuple(found)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _settings(values: Mapping[str, Any]) -> str:
    """What a study decides of an experiment; the label and the place of execution do not count."""
    kept = {
        key: value
        for key, value in values.items()
        if key not in (*VERSIONS, *EXECUTION_FIELDS, "label", "options") and value is not None
    }
    kept["options"] = {key: value for key, value in values["options"].items() if value is not None}
    return json.dumps(kept, sort_keys=True)


def _place(given: Experiment, cluster: Cluster, trials: int) -> tuple[PlacementPlan, int]:
    """Plan of a trial, and how many such trials the cluster holds at once."""
    placed = plan(request(given), cluster)
    if placed.kind == "inline":
        room = min(int(cluster.cpus), int(cluster.memory / TRIAL_BYTES))
        return placed, max(1, min(room, trials))
    runs = 1
    while runs < trials and _fits(given, cluster, runs + 1, placed):
        runs += 1
    return placed, runs


def _fits(given: Experiment, cluster: Cluster, runs: int, placed: PlacementPlan) -> bool:
    """Whether so many trials can be placed at once as one is: fewer clients or CPUs for each gain nothing."""
    try:
        return plan(request(given, runs), cluster).shape() == placed.shape()
    except PlacementError:
        return False
