"""The report of a sweep: one HTML page that needs nothing else and loads nothing from the network."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.dashboards.cells import UNKNOWN, Repetition, scenario_title, unfinished
from fedatlas.dashboards.figures import Style, convergence, method_styles
from fedatlas.dashboards.footnotes import row_notes, scenario_notes
from fedatlas.dashboards.gains import client_scores, gain_table, gains
from fedatlas.dashboards.literature import GRAPH_TABLES, MAIN_TABLES
from fedatlas.dashboards.tables import METRIC_NAMES, ScenarioTable, method_by_scenario, score_text
from fedatlas.platform.errors import FedatlasError, TrackingError, unknown_name
from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.destination import redacted, results_folder
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = "report.html.j2"
FAILED = ("FAILED", "KILLED")
HASH_LENGTH = 12
_WITHOUT_ERROR = {
    "FINISHED": "finished without a test score",
    "FAILED": "no error text",
    "KILLED": "stopped from outside",
}


def report_path(experiment: str) -> Path:
    """Where the report of a sweep goes if nothing else is said: `reports` in the results folder."""
    name = re.sub(r"[^\w.-]+", "-", experiment).strip(".") or "sweep"
    return results_folder() / "reports" / f"{name}.html"


def write_report(store: Store, experiment: str, path: Path) -> Path:
    """Write the report of a sweep and return its path.

    The page holds: what ran, method × scenario tables with the published figures beside, convergence curves,
    the failures, and where every number comes from. A report that exists is replaced in one step.

    Args:
        store: tracking store.
        experiment: name of the sweep, which is its MLflow experiment.
        path: HTML file; its folder is made.

    Raises:
        FedatlasError: no such experiment, or none of its trials has finished.
    """
    trials = _trials(store, experiment)
    tables = method_by_scenario(trials)
    if not tables:
        raise FedatlasError(_nothing_finished(experiment, trials))
    page = _render(_context(store, experiment, trials, tables))
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, page)
    return path


def write_gains(store: Store, experiment: str, path: Path) -> Path:
    """Write the gains over Local of a sweep on graphs as CSV, see `fedatlas.dashboards.gains`.

    Raises:
        FedatlasError: no such experiment, or none of its trials has a Local one to compare with.
    """
    repetitions = [
        each for table in method_by_scenario(_trials(store, experiment)) for each in table.repetitions
    ]
    found = gains(repetitions, client_scores(store, repetitions))
    if not found:
        raise FedatlasError(
            f"sweep '{experiment}' has no gain to write: it needs finished trials of algorithm=local and of "
            "another method on a set of graphs, with the same seeds"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    gain_table(found).to_csv(path, index=False)
    return path


def _trials(store: Store, experiment: str) -> pd.DataFrame:
    if store.client.get_experiment_by_name(experiment) is None:
        known = [each.name for each in store.client.search_experiments() if each.name != "Default"]
        if not known:
            raise FedatlasError(
                f"no sweep '{experiment}': the tracking store {redacted(store.uri)} holds none yet; "
                "run one with `fedatlas sweep`, or name another store in MLFLOW_TRACKING_URI"
            )
        raise unknown_name("sweep", experiment, known)
    return reading.trials(store, experiment)


def _nothing_finished(experiment: str, trials: pd.DataFrame) -> str:
    counts = trials["status"].value_counts()
    found = ", ".join(f"{count} {str(status).lower()}" for status, count in counts.items())
    lines = [line for error in trials["error"].dropna() for line in str(error).splitlines()]
    newest = f"; the newest error is: {lines[0]}" if lines else ""
    return (
        f"sweep '{experiment}' has no finished trial with a test score ({found or 'no trial'}){newest}; "
        "run the sweep again to finish it"
    )


@dataclass(frozen=True)
class Curves:
    """The two figures of one scenario, as plotly's JSON."""

    title: str
    test: Any
    validation: Any


