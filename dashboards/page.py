"""Everything a study page shows, as plain values for the template and its script.

Keys of cells are ``row-column``, positions in the lists of rows and columns of their table. Scores are in %,
in curves in hundredths of a point, so that they are integers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedatlas.dashboards import traces as measured
from fedatlas.dashboards.cells import Column, Repetition, Row, dataset_title
from fedatlas.dashboards.figures import Style
from fedatlas.dashboards.links import runs_path
from fedatlas.dashboards.literature import published_seconds
from fedatlas.dashboards.significance import comparisons, ranking, scores_of
from fedatlas.dashboards.tables import ScenarioTable, reference_row
from fedatlas.dashboards.traces import Trace
from fedatlas.dashboards.variations import ablations, sensitivities
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 400
"""Of a curve; longer ones are thinned out, the last round is kept."""
MIXING_BYTES = 2_000_000
"""Of all mixing matrices on a page; what is beyond is left out, which the page says."""
CLIENTS_FILE, MIXING_FILE = "federation.parquet", "mixing.parquet"

Plain = dict[str, Any]


def rounded(value: float | None, digits: int = 2) -> float | None:
    """A number for JSON; None for what is undefined."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


@dataclass(frozen=True)
class Members:
    """A cell's trials with what they have left of their rounds."""

    row: int
    column: int
    trials: tuple[Repetition, ...]
    traces: tuple[Trace, ...]

    @property
    def key(self) -> str:
        return f"{self.row}-{self.column}"

    @property
    def read(self) -> list[tuple[Repetition, Trace]]:
        return list(zip(self.trials, self.traces, strict=True))


def table_data(
    store: Store, table: ScenarioTable, traces: Mapping[str, Trace], styles: Mapping[str, Style]
) -> Plain:
    """Values of one table."""
    rows = {row: place for place, row in enumerate(table.rows)}
    columns = {column: place for place, column in enumerate(table.columns)}
    members = []
    for (row, column), group in table.groups.items():
        readable = tuple(each for each in group if each.run_id in traces)
        if readable:
            members.append(
                Members(rows[row], columns[column], readable, tuple(traces[each.run_id] for each in readable))
            )
    federation, mixing, left_out = _clients(store, table, members)
    return {
        "kind": table.kind,
        "rows": [_row(row, styles[row.name]) for row in table.rows],
        "columns": [_column(column) for column in table.columns],
        "cells": {f"{rows[row]}-{columns[column]}": _cell(table, row, column) for row, column in table.cells},
        "curves": {each.key: _curve(each) for each in members},
        "effort": {each.key: effort for each in members if (effort := _effort(each)) is not None},
        "cost": {each.key: _cost(table, each) for each in members},
        "clients": {each.key: scores for each in members if (scores := _client_scores(store, each))},
        "federation": federation,
        "mixing": mixing,
        "mixing_left_out": left_out,
    }


def _row(row: Row, style: Style) -> Plain:
    return {"name": row.name, "algorithm": row.algorithm, **style._asdict()}


def _column(column: Column) -> Plain:
    return {
        "title": column.title,
        "set": dataset_title(column.dataset),
        "partition": column.partition,
        "clients": column.clients,
        "metric": column.metric,
        "detail": column.detail,
    }


def _cell(table: ScenarioTable, row: Row, column: Column) -> Plain:
    cell, group = table.cells[row, column], table.groups[row, column]
    worst = [each.trial.get("worst_decile_test_score") for each in group]
    known = [float(value) for value in worst if isinstance(value, int | float) and value == value]
    return {
        "mean": rounded(cell.mean, 4),
        "std": rounded(cell.std) if cell.n > 1 else None,
        "complete": cell.complete,
        "published": None if cell.published is None else cell.published.value,
        "worst": rounded(100 * float(np.mean(known))) if len(known) == len(group) else None,
        "runs": [
            [
                each.run_id,
                each.seed,
                rounded(100 * float(each.trial["test_score"])),
                _whole(each.trial.get("best_round")),
                str(each.trial.get("fingerprint") or ""),
            ]
            for each in group
        ],
    }


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value == value else None


def _thin(values: np.ndarray, places: np.ndarray) -> list[int | None]:
    return [round(100 * value) if math.isfinite(value) else None for value in values[places].tolist()]


