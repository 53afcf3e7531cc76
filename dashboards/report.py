"""The page of a study: one HTML file that needs nothing else and loads nothing from the network."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas.dashboards import page
from fedatlas.dashboards.cells import dataset_title
from fedatlas.dashboards.figures import FIELD_PALETTE, PALETTE, PHASE_COLOURS, method_styles
from fedatlas.dashboards.footnotes import row_notes, scenario_notes
from fedatlas.dashboards.gains import client_scores, gain_table, gains
from fedatlas.dashboards.health import Health, duration, health
from fedatlas.dashboards.links import runs_path, ui_address
from fedatlas.dashboards.literature import GRAPH_TABLES, MAIN_TABLES
from fedatlas.dashboards.projections import Projected, casestudies
from fedatlas.dashboards.tables import METRIC_NAMES, ScenarioTable, method_by_scenario, score_text
from fedatlas.dashboards.traces import traces
from fedatlas.platform.errors import FedatlasError, unknown_name
from fedatlas.platform.files import write_text_whole
from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.destination import redacted, results_folder
from fedatlas.platform.tracking.operations import ANSWERS_TAG, DESCRIPTION_TAG, KIND_TAG, LogFile
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

_TEXTS = {
    "statistics": (
        "Statistics",
        "Pairs are trials of two methods with the same scenario and seed; p is of the two-sided Wilcoxon "
        "signed-rank test, adjusted by Holm over all rows. Seeds of one scenario share its partition and are "
        "not independent: with many seeds and few scenarios these p values are too small, and those over "
        "scenario means are the ones to trust. Intervals are bootstrapped (BCa, 2000 resamples), over "
        "scenarios where there are six, else over pairs.",
    ),
    "differences": (
        "Differences by scenario",
        "One method at a time. Blue and + is higher, orange and − is lower; the shade grows with the size.",
    ),
    "convergence": (
        "Convergence",
        "Mean over seeds, with a band of ± one standard deviation. A button hides or shows its method. Move "
        "over a figure, or focus it and use the arrow keys, to read values. The table says when the test "
        "score first reaches 95 % of the reported one, and what all clients had sent and received by then.",
    ),
    "sensitivity": (
        "Sensitivity",
        "Scores under the values of one option, everything else equal; bars are ± one standard deviation.",
    ),
    "ablation": (
        "Ablation",
        "Scores without parts; the drop against the reference is printed beside each bar.",
    ),
    "cost": (
        "Cost of a round",
        "Medians over rounds, means over seeds. Transport is what the clients' phase takes beside training, "
        "evaluation and serialisation; calibration is its forward part, its gradient belongs to training; "
        "logging is spent outside of the round. Phases are medians of their own and need not add up to the "
        "round. The paper's seconds are those of its own machine and placement: compare ratios, not seconds.",
    ),
    "clients": (
        "Clients",
        "Scores, holdings and mixing by client. The stronger the colour, the higher within the table.",
    ),
    "casestudy": (
        "Case study",
        "Each panel projects its two moments together, so that they share axes. Shape and colour are the "
        "class; stars are anchors or templates. t-SNE has a fixed seed; its distances between groups mean "
        "little.",
    ),
}


class Group(NamedTuple):
    """Neighbouring columns of one data set and partition."""

    title: str
    partition: str
    metric: str
    columns: tuple[int, ...]


def report_path(experiment: str) -> Path:
    """Where the page of a study goes if nothing else is said: `reports` in the results folder."""
    name = re.sub(r"[^\w.-]+", "-", experiment).strip(".") or "sweep"
    return results_folder() / "reports" / f"{name}.html"


def write_report(store: Store, experiment: str, path: Path, ui: str | None = None) -> Path:
    """Write the page of a study and return its path.

    A page that exists is replaced in one step. A study of which nothing has finished has a page too.

    Args:
        store: tracking store.
        experiment: name of the study, which is its MLflow experiment.
        path: HTML file; its folder is made.
        ui: address of the MLflow UI that links open; see `fedatlas.dashboards.links.ui_address`.

    Raises:
        FedatlasError: no such experiment.
    """
    trials = tracked_trials(store, experiment)
    text = _render(_context(store, experiment, trials, ui))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, text)
    return path


def write_gains(store: Store, experiment: str, path: Path) -> Path:
    """Write the gains over Local of a sweep on graphs as CSV, see `fedatlas.dashboards.gains`.

    Raises:
        FedatlasError: no such experiment, or none of its trials has a Local one to compare with.
    """
    repetitions = [
        each for table in method_by_scenario(tracked_trials(store, experiment)) for each in table.repetitions
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


def keep_page(store: Store, experiment: str, path: Path) -> str | None:
    """Log the page as an artifact of the newest sweep, so that it opens inside the MLflow UI.

    Returns:
        The run's id, or None if the study has no sweep.

    Raises:
        TrackingError: the store refused it.
    """
    for run in store.runs(experiment, f"tags.`{KIND_TAG}` = 'sweep'"):
        store.apply(LogFile(run.info.run_id, str(path)))
        return str(run.info.run_id)
    return None


def tracked_trials(store: Store, experiment: str) -> pd.DataFrame:
    """Trials of a study, as `fedatlas.platform.tracking.reading.trials` returns them.

    Raises:
        FedatlasError: the store has no such study; names the closest one.
    """
    if store.client.get_experiment_by_name(experiment) is None:
        known = [each.name for each in store.client.search_experiments() if each.name != "Default"]
        if not known:
            raise FedatlasError(
                f"no study '{experiment}': the tracking store {redacted(store.uri)} holds none yet; "
                "run one with `fedatlas sweep`, or name another store in MLFLOW_TRACKING_URI"
            )
        raise unknown_name("study", experiment, known)
    return reading.trials(store, experiment)


def _context(store: Store, experiment: str, trials: pd.DataFrame, ui: str | None) -> dict[str, Any]:
    tables = method_by_scenario(trials)
    repetitions = [each for table in tables for each in table.repetitions]
    rows = list(dict.fromkeys(row for table in tables for row in table.rows))
    styles = method_styles([row.name for row in rows])
    found, unreadable = traces(store, repetitions)
    state = health(store, experiment, trials)
    missing = _missing(tables, state)
    experiment_id = store.experiment_id(experiment)
    values = _values(store, tables, found, styles)
    about = _about(store, experiment)
    parts = [(name, *text) for name, text in _TEXTS.items() if _has(values, name)]
    return {
        "experiment": experiment,
        **about,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": version("fedatlas"),
        "ui": ui_address(store.uri, ui),
        "experiment_path": f"/#/experiments/{experiment_id}",
        "sections": _sections(tables, parts),
        "tables": tables,
        "groups": [_groups(table) for table in tables],
        "firsts": [{group.columns[0] for group in _groups(table)} for table in tables],
        "path": page.cell_link,
        "run_path": lambda run: runs_path(experiment_id, [run]),
        "gains": gains(repetitions, client_scores(store, repetitions)),
        "papers": ", ".join((*MAIN_TABLES, *GRAPH_TABLES)),
        "counts": {
            "methods": len(rows),
            "scenarios": sum(len(table.columns) for table in tables),
            "missing": sum(len(seeds) for _, _, seeds in missing),
        },
        "seeds": sorted({each.seed for each in repetitions}),
        "missing": missing,
        "health": state,
        "remaining": None if state.remaining_seconds is None else duration(state.remaining_seconds),
        "row_notes": row_notes(repetitions),
        "scenario_notes": scenario_notes(repetitions),
        "unreadable": unreadable,
        "parts": parts,
        "data": {**values, "experiment_id": experiment_id, "ui_given": ui is not None},
    }


def _missing(tables: tuple[ScenarioTable, ...], state: Health) -> list[tuple[str, str, tuple[Any, ...]]]:
    """Method, scenario and seeds of what the tables lack; a method without any result has no row in them."""
    found: list[tuple[str, str, tuple[Any, ...]]] = [
        (each.row.name, each.column.title, each.seeds) for table in tables for each in table.missing
    ]
    if not tables:
        return found
    named = {row.label for table in tables for row in table.rows}
    absent: dict[tuple[str, str], list[str]] = {}
    for each in state.unfinished:
        if each.label not in named:
            absent.setdefault((each.label, each.scenario), []).append(each.seed)
    return found + [(*key, tuple(sorted(set(seeds)))) for key, seeds in absent.items()]


def _values(store: Store, tables: tuple[ScenarioTable, ...], found: Any, styles: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tables": [page.table_data(store, table, found, styles) for table in tables],
        "phases": PHASE_COLOURS,
        "palette": PALETTE,
        "field_palette": FIELD_PALETTE,
        "statistics": page.statistics_data(tables[0]) if tables else None,
        "sensitivity": [],
        "ablation": [],
        "casestudy": [_panels(each) for table in tables for each in casestudies(store, table)],
        "provenance": page.provenance_data(tables),
    }
    if tables:
        values.update(page.variations_data(tables[0]))
    return values


def _panels(projected: Projected) -> dict[str, Any]:
    return {"title": projected.title, "panels": [panel.plain() for panel in projected.panels]}


def _has(values: Mapping[str, Any], name: str) -> bool:
    """Whether a part of the page has anything to show."""
    tables = values["tables"]
    if not tables:
        return False
    if name == "statistics":
        return len(tables[0]["rows"]) > 1
    if name == "differences":
        return len(tables[0]["rows"]) > 1 or any(
            cell["published"] is not None for cell in tables[0]["cells"].values()
        )
    if name in ("convergence", "cost"):
        key = "curves" if name == "convergence" else "cost"
        return any(table[key] for table in tables)
    if name == "clients":
        return any(table["clients"] or table["federation"] for table in tables)
    return bool(values[name])


def _sections(tables: tuple[ScenarioTable, ...], parts: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    titled = [(name, title) for name, title, _ in parts]
    if not tables:
        return [("health", "Health")]
    return [
        ("results", "Results"),
        ("notes", "How to read"),
        *titled,
        ("health", "Health"),
        ("provenance", "Provenance"),
    ]


def _groups(table: ScenarioTable) -> list[Group]:
    keys = [(column.dataset, column.partition, column.metric) for column in table.columns]
    groups = []
    for (dataset, partition, metric), members in itertools.groupby(range(len(keys)), key=keys.__getitem__):
        groups.append(
            Group(dataset_title(dataset), partition, METRIC_NAMES.get(metric, metric), tuple(members))
        )
    return groups


def _about(store: Store, experiment: str) -> dict[str, str]:
    """What the newest sweep says about the study."""
    for run in store.runs(experiment, f"tags.`{KIND_TAG}` = 'sweep'"):
        return {
            "description": run.data.tags.get(DESCRIPTION_TAG, ""),
            "answers": run.data.tags.get(ANSWERS_TAG, ""),
        }
    return {"description": "", "answers": ""}


def _render(context: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["score"] = score_text
    environment.filters["signed"] = lambda value: f"{value:+.2f}".replace("-", "−")
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    # Style and script are the only parts that are not escaped; scripts without the nonce do not run.
    return environment.from_string(_file("page.html.j2")).render(
        context,
        css=Markup(_file("page.css")),
        script=Markup(_file("page.js")),
        nonce=secrets.token_urlsafe(16),
    )


def _file(name: str) -> str:
    return files("fedatlas.dashboards").joinpath(name).read_text(encoding="utf-8")