def _context(
    store: Store, experiment: str, trials: pd.DataFrame, tables: tuple[ScenarioTable, ...]
) -> dict[str, Any]:
    repetitions = [each for table in tables for each in table.repetitions]
    rows = list(dict.fromkeys(row for table in tables for row in table.rows))
    styles = method_styles([row.name for row in rows])
    curves, without_curves = _curves(store, tables, styles)
    others = _unfinished(trials)
    failures = [each for each in others if each["status"] in FAILED]
    missing = [each for table in tables for each in table.missing]
    return {
        "experiment": experiment,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": version("fedatlas"),
        "tables": tables,
        "gains": gains(repetitions, client_scores(store, repetitions)),
        "papers": ", ".join((*MAIN_TABLES, *GRAPH_TABLES)),
        "counts": {
            "finished": len(repetitions),
            "failed": len(failures),
            "open": len(others) - len(failures),
            "missing": sum(len(each.seeds) for each in missing),
        },
        "rows": rows,
        "seeds": sorted({each.seed for each in repetitions}),
        "scenarios": [column for table in tables for column in table.columns],
        "missing": missing,
        "others": others,
        "row_notes": row_notes(repetitions),
        "scenario_notes": scenario_notes(repetitions),
        "styles": styles,
        "curves": curves,
        "without_curves": without_curves,
        "provenance": [_provenance(each) for each in repetitions],
    }


def _curves(
    store: Store, tables: tuple[ScenarioTable, ...], styles: Mapping[str, Style]
) -> tuple[list[Curves], list[str]]:
    """Figures of every scenario, and the run ids whose rounds cannot be read."""
    curves, unreadable = [], []
    for table in tables:
        for column in table.columns:
            group = [each for each in table.repetitions if each.column == column]
            rounds, lost = _rounds(store, group)
            unreadable.extend(lost)
            if rounds is None:
                continue
            test, validation = (
                json.loads(convergence(rounds, styles, score, column.metric).to_json())
                for score in ("test", "val")
            )
            curves.append(Curves(column.title, test, validation))
    return curves, unreadable


def _rounds(store: Store, group: list[Repetition]) -> tuple[pd.DataFrame | None, list[str]]:
    import pandas as pd

    tables, lost = [], []
    for each in group:
        try:
            table = reading.rounds(store, [each.run_id])
        except (TrackingError, OSError):
            lost.append(each.run_id)
            continue
        tables.append(table.assign(method=each.row.name))
    return (pd.concat(tables, ignore_index=True) if tables else None), lost


def _unfinished(trials: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "label": trial["label"] if _known(trial["label"]) else UNKNOWN,
            "scenario": _scenario(trial),
            "seed": int(trial["seed"]) if _known(trial["seed"]) else UNKNOWN,
            "status": trial["status"],
            "run_id": trial["run_id"],
            "error": _error(trial),
        }
        for trial in unfinished(trials).to_dict("records")
    ]


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


def _provenance(each: Repetition) -> dict[str, str]:
    keys = ("run_id", "commit", "version", "method_version", "data_kind", "data_sha256", "placement")
    texts = {key: str(each.trial[key]) if _known(each.trial[key]) else "–" for key in keys}
    commit, *changed = texts["commit"].partition("-")
    return {
        **texts,
        "method": each.row.name,
        "scenario": each.column.title,
        "seed": str(each.seed),
        "commit": commit[:HASH_LENGTH] + "".join(changed),
        "data_sha256": texts["data_sha256"][:HASH_LENGTH],
        # The rest is the plan's arithmetic.
        "placement": texts["placement"].partition(":")[0],
    }


def _known(value: Any) -> bool:
    return value is not None and value == value


def _render(context: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["score"] = score_text
    source = files("fedatlas.dashboards").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        context,
        # The only part that is not escaped; scripts without the nonce do not run.
        plotly=Markup(get_plotlyjs()),
        nonce=secrets.token_urlsafe(16),
        metrics=METRIC_NAMES,
    )


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
