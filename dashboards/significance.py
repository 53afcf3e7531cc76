"""Which differences between methods are more than noise.

Pairs are the trials of two methods with the same scenario and seed. Seeds of one scenario share the partition
and are not independent, so p values over pairs are smaller than those over scenarios; both are given.

Sources: F. Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin 1945. S. Holm, A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 1979. M. Friedman, The use
of ranks, JASA 1937. R. Iman, J. Davenport, Approximations of the critical region of the Friedman statistic,
Communications in Statistics 1980. J. Demšar, Statistical comparisons of classifiers over multiple data sets,
JMLR 2006. B. Efron, Better bootstrap confidence intervals, JASA 1987.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.dashboards.cells import Column, Repetition, Row, row_order

if TYPE_CHECKING:
    from fedatlas.dashboards.tables import ScenarioTable

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
RESAMPLES = 2000
FEWEST_SCENARIOS = 6
"""With fewer pairs no two-sided Wilcoxon test can reach 0.05: its least p value is 2 / 2^n."""


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval (bias-corrected and accelerated), in the unit of the sample."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A method against a reference.

    Attributes:
        row, reference: the two methods.
        pairs: trials with the same scenario and seed.
        scenarios: scenarios among them.
        difference: mean of row minus reference over pairs, in points of %.
        interval: of that mean, over scenarios where there are `FEWEST_SCENARIOS`, else over pairs; None for
            fewer than three.
        wins, losses: pairs in which the row is higher, lower.
        p, p_holm: two-sided Wilcoxon signed-rank test over pairs, and adjusted over all rows that are
            compared with the reference; NaN for fewer than `FEWEST_SCENARIOS` pairs.
        p_scenarios: the test over scenario means, not adjusted; NaN for fewer scenarios.
    """

    row: Row
    reference: Row
    pairs: int
    scenarios: int
    difference: float
    interval: Interval | None
    wins: int
    losses: int
    p: float
    p_holm: float
    p_scenarios: float


