"""LaTeX tables (booktabs) in the layout of the FedGMC paper's tables 1, 2, 4, 5, 6 and 7.

A table is a stack of blocks that share its rows: three data sets side by side in the main tables, in the
others as many as fit into six columns. What is missing is a dash; a partial result, which lacks seeds that
others have, has a star.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from fedatlas.dashboards.cells import Column, Row, dataset_title
from fedatlas.dashboards.literature import MAIN_TABLES, published_table
from fedatlas.dashboards.tables import Cell, ScenarioTable
from fedatlas.dashboards.variations import Ablation

SETS_PER_BLOCK = 3
COLUMNS_PER_BLOCK = 6
"""Of ablations and round times: the six client settings of a data set, or several smaller ones."""
MISSING = "--"
_Part = TypeVar("_Part")
_PARTITIONS = {"metis": "non-overlapping", "metis-overlap": "overlapping"}
_NUMBERS = {("homophilic", "metis"): 1, ("heterophilic", "metis"): 2} | {
    ("homophilic", "metis-overlap"): 4,
    ("heterophilic", "metis-overlap"): 5,
}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_SPECIAL.get(character, character) for character in text)


@dataclass(frozen=True)
class Block:
    """Columns side by side under the headings of their groups.

    Attributes:
        groups: heading -> headings of its columns.
        lines: first cell and cells of each line.
        rules: lines before which a rule stands.
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[tuple[str, ...], ...]
    rules: tuple[int, ...] = ()


def tabular(blocks: Sequence[Block], caption: str, label: str, comments: Iterable[str] = ()) -> str:
    """A table environment; needs the packages booktabs and graphicx.

    Args:
        blocks: one above the other; narrower ones are filled up.
        caption: LaTeX.
        label: of the table.
        comments: lines at the top of the file, as they are.
    """
    width = max(sum(len(columns) for _, columns in block.groups) for block in blocks)
    body: list[str] = []
    for number, block in enumerate(blocks):
        used = sum(len(columns) for _, columns in block.groups)
        fill = [""] * (width - used)
        body.append(r"\toprule" if number == 0 else r"\midrule")
        heads, rules, place = [""], [], 2
        for title, columns in block.groups:
            heads.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{escaped(title)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + len(columns) - 1}}}")
            place += len(columns)
        body.append(_line([*heads, *fill]))
        body.append("".join(rules))
        names = [escaped(name) for _, columns in block.groups for name in columns]
        body += [_line(["Methods", *names, *fill]), r"\midrule"]
        for place, line in enumerate(block.lines):
            if place in block.rules:
                body.append(r"\midrule")
            body.append(_line([*line, *fill]))
    lines = [
        *(f"% {comment}" for comment in comments),
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        # Shrunk to the page where it is wider, never blown up.
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * width}}}",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def score(cell: Cell | None) -> str:
    """A cell: mean and deviation, best bold, second underlined."""
    if cell is None or np.isnan(cell.mean):
        return MISSING
    text = f"{cell.mean:.2f}" + (rf"$\pm${cell.std:.2f}" if cell.n > 1 else "")
    if cell.best:
        text = rf"\textbf{{{text}}}"
    elif cell.second:
        text = rf"\underline{{{text}}}"
    return text if cell.complete else text + r"$^{*}$"


@cache
def _families() -> Mapping[str, str]:
    table = published_table(MAIN_TABLES["FedGMC"])
    return {
        str(row["dataset"]): "homophilic" if row["table"] in (1, 4) else "heterophilic"
        for row in table.to_dict("records")
    }


def family(dataset: str) -> str:
    """``homophilic`` or ``heterophilic`` as the paper has it, ``other`` for any other set."""
    return _families().get(dataset, "other")


def main_tables(table: ScenarioTable, comments: Iterable[str] = ()) -> dict[str, str]:
    """Methods and scenarios, one table for each family of data sets and partition: name -> LaTeX."""
    kinds: dict[tuple[str, str], list[Column]] = {}
    for column in table.columns:
        kinds.setdefault((family(column.dataset), column.partition), []).append(column)
    found = {}
    for (kind, partition), columns in kinds.items():
        name = f"{kind}-{partition}"
        number = _NUMBERS.get((kind, partition))
        like = f" Layout of table {number} of the FedGMC paper." if number else ""
        metrics = (
            "Accuracy (\\%), AUC (\\%) for sets scored by it."
            if any(column.metric == "auc" for column in columns)
            else "Accuracy (\\%)."
        )
        caption = (
            f"{metrics} {escaped(kind.capitalize())} data sets, "
            f"{escaped(_PARTITIONS.get(partition, partition))} partition; mean and population standard "
            f"deviation over seeds, best bold, second underlined.{like}"
        )
        found[name] = tabular(_main_blocks(table, columns), caption, f"tab:{name}", comments)
    return found


