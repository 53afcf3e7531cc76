"""Which rows are a sensitivity curve, and which an ablation."""

from __future__ import annotations

import pytest

from fedatlas.dashboards.tables import ScenarioTable, method_by_scenario
from fedatlas.dashboards.variations import ablations, sensitivities

from .conftest import frame, trial_record


def table_of(*records: dict[str, object]) -> ScenarioTable:
    (table,) = method_by_scenario(frame(records))
    return table


def test_values_of_one_option_are_a_curve_around_the_reference() -> None:
    changes = [{"method_tau": 0.1}, {"method_tau": 5.0}, {"method_eta": 0.5}, {"method_eta": 0.01}]
    records = [trial_record("fedgmc", 0.8)]
    for change in changes:
        ((key, value),) = change.items()
        label = f"FedGMC ({key.removeprefix('method_')}={value})"
        records.append(trial_record("fedgmc", 0.7 + value / 100, label=label, **change))
    curves = sensitivities(table_of(*records))
    assert [(each.option, [point.value for point in each.points]) for each in curves] == [
        ("eta", [0.01, 0.1, 0.5]),
        ("tau", [0.1, 1.0, 5.0]),
    ]
    tau = curves[1].points
    assert [point.reference for point in tau] == [False, True, False]
    assert [point.cell.mean for point in tau] == pytest.approx([70.1, 80, 75])


def test_two_values_are_no_curve_and_methods_are_no_variants_of_each_other() -> None:
    table = table_of(
        trial_record("fedgmc", 0.8),
        trial_record("fedgmc", 0.7, label="FedGMC (tau=5.0)", method_tau=5.0),
        trial_record("fedavg", 0.6),
        trial_record("fedavg", 0.6, label="FedAvg (H2GCN)", backbone="h2gcn"),
    )
    assert sensitivities(table) == ()
    assert ablations(table) == ()


def test_a_switch_is_an_ablation_with_the_published_figure_beside() -> None:
    table = table_of(
        trial_record("fedgmc", 0.8),
        trial_record("fedgmc", 0.75, label="w/o Semantic", method_semantic=False),
        trial_record("fedgmc", 0.82, label="w/o Structural", method_structural=False),
        trial_record("fedopt", 0.79, label="FedOpt (H2GCN)", backbone="h2gcn"),
        trial_record("local", 0.5),
    )
    (found,) = ablations(table)
    assert found.row.name == "FedGMC"
    assert found.published is not None
    assert found.published.value == 83.65
    drops = {each.row.name: (each.drop, each.published and each.published.value) for each in found.variants}
    assert drops == {
        "w/o Semantic": (pytest.approx(5), 79.18),
        "w/o Structural": (pytest.approx(-2), 75.26),
        "FedOpt (H2GCN)": (pytest.approx(1), None),
    }


def test_nothing_is_published_for_an_ablation_under_other_conventions() -> None:
    table = table_of(
        trial_record("fedgmc", 0.8, rounds=5),
        trial_record("fedgmc", 0.75, rounds=5, label="w/o Semantic", method_semantic=False),
    )
    (found,) = ablations(table)
    assert found.published is None
    assert [each.published for each in found.variants] == [None]
