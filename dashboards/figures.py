"""Convergence curves, as plotly figures without a theme: the page that shows them colours text and grid."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedatlas.dashboards.tables import METRIC_NAMES

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# Okabe and Ito's colours, without black and yellow, which vanish on a dark or a light page.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")
BAND_OPACITY = 0.18

Score = Literal["test", "val"]
_SCORE_NAMES: dict[Score, str] = {"test": "test", "val": "validation"}


class Style(NamedTuple):
    """Look of one method in all figures."""

    colour: str
    dash: str


def method_styles(methods: Sequence[str]) -> dict[str, Style]:
    """One style per method: colours first, then the same colours dashed."""
    unique = list(dict.fromkeys(methods))
    return {
        method: Style(PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)])
        for number, method in enumerate(unique)
    }


def curve(rounds: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Mean and population standard deviation over seeds, per round.

    Args:
        rounds: one row per trial and round; columns `round` and ``test/score`` or ``val/score`` in [0, 1].

    Returns:
        Columns `round`, `mean`, `std` (%) and `n`, the trials with a score in that round.
    """
    import pandas as pd

    scores = 100 * rounds.pivot_table(index="round", columns="run_id", values=f"{score}/score")
    return pd.DataFrame(
        {
            "round": scores.index,
            "mean": scores.mean(axis=1).to_numpy(),
            "std": scores.std(axis=1, ddof=0).to_numpy(),
            "n": scores.count(axis=1).to_numpy(),
        }
    )


def convergence(
    rounds: pd.DataFrame, styles: Mapping[str, Style], score: Score = "test", metric: str = "accuracy"
) -> go.Figure:
    """Score over communication rounds in one scenario: mean over seeds, with a band of ± one deviation.

    Args:
        rounds: one row per trial and round; columns `method`, `run_id`, `round`, ``test/score`` and
            ``val/score`` in [0, 1].
        styles: from `method_styles`, the same for all figures of a page.
        score: test or validation.
        metric: ``accuracy`` or ``auc``, for the label of the axis.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    shown = rounds["method"].unique().tolist()
    for method in [name for name in styles if name in shown]:
        _add(figure, method, curve(rounds[rounds["method"] == method], score), styles[method])
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 8, "t": 30, "b": 44},
        hovermode="x unified",
        showlegend=False,
        xaxis={"title": {"text": "communication round"}, "zeroline": False},
        yaxis={
            "title": {"text": f"{_SCORE_NAMES[score]} {METRIC_NAMES.get(metric, metric)} (%)"},
            "zeroline": False,
        },
    )
    return figure


def _add(figure: go.Figure, method: str, points: pd.DataFrame, style: Style) -> None:
    import plotly.graph_objects as go

    # Plotly reads a part of HTML in names.
    name = html.escape(method, quote=False)
    steps, mean, std = (points[key].to_numpy() for key in ("round", "mean", "std"))
    if points["n"].max() > 1:
        upper, lower = mean + std, mean - std
        figure.add_scatter(
            x=np.concatenate([steps, steps[::-1]]),
            y=np.concatenate([upper, lower[::-1]]),
            fill="toself",
            fillcolor=_translucent(style.colour),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            name=f"{name} ± std",
            legendgroup=method,
            showlegend=False,
        )
    figure.add_trace(
        go.Scatter(
            x=steps,
            y=mean,
            mode="lines" if len(steps) > 1 else "markers",
            line={"color": style.colour, "dash": style.dash, "width": 2},
            name=name,
            legendgroup=method,
            customdata=np.stack([std, points["n"].to_numpy()], axis=1),
            hovertemplate="%{y:.2f} ± %{customdata[0]:.2f} % (n = %{customdata[1]})",
        )
    )


def _translucent(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND_OPACITY})"
