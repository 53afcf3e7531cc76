"""Published figures: read from the files, named by algorithm key."""

from __future__ import annotations

from importlib.resources import files

import pandas as pd
import pytest

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.literature import MAIN_TABLES, Published, published
from fedatlas.platform.graphs.catalog import entry, names
from fedatlas.platform.graphs.partition import MODES


def table_of(name: str) -> pd.DataFrame:
    return pd.read_csv(str(files("fedatlas.dashboards.published").joinpath(name)))


def test_a_figure_is_the_line_of_the_file() -> None:
    assert published("cora", "metis", 10, "fedgmc") == Published(83.65, 0.16, "FedGMC")
    assert published("cora", "metis-overlap", 10, "fedavg") == Published(76.48, 0.36, "FedGMC")


def test_every_line_of_the_file_is_a_figure() -> None:
    for row in table_of(MAIN_TABLES["FedGMC"]).to_dict("records"):
        figure = published(row["dataset"], row["partition"], row["clients"], row["method"])
        assert figure == Published(row["value"], None if pd.isna(row["std"]) else row["std"], "FedGMC")


def test_what_the_first_paper_lacks_comes_from_the_next() -> None:
    assert published("cora", "metis", 10, "fedaux") == Published(82.05, 0.71, "FedAux")


def test_what_was_not_published_has_no_figure() -> None:
    assert published("standin:roman-empire", "metis", 10, "fedgmc") is None
    assert published("cora", "random", 10, "fedgmc") is None
    assert published("cora", "metis", 10, "fedopt") is None


@pytest.mark.parametrize("name", MAIN_TABLES.values())
def test_tables_use_the_names_and_metrics_of_the_catalog(name: str) -> None:
    table = table_of(name)
    assert set(table["dataset"]) <= set(names())
    assert set(table["partition"]) <= set(MODES)
    assert {
        entry(name).metric == metric for name, metric in zip(table["dataset"], table["metric"], strict=True)
    } == {True}
    assert not table.duplicated(["dataset", "partition", "clients", "method"]).any()


def test_our_methods_of_the_paper_have_all_its_scenarios() -> None:
    table = table_of(MAIN_TABLES["FedGMC"])
    assert set(table["method"]) <= set(ALGORITHMS)
    assert table.groupby("method").size().nunique() == 1
