"""Tables of results: method × scenario, and the summary at the end of a sweep.

A score is the client mean at the best-validation round. A cell is its mean over seeds ± the population
standard deviation (ddof = 0), in %, as the papers print it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedatlas.dashboards.cells import Column, Repetition, Row, arrange, column_order, row_order
from fedatlas.dashboards.literature import Published, published

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group

Kind = Literal["measured", "stale", "stand-in"]
KINDS: tuple[Kind, ...] = ("measured", "stale", "stand-in")
METRIC_NAMES = {"accuracy": "accuracy", "auc": "ROC-AUC"}
NO_TRIAL = "No trial has finished."


@dataclass(frozen=True)
class Cell:
    """Scores of one method in one scenario, in %.

    Attributes:
        mean, std: test score over seeds, population standard deviation.
        last: mean test score of the last round.
        seeds: seeds that count; their number is n.
        complete: every seed that any method has in this column is there.
        best, second: the highest mean of the complete cells of a column with at least two of them, and the
            next lower one.
        published: the paper's figure, if every trial is the plain method under the papers' conventions.
    """

    mean: float
    std: float
    last: float
    seeds: tuple[int, ...]
    complete: bool
    best: bool
    second: bool
    published: Published | None

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.seeds)

    @property
    def difference(self) -> float | None:
        """Measured minus published, in points; None where nothing is published."""
        return None if self.published is None else self.mean - self.published.value


@dataclass(frozen=True)
class Missing:
    """Seeds that other methods have in a column and this one does not."""

    row: Row
    column: Column
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class ScenarioTable:
    """Method × scenario.

    Attributes:
        kind: ``measured`` (real and generated data), ``stale`` (computed by an earlier version of the code)
            or ``stand-in`` (synthetic graphs).
        rows, columns: in display order.
        cells: a method that did not run in a scenario has none.
        average_rank: mean rank of each method (1 is best, ties share theirs) over the ranked columns; empty
            if there is no such column or only one method.
        average: mean of each method over the ranked columns, in %; empty with fewer than two of them.
        ranked: columns in which every method of the table has every seed.
        missing: what keeps the other columns from being ranked.
        groups: the trials behind each cell, by seed.
    """

    kind: Kind
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[Row, Column], Cell]
    average_rank: Mapping[Row, float]
    average: Mapping[Row, float]
    ranked: tuple[Column, ...]
    missing: tuple[Missing, ...]
    groups: Mapping[tuple[Row, Column], tuple[Repetition, ...]]

    @property
    def ranked_columns(self) -> int:
        """Number of ranked columns."""
        return len(self.ranked)

    @property
    def repetitions(self) -> tuple[Repetition, ...]:
        """The trials behind the cells."""
        return tuple(each for group in self.groups.values() for each in group)


def method_by_scenario(trials: pd.DataFrame) -> tuple[ScenarioTable, ...]:
    """Tables of the finished trials, one of each kind that is there; a trial is in one table only.

    Args:
        trials: as `fedatlas.platform.tracking.reading.trials` returns them.
    """
    tables = []
    stale = trials["stale"].notna()
    for part, is_stale in ((trials[~stale], False), (trials[stale], True)):
        placed: dict[Kind, list[Repetition]] = {}
        for each in arrange(part):
            kind: Kind = "stand-in" if each.column.stand_in else "stale" if is_stale else "measured"
            placed.setdefault(kind, []).append(each)
        tables += [_table(kind, group) for kind, group in placed.items()]
    return tuple(sorted(tables, key=lambda table: KINDS.index(table.kind)))


def _table(kind: Kind, placed: list[Repetition]) -> ScenarioTable:
    rows = tuple(sorted({each.row for each in placed}, key=row_order))
    columns = tuple(sorted({each.column for each in placed}, key=column_order))
    groups: dict[tuple[Row, Column], list[Repetition]] = {}
    for each in placed:
        groups.setdefault((each.row, each.column), []).append(each)
    seeds: dict[Column, set[int]] = {}
    for each in placed:
        seeds.setdefault(each.column, set()).add(each.seed)
    means = {key: _mean(group, "test_score") for key, group in groups.items()}
    complete = {key: {each.seed for each in group} == seeds[key[1]] for key, group in groups.items()}
    cells: dict[tuple[Row, Column], Cell] = {}
    leaders = {
        column: _two_highest([means[row, column] for row in rows if complete.get((row, column))])
        for column in columns
    }
    for key, group in groups.items():
        row, column = key
        best, second = (complete[key] and _same(means[key], value) for value in leaders[column])
        cells[key] = Cell(
            mean=means[key],
            std=100 * float(np.std([each.trial["test_score"] for each in group])),
            last=_mean(group, "last_test_score"),
            seeds=tuple(each.seed for each in group),
            complete=complete[key],
            best=best,
            second=second,
            published=_published(group),
        )
    ranked = [column for column in columns if all(complete.get((row, column)) for row in rows)]
    # The centralised reference is a row of its own: nobody expects it in the other columns, or others in its.
    expected = {(row, column.uncut) for row, column in cells}
    missing = []
    for row in rows:
        for column in columns:
            if (row, column.uncut) not in expected:
                continue
            have = set(cells[row, column].seeds) if (row, column) in cells else set()
            if lacking := seeds[column] - have:
                missing.append(Missing(row, column, tuple(sorted(lacking))))
    return ScenarioTable(
        kind,
        rows,
        columns,
        cells,
        _average_rank(rows, ranked, means),
        {row: float(np.mean([means[row, column] for column in ranked])) for row in rows}
        if len(ranked) > 1
        else {},
        tuple(ranked),
        tuple(missing),
        {key: tuple(group) for key, group in groups.items()},
    )


def reference_row(table: ScenarioTable) -> Row:
    """What others are compared with unless one chooses: FedGMC if it is there, else the most often best."""
    for row in table.rows:
        if row.algorithm == "fedgmc" and row.name == row.label:
            return row
    wins = {row: sum(cell.best for key, cell in table.cells.items() if key[0] == row) for row in table.rows}
    return max(table.rows, key=lambda row: wins[row])


def _two_highest(means: list[float]) -> tuple[float, float]:
    """The highest value and the next lower one; NaN where there is none, or no rival."""
    if len(means) < 2:
        return np.nan, np.nan
    highest = max(means)
    return highest, max((value for value in means if not _same(value, highest)), default=np.nan)


def _same(one: float, other: float) -> bool:
    return abs(one - other) < 1e-9


def _mean(group: Iterable[Repetition], key: str, unit: float = 100) -> float:
    return unit * float(np.mean([each.trial[key] for each in group]))


def _published(group: Iterable[Repetition]) -> Published | None:
    """The figure beside a cell: all its trials are what the paper prints, under the papers' conventions."""
    members = list(group)
    column, names = members[0].column, {each.printed for each in members}
    name = names.pop()
    if not column.comparable or name is None or names:
        return None
    return published(column.dataset, column.partition, column.clients, name)


