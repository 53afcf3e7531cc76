"""What a study would do, worked out before any process starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedatlas.platform.errors import DataError
from fedatlas.platform.federation.placement import Cluster, PlacementPlan, plan
from fedatlas.platform.graphs import store
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.sweeps.execution import Planned, planned, request
from fedatlas.sweeps.experiment import Resolved

if TYPE_CHECKING:
    from fedatlas.platform.tracking.store import Store

OPERATIONS_PER_SECOND = 2e9
SECONDS_PER_ROUND = 0.004
SECONDS_PER_TRIAL = 0.3


@dataclass(frozen=True)
class Preflight:
    """The state of a study before it runs.

    Attributes:
        todo: trials to run with their placement, longest first.
        finished: fingerprints of trials that are there already.
        interrupted: fingerprint -> MLflow id of trials that were begun.
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


def check(experiments: Sequence[Resolved], cluster: Cluster, tracking: Store | None, study: str) -> Preflight:
    """Look at data, finished trials and resources.

    Args:
        experiments: all trials of the study.
        cluster: what there is to run on.
        tracking: where finished trials are looked up, besides the results folder; None if unreachable.
        study: name of the study.

    Raises:
        PlacementError: a trial can never be placed.
    """
    missing = _missing_data({resolved.experiment.dataset for resolved in experiments})
    done, begun = _known_trials(tracking, study)
    todo, found, left_out = [], set(), 0
    concurrency: dict[tuple[int, float, float], int] = {}
    for resolved in experiments:
        if resolved.experiment.dataset in missing:
            left_out += 1
            continue
        work = planned(resolved)
        if work.fingerprint in done:
            found.add(work.fingerprint)
            continue
        placed, runs = _place(resolved, cluster, len(experiments))
        concurrency[placed.shape()] = max(runs, concurrency.get(placed.shape(), 0))
        todo.append((work, placed))
    todo.sort(key=lambda item: -estimate(item[0].resolved))
    cells = Counter(
        (resolved.experiment.dataset, resolved.experiment.partition, resolved.experiment.clients)
        for resolved in experiments
    )
    return Preflight(tuple(todo), frozenset(found), begun, missing, left_out, len(cells), concurrency)


def identified(experiments: Sequence[Resolved]) -> list[Planned]:
    """Experiments with their fingerprints, without those on data sets that cannot be read."""
    missing = _missing_data({resolved.experiment.dataset for resolved in experiments})
    return [planned(resolved) for resolved in experiments if resolved.experiment.dataset not in missing]


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


def _missing_data(datasets: set[str]) -> dict[str, str]:
    missing: dict[str, str] = {}
    for name in sorted(datasets):
        if store.status(name).state in ("missing", "corrupt"):
            try:
                # Loading may download the set; `planned` has it from the cache afterwards.
                from fedatlas.platform.graphs.federated import data_sha256

                data_sha256(name)
            except DataError as error:
                missing[name] = str(error)
    return missing


def _known_trials(tracking: Store | None, study: str) -> tuple[frozenset[str], dict[str, str]]:
    """Fingerprints of finished trials; interrupted trials with their run ids."""
    folder = results_folder() / "studies" / study
    # A trial that ran without tracking is not finished for a study that tracks.
    done = {
        path.parent.name
        for path in folder.glob("*/summary.json")
        if tracking is None or json.loads(path.read_text(encoding="utf-8")).get("run_id") is not None
    }
    begun: dict[str, str] = {}
    if tracking is not None:
        from fedatlas.platform.tracking.operations import FINGERPRINT_TAG

        for run in tracking.runs(study, "tags.`fedatlas.kind` = 'trial'"):
            fingerprint = run.data.tags.get(FINGERPRINT_TAG, "")
            if run.info.status == "FINISHED":
                done.add(fingerprint)
            elif run.info.status in ("RUNNING", "KILLED"):
                begun.setdefault(fingerprint, run.info.run_id)
    return frozenset(done), {key: value for key, value in begun.items() if key not in done}


def _place(resolved: Resolved, cluster: Cluster, trials: int) -> tuple[PlacementPlan, int]:
    """Plan of a trial, and how many such trials the cluster holds at once."""
    given = resolved.experiment
    placed = plan(request(given), cluster)
    if placed.kind == "inline":
        return placed, max(1, min(int(cluster.cpus), trials))
    each = len(placed.groups) * placed.cpus + 1.0
    runs = max(1, min(int(cluster.cpus / each + 1e-9), trials))
    if placed.gpus > 0:
        runs = max(1, min(runs, cluster.fits(placed.cpus, placed.gpus, 0) // len(placed.groups)))
    return placed, runs
