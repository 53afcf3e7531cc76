"""Rows of one method that differ in one option: sensitivity curves and ablations.

The reference among the rows of an algorithm in a scenario is the one that the most others differ from in a
single option; the plain method, and then the first, where several do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedatlas.dashboards.cells import Column, Repetition, Row, row_order
from fedatlas.dashboards.literature import Published, published_ablation
from fedatlas.dashboards.protocol import OPTION
from fedatlas.dashboards.tables import Cell, ScenarioTable

_MIRRORED = {f"{OPTION}epochs", f"{OPTION}aggregation"}


@dataclass(frozen=True)
class Point:
    """One value of an option.

    Attributes:
        value: of the option.
        row, cell: its row and score.
        reference: the row that all curves share.
    """

    value: float
    row: Row
    cell: Cell
    reference: bool


@dataclass(frozen=True)
class Sensitivity:
    """Scores under the values of one option, everything else equal.

    Attributes:
        algorithm: key of the algorithm.
        column: scenario.
        option: name of the option.
        points: by value, at least three.
    """

    algorithm: str
    column: Column
    option: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Variant:
    """A row without a part, or with another.

    Attributes:
        row, cell: its row and score.
        options: what differs from the reference, as it was tracked; empty for another algorithm.
        drop: reference minus row, in points.
        published: what table 6 of the FedGMC paper prints for the row.
    """

    row: Row
    cell: Cell
    options: Mapping[str, str]
    drop: float
    published: Published | None


@dataclass(frozen=True)
class Ablation:
    """Variants of a method in one scenario.

    Attributes:
        algorithm: key of the algorithm.
        column: scenario.
        row, cell: the reference.
        published: what table 6 of the FedGMC paper prints for the whole method, where it is comparable.
        variants: in order of rows.
    """

    algorithm: str
    column: Column
    row: Row
    cell: Cell
    published: Published | None
    variants: tuple[Variant, ...]


Options = Mapping[str, str]


def sensitivities(table: ScenarioTable) -> tuple[Sensitivity, ...]:
    """Curves of every algorithm, scenario and numeric option with at least three values."""
    found = []
    for column, algorithm, rows in _families(table):
        reference = _reference(rows)
        if reference is None:
            continue
        values: dict[str, dict[Row, float]] = {}
        for row, options in rows.items():
            changed = _different(options, rows[reference])
            if len(changed) == 1 and (value := _numeric(options, changed)) is not None:
                values.setdefault(changed[0], {})[row] = value
        for option, members in values.items():
            own = _numeric(rows[reference], [option])
            points = [Point(value, row, table.cells[row, column], False) for row, value in members.items()]
            if own is not None:
                points.append(Point(own, reference, table.cells[reference, column], True))
            if len(points) >= 3:
                points.sort(key=lambda point: point.value)
                name = option.removeprefix(OPTION)
                found.append(Sensitivity(algorithm, column, name, tuple(points)))
    return tuple(found)


def ablations(table: ScenarioTable) -> tuple[Ablation, ...]:
    """Variants of every algorithm and scenario in which a switch or a name was changed.

    Rows of other algorithms stand beside them if they are no method of their own there: their label is not
    their method's title.
    """
    found = []
    for column, algorithm, rows in _families(table):
        reference = _reference(rows)
        if reference is None:
            continue
        variants = []
        for row, options in rows.items():
            changed = _different(options, rows[reference])
            if changed and "backbone" not in changed and _numeric(options, changed) is None:
                variants.append(
                    (row, {key.removeprefix(OPTION): options.get(key, "unset") for key in changed})
                )
        if not variants:
            continue
        whole = table.cells[reference, column]
        neighbours: list[tuple[Row, dict[str, str]]] = [
            (row, {})
            for row in table.rows
            if (row, column) in table.cells
            and row.algorithm != algorithm
            and not table.groups[row, column][0].plain
        ]
        comparable = column.comparable and all(each.plain for each in table.groups[reference, column])
        scenario = (column.dataset, column.partition, column.clients)
        found.append(
            Ablation(
                algorithm,
                column,
                reference,
                whole,
                published_ablation(*scenario, "full") if comparable and algorithm == "fedgmc" else None,
                tuple(
                    Variant(
                        row,
                        table.cells[row, column],
                        options,
                        whole.mean - table.cells[row, column].mean,
                        published_ablation(*scenario, row.label)
                        if comparable and row.algorithm == "fedgmc"
                        else None,
                    )
                    for row, options in (*variants, *neighbours)
                ),
            )
        )
    return tuple(found)


def _families(table: ScenarioTable) -> list[tuple[Column, str, dict[Row, Options]]]:
    """Per scenario and algorithm: its rows with their options, if there are several."""
    families: dict[tuple[Column, str], dict[Row, Options]] = {}
    for (row, column), group in table.groups.items():
        families.setdefault((column, row.algorithm), {})[row] = _options(group)
    return [
        (
            column,
            algorithm,
            dict(sorted(families[column, algorithm].items(), key=lambda item: row_order(item[0]))),
        )
        for column in table.columns
        for algorithm in dict.fromkeys(row.algorithm for row in table.rows)
        if len(families.get((column, algorithm), ())) > 1
    ]


def _options(group: Sequence[Repetition]) -> Options:
    given = group[0].settings
    kept = {key: value for key, value in given.items() if key.startswith(OPTION) and key not in _MIRRORED}
    return {**kept, "backbone": given.get("backbone", "")}


def _different(one: Options, other: Options) -> list[str]:
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def _reference(rows: Mapping[Row, Options]) -> Row | None:
    """The row with the most neighbours at distance one; None if there are no neighbours."""
    distances = {
        row: sum(len(_different(options, other)) == 1 for other in rows.values())
        for row, options in rows.items()
    }
    most = max(distances.values())
    if most == 0:
        return None
    candidates = [row for row, count in distances.items() if count == most]
    return min(candidates, key=lambda row: (row.name != row.label or "(" in row.name, row_order(row)))


def _numeric(options: Options, keys: Sequence[str]) -> float | None:
    """The value of a single numeric option."""
    if len(keys) != 1:
        return None
    try:
        return float(options.get(keys[0], ""))
    except ValueError:
        return None
