"""Footnotes name what differs from the protocol or between methods."""

from __future__ import annotations

from fedatlas.dashboards.cells import arrange
from fedatlas.dashboards.footnotes import row_notes, scenario_notes

from .conftest import frame, trial_record

CORA = "Cora · metis · 10 clients"


def test_the_protocol_needs_no_note() -> None:
    assert scenario_notes(arrange(frame([trial_record("fedavg"), trial_record("fedgmc")]))) == []


def test_fewer_rounds_than_the_protocol_are_noted() -> None:
    notes = scenario_notes(arrange(frame([trial_record("fedavg", rounds=5)])))
    assert notes == [(CORA, "5 rounds; the papers' protocol has 100")]


def test_unequal_settings_of_methods_are_noted() -> None:
    trials = frame([trial_record("fedavg"), trial_record("fedgmc", rounds=200)])
    assert scenario_notes(arrange(trials)) == [
        (CORA, "rounds differ between methods: 100 for FedAvg; 200 for FedGMC")
    ]


def test_the_note_of_a_method_stands_only_beside_its_own_aggregation() -> None:
    own = row_notes(arrange(frame([trial_record("fedgmc", aggregation="fedopt", backbone="h2gcn")])))
    other = row_notes(arrange(frame([trial_record("fedgmc", aggregation="fedavg", backbone="h2gcn")])))
    assert own[0][0] == "FedGMC"
    assert own[0][1].startswith("aggregation fedopt; backbone h2gcn; gradients averaged")
    assert other == [("FedGMC", "aggregation fedavg; backbone h2gcn")]