@dataclass(frozen=True)
class Ranking:
    """Average ranks over scenarios, with Friedman's test and the critical difference of Nemenyi's.

    Attributes:
        ranks: row -> average rank, 1 is best.
        scenarios: number of scenarios N.
        chi2: Friedman's statistic, corrected for ties.
        p: of chi2 with k - 1 degrees of freedom.
        f: (N - 1) chi2 / (N (k - 1) - chi2) (Iman and Davenport); infinite if the ranks never differ.
        p_f: of f with k - 1 and (k - 1)(N - 1) degrees of freedom.
        critical: two average ranks that differ by less are not different at `SIGNIFICANCE`.
        groups: largest sets of rows, in order of rank, whose ranks span less than `critical`.
    """

    ranks: Mapping[Row, float]
    scenarios: int
    chi2: float
    p: float
    f: float
    p_f: float
    critical: float
    groups: tuple[tuple[Row, ...], ...]


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values of a family: max over the smaller ones of (m - rank + 1) p, at most 1.

    NaN stays NaN and does not count.
    """
    order = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    adjusted, least = [math.nan] * len(p), 0.0
    for rank, (value, place) in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * value))
        adjusted[place] = least
    return adjusted


def wilcoxon(differences: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test; equal pairs are dropped, and p is 1 if all are equal.

    The exact distribution up to 25 pairs without ties, else the normal approximation.
    """
    from scipy import stats

    values = np.asarray(differences, dtype=float)
    values = values[np.abs(values) > 1e-12]
    if values.size == 0:
        return 1.0
    tied = len(np.unique(np.abs(values))) < values.size
    method = "exact" if values.size <= 25 and not tied else "approx"
    return float(stats.wilcoxon(values, method=method).pvalue)


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval | None:
    """Interval of the mean at `CONFIDENCE`; None for fewer than three values."""
    from scipy import stats

    sample = np.asarray(values, dtype=float)
    if sample.size < 3:
        return None
    if np.ptp(sample) < 1e-12:
        return Interval(float(sample[0]), float(sample[0]))
    found = stats.bootstrap(
        (sample,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def critical_difference(methods: int, scenarios: int) -> float:
    """Nemenyi's critical difference of average ranks, q sqrt(k (k + 1) / (6 N)) at `SIGNIFICANCE`."""
    from scipy import stats

    # The tabled q is the quantile of the studentised range with infinite degrees of freedom over sqrt(2).
    q = float(stats.studentized_range.ppf(1 - SIGNIFICANCE, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * scenarios))


Scores = Mapping[Row, Mapping[tuple[Column, int], float]]
"""Per row: (scenario, seed) -> score in %."""


def scores_of(repetitions: Sequence[Repetition]) -> Scores:
    """Test scores of trials by row, scenario and seed."""
    scores: dict[Row, dict[tuple[Column, int], float]] = {}
    for each in repetitions:
        scores.setdefault(each.row, {})[each.column, each.seed] = 100 * float(each.trial["test_score"])
    return scores


def comparisons(scores: Scores, reference: Row) -> tuple[Comparison, ...]:
    """Every other row against the reference, on what both have; rows with nothing in common are left out."""
    found = []
    for row in sorted(scores, key=row_order):
        shared = [key for key in scores[row] if key in scores[reference]]
        if row != reference and shared:
            found.append(_comparison(scores, row, reference, shared))
    adjusted = holm([each.p for each in found])
    return tuple(
        Comparison(**{**vars(each), "p_holm": value}) for each, value in zip(found, adjusted, strict=True)
    )


def _comparison(scores: Scores, row: Row, reference: Row, shared: list[tuple[Column, int]]) -> Comparison:
    differences = np.array([scores[row][key] - scores[reference][key] for key in shared])
    groups: dict[Column, list[float]] = {}
    for (column, _), value in zip(shared, differences, strict=True):
        groups.setdefault(column, []).append(float(value))
    means = [float(np.mean(group)) for group in groups.values()]
    enough = len(means) >= FEWEST_SCENARIOS
    return Comparison(
        row=row,
        reference=reference,
        pairs=len(shared),
        scenarios=len(groups),
        difference=float(differences.mean()),
        interval=bootstrap(means if enough else differences.tolist()),
        wins=int((differences > 1e-12).sum()),
        losses=int((differences < -1e-12).sum()),
        p=wilcoxon(differences.tolist()) if len(shared) >= FEWEST_SCENARIOS else math.nan,
        p_holm=math.nan,
        p_scenarios=wilcoxon(means) if enough else math.nan,
    )


def ranking(table: ScenarioTable) -> Ranking | None:
    """Friedman's test over scenarios in which all ranked rows have every seed.

    While there are fewer than two such scenarios, the row that is complete in the fewest is left out. None
    with fewer than three rows.
    """
    from scipy import stats

    rows, columns = _comparable(table)
    if len(rows) < 3 or len(columns) < 2:
        return None
    scores = np.array([[table.cells[row, column].mean for row in rows] for column in columns])
    count, k = scores.shape
    if np.ptp(scores, axis=1).max() < 1e-12:
        chi2, p = 0.0, 1.0
    else:
        tested = stats.friedmanchisquare(*scores.T)
        chi2, p = float(tested.statistic), float(tested.pvalue)
    rest = count * (k - 1) - chi2
    f = (count - 1) * chi2 / rest if rest > 1e-12 else math.inf
    critical = critical_difference(k, count)
    average = stats.rankdata(-scores, axis=1).mean(axis=0)
    ranks = {row: float(rank) for row, rank in zip(rows, average, strict=True)}
    return Ranking(
        ranks=ranks,
        scenarios=count,
        chi2=chi2,
        p=p,
        f=f,
        p_f=float(stats.f.sf(f, k - 1, (k - 1) * (count - 1))),
        critical=critical,
        groups=_groups(ranks, critical),
    )


def _comparable(table: ScenarioTable) -> tuple[list[Row], list[Column]]:
    complete = {
        row: {
            column
            for column in table.columns
            if (row, column) in table.cells and table.cells[row, column].complete
        }
        for row in table.rows
    }
    rows = [row for row in table.rows if complete[row]]
    while True:
        columns = [column for column in table.columns if all(column in complete[row] for row in rows)]
        if len(columns) >= 2 or len(rows) <= 3:
            return rows, columns
        rows.remove(min(rows, key=lambda row: len(complete[row])))


def _groups(ranks: Mapping[Row, float], critical: float) -> tuple[tuple[Row, ...], ...]:
    """Largest runs of rows within the critical difference, of two or more; none inside another."""
    order = sorted(ranks, key=lambda row: (ranks[row], row.name))
    groups: list[tuple[Row, ...]] = []
    end = 0
    for start in range(len(order)):
        stop = start
        while stop + 1 < len(order) and ranks[order[stop + 1]] - ranks[order[start]] < critical:
            stop += 1
        if stop > start and stop > end - 1:
            groups.append(tuple(order[start : stop + 1]))
            end = stop + 1
    return tuple(groups)
