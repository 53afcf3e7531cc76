"""How a study stands: what is done, failed, running, tried again, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedatlas.dashboards.cells import UNKNOWN, finished, scenario_title, unfinished
from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.operations import KIND_TAG, RAY_TAG, TRIALS_TAG
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

FAILED = ("FAILED", "KILLED")
ROUND_METRIC = "time/round_seconds"
_WITHOUT_ERROR = {
    "FINISHED": "finished without a test score",
    "FAILED": "no error text",
    "KILLED": "stopped from outside",
}


@dataclass(frozen=True)
class Unfinished:
    """A trial that does not count.

    Attributes:
        label, scenario, seed: what it is; `UNKNOWN` where its parameters were not tracked.
        status: MLflow's.
        run_id: MLflow id.
        error: why, in words; empty while it runs.
        attempts: runs of this trial, this one included.
        rounds_done, rounds: progress; None where it is not known.
        started: seconds since 1970.
    """

    label: str
    scenario: str
    seed: str
    status: str
    run_id: str
    error: str
    attempts: int
    rounds_done: int | None
    rounds: int | None
    started: float | None

    @property
    def progress(self) -> str:
        """Rounds done, of how many; personal rounds come on top of those that a trial names."""
        if self.rounds_done is None:
            return ""
        whole = self.rounds if self.rounds is not None and self.rounds_done <= self.rounds else None
        return f"{self.rounds_done} rounds" if whole is None else f"{self.rounds_done} of {whole} rounds"


@dataclass(frozen=True)
class Health:
    """The state of a study.

    Attributes:
        finished, failed, running: trials.
        stale: finished ones that an earlier version of the code has computed.
        retried: trials that were started more than once.
        wanted: trials that the running sweep set out to run; None if no sweep runs, or it does not say.
        done: of those, the ones that have ended.
        ray: address of the cluster of the running sweep; empty if none runs, or it does not say.
        remaining_seconds: expected, at the pace of the running sweep so far; None if there is none.
        unfinished: failed ones first.
    """

    finished: int
    failed: int
    running: int
    stale: int
    retried: int
    wanted: int | None
    done: int | None
    remaining_seconds: float | None
    ray: str
    unfinished: tuple[Unfinished, ...]


def health(store: Store, experiment: str, trials: pd.DataFrame, progress: bool = True) -> Health:
    """Look at the trials and at the running sweep.

    Args:
        store: tracking store.
        experiment: name of the study.
        trials: as `fedatlas.platform.tracking.reading.trials` returns them.
        progress: ask the store for the rounds that running trials have done.
    """
    done = finished(trials)
    others = sorted(
        (_unfinished(store, trial, progress) for trial in unfinished(trials).to_dict("records")),
        key=lambda each: (each.status not in FAILED, each.scenario, each.label, each.seed),
    )
    running = sum(each.status == "RUNNING" for each in others)
    wanted, ended, remaining, ray = _sweep(store, experiment, trials, others)
    return Health(
        finished=len(done),
        failed=sum(each.status in FAILED for each in others),
        running=running,
        stale=int(done["stale"].notna().sum()),
        retried=int((trials["attempts"].fillna(1) > 1).sum()),
        wanted=wanted,
        done=ended,
        remaining_seconds=remaining,
        ray=ray,
        unfinished=tuple(others),
    )


def _unfinished(store: Store, trial: Mapping[Any, Any], progress: bool) -> Unfinished:
    running = trial["status"] == "RUNNING"
    rounds = int(trial["rounds"]) if _known(trial["rounds"]) else None
    done = None
    if running and progress:
        try:
            done = store.last_step(str(trial["run_id"]), ROUND_METRIC) + 1
        except TrackingError:
            done = None
    return Unfinished(
        label=str(trial["label"]) if _known(trial["label"]) else UNKNOWN,
        scenario=_scenario(trial),
        seed=str(int(trial["seed"])) if _known(trial["seed"]) else UNKNOWN,
        status=str(trial["status"]),
        run_id=str(trial["run_id"]),
        error=_error(trial),
        attempts=int(trial["attempts"]) if _known(trial["attempts"]) else 1,
        rounds_done=done,
        rounds=rounds,
        started=float(trial["started"]) if _known(trial["started"]) else None,
    )


def _scenario(trial: Mapping[Any, Any]) -> str:
    if not all(_known(trial[key]) for key in ("dataset", "partition", "clients")):
        return UNKNOWN
    return scenario_title(trial["dataset"], trial["partition"], int(trial["clients"]))


def _error(trial: Mapping[Any, Any]) -> str:
    if _known(trial["error"]):
        return str(trial["error"])
    if not _known(trial["label"]):
        return "its parameters were not tracked"
    return _WITHOUT_ERROR.get(str(trial["status"]), "")


def _known(value: Any) -> bool:
    return value is not None and value == value


def _sweep(
    store: Store, experiment: str, trials: pd.DataFrame, others: list[Unfinished]
) -> tuple[int | None, int | None, float | None, str]:
    """Trials wanted and ended of the newest running sweep, its remaining seconds, and its cluster."""
    sweeps = store.runs(experiment, f"tags.`{KIND_TAG}` = 'sweep'")
    sweep = next((run for run in sweeps if run.info.status == "RUNNING"), None)
    if sweep is None:
        return None, None, None, ""
    ray = sweep.data.tags.get(RAY_TAG, "")
    mine = trials[trials["parent_id"] == sweep.info.run_id]
    ended = int(mine["status"].isin(("FINISHED", *FAILED)).sum())
    wanted = sweep.data.tags.get(TRIALS_TAG)
    if wanted is None or not wanted.isdecimal():
        return None, ended, None, ray
    under_way = sum(
        min(1.0, each.rounds_done / each.rounds)
        for each in others
        if each.status == "RUNNING" and each.rounds_done and each.rounds
    )
    work = ended + min(under_way, int(wanted))
    spent = time.time() - sweep.info.start_time / 1000
    # The clock may have been set back since the sweep began.
    remaining = spent * (int(wanted) - work) / work if work > 0 and spent > 0 else None
    return int(wanted), ended, remaining, ray


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
