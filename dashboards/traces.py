"""What trials have left of every round: scores, bytes and seconds, read from their artifacts.

Bytes are those of all clients together; MB are 1e6 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.dashboards.cells import Repetition
from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.reading import artifact
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MEGABYTE = 1e6
SHARE = 0.95
"""Of the reported score: when it is reached is what `Effort` says."""
PHASES = (
    "training",
    "calibration",
    "evaluation",
    "transport",
    "serialisation",
    "broadcast",
    "aggregation",
    "refinement",
    "logging",
)
"""Parts of a round in the order in which they are shown; see `phases`."""
_UP, _DOWN, _BYTES = "comm/uplink_", "comm/downlink_", "_bytes"


@dataclass(frozen=True)
class Trace:
    """The rounds of one trial.

    Attributes:
        test, validation: client-mean scores in [0, 1], [R]; NaN where undefined.
        sent: MB up and down until the end of each round, what was exchanged before round 0 included, [R].
        uplink, downlink: MB per round by field, mean over the rounds in which anything travelled.
        seconds: median seconds per round by phase.
    """

    test: np.ndarray
    validation: np.ndarray
    sent: np.ndarray
    uplink: Mapping[str, float] = field(default_factory=dict)
    downlink: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def traces(store: Store, repetitions: Iterable[Repetition]) -> tuple[dict[str, Trace], list[str]]:
    """Traces by run id, and the ids of runs whose rounds cannot be read."""
    found: dict[str, Trace] = {}
    unreadable: list[str] = []
    for each in repetitions:
        try:
            table = artifact(store, each.run_id, _address(each), "rounds.parquet")
            found[each.run_id] = _trace(table, _number(each.trial.get("logging_seconds_per_round")))
        except (TrackingError, KeyError):
            unreadable.append(each.run_id)
    return found, unreadable


def _address(each: Repetition) -> str | None:
    address = each.trial.get("artifacts")
    return address if isinstance(address, str) else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value == value else 0.0


def _trace(table: pa.Table, logging: float) -> Trace:
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    total = columns.get("comm/uplink_bytes", 0) + columns.get("comm/downlink_bytes", 0)
    sent = np.cumsum(np.broadcast_to(total, table.num_rows).astype(float))
    for name in ("comm/preparation_uplink_bytes", "comm/preparation_downlink_bytes"):
        if name in columns:
            sent = sent + np.nansum(columns[name])
    return Trace(
        test=columns["test/score"],
        validation=columns["val/score"],
        sent=sent / MEGABYTE,
        uplink=_by_field(columns, _UP),
        downlink=_by_field(columns, _DOWN),
        seconds=phases(columns, logging),
    )


def _by_field(columns: Mapping[str, np.ndarray], prefix: str) -> dict[str, float]:
    names = [name for name in columns if name.startswith(prefix) and len(name) > len(prefix) + len(_BYTES)]
    moved = np.zeros(len(columns["test/score"]), dtype=bool)
    for name in (*names, "comm/uplink_bytes", "comm/downlink_bytes"):
        if name in columns:
            moved |= np.nan_to_num(columns[name]) > 0
    if not moved.any():
        return {}
    return {
        name[len(prefix) : -len(_BYTES)]: float(np.nansum(columns[name]) / moved.sum() / MEGABYTE)
        for name in names
    }


def phases(columns: Mapping[str, np.ndarray], logging: float = 0.0) -> dict[str, float]:
    """Median seconds per round by phase.

    training: clients, without the forward part of calibration; calibration: that part; evaluation: scores;
    transport: what clients cost beside that and serialisation; aggregation: server, without refinement.
    Phases that were not marked, or in which no time passed, are not there.

    Args:
        columns: figures ``time/*_seconds`` of all rounds.
        logging: seconds per round spent in sending figures to the tracking store, outside of the round.
    """

    def of(name: str) -> np.ndarray:
        found: np.ndarray = np.nan_to_num(columns.get(f"time/{name}_seconds", np.zeros(1)))
        return found

    inside = of("train") + of("evaluate") + of("serialisation")
    parts: dict[str, np.ndarray | float] = {
        "training": of("train") - of("calibration"),
        "calibration": of("calibration"),
        "evaluation": of("evaluate"),
        # Scores after aggregation are not part of what the clients cost in the round.
        "transport": np.maximum(of("clients") - inside, 0),
        "serialisation": of("serialisation"),
        "broadcast": of("broadcast"),
        "aggregation": of("aggregate") - of("refinement"),
        "refinement": of("refinement"),
        "logging": logging,
    }
    medians = {name: float(np.median(parts[name])) for name in PHASES}
    return {name: value for name, value in medians.items() if value > 0}


@dataclass(frozen=True)
class Curve:
    """Scores over the rounds of some trials, in %.

    Attributes:
        rounds: 1-based numbers.
        mean, std: over the trials that have a score in the round, population standard deviation.
        n: number of trials.
    """

    rounds: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


def curve(scores: Sequence[np.ndarray]) -> Curve:
    """Mean and population standard deviation over trials per round.

    Args:
        scores: of each trial, [R] in [0, 1].
    """
    longest = max(len(each) for each in scores)
    stacked = np.full((len(scores), longest), np.nan)
    for row, each in enumerate(scores):
        stacked[row, : len(each)] = 100 * each
    counted = np.isfinite(stacked).sum(axis=0)
    filled = np.where(np.isfinite(stacked), stacked, 0.0)
    with np.errstate(invalid="ignore"):
        mean = filled.sum(axis=0) / counted
        std = np.sqrt(np.where(np.isfinite(stacked), (stacked - mean) ** 2, 0.0).sum(axis=0) / counted)
    return Curve(np.arange(1, longest + 1), mean, std, len(scores))


@dataclass(frozen=True)
class Effort:
    """What it takes to reach `SHARE` of the reported test score: mean over trials.

    Attributes:
        rounds: rounds done when the test score first reaches it.
        megabytes: sent until then, up and down, by all clients.
    """

    rounds: float
    megabytes: float


def effort(members: Sequence[tuple[Repetition, Trace]]) -> Effort | None:
    """Of trials; None if a score is undefined."""
    rounds, sent = [], []
    for each, trace in members:
        reached = np.flatnonzero(trace.test >= SHARE * float(each.trial["test_score"]))
        if not reached.size:
            return None
        rounds.append(int(reached[0]) + 1)
        sent.append(float(trace.sent[reached[0]]))
    return Effort(float(np.mean(rounds)), float(np.mean(sent))) if rounds else None


def mean_of(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean over trials of figures by name; a figure that a trial lacks is 0 there."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: float(np.mean([each.get(name, 0.0) for each in parts])) for name in names}


def client_scores(store: Store, each: Repetition, best: int) -> np.ndarray | None:
    """Test scores of a trial's clients in [0, 1] at a round, [M]; None if the trial has none.

    Args:
        store: tracking store.
        each: the trial.
        best: the round; -1 for the last.
    """
    names = ("round", "client", "test")
    try:
        table = artifact(store, each.run_id, _address(each), "clients.parquet", names)
    except TrackingError:
        return None
    rounds, clients, scores = (table.column(name).to_numpy() for name in names)
    if not len(rounds):
        return None
    chosen = rounds == (best if best >= 0 else rounds.max())
    ordered: np.ndarray = scores[chosen][np.argsort(clients[chosen], kind="stable")]
    return ordered.astype(float)


def clients_of(store: Store, each: Repetition, name: str) -> pd.DataFrame | None:
    """A Parquet artifact of a trial as a table; None if the trial has none."""
    try:
        found: pd.DataFrame = artifact(store, each.run_id, _address(each), name).to_pandas()
        return found
    except TrackingError:
        return None
