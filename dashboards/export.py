"""What a study leaves for a paper: LaTeX tables, CSV and Parquet, vector figures.

Everything is computed from tracked trials, and every file can be traced: `trials.csv` has the run and the
fingerprint behind each number, LaTeX files name the study, the date and the commits. Stand-ins are written
apart, under `stand-in/`; stale results are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedatlas.dashboards import latex, plots
from fedatlas.dashboards.cells import Column, Repetition, Row
from fedatlas.dashboards.figures import method_styles
from fedatlas.dashboards.projections import casestudies
from fedatlas.dashboards.report import tracked_trials
from fedatlas.dashboards.significance import comparisons, ranking, scores_of
from fedatlas.dashboards.tables import ScenarioTable, method_by_scenario, reference_row
from fedatlas.dashboards.traces import Curve, Trace, clients_of, curve, mean_of, traces
from fedatlas.dashboards.variations import ablations, sensitivities
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

VECTORS = ("anchors", "templates", "class_means", "nodes", "radials")
"""Case-study tables of a trial, see `fedatlas.sweeps.casestudy`."""


def export_path(experiment: str) -> Path:
    """Where the files of a study go if nothing else is said: `exports` in the results folder."""
    return results_folder() / "exports" / (re.sub(r"[^\w.-]+", "-", experiment).strip(".") or "study")


def export_study(store: Store, experiment: str, folder: Path) -> list[Path]:
    """Write the tables and figures of a study; returns their paths.

    Args:
        store: tracking store.
        experiment: name of the study.
        folder: where to; made if needed, files of the same names are replaced.

    Raises:
        FedatlasError: no such study, or nothing of it has finished.
    """
    tables = [
        table for table in method_by_scenario(tracked_trials(store, experiment)) if table.kind != "stale"
    ]
    if not tables:
        raise FedatlasError(
            f"study '{experiment}' has no finished trial with a test score: there is nothing to export; "
            f"`fedatlas report {experiment}` shows what happened"
        )
    written: list[Path] = []
    for table in tables:
        place = folder / "stand-in" if table.kind == "stand-in" else folder
        place.mkdir(parents=True, exist_ok=True)
        written += _Export(store, experiment, table, place).write()
    return written


class _Export:
    def __init__(self, store: Store, experiment: str, table: ScenarioTable, folder: Path) -> None:
        self._store = store
        self._experiment = experiment
        self._table = table
        self._folder = folder
        self._traces, _ = traces(store, table.repetitions)
        self._styles = method_styles([row.name for row in table.rows])
        self._written: list[Path] = []

    def write(self) -> list[Path]:
        curves = self._curves()
        self._frames(curves)
        self._tables()
        self._convergence(curves)
        self._variations()
        self._statistics()
        self._costs()
        self._casestudies()
        return self._written

    def _members(self, row: Row, column: Column) -> list[tuple[Repetition, Trace]]:
        group = self._table.groups.get((row, column), ())
        return [(each, self._traces[each.run_id]) for each in group if each.run_id in self._traces]

    def _curves(self) -> dict[tuple[Row, Column], Curve]:
        return {
            (row, column): curve([trace.test for _, trace in members])
            for column in self._table.columns
            for row in self._table.rows
            if (members := self._members(row, column))
        }

    def _frames(self, curves: Mapping[tuple[Row, Column], Curve]) -> None:
        import pandas as pd

        self._frame("trials", pd.DataFrame([_trial(each) for each in self._table.repetitions]))
        self._frame("cells", pd.DataFrame([self._cell(*key) for key in self._table.cells]))
        rounds = [
            {
                "method": row.name,
                **_scenario(column),
                "round": int(number),
                "mean": mean,
                "std": std,
                "n": found.n,
            }
            for (row, column), found in curves.items()
            for number, mean, std in zip(found.rounds, found.mean, found.std, strict=True)
        ]
        if rounds:
            self._frame("curves", pd.DataFrame(rounds))

    def _frame(self, name: str, frame: pd.DataFrame) -> None:
        frame.to_csv(self._folder / f"{name}.csv", index=False)
        frame.to_parquet(self._folder / f"{name}.parquet", index=False)
        self._written += [self._folder / f"{name}.csv", self._folder / f"{name}.parquet"]

    def _cell(self, row: Row, column: Column) -> dict[str, Any]:
        cell = self._table.cells[row, column]
        printed = cell.published
        return {
            "method": row.name,
            "algorithm": row.algorithm,
            **_scenario(column),
            "metric": column.metric,
            "mean": cell.mean,
            "std": cell.std if cell.n > 1 else np.nan,
            "last": cell.last,
            "n": cell.n,
            "seeds": " ".join(map(str, cell.seeds)),
            "complete": cell.complete,
            "best": cell.best,
            "second": cell.second,
            "published": np.nan if printed is None else printed.value,
            "published_std": np.nan if printed is None or printed.std is None else printed.std,
            "paper": "" if printed is None else printed.paper,
            "difference": np.nan if cell.difference is None else cell.difference,
        }

    def _text(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(text, encoding="utf-8")
        self._written.append(path)

    def _comments(self) -> list[str]:
        commits = sorted({str(each.trial.get("commit")) for each in self._table.repetitions})
        return [
            f"Written by fedatlas {version('fedatlas')} on {datetime.now(UTC):%Y-%m-%d %H:%M UTC}: "
            f"fedatlas export {' '.join(self._experiment.split())}",
            f"{len(self._table.repetitions)} trials ({self._table.kind}) of commits {', '.join(commits)}; "
            "their runs and fingerprints are in trials.csv.",
        ]

    def _tables(self) -> None:
        for name, text in latex.main_tables(self._table, self._comments()).items():
            self._text(f"{name}.tex", text)

    def _figure(self, name: str, figure: Any) -> None:
        self._written += plots.save(figure, self._folder / re.sub(r"[^\w.-]+", "-", name).strip("-"))

    def _convergence(self, curves: Mapping[tuple[Row, Column], Curve]) -> None:
        settings: dict[tuple[str, int], list[tuple[Column, dict[Row, Curve]]]] = {}
        for column in self._table.columns:
            mine = {row: curves[row, column] for row in self._table.rows if (row, column) in curves}
            if any(len(found.rounds) > 1 for found in mine.values()):
                settings.setdefault((column.partition, column.clients), []).append((column, mine))
        for (partition, count), panels in settings.items():
            self._figure(f"convergence-{partition}-{count}", plots.convergence(panels, self._styles))

    def _variations(self) -> None:
        found = sensitivities(self._table)
        for key in dict.fromkeys((each.algorithm, each.column) for each in found):
            algorithm, column = key
            curves = [each for each in found if (each.algorithm, each.column) == key]
            self._figure(f"sensitivity-{algorithm}-{_slug(column)}", plots.sensitivity(curves))
        parts = ablations(self._table)
        if parts:
            self._text("ablation.tex", latex.ablation_table(parts, self._comments()))
        for setting in dict.fromkeys((each.column.partition, each.column.clients) for each in parts):
            chosen = [each for each in parts if (each.column.partition, each.column.clients) == setting]
            self._figure(f"ablation-{setting[0]}-{setting[1]}", plots.ablation(chosen))

    def _statistics(self) -> None:
        import pandas as pd

        table = self._table
        if len(table.rows) < 2:
            return
        reference = reference_row(table)
        lines = [
            {
                **{
                    key: value
                    for key, value in vars(each).items()
                    if key not in ("row", "reference", "interval")
                },
                "method": each.row.name,
                "reference": each.reference.name,
                "low": np.nan if each.interval is None else each.interval.low,
                "high": np.nan if each.interval is None else each.interval.high,
            }
            for each in comparisons(scores_of(table.repetitions), reference)
        ]
        if lines:
            self._frame("comparisons", pd.DataFrame(lines))
        ranked = ranking(table)
        if ranked is not None:
            self._figure("critical-difference", plots.critical_difference(ranked))
        for name, value in (("published", self._minus_published), ("best-rival", self._minus_rival)):
            title = f"{reference.name} minus {name.replace('-', ' ')}"
            figure = plots.heat_map(table, partial(value, reference), title)
            if figure is not None:
                self._figure(f"differences-{name}", figure)

    def _minus_published(self, row: Row, column: Column) -> float | None:
        cell = self._table.cells.get((row, column))
        return None if cell is None else cell.difference

    def _minus_rival(self, row: Row, column: Column) -> float | None:
        cell = self._table.cells.get((row, column))
        others = [
            self._table.cells[other, column].mean
            for other in self._table.rows
            if other != row
            and (other, column) in self._table.cells
            and self._table.cells[other, column].complete
        ]
        return cell.mean - max(others) if cell is not None and others else None

    def _costs(self) -> None:
        def seconds(row: Row, column: Column) -> float | None:
            group = self._table.groups.get((row, column), ())
            values = [float(each.trial["seconds_per_round"]) for each in group]
            return float(np.median(values)) if values and np.isfinite(values).all() else None

        self._text("round-time.tex", latex.round_time_table(self._table, seconds, self._comments()))
        for column in self._table.columns:
            parts = {
                row: found
                for row in self._table.rows
                if (found := mean_of([trace.seconds for _, trace in self._members(row, column)]))
            }
            if parts:
                self._figure(f"round-time-{_slug(column)}", plots.phases(column, parts))

    def _casestudies(self) -> None:
        for number, projected in enumerate(casestudies(self._store, self._table), start=1):
            for method in ("tsne", "pca"):
                self._figure(
                    f"casestudy-{number}-{projected.slug}-{method}", plots.casestudy(projected, method)
                )
        for group in self._table.groups.values():
            for name in VECTORS:
                vectors = clients_of(self._store, group[0], f"{name}.parquet")
                if vectors is not None:
                    place = (
                        self._folder / "vectors" / str(group[0].trial.get("fingerprint") or group[0].run_id)
                    )
                    place.mkdir(parents=True, exist_ok=True)
                    vectors.to_parquet(place / f"{name}.parquet", index=False)
                    self._written.append(place / f"{name}.parquet")


_NAMED = ("row", "reference", "interval")


def _scenario(column: Column) -> dict[str, Any]:
    return {
        "dataset": column.dataset,
        "partition": column.partition,
        "clients": column.clients,
        "detail": column.detail,
    }


def _slug(column: Column) -> str:
    parts: Sequence[Any] = (column.dataset, column.partition, column.clients, column.detail)
    return "-".join(str(part) for part in parts if part)


_TRIAL = (
    *("run_id", "fingerprint", "best_round", "seconds_per_round"),
    *("uplink_bytes_per_round", "downlink_bytes_per_round"),
    *("preparation_seconds", "preparation_uplink_bytes", "preparation_downlink_bytes"),
    *("commit", "version", "method_version", "data_sha256", "partition_sha256", "placement", "hardware"),
)


def _trial(each: Repetition) -> dict[str, Any]:
    scores = ("test_score", "val_score", "last_test_score", "worst_decile_test_score")
    return {
        "method": each.row.name,
        "algorithm": each.row.algorithm,
        **_scenario(each.column),
        "metric": each.column.metric,
        "seed": each.seed,
        **{name: each.trial.get(name) for name in (*scores, *_TRIAL)},
    }
