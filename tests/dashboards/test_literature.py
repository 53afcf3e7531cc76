"""Published figures: complete, named by algorithm key, and compared with what papers compute from them."""

from __future__ import annotations

import pandas as pd
import pytest

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.literature import (
    ABLATION_TABLE,
    MAIN_TABLES,
    ROUND_TIME_TABLE,
    Published,
    published,
    published_ablation,
    published_seconds,
    published_table,
)
from fedatlas.platform.graphs.catalog import entry, names
from fedatlas.platform.graphs.partition import MODES

SCENARIOS = {"metis": (5, 10, 20), "metis-overlap": (10, 30, 50)}
DISAGREE = {
    ("local", "20"): (52.31, 52.33),
    ("local", "All"): (54.56, 54.57),
    ("fedici", "All"): (67.88, 67.91),
    ("fedssa", "20"): (66.10, 66.38),
}
"""Averages of table 2 that do not follow from its cells: printed, and the mean of the cells."""


def test_a_figure_is_the_line_of_the_file() -> None:
    assert published("cora", "metis", 10, "fedgmc") == Published(83.65, 0.16, "FedGMC")
    assert published("cora", "metis-overlap", 10, "fedavg") == Published(76.48, 0.36, "FedGMC")
    assert published_ablation("cora", "metis", 10, "w/o Structural") == Published(75.26, 0.17, "FedGMC")
    assert published_seconds("roman-empire", "metis-overlap", 50, "fedpub") == 133.05


def test_every_line_of_the_file_is_a_figure() -> None:
    for row in published_table(MAIN_TABLES["FedGMC"]).to_dict("records"):
        figure = published(row["dataset"], row["partition"], row["clients"], row["method"])
        assert figure == Published(row["value"], None if pd.isna(row["std"]) else row["std"], "FedGMC")


def test_what_the_first_paper_lacks_comes_from_the_next() -> None:
    assert published("cora", "metis", 10, "fedaux") == Published(82.05, 0.71, "FedAux")


def test_what_was_not_published_has_no_figure() -> None:
    assert published("standin:roman-empire", "metis", 10, "fedgmc") is None
    assert published("cora", "random", 10, "fedgmc") is None
    assert published("cora", "metis", 10, "fedopt") is None
    assert published_ablation("cora", "metis", 10, "literal weights") is None
    assert published_seconds("minesweeper", "metis", 10, "fedavg") is None


@pytest.mark.parametrize("name", [*MAIN_TABLES.values(), ABLATION_TABLE])
def test_tables_use_the_names_and_metrics_of_the_catalog(name: str) -> None:
    table = published_table(name)
    assert set(table["dataset"]) <= set(names())
    assert set(table["partition"]) <= set(MODES)
    assert {
        entry(name).metric == metric for name, metric in zip(table["dataset"], table["metric"], strict=True)
    } == {True}
    assert not table.duplicated(["dataset", "partition", "clients", "method"]).any()


@pytest.mark.parametrize(
    ("name", "rows", "sets"),
    [(MAIN_TABLES["FedGMC"], 15, 11), (ABLATION_TABLE, 4, 11), (ROUND_TIME_TABLE, 14, 2)],
)
def test_a_table_is_whole(name: str, rows: int, sets: int) -> None:
    table = published_table(name)
    cells = {
        (partition, clients): group for (partition, clients), group in table.groupby(["partition", "clients"])
    }
    assert set(cells) == {(mode, count) for mode, counts in SCENARIOS.items() for count in counts}
    for group in cells.values():
        assert len(group) == rows * sets
        assert group["method"].nunique() == rows
        assert group["dataset"].nunique() == sets
    assert table["value"].notna().all()


def test_our_methods_of_the_paper_have_all_its_scenarios() -> None:
    table = published_table(MAIN_TABLES["FedGMC"])
    assert set(table["method"]) <= set(ALGORITHMS)
    assert set(published_table(ROUND_TIME_TABLE)["method"]) <= set(ALGORITHMS)
    assert table.groupby("method").size().nunique() == 1


def printed(figure: str, *tables: int) -> pd.DataFrame:
    whole = published_table("fedgmc-printed.csv")
    return whole[(whole["figure"] == figure) & whole["table"].isin(tables)]


def test_row_averages_follow_from_the_cells_but_for_four() -> None:
    table = published_table(MAIN_TABLES["FedGMC"])
    wrong = {}
    rows = printed("average", 1, 2, 4, 5).to_dict("records")
    assert len(rows) == 2 * 15 + 2 * 15 * 4
    for row in rows:
        cells = table[(table["table"] == row["table"]) & (table["method"] == row["method"])]
        if row["column"] != "All":
            cells = cells[cells["clients"] == int(row["column"])]
        # Two decimals of a mean of figures with two decimals.
        if abs(cells["value"].mean() - row["value"]) > 0.0051:
            assert row["table"] == 2
            wrong[row["method"], row["column"]] = (row["value"], round(cells["value"].mean(), 2))
    assert wrong == DISAGREE


def test_column_averages_of_the_round_times_follow_from_the_cells() -> None:
    table = published_table(ROUND_TIME_TABLE)
    rows = printed("average", 7).to_dict("records")
    assert len(rows) == 12
    for row in rows:
        cells = table[
            (table["dataset"] == row["method"])
            & (table["partition"] == row["partition"])
            & (table["clients"] == int(row["column"]))
        ]
        assert cells["value"].mean() == pytest.approx(row["value"], abs=0.0051)


def test_printed_drops_follow_from_the_cells_but_for_those_of_amazon_ratings() -> None:
    """Its drops repeat those of Roman-empire."""
    rows = printed("drop", 6)
    assert len(rows) == 3 * 66
    values = {
        (row["method"], f"{row['dataset']} {row['clients']}", row["partition"]): row["value"]
        for row in published_table(ABLATION_TABLE).to_dict("records")
    }
    drops = {
        (row["method"], row["column"], row["partition"]): row["value"] for row in rows.to_dict("records")
    }
    for (method, column, partition), drop in drops.items():
        true = values["fedgmc full", column, partition] - values[method, column, partition]
        if column.startswith("amazon-ratings"):
            assert drop == drops[method, column.replace("amazon-ratings", "roman-empire"), partition]
            assert true != pytest.approx(drop, abs=0.0051)
        else:
            assert true == pytest.approx(drop, abs=0.0051)


def test_the_ablation_repeats_the_main_tables() -> None:
    main = published_table(MAIN_TABLES["FedGMC"])
    main = main[main["method"] == "fedgmc"].set_index(["dataset", "partition", "clients"])["value"]
    whole = published_table(ABLATION_TABLE)
    whole = whole[whole["method"] == "fedgmc full"].set_index(["dataset", "partition", "clients"])["value"]
    assert whole.to_dict() == main.to_dict()