def _curve(members: Members) -> Plain:
    curves = {
        "test": measured.curve([trace.test for trace in members.traces]),
        "val": measured.curve([trace.validation for trace in members.traces]),
    }
    total = len(curves["test"].rounds)
    step = math.ceil(total / MOST_POINTS)
    places = np.unique(np.append(np.arange(0, total, step), total - 1))
    several = len(members.traces) > 1
    return {
        "n": len(members.traces),
        **({"rounds": curves["test"].rounds[places].tolist()} if step > 1 else {}),
        **{name: _thin(each.mean, places) for name, each in curves.items()},
        **({f"{name}_std": _thin(each.std, places) for name, each in curves.items()} if several else {}),
    }


def _effort(members: Members) -> list[float | None] | None:
    found = measured.effort(members.read)
    return None if found is None else [rounded(found.rounds, 1), rounded(found.megabytes, 3)]


def _cost(table: ScenarioTable, members: Members) -> Plain:
    column, row = table.columns[members.column], table.rows[members.row]
    seconds = measured.mean_of([trace.seconds for trace in members.traces])
    whole = [float(each.trial["seconds_per_round"]) for each in members.trials]
    before = [float(each.trial.get("preparation_seconds") or 0) for each in members.trials]
    plain = all(each.plain for each in members.trials)
    return {
        "round": rounded(float(np.median(whole)), 5),
        "before": rounded(float(np.nanmean(before)), 3),
        "seconds": {name: rounded(value, 5) for name, value in seconds.items()},
        "up": {
            name: rounded(value, 5)
            for name, value in measured.mean_of([trace.uplink for trace in members.traces]).items()
        },
        "down": {
            name: rounded(value, 5)
            for name, value in measured.mean_of([trace.downlink for trace in members.traces]).items()
        },
        "paper": published_seconds(column.dataset, column.partition, column.clients, row.algorithm)
        if plain
        else None,
    }


def _client_scores(store: Store, members: Members) -> list[float | None]:
    """Test score of every client at the best round, mean over trials; empty if no trial has them."""
    found = []
    for each in members.trials:
        best = _whole(each.trial.get("best_round"))
        scores = None if best is None else measured.client_scores(store, each, best)
        if scores is not None:
            found.append(scores)
    if not found or len({len(each) for each in found}) > 1:
        return []
    stacked = np.stack(found)
    defined = np.isfinite(stacked)
    with np.errstate(invalid="ignore"):
        mean = np.where(defined, stacked, 0).sum(axis=0) / defined.sum(axis=0)
    return [rounded(100 * value) for value in mean.tolist()]


def _clients(
    store: Store, table: ScenarioTable, members: Sequence[Members]
) -> tuple[Plain, Plain, list[str]]:
    """What every client holds, by column; mixing matrices by cell; cells whose matrices did not fit."""
    federation: Plain = {}
    mixing: Plain = {}
    left_out: list[str] = []
    used = 0
    for each in members:
        first = each.trials[0]
        if str(each.column) not in federation:
            held = measured.clients_of(store, first, CLIENTS_FILE)
            if held is not None:
                federation[str(each.column)] = _held(held)
        shares = measured.clients_of(store, first, MIXING_FILE)
        if shares is None:
            continue
        matrix = _mixing(shares, first.seed)
        used += sum(len(text) for text in matrix["matrices"])
        if used <= MIXING_BYTES:
            mixing[each.key] = matrix
        else:
            left_out.append(f"{table.rows[each.row].name}, {table.columns[each.column].title}")
    return federation, mixing, left_out


def _held(table: pd.DataFrame) -> list[Plain]:
    counted = ("client", "nodes", "edges", "train", "validation", "test")
    return [
        {
            **{name: int(row[name]) for name in counted},
            "homophily": rounded(float(row["homophily"]), 3),
            "histogram": [int(count) for count in row["histogram"]],
        }
        for row in table.to_dict("records")
    ]


def _mixing(table: pd.DataFrame, seed: int) -> Plain:
    """Matrices as bytes: 255 stands for the greatest share of the cell's matrices."""
    shares = table.filter(like="from_").to_numpy()
    greatest = float(shares.max()) or 1.0
    rounds = sorted(int(number) for number in table["round"].unique())
    matrices = []
    for number in rounds:
        part = shares[(table["round"] == number).to_numpy()]
        scaled = np.rint(255 * part / greatest).astype(np.uint8)
        matrices.append(base64.b64encode(scaled.tobytes()).decode("ascii"))
    return {
        "seed": seed,
        "rounds": [number + 1 for number in rounds],
        "size": shares.shape[1],
        "greatest": rounded(greatest, 4),
        "matrices": matrices,
    }