def _average_rank(
    rows: tuple[Row, ...], columns: list[Column], means: Mapping[tuple[Row, Column], float]
) -> dict[Row, float]:
    from scipy.stats import rankdata

    if len(rows) < 2 or not columns:
        return {}
    scores = np.array([[means[row, column] for column in columns] for row in rows])
    ranks = rankdata(-scores, axis=0).mean(axis=1)
    return {row: float(rank) for row, rank in zip(rows, ranks, strict=True)}


def score_text(mean: float, std: float, n: int) -> str:
    """A score in %, two decimals; the deviation of a single seed is not shown."""
    if np.isnan(mean):
        return "–"
    return f"{mean:.2f} ± {std:.2f}" if n > 1 else f"{mean:.2f}"


SUMMARY_COLUMNS = (
    "data",
    "method",
    "scenario",
    "metric",
    "test_mean",
    "test_std",
    "last_mean",
    "seconds_per_round",
    "uplink_mb",
    "downlink_mb",
    "n",
)


def summary_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per method and scenario, from the finished trials.

    Columns: `data` (a kind of table), `method`, `scenario`, `metric`, `test_mean`, `test_std`
    (population) and `last_mean` in %, `seconds_per_round` (median over seeds of the trials' medians, s),
    `uplink_mb` and `downlink_mb` (all clients, mean per round, 1 MB = 1e6 bytes), `n` (seeds).

    Args:
        trials: as `fedatlas.platform.tracking.reading.trials` returns them.
    """
    import pandas as pd

    records: list[dict[str, Any]] = []
    for table in method_by_scenario(trials):
        for column in table.columns:
            for row in table.rows:
                if (cell := table.cells.get((row, column))) is None:
                    continue
                group = table.groups[row, column]
                seconds = float(np.median([each.trial["seconds_per_round"] for each in group]))
                values = (
                    table.kind,
                    row.name,
                    column.title,
                    METRIC_NAMES.get(column.metric, column.metric),
                    cell.mean,
                    cell.std,
                    cell.last,
                    seconds,
                    _mean(group, "uplink_bytes_per_round", 1e-6),
                    _mean(group, "downlink_bytes_per_round", 1e-6),
                    cell.n,
                )
                records.append(dict(zip(SUMMARY_COLUMNS, values, strict=True)))
    return pd.DataFrame(records, columns=list(SUMMARY_COLUMNS))


Show = Callable[[Mapping[str, Any]], str]
_FIGURES: tuple[tuple[str, Show], ...] = (
    ("test %", lambda row: score_text(row["test_mean"], row["test_std"], row["n"])),
    ("last round %", lambda row: score_text(row["last_mean"], 0, 1)),
    ("s/round", lambda row: f"{row['seconds_per_round']:.3g}"),
    ("MB up", lambda row: f"{row['uplink_mb']:.4g}"),
    ("MB down", lambda row: f"{row['downlink_mb']:.4g}"),
    ("n", lambda row: str(row["n"])),
)
_WARNINGS = {"stand-in": "synthetic graph, not a result", "stale": "of an earlier version of the code"}


def summary_as_rich(summary: pd.DataFrame) -> Group:
    """What the terminal shows of `summary_table`: a renderable with one table per scenario."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables: dict[tuple[str, ...], Table] = {}
    for row in _records(summary):
        scenario = (row["data"], row["scenario"], row["metric"])
        if scenario not in tables:
            warning = f" ({_WARNINGS[row['data']]})" if row["data"] in _WARNINGS else ""
            title = Text(f"{row['scenario']}: {row['metric']}{warning}")
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
            table.add_column("method", overflow="fold")
            for heading, _ in _FIGURES:
                table.add_column(heading, justify="right", no_wrap=True)
            tables[scenario] = table
        tables[scenario].add_row(Text(row["method"]), *(Text(show(row)) for _, show in _FIGURES))
    return Group(*tables.values()) if tables else Group(NO_TRIAL)


def _records(summary: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in summary.to_dict("records")]
