"""The look of methods in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Okabe and Ito's colours, without black and yellow, which vanish on a dark or a light page.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Those, and darker and lighter ones between them, for parts that stand side by side in a bar.
FIELD_PALETTE = (
    *PALETTE,
    *("#7A5195", "#A6761D", "#8C8C8C", "#B8A9D9", "#005F4A", "#F4B6A0"),
    *("#8A1C2B", "#9CCB3B", "#5B6770", "#F0DC82", "#2B3A8C", "#C7E3F4"),
)
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "triangle", "diamond", "cross")
PHASE_COLOURS = {
    "training": "#0072B2",
    "calibration": "#56B4E9",
    "evaluation": "#009E73",
    "transport": "#D55E00",
    "serialisation": "#E69F00",
    "broadcast": "#CC79A7",
    "aggregation": "#7A5195",
    "refinement": "#B8A9D9",
    "logging": "#8C8C8C",
}


class Style(NamedTuple):
    """Look of one method in all figures."""

    colour: str
    dash: str
    marker: str


def usual_rounds(lengths: Sequence[int]) -> int:
    """Rounds that figures over rounds show: the longest that at least half of the methods have.

    A method that goes on alone, as AdaFGL does for 200 epochs, would squeeze all others into a third.
    """
    return sorted(lengths)[len(lengths) // 2] if lengths else 0


def method_styles(methods: Sequence[str]) -> dict[str, Style]:
    """One style per method: colours first, then the same colours dashed; markers differ among neighbours."""
    unique = list(dict.fromkeys(methods))
    return {
        method: Style(
            PALETTE[number % len(PALETTE)],
            DASHES[number // len(PALETTE) % len(DASHES)],
            MARKERS[number % len(MARKERS)],
        )
        for number, method in enumerate(unique)
    }
