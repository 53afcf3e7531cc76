"""Published figures: read from the files, named by algorithm key."""

from __future__ import annotations

import pytest

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.literature import Published, published, published_table
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.catalog import entry, names
from fedatlas.platform.graphs.partition import MODES


def test_a_figure_is_the_line_of_the_file() -> None:
    assert published("cora", "metis", 10, "fedgmc") == Published(83.65, 0.16)
    assert published("cora", "metis-overlap", 10, "fedavg") == Published(76.48, 0.36)
    assert published("cora", "metis", 5, "fedavg", paper="fedaux") == Published(74.45, 5.64)


def test_what_was_not_published_has_no_figure() -> None:
    assert published("standin:roman-empire", "metis", 10, "fedgmc") is None
    assert published("cora", "random", 10, "fedgmc") is None
    assert published("cora", "metis", 10, "fedopt") is None


def test_a_lower_bound_is_not_a_figure() -> None:
    table = published_table("fedaux")
    assert table["lower_bound"].sum() == 3
    assert published("ogbn-arxiv", "metis", 5, "fedaux", paper="fedaux") is None


def test_a_missing_deviation_is_none() -> None:
    table = published_table("fedaux")
    row = table[table["std"].isna() & ~table["lower_bound"]].iloc[0]
    figure = published(row["dataset"], row["partition"], int(row["clients"]), row["method"], paper="fedaux")
    assert figure == Published(float(row["value"]), None)


@pytest.mark.parametrize("paper", ["fedgmc", "fedaux"])
def test_tables_use_the_names_and_metrics_of_the_catalog(paper: str) -> None:
    table = published_table(paper)
    assert set(table["dataset"]) <= set(names())
    assert set(table["partition"]) <= set(MODES)
    assert {
        entry(name).metric == metric for name, metric in zip(table["dataset"], table["metric"], strict=True)
    } == {True}
    assert not table.duplicated(["dataset", "partition", "clients", "method"]).any()


def test_our_methods_of_the_paper_have_all_its_scenarios() -> None:
    table = published_table()
    assert {"local", "fedavg", "fedper", "fedgmc"} <= set(ALGORITHMS)
    assert table.groupby("method").size().loc[["local", "fedavg", "fedper", "fedgmc"]].nunique() == 1


def test_an_unknown_paper_is_named() -> None:
    with pytest.raises(ConfigurationError, match="unknown paper 'fedgcm': did you mean fedgmc"):
        published_table("fedgcm")
