"""One look per method, in every figure."""

from __future__ import annotations

from fedatlas.dashboards.figures import FIELD_PALETTE, PALETTE, PHASE_COLOURS, method_styles, usual_rounds
from fedatlas.dashboards.traces import PHASES


def test_more_methods_than_colours_are_dashed() -> None:
    styles = method_styles([f"method {number}" for number in range(3 * len(PALETTE))])
    assert len(set(styles.values())) == 3 * len(PALETTE)
    assert len({(style.colour, style.dash) for style in styles.values()}) == 3 * len(PALETTE)
    assert {style.dash for style in list(styles.values())[: len(PALETTE)]} == {"solid"}


def test_a_repeated_name_keeps_its_look() -> None:
    styles = method_styles(["A", "B", "A"])
    assert list(styles) == ["A", "B"]


def test_every_phase_has_a_colour_of_its_own() -> None:
    assert tuple(PHASE_COLOURS) == PHASES
    assert len(set(PHASE_COLOURS.values())) == len(PHASES)
    assert len(set(FIELD_PALETTE)) == len(FIELD_PALETTE)


def test_figures_over_rounds_end_where_most_methods_do() -> None:
    assert usual_rounds([100] * 19 + [300]) == 100
    assert usual_rounds([100, 300]) == 300
    assert usual_rounds([]) == 0
