"""Tables against hand computation, and what may share a cell, a column or a table."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedatlas.dashboards.cells import Column, Row
from fedatlas.dashboards.tables import (
    Cell,
    ScenarioTable,
    method_by_scenario,
    summary_as_rich,
    summary_table,
)

from .conftest import HOSTILE, frame, trial_record


def cell(table: ScenarioTable, name: str, dataset: str = "cora") -> Cell:
    found = [
        each for (row, column), each in table.cells.items() if (row.name, column.dataset) == (name, dataset)
    ]
    assert len(found) == 1
    return found[0]


def test_a_cell_is_mean_and_population_deviation_in_percent() -> None:
    scores = (0.80, 0.84, 0.82)
    trials = frame([trial_record("fedgmc", score, seed=seed) for seed, score in enumerate(scores)])
    (table,) = method_by_scenario(trials)
    found = cell(table, "FedGMC")
    assert found.mean == pytest.approx(82)
    # ddof = 0: sqrt((4 + 4 + 0) / 3); ddof = 1 would give 2.
    assert found.std == pytest.approx((8 / 3) ** 0.5)
    assert found.last == pytest.approx(81)
    assert found.seeds == (0, 1, 2)
    assert found.published == (83.65, 0.16, "FedGMC")


def test_best_and_rank_only_where_every_seed_is_there() -> None:
    records = [
        trial_record(algorithm, score, seed=seed, dataset=dataset)
        for algorithm, score in (("local", 0.7), ("fedavg", 0.8), ("fedgmc", 0.9))
        for dataset in ("cora", "citeseer")
        for seed in (0, 1)
        if (algorithm, dataset, seed) != ("fedgmc", "citeseer", 1)
    ]
    (table,) = method_by_scenario(frame(records))
    assert cell(table, "FedGMC").best
    assert not cell(table, "FedGMC", "citeseer").best
    assert not cell(table, "FedGMC", "citeseer").complete
    assert cell(table, "FedAvg", "citeseer").best
    assert {row.name: rank for row, rank in table.average_rank.items()} == {
        "Local": 3,
        "FedAvg": 2,
        "FedGMC": 1,
    }
    assert table.ranked_columns == 1
    assert [(each.row.name, each.column.dataset, each.seeds) for each in table.missing] == [
        ("FedGMC", "citeseer", (1,))
    ]


def test_ties_share_their_rank_and_are_both_best() -> None:
    trials = frame([trial_record("local", 0.7), trial_record("fedavg", 0.8), trial_record("fedgmc", 0.8)])
    (table,) = method_by_scenario(trials)
    assert sorted(table.average_rank.values()) == [1.5, 1.5, 3]
    assert cell(table, "FedAvg").best
    assert cell(table, "FedGMC").best


def test_no_rank_without_a_common_column() -> None:
    trials = frame([trial_record("local", 0.7, dataset="citeseer"), trial_record("fedavg", 0.8)])
    (table,) = method_by_scenario(trials)
    assert table.average_rank == {}
    assert table.ranked_columns == 0
    assert not cell(table, "FedAvg").best


def test_only_finished_trials_with_a_score_count() -> None:
    trials = frame(
        [
            trial_record("fedavg", 0.8),
            trial_record("fedavg", 0.1, seed=1, status="FAILED"),
            trial_record("fedavg", 0.1, seed=2, status="RUNNING"),
            trial_record("fedavg", float("nan"), seed=3),
        ]
    )
    (table,) = method_by_scenario(trials)
    assert cell(table, "FedAvg").seeds == (0,)


def test_stand_ins_have_a_table_of_their_own() -> None:
    trials = frame(
        [
            trial_record("fedavg", 0.8, dataset="roman-empire"),
            trial_record("fedavg", 0.8, dataset="minesweeper", metric="auc", data_kind="generated"),
            trial_record("fedavg", 0.8, dataset="standin:roman-empire", data_kind="stand-in"),
        ]
    )
    measured, stand_in = method_by_scenario(trials)
    assert (measured.kind, stand_in.kind) == ("measured", "stand-in")
    assert [column.dataset for column in measured.columns] == ["roman-empire", "minesweeper"]
    assert [column.metric for column in measured.columns] == ["accuracy", "auc"]
    assert [column.dataset for column in stand_in.columns] == ["standin:roman-empire"]
    assert all(each.published is None for each in stand_in.cells.values())


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"evaluation": "after_aggregate"}, "evaluation=after_aggregate"),
        ({"train_fraction": 0.5}, "train_fraction=0.5"),
        ({"uncut": True}, "uncut=True"),
        ({"client_features": "permuted"}, "client_features=permuted"),
        ({"metric": "auc"}, "metric=auc"),
        ({"data_sha256": "dd" * 32}, "data_sha256=dddddddd"),
        ({"partition_sha256": "ee" * 32}, "partition_sha256=eeeeeeee"),
    ],
)
def test_other_conventions_are_another_column(change: dict[str, object], detail: str) -> None:
    trials = frame([trial_record("fedavg", 0.8), trial_record("fedgmc", 0.9, **change)])
    (table,) = method_by_scenario(trials)
    assert len(table.columns) == 2
    assert detail in {column.detail for column in table.columns}
    assert not any(each.best for each in table.cells.values())


def test_other_settings_are_another_row_and_the_seed_is_not() -> None:
    trials = frame(
        [
            trial_record("fedgmc", 0.8, seed=0),
            trial_record("fedgmc", 0.8, seed=1),
            trial_record("fedgmc", 0.9, seed=0, method_lr=0.02),
            trial_record("fedgmc", 0.9, seed=0, method_lr=0.02, method_version="2"),
        ]
    )
    (table,) = method_by_scenario(trials)
    assert {(row.name, table.cells[row, table.columns[0]].n) for row in table.rows} == {
        ("FedGMC (lr=0.01, method_version=1)", 2),
        ("FedGMC (lr=0.02, method_version=1)", 1),
        ("FedGMC (lr=0.02, method_version=2)", 1),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"label": "FedAvg (H2GCN)"},
        {"backbone": "h2gcn"},
        {"method_lr": 0.02},
        {"train_fraction": 0.5},
        {"uncut": True},
        {"client_features": "permuted"},
        {"partition": "random"},
    ],
    ids=str,
)
def test_no_published_figure_for_anything_but_the_published(change: dict[str, object]) -> None:
    (table,) = method_by_scenario(frame([trial_record("fedavg", 0.8, **change)]))
    assert [each.published for each in table.cells.values()] == [None]


def test_a_method_is_one_row_where_only_some_of_its_data_sets_are_as_published() -> None:
    trials = frame([trial_record("fedavg"), trial_record("fedavg", dataset="citeseer", method_lr=0.02)])
    (table,) = method_by_scenario(trials)
    assert [row.name for row in table.rows] == ["FedAvg"]
    assert cell(table, "FedAvg").published is not None
    assert cell(table, "FedAvg", "citeseer").published is None


def test_a_parameter_that_older_trials_lack_splits_nothing() -> None:
    older = trial_record("fedavg", seed=1, features="default", train_fraction=None, test_fraction=None)
    for key in ("uncut", "client_features", "method.client_weights"):
        del older["params"][key]
    (table,) = method_by_scenario(frame([trial_record("fedavg"), older]))
    assert [column.title for column in table.columns] == ["Cora · metis · 10 clients"]
    assert cell(table, "FedAvg").seeds == (0, 1)
    assert cell(table, "FedAvg").published is not None


def test_trials_without_parameters_have_no_cell() -> None:
    lost = [trial_record("fedavg", 0.8, status=status) for status in ("FINISHED", "RUNNING")]
    for each in lost:
        each["params"] = {}
    (table,) = method_by_scenario(frame([trial_record("fedavg"), *lost]))
    assert cell(table, "FedAvg").seeds == (0,)
    assert method_by_scenario(frame(lost)) == ()


def test_the_centralised_reference_is_missing_nowhere_and_nothing_is_missing_there() -> None:
    reference = [trial_record("fedopt", label="uncut graph", uncut=True, seed=seed) for seed in (0, 1)]
    (table,) = method_by_scenario(frame([trial_record("fedavg"), *reference]))
    assert [column.detail for column in table.columns] == ["uncut=False", "uncut=True"]
    assert table.missing == ()


def test_the_newest_of_two_equal_trials_counts() -> None:
    (table,) = method_by_scenario(frame([trial_record("fedavg", 0.8), trial_record("fedavg", 0.5)]))
    assert cell(table, "FedAvg").mean == pytest.approx(80)


def test_rows_and_columns_come_in_the_papers_order() -> None:
    scenarios = [("minesweeper", 10), ("cora", 10), ("cora", 5)]
    records = [
        trial_record(algorithm, 0.8, dataset=dataset, clients=clients)
        for algorithm in ("fedgmc", "local", "fedavg")
        for dataset, clients in scenarios
    ]
    (table,) = method_by_scenario(frame(records))
    assert [(column.dataset, column.clients) for column in table.columns] == scenarios[::-1]
    assert [row.name for row in table.rows] == ["Local", "FedAvg", "FedGMC"]


def test_the_summary_has_medians_and_megabytes() -> None:
    seconds = (0.1, 0.2, 0.9)
    trials = frame(
        [trial_record("fedavg", 0.8, seed=seed, seconds_per_round=each) for seed, each in enumerate(seconds)]
    )
    (row,) = summary_table(trials).to_dict("records")
    assert row["seconds_per_round"] == pytest.approx(0.2)
    assert (row["uplink_mb"], row["downlink_mb"], row["n"]) == (pytest.approx(2.5), pytest.approx(5), 3)
    assert (row["method"], row["scenario"]) == ("FedAvg", "Cora · metis · 10 clients")


def test_the_summary_is_shown_in_words_and_never_as_markup() -> None:
    records = [
        trial_record("fedavg", score, seed=seed, label=f"{HOSTILE}[red]|x")
        for seed, score in ((0, 0.8), (1, 0.84))
    ]
    records.append(
        trial_record("fedavg", 0.7, dataset="standin:questions", metric="auc", data_kind="stand-in")
    )
    summary = summary_table(frame(records))
    console = Console(width=150, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(summary_as_rich(summary))
    assert f"{HOSTILE}[red]|x" in capture.get()
    assert "82.00 ± 2.00" in capture.get()
    assert "synthetic graph" in capture.get()


def test_a_summary_of_nothing_says_so() -> None:
    summary = summary_table(frame([trial_record("fedavg", 0.8, status="FAILED")]))
    assert summary.empty
    console = Console(width=80)
    with console.capture() as capture:
        console.print(summary_as_rich(summary))
    assert "No trial has finished" in capture.get()


def test_titles_of_unknown_sets_are_their_names() -> None:
    assert Column("mine", "metis", 3, "accuracy", "train_fraction=0.5").title == (
        "mine · metis · 3 clients · train_fraction=0.5"
    )
    assert Row("x", "x", "unknown").name == "x"
