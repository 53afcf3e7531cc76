"""Vector figures for papers (matplotlib), in the layout of the FedGMC paper's figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedatlas.dashboards.cells import Column, Row, dataset_title
from fedatlas.dashboards.figures import PALETTE, PHASE_COLOURS, Style, usual_rounds
from fedatlas.dashboards.projections import Projected
from fedatlas.dashboards.significance import Ranking
from fedatlas.dashboards.tables import METRIC_NAMES, ScenarioTable
from fedatlas.dashboards.traces import Curve
from fedatlas.dashboards.variations import Ablation, Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg")
_DASHES: Mapping[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x"}
_CLASS_MARKERS = ("o", "s", "^", "D", "x", "+", "v")
_SETTINGS: Any = {
    # Text that stays text, and the same file each time.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedatlas",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    # A method's name is no formula.
    "text.parse_math": False,
}


@contextmanager
def _look() -> Iterator[None]:
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    with mpl.rc_context(_SETTINGS):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure in every format beside each other; returns the paths. The figure is closed."""
    import matplotlib.pyplot as plt

    written = []
    for suffix in FORMATS:
        target = path.with_name(f"{path.name}.{suffix}")
        with _look():
            figure.savefig(
                target,
                bbox_inches="tight",
                metadata={"CreationDate": None} if suffix == "pdf" else {"Date": None},
            )
        written.append(target)
    plt.close(figure)
    return written


