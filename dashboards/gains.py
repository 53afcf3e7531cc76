"""What clients gain over training alone: SEAL's average gain and number of improved clients.

For method and Local with the same scenario and seed, with a_m the test accuracy of client m in the round of
the best mean validation score of its own trial:

    gain = mean_m (a_m - a_m^Local),   improved = #{m: a_m > a_m^Local}

GCFL's code counts ties as improved; both counts are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.cells import Column, Repetition, Row
from fedatlas.dashboards.literature import PublishedGain, published_gain
from fedatlas.platform.errors import ConfigurationError, TrackingError
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

LOCAL = "local"
Key = tuple[Row, Column]


@dataclass(frozen=True)
class Gain:
    """Gain of a method over Local in one scenario, over the seeds that both have.

    Attributes:
        mean, std: average gain in percentage points, population standard deviation over seeds.
        improved: mean number of clients above Local.
        improved_or_equal: mean number of clients not below it.
        clients: number of clients that have a test score in both.
        seeds: the seeds.
        published: what the paper prints, if the cell has a published score.
    """

    mean: float
    std: float
    improved: float
    improved_or_equal: float
    clients: int
    seeds: tuple[int, ...]
    published: PublishedGain | None


def client_scores(store: Store, repetitions: Sequence[Repetition]) -> dict[str, np.ndarray]:
    """Test scores [M] of each trial at its best-validation round, by run id; without unreadable trials."""
    found: dict[str, np.ndarray] = {}
    for each in repetitions:
        if not _of_graphs(each.column):
            continue
        try:
            table = reading.clients(store, [each.run_id])
        except (TrackingError, OSError):
            continue
        best = each.trial["best_round"]
        last = int(table["round"].max())
        chosen = last if best is None or best != best or best < 0 else int(best)
        rows = table[table["round"] == chosen].sort_values("client")
        found[each.run_id] = rows["test"].to_numpy(dtype=float)
    return found


def gains(repetitions: Sequence[Repetition], scores: Mapping[str, np.ndarray]) -> dict[Key, Gain]:
    """Gains of every method in every scenario of graph classification that has a Local row.

    Args:
        repetitions: placed trials.
        scores: of `client_scores`.
    """
    alone: dict[tuple[Column, int], np.ndarray] = {}
    for each in repetitions:
        if (
            each.row.algorithm == LOCAL
            and each.row.label == ALGORITHMS[LOCAL].title
            and each.run_id in scores
        ):
            alone.setdefault((each.column, each.seed), scores[each.run_id])
    differences: dict[Key, dict[int, np.ndarray]] = {}
    printed: dict[Key, str | None] = {}
    for each in repetitions:
        reference = alone.get((each.column, each.seed))
        if reference is None or each.run_id not in scores:
            continue
        if _is_reference(each):
            continue
        key = (each.row, each.column)
        difference = scores[each.run_id] - reference
        differences.setdefault(key, {})[each.seed] = difference[np.isfinite(difference)]
        printed[key] = each.printed
    return {key: _gain(key, by_seed, printed[key]) for key, by_seed in differences.items()}


def _is_reference(each: Repetition) -> bool:
    return each.row.algorithm == LOCAL and each.row.label == ALGORITHMS[LOCAL].title


def _gain(key: Key, by_seed: Mapping[int, np.ndarray], printed: str | None) -> Gain:
    column = key[1]
    means = [100 * float(each.mean()) for each in by_seed.values()]
    known = printed if column.comparable else None
    return Gain(
        mean=float(np.mean(means)),
        std=float(np.std(means)),
        improved=float(np.mean([(each > 0).sum() for each in by_seed.values()])),
        improved_or_equal=float(np.mean([(each >= 0).sum() for each in by_seed.values()])),
        clients=max(len(each) for each in by_seed.values()),
        seeds=tuple(sorted(by_seed)),
        published=None
        if known is None
        else published_gain(column.dataset, column.partition, column.clients, known),
    )


def gain_table(found: Mapping[Key, Gain]) -> pd.DataFrame:
    """One row per method and scenario.

    Columns: `method`, `scenario`, `gain` and `gain_std` in points, `improved` and `improved_or_equal` (mean
    numbers of clients), `clients`, `n` (seeds), `published_gain`, `published_improved`.
    """
    import pandas as pd

    records: list[dict[str, Any]] = [
        {
            "method": row.name,
            "scenario": column.title,
            "gain": each.mean,
            "gain_std": each.std,
            "improved": each.improved,
            "improved_or_equal": each.improved_or_equal,
            "clients": each.clients,
            "n": len(each.seeds),
            "published_gain": each.published.gain if each.published else None,
            "published_improved": each.published.improved if each.published else None,
        }
        for (row, column), each in found.items()
    ]
    return pd.DataFrame(records)


def _of_graphs(column: Column) -> bool:
    try:
        return entry(column.dataset).level == "graph"
    except ConfigurationError:
        return False