def statistics_data(table: ScenarioTable) -> Plain:
    """Comparisons of all rows with each possible reference, and the ranking."""
    scores = scores_of(table.repetitions)
    places = {row: place for place, row in enumerate(table.rows)}
    against = {}
    for reference in table.rows:
        against[str(places[reference])] = [
            {
                "row": places[each.row],
                "pairs": each.pairs,
                "scenarios": each.scenarios,
                "difference": rounded(each.difference),
                "low": rounded(None if each.interval is None else each.interval.low),
                "high": rounded(None if each.interval is None else each.interval.high),
                "wins": each.wins,
                "losses": each.losses,
                "p": _p(each.p),
                "holm": _p(each.p_holm),
                "p_scenarios": _p(each.p_scenarios),
            }
            for each in comparisons(scores, reference)
        ]
    found = ranking(table)
    ranks = None
    if found is not None:
        ranks = {
            "scenarios": found.scenarios,
            "chi2": rounded(found.chi2, 3),
            "p": _p(found.p),
            "f": rounded(found.f, 3),
            "p_f": _p(found.p_f),
            "critical": rounded(found.critical, 3),
            "ranks": [[places[row], rounded(value, 3)] for row, value in found.ranks.items()],
            "groups": [[places[row] for row in group] for group in found.groups],
            "left_out": [places[row] for row in table.rows if row not in found.ranks],
        }
    return {"reference": places[reference_row(table)], "against": against, "ranking": ranks}


def _p(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def variations_data(table: ScenarioTable) -> Plain:
    """Sensitivity curves and ablations."""
    return {
        "sensitivity": [
            {
                "algorithm": each.algorithm,
                "scenario": each.column.title,
                "metric": each.column.metric,
                "option": each.option,
                "points": [
                    [
                        point.value,
                        rounded(point.cell.mean),
                        rounded(point.cell.std) if point.cell.n > 1 else None,
                        point.cell.n,
                        point.reference,
                        point.row.name,
                    ]
                    for point in each.points
                ],
            }
            for each in sensitivities(table)
        ],
        "ablation": [
            {
                "scenario": each.column.title,
                "metric": each.column.metric,
                "bars": [
                    _bar(each.row.name, each.cell, None, "", each.published, None),
                    *(
                        _bar(
                            variant.row.name,
                            variant.cell,
                            variant.drop,
                            ", ".join(f"{key}={value}" for key, value in variant.options.items()),
                            variant.published,
                            None
                            if each.published is None or variant.published is None
                            else each.published.value - variant.published.value,
                        )
                        for variant in each.variants
                    ),
                ],
            }
            for each in ablations(table)
        ],
    }


def _bar(
    name: str, cell: Any, drop: float | None, options: str, published: Any, published_drop: float | None
) -> Plain:
    return {
        "name": name,
        "mean": rounded(cell.mean),
        "std": rounded(cell.std) if cell.n > 1 else None,
        "n": cell.n,
        "drop": rounded(drop),
        "options": options,
        "published": None if published is None else published.value,
        "published_drop": rounded(published_drop),
    }


PROVENANCE = (
    "commit",
    "version",
    "method_version",
    "data_kind",
    "data_sha256",
    "placement",
    "hardware",
    "python",
)


def provenance_data(tables: Iterable[ScenarioTable], length: int = 12) -> Plain:
    """One line per trial that counts; texts that many trials share are kept once, by position."""
    texts: dict[str, int] = {}

    def place(value: Any) -> int:
        known = value is not None and value == value
        return texts.setdefault(str(value) if known else "–", len(texts))

    lines = []
    for table in tables:
        for each in table.repetitions:
            trial = dict(each.trial)
            commit, *changed = str(trial.get("commit") or "–").partition("-")
            trial["commit"] = commit[:length] + "".join(changed)
            trial["data_sha256"] = str(trial.get("data_sha256") or "–")[:length]
            # The rest is the plan's arithmetic.
            trial["placement"] = str(trial.get("placement") or "–").partition(":")[0]
            lines.append(
                [
                    place(each.row.name),
                    place(each.column.title),
                    each.seed,
                    each.run_id,
                    str(trial.get("fingerprint") or "–"),
                    *(place(trial.get(name)) for name in PROVENANCE),
                ]
            )
    return {"texts": list(texts), "lines": lines}


def cell_link(table: ScenarioTable, row: Row, column: Column) -> str:
    """Path of a cell's runs in the MLflow UI."""
    group = table.groups[row, column]
    return runs_path(str(group[0].trial.get("experiment_id")), [each.run_id for each in group])