def _panels(count: int, across: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    across = min(count, across)
    down = math.ceil(count / across)
    figure, grid = plt.subplots(down, across, figsize=(width * across, height * down), squeeze=False)
    axes = list(grid.flat)
    for empty in axes[count:]:
        empty.set_axis_off()
    return figure, axes[:count]


def _across(count: int, most: int) -> int:
    """Panels in a line, so that lines are about equally long."""
    return math.ceil(count / math.ceil(count / most))


def _named(metric: str) -> str:
    return f"test {METRIC_NAMES.get(metric, metric)} (%)"


def convergence(panels: Sequence[tuple[Column, Mapping[Row, Curve]]], styles: Mapping[str, Style]) -> Figure:
    """Test score over rounds with bands of ± one deviation, one panel per scenario (figures 3, 6 and 7).

    A panel ends where the curves of most methods do; the label of its axis names those that go on.
    """
    with _look():
        across = _across(len(panels), 4)
        figure, axes = _panels(len(panels), across, 2.3, 1.9)
        for axis, (column, curves) in zip(axes, panels, strict=True):
            for row, curve in curves.items():
                style = styles[row.name]
                axis.plot(
                    curve.rounds,
                    curve.mean,
                    color=style.colour,
                    linestyle=_DASHES[style.dash],
                    lw=1,
                    label=row.name,
                )
                if curve.n > 1:
                    axis.fill_between(
                        curve.rounds,
                        curve.mean - curve.std,
                        curve.mean + curve.std,
                        color=style.colour,
                        alpha=0.15,
                        lw=0,
                    )
            last = {row.name: int(curve.rounds[-1]) for row, curve in curves.items()}
            shown = usual_rounds(list(last.values()))
            longer = [f"{name} to {rounds}" for name, rounds in last.items() if rounds > shown]
            if longer:
                axis.set_xlim(right=shown * 1.03, left=-shown * 0.03)
            axis.set_title(column.title, fontsize=8)
            beyond = f"\n(not shown: {', '.join(longer)})" if longer else ""
            axis.set_xlabel(f"communication round{beyond}")
            axis.set_ylabel(_named(column.metric))
        handles: dict[str, Any] = {}
        for axis in axes:
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        columns = max(1, min(math.ceil(1.5 * across), len(handles)))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return figure


def sensitivity(curves: Sequence[Sensitivity]) -> Figure:
    """Scores under the values of each option, with bands of ± one deviation (figures 4, 8 and 9)."""
    with _look():
        figure, axes = _panels(len(curves), 4, 2.2, 1.8)
        for axis, found in zip(axes, curves, strict=True):
            values = np.array([point.value for point in found.points])
            mean = np.array([point.cell.mean for point in found.points])
            std = np.array([point.cell.std if point.cell.n > 1 else np.nan for point in found.points])
            axis.plot(values, mean, color=PALETTE[0], marker="o", ms=3, lw=1)
            if np.isfinite(std).any():
                axis.errorbar(
                    values, mean, yerr=np.nan_to_num(std), fmt="none", ecolor=PALETTE[0], capsize=2, lw=0.8
                )
                axis.fill_between(values, mean - std, mean + std, color=PALETTE[0], alpha=0.15, lw=0)
            if values.min() > 0 and values.max() / values.min() >= 8:
                axis.set_xscale("log")
                axis.set_xticks(values, [f"{value:g}" for value in values])
                axis.minorticks_off()
            axis.set_xlabel(found.option)
            axis.set_ylabel(_named(found.column.metric))
        figure.suptitle(curves[0].column.title, fontsize=8)
    return figure


def ablation(found: Sequence[Ablation]) -> Figure:
    """Bars of the whole method and of its variants with the drop printed, a panel per scenario (figure 2)."""
    with _look():
        figure, axes = _panels(len(found), 3, 3.4, 0.8 + 0.2 * max(1 + len(each.variants) for each in found))
        for axis, each in zip(axes, found, strict=True):
            cells = [each.cell, *(variant.cell for variant in each.variants)]
            names = [each.row.name, *(variant.row.name for variant in each.variants)]
            drops = [None, *(variant.drop for variant in each.variants)]
            places = np.arange(len(cells))
            colours = [PALETTE[0], *[PALETTE[5]] * len(each.variants)]
            errors = [cell.std if cell.n > 1 else 0.0 for cell in cells]
            axis.barh(
                places,
                [cell.mean for cell in cells],
                xerr=errors,
                color=colours,
                capsize=2,
                error_kw={"lw": 0.8},
            )
            axis.set_yticks(places, names)
            axis.invert_yaxis()
            ends = [cell.mean + error for cell, error in zip(cells, errors, strict=True)]
            low = min(cell.mean - error for cell, error in zip(cells, errors, strict=True))
            span = max(max(ends) - low, 1.0)
            start = max(0, low - 0.6 * span)
            axis.set_xlim(start, max(ends) + 0.85 * span)
            for place, (cell, end, drop) in enumerate(zip(cells, ends, drops, strict=True)):
                text = f"{cell.mean:.2f}" if drop is None else f"{cell.mean:.2f} ({-drop:+.2f})"
                axis.text(end + 0.06 * span, place, text, va="center", fontsize=6)
            axis.set_title(each.column.title, fontsize=8)
            cut = f", axis from {start:.1f}" if start > 0 else ""
            axis.set_xlabel(_named(each.column.metric) + cut)
    return figure


def casestudy(projected: Projected, method: str = "tsne") -> Figure:
    """Embeddings, means and anchors, radial vectors and templates, before and after (figures 5, 10-15)."""
    panels = [panel for panel in projected.panels if panel.method == method]
    across = max(len(panel.moments) for panel in panels)
    with _look():
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(
            len(panels), across, figsize=(2.8 * across, 2.5 * len(panels)), squeeze=False
        )
        for line, panel in zip(grid, panels, strict=True):
            for axis, moment in itertools.zip_longest(line, panel.plain()["rounds"]):
                axis.set_xticks([])
                axis.set_yticks([])
                if moment is None:
                    axis.set_axis_off()
                    continue
                for group in moment["groups"]:
                    _scatter(axis, group)
                axis.set_title(f"{panel.title}\n{moment['name']}", fontsize=6)
            line[0].set_xlabel(panel.axes, fontsize=6)
        figure.suptitle(projected.title, fontsize=8)
    return figure


_SIZES = {"nodes": 3, "means": 16, "anchors": 70, "templates": 40, "radials": 3}


def _scatter(axis: Axes, group: Mapping[str, Any]) -> None:
    points = group["points"]
    faint = group["kind"] in ("nodes", "radials")
    for label in sorted({point[2] for point in points}, key=lambda value: -1 if value is None else value):
        chosen = np.array([[x, y] for x, y, own in points if own == label])
        star = group["kind"] in ("anchors", "templates")
        marker = "*" if star else _CLASS_MARKERS[(label or 0) % len(_CLASS_MARKERS)]
        colour = ("#8C8C8C" if faint else PALETTE[1]) if label is None else PALETTE[label % len(PALETTE)]
        edge: dict[str, Any] = (
            {} if marker in "x+" else {"edgecolors": "none" if faint else "black", "linewidths": 0.4}
        )
        axis.scatter(
            chosen[:, 0],
            chosen[:, 1],
            s=_SIZES[group["kind"]],
            marker=marker,
            color=colour,
            alpha=0.45 if faint else 1.0,
            **edge,
        )


def critical_difference(ranking: Ranking) -> Figure:
    """Average ranks on a line, bars over methods that cannot be told apart."""
    order = sorted(ranking.ranks.items(), key=lambda item: item[1])
    count, half = len(order), math.ceil(len(order) / 2)
    with _look():
        import matplotlib.pyplot as plt

        figure, axis = plt.subplots(figsize=(5.5, 0.9 + 0.16 * half + 0.1 * len(ranking.groups)))
        # A panel without axes has nothing to lay out.
        figure.set_layout_engine("none")
        axis.set_position((0, 0, 1, 1))
        axis.set_axis_off()
        axis.set_xlim(1 - 0.45 * count, count + 0.45 * count)
        top = 0.0
        axis.plot([1, count], [top, top], color="black", lw=0.8)
        for mark in range(1, count + 1):
            axis.plot([mark, mark], [top, top + 0.15], color="black", lw=0.8)
            axis.text(mark, top + 0.25, str(mark), ha="center", fontsize=6)
        axis.plot([1, 1 + ranking.critical], [top + 1.1, top + 1.1], color="black", lw=1.2)
        axis.text(1, top + 1.25, f"critical difference {ranking.critical:.2f}", fontsize=6)
        for place, group in enumerate(ranking.groups):
            ranks = [ranking.ranks[row] for row in group]
            bar = top - 0.25 - 0.25 * place
            axis.plot([min(ranks) - 0.05, max(ranks) + 0.05], [bar, bar], color="black", lw=2.5)
        base = top - 0.5 - 0.25 * len(ranking.groups)
        for place, (row, rank) in enumerate(order):
            left = place < half
            level = base - 0.5 * (place if left else count - 1 - place)
            edge = 0.6 if left else count + 0.4
            axis.plot([rank, rank, edge], [top, level, level], color="black", lw=0.5)
            axis.text(
                edge + (-0.1 if left else 0.1),
                level,
                f"{row.name} {rank:.2f}",
                ha="right" if left else "left",
                va="center",
                fontsize=6,
            )
    return figure


def heat_map(table: ScenarioTable, value: Callable[[Column], float | None], title: str) -> Figure | None:
    """Differences by data set and client setting, blue above and orange below; None if there are none."""
    sets = list(dict.fromkeys(column.dataset for column in table.columns))
    settings = list(
        dict.fromkeys((column.partition, column.clients, column.detail) for column in table.columns)
    )
    numbers = np.full((len(sets), len(settings)), np.nan)
    for column in table.columns:
        found = value(column)
        if found is not None:
            place = settings.index((column.partition, column.clients, column.detail))
            numbers[sets.index(column.dataset), place] = found
    if not np.isfinite(numbers).any():
        return None
    with _look():
        import matplotlib.pyplot as plt
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("differences", [PALETTE[1], "#FFFFFF", PALETTE[0]])
        most = float(np.nanmax(np.abs(numbers))) or 1.0
        figure, axis = plt.subplots(figsize=(1.6 + 0.75 * len(settings), 0.9 + 0.3 * len(sets)))
        shown = axis.imshow(numbers, cmap=shades, vmin=-most, vmax=most, aspect="auto", alpha=0.8)
        for row, column in np.ndindex(numbers.shape):
            known = np.isfinite(numbers[row, column])
            text = f"{numbers[row, column]:+.2f}" if known else "–"
            axis.text(column, row, text, ha="center", va="center", fontsize=6)
        axis.set_yticks(range(len(sets)), [dataset_title(name) for name in sets])
        labels = [
            "\n".join(filter(None, (part, f"{count} clients", detail))) for part, count, detail in settings
        ]
        axis.set_xticks(range(len(settings)), labels, fontsize=6)
        axis.set_title(title, fontsize=8)
        figure.colorbar(shown, label="points")
    return figure


def phases(column: Column, seconds: Mapping[Row, Mapping[str, float]]) -> Figure:
    """Seconds per round by phase, stacked, one bar per method."""
    with _look():
        import matplotlib.pyplot as plt

        figure, axis = plt.subplots(figsize=(5.0, 1.1 + 0.2 * len(seconds)))
        places = np.arange(len(seconds))
        start = np.zeros(len(seconds))
        for name, colour in PHASE_COLOURS.items():
            width = np.array([parts.get(name, 0.0) for parts in seconds.values()])
            if width.any():
                axis.barh(
                    places, width, left=start, color=colour, edgecolor="white", linewidth=0.4, label=name
                )
                start += width
        for place, total in enumerate(start):
            axis.text(total, place, f" {total:.3g}", va="center", fontsize=6)
        axis.set_yticks(places, [row.name for row in seconds])
        axis.invert_yaxis()
        axis.set_xlabel("seconds per round")
        axis.set_title(column.title, fontsize=8)
        figure.legend(fontsize=6, loc="outside lower center", ncols=5)
    return figure
