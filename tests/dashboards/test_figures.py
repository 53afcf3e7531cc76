"""Curves against hand computation, and one look per method."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedatlas.dashboards.figures import PALETTE, convergence, curve, method_styles

from .conftest import HOSTILE

ROUNDS = pd.DataFrame(
    {
        "method": ["A"] * 4 + [HOSTILE] * 2,
        "run_id": ["a", "a", "b", "b", "c", "c"],
        "round": [0, 1, 0, 1, 0, 1],
        "test/score": [0.2, 0.4, 0.4, 0.8, 0.5, 0.6],
        "val/score": [0.1, 0.2, 0.3, 0.4, 0.5, np.nan],
    }
)


def test_a_curve_is_mean_and_population_deviation_per_round() -> None:
    points = curve(ROUNDS[ROUNDS["method"] == "A"], "test")
    assert points["mean"].tolist() == pytest.approx([30, 60])
    assert points["std"].tolist() == pytest.approx([10, 20])
    assert points["n"].tolist() == [2, 2]


def test_the_band_needs_two_seeds_and_axes_have_units() -> None:
    styles = method_styles(["A", HOSTILE])
    figure = convergence(ROUNDS, styles, "test", "auc")
    names = [trace.name for trace in figure.data]
    assert names == ["A ± std", "A", "&lt;script&gt;alert('x')&lt;/script&gt;"]
    band = figure.data[0]
    assert list(band.x) == [0, 1, 1, 0]
    assert list(band.y) == pytest.approx([40, 80, 40, 20])
    assert figure.layout.yaxis.title.text == "test ROC-AUC (%)"
    assert figure.layout.xaxis.title.text == "communication round"


def test_a_method_looks_the_same_in_every_figure() -> None:
    styles = method_styles(["A", HOSTILE])
    alone = convergence(ROUNDS[ROUNDS["method"] == HOSTILE], styles, "val")
    both = convergence(ROUNDS, styles, "test")
    assert alone.data[-1].line.color == both.data[-1].line.color == styles[HOSTILE].colour


def test_more_methods_than_colours_are_dashed() -> None:
    styles = method_styles([f"method {number}" for number in range(3 * len(PALETTE))])
    assert len(set(styles.values())) == 3 * len(PALETTE)
    assert {style.dash for style in list(styles.values())[: len(PALETTE)]} == {"solid"}
