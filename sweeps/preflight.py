"""What a study would do, worked out before any process starts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedatlas.platform.errors import DataError, PlacementError
from fedatlas.platform.federation.placement import Cluster, PlacementPlan, PlacementRequest, plan
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.graphs.federated import data_sha256
from fedatlas.platform.tracking.destination import redacted, results_folder
from fedatlas.platform.tracking.operations import FINGERPRINT_TAG, KIND_TAG, RUN_TAG
from fedatlas.sweeps.execution import Planned, request
from fedatlas.sweeps.experiment import Experiment, Resolved
from fedatlas.sweeps.recording import RUN_ID_FILE

if TYPE_CHECKING:
    from fedatlas.platform.tracking.store import Store

OPERATIONS_PER_SECOND = 4e9
"""Multiply-adds as `estimate` counts them, per second and core.

Measured on one core of an AMD EPYC server: inline rounds on Minesweeper give 4e9 with 5 and 20
clients, on the stand-in of ogbn-arxiv 1e10.
"""
SECONDS_PER_ROUND = 0.002
"""Seconds of a round beside training and scoring, measured there: 0.0004 (FedAvg, 5 clients) to 0.002
(FedGMC, 20 clients)."""
SECONDS_PER_TRIAL = 0.3
"""Seconds of a trial beside its rounds, measured there over 20 trials: 0.1, and 0.35 with tracking into
sqlite."""
TRIAL_BYTES = 1e9
"""Memory in bytes that is left to an inline trial: its process with torch and Ray, the graph and all clients.

Chosen, not measured for every data set; see `fedatlas.platform.federation.placement.ACTOR_BYTES` for a
process that has only imported torch.
"""


@dataclass(frozen=True)
class Preflight:
    """The state of a study before it runs.

    Attributes:
        todo: trials to run with their placement, longest first.
        finished: fingerprints of trials that are there already.
        interrupted: fingerprint -> MLflow id of trials that were begun from this results folder.
        missing: data set -> why it cannot be read, and what to do.
        left_out: trials on missing data sets.
        cells: scenarios of the study (data set, partition, clients).
    """

    todo: tuple[tuple[Planned, PlacementPlan], ...]
    finished: frozenset[str]
    interrupted: dict[str, str]
    missing: dict[str, str]
    left_out: int
    cells: int
    concurrency: dict[tuple[int, float, float], int] = field(default_factory=dict)

    def estimated_seconds(self) -> float:
        """Rough duration of the study from sizes alone; a measured cost model may replace it."""
        total = 0.0
        for work, placed in self.todo:
            total += estimate(work.resolved) / max(1, self.concurrency.get(placed.shape(), 1))
        return total


def check(
    experiments: Sequence[Resolved],
    cluster: Cluster,
    study: str,
    *,
    uri: str | None,
    tracking: Store | None,
    download: bool = True,
) -> Preflight:
    """Look at data, finished trials and resources.

    Args:
        experiments: all trials of the study.
        cluster: what there is to run on.
        study: name of the study.
        uri: tracking URI that a finished trial must have been written for; None if tracking is not wanted.
        tracking: where finished trials are looked up, besides the results folder; None if unreachable.
        download: bring data sets that are missing.

    Raises:
        PlacementError: a trial can never be placed.
    """
    hashes, missing = _hashes({resolved.experiment.dataset for resolved in experiments}, download)
    done, begun = _known_trials(tracking, uri, study)
    todo, found, left_out = [], set(), 0
    places: dict[PlacementRequest, tuple[PlacementPlan, int]] = {}
    concurrency: dict[tuple[int, float, float], int] = {}
    for resolved in experiments:
        if resolved.experiment.dataset in missing:
            left_out += 1
            continue
        sha256 = hashes[resolved.experiment.dataset]
        work = Planned(resolved, sha256, resolved.fingerprint(sha256))
        if work.fingerprint in done:
            found.add(work.fingerprint)
            continue
        asked = request(resolved.experiment)
        if asked not in places:
            places[asked] = _place(resolved.experiment, cluster, len(experiments))
        placed, runs = places[asked]
        concurrency[placed.shape()] = max(runs, concurrency.get(placed.shape(), 0))
        todo.append((work, placed))
    todo.sort(key=lambda item: -estimate(item[0].resolved))
    cells = Counter(
        (resolved.experiment.dataset, resolved.experiment.partition, resolved.experiment.clients)
        for resolved in experiments
    )
    return Preflight(tuple(todo), frozenset(found), begun, missing, left_out, len(cells), concurrency)


def estimate(resolved: Resolved) -> float:
    """Rough seconds of one trial on one core, from the arithmetic of its training steps."""
    given = resolved.experiment
    sizes = entry(given.dataset)
    hidden = int(given.options.get("hidden", 128))
    overlap = 2.5 if given.partition == "metis-overlap" else 1.0
    dense = sizes.nodes * min(sizes.features, 300) * hidden * 2
    sparse = sizes.published_edges * 2 * hidden * (8 if given.backbone == "h2gcn" else 4)
    weights = given.clients * sizes.features * hidden * 12
    rounds, epochs = given.rounds or sizes.rounds, given.epochs or sizes.epochs
    step = (overlap * (dense + sparse) * 3 + weights) / OPERATIONS_PER_SECOND
    return SECONDS_PER_TRIAL + rounds * (SECONDS_PER_ROUND + step * (epochs + 0.4))


def _hashes(datasets: set[str], download: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Hash of every data set that can be read; why the others cannot."""
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


def _known_trials(
    tracking: Store | None, uri: str | None, study: str
) -> tuple[frozenset[str], dict[str, str]]:
    """Fingerprints of finished trials; interrupted trials of this results folder with their run ids."""
    folder = results_folder() / "studies" / study
    done: set[str] = set()
    for path in folder.glob("*/summary.json"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        # A trial that ran without tracking, or into another store, is not finished for a study that tracks.
        if uri is None or summary.get("tracking_uri") == redacted(uri):
            done.add(path.parent.name)
    begun: dict[str, str] = {}
    if tracking is not None:
        for run in tracking.runs(study, f"tags.`{KIND_TAG}` = 'trial'"):
            fingerprint = run.data.tags.get(FINGERPRINT_TAG, "")
            if run.info.status == "FINISHED":
                done.add(fingerprint)
            elif run.info.status in ("RUNNING", "KILLED"):
                # Another driver may be at work on a run that is not in this results folder.
                ours = folder / fingerprint / RUN_ID_FILE
                if ours.is_file() and ours.read_text(encoding="utf-8").strip() == run.data.tags.get(RUN_TAG):
                    begun[fingerprint] = run.info.run_id
    return frozenset(done), {key: value for key, value in begun.items() if key not in done}


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