def _main_blocks(table: ScenarioTable, columns: Sequence[Column]) -> list[Block]:
    rows = [row for row in table.rows if any((row, column) in table.cells for column in columns)]
    sets = [list(group) for _, group in itertools.groupby(columns, key=_set)]
    parts = [sets[start : start + SETS_PER_BLOCK] for start in range(0, len(sets), SETS_PER_BLOCK)]
    blocks = []
    for number, part in enumerate(parts):
        groups = [
            (_set_title(group[0]), tuple(f"{column.clients} Clients" for column in group)) for group in part
        ]
        averages: list[tuple[str, list[Column]]] = []
        if number == len(parts) - 1 and len(columns) > 1:
            averages = _averages(columns)
            groups.append(("Avg.", tuple(name for name, _ in averages)))
        inner = [column for group in part for column in group]
        lines = tuple(
            (
                escaped(row.name),
                *(score(table.cells.get((row, column))) for column in inner),
                *(_average(table, row, members) for _, members in averages),
            )
            for row in rows
        )
        blocks.append(Block(tuple(groups), lines))
    return blocks


def _set(column: Column) -> tuple[str, str]:
    return column.dataset, column.detail


def _set_title(column: Column) -> str:
    title = dataset_title(column.dataset)
    return f"{title} ({column.detail})" if column.detail else title


def _averages(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """By number of clients where every set has the same ones, and of all columns."""
    counts = {
        key: [column.clients for column in group] for key, group in itertools.groupby(columns, key=_set)
    }
    shared = list(counts.values())
    found: list[tuple[str, list[Column]]] = []
    if len(shared) > 1 and all(each == shared[0] for each in shared) and len(shared[0]) > 1:
        found = [
            (f"{count} Clients", [column for column in columns if column.clients == count])
            for count in shared[0]
        ]
    return [*found, ("All", list(columns))]


def _average(table: ScenarioTable, row: Row, columns: Sequence[Column]) -> str:
    """Mean over columns of a row that is complete in all of them."""
    cells = [table.cells.get((row, column)) for column in columns]
    if any(cell is None or not cell.complete for cell in cells):
        return MISSING
    return f"{np.mean([cell.mean for cell in cells if cell is not None]):.2f}"


def ablation_table(found: Sequence[Ablation], comments: Iterable[str] = ()) -> str:
    """Rows without parts, a whole method's data sets in blocks, drops in brackets (layout of table 6)."""
    blocks = []
    for whole in dict.fromkeys(each.row for each in found):
        members = [each for each in found if each.row == whole]
        sets = [list(group) for _, group in itertools.groupby(members, key=lambda each: _set(each.column))]
        for part in _packed(sets):
            inner = [each for group in part for each in group]
            rows = list(dict.fromkeys(variant.row for each in inner for variant in each.variants))
            lines = [(escaped(row.name), *(_without(each, row) for each in inner)) for row in rows]
            lines.append((escaped(whole.name), *(_plain(each.cell) for each in inner)))
            groups = tuple(
                (_set_title(group[0].column), tuple(_scenario(each.column) for each in group))
                for group in part
            )
            blocks.append(Block(groups, tuple(lines), (len(rows),)))
    caption = "Ablation: scores (\\%) without parts, and the drop against the whole method."
    return tabular(blocks, caption, "tab:ablation", comments)


def _packed(sets: Iterable[Sequence[_Part]]) -> list[list[Sequence[_Part]]]:
    """Data sets side by side, in their order, as long as their columns fit into a block."""
    found: list[list[Sequence[_Part]]] = []
    for group in sets:
        if found and sum(map(len, found[-1])) + len(group) <= COLUMNS_PER_BLOCK:
            found[-1].append(group)
        else:
            found.append([group])
    return found


def _without(each: Ablation, row: Row) -> str:
    variant = next((variant for variant in each.variants if variant.row == row), None)
    return MISSING if variant is None else f"{_plain(variant.cell)} ({_change(variant.drop)})"


def _plain(cell: Cell) -> str:
    return f"{cell.mean:.2f}" + (rf"$\pm${cell.std:.2f}" if cell.n > 1 else "")


def _change(drop: float) -> str:
    return rf"$\downarrow$ {drop:.2f}" if drop >= 0 else rf"$\uparrow$ {-drop:.2f}"


def _scenario(column: Column) -> str:
    return f"{_PARTITIONS.get(column.partition, column.partition)} {column.clients} clients"


def round_time_table(
    table: ScenarioTable, seconds: Callable[[Row, Column], float | None], comments: Iterable[str] = ()
) -> str:
    """Seconds per round of data sets, with column averages (layout of table 7).

    Args:
        table: rows and columns.
        seconds: of a cell, or None.
        comments: lines at the top.
    """
    blocks = []
    sets = [list(group) for _, group in itertools.groupby(table.columns, key=_set)]
    for part in _packed(sets):
        inner = [column for group in part for column in group]
        rows = [row for row in table.rows if any(seconds(row, column) is not None for column in inner)]
        values = {(row, column): seconds(row, column) for row in rows for column in inner}
        lines = [(escaped(row.name), *(_seconds(values[row, column]) for column in inner)) for row in rows]
        means = []
        for column in inner:
            known = [value for row in rows if (value := values[row, column]) is not None]
            means.append(_seconds(float(np.mean(known)) if len(known) == len(rows) else None))
        lines.append(("Average", *means))
        groups = tuple((_set_title(group[0]), tuple(map(_scenario, group))) for group in part)
        blocks.append(Block(groups, tuple(lines), (len(rows),)))
    caption = "Seconds per communication round, median over rounds."
    return tabular(blocks, caption, "tab:round-time", comments)


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"
