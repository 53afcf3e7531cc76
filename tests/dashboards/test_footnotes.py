"""Footnotes say what travels, which settings were tuned, and what differs from the protocol."""

from __future__ import annotations

import pytest

from fedatlas.algorithms.fedgmc import FedGMC
from fedatlas.algorithms.fedprox import FedProx
from fedatlas.dashboards.cells import arrange
from fedatlas.dashboards.footnotes import row_notes, scenario_notes

from .conftest import frame, trial_record

CORA = "Cora · metis · 10 clients"
FEDOPT = "aggregation fedopt: gradients averaged, one Adam step on the server"
FEDAVG = "aggregation fedavg: weights averaged after each client's Adam"


def note(algorithm: str, **changes: object) -> str:
    if "aggregation" in changes:
        changes["method_aggregation"] = changes["aggregation"]
    ((_, text),) = row_notes(arrange(frame([trial_record(algorithm, **changes)])))
    return text


def test_the_protocol_needs_no_note() -> None:
    assert scenario_notes(arrange(frame([trial_record("fedavg"), trial_record("local")]))) == []


def test_fewer_rounds_than_the_protocol_are_noted() -> None:
    notes = scenario_notes(arrange(frame([trial_record("fedavg", rounds=5)])))
    assert notes == [(CORA, "5 rounds; the papers' protocol has 100")]


def test_other_features_and_precision_than_the_protocols_are_noted() -> None:
    notes = scenario_notes(arrange(frame([trial_record("fedavg", features="l2", precision="float64")])))
    assert notes == [
        (CORA, "l2 features; the papers' protocol has row"),
        (CORA, "float64 precision; the papers' protocol has float32"),
    ]


def test_unequal_settings_of_methods_are_noted() -> None:
    trials = frame([trial_record("fedavg"), trial_record("fedper", rounds=200)])
    assert scenario_notes(arrange(trials)) == [
        (CORA, "rounds differ between methods: 100 for FedAvg; 200 for FedPer")
    ]


def test_tuned_methods_are_named_beside_those_with_the_protocols_defaults() -> None:
    records = [trial_record(algorithm) for algorithm in ("local", "fedavg", "fedopt", "fedgmc")]
    text = (
        "training settings differ between methods: Local, FedAvg with the protocol's defaults; "
        "FedOpt, FedGMC tuned (weight_decay 0.0005, activation elu, input_dropout 0.5)"
    )
    assert scenario_notes(arrange(frame(records))) == [(CORA, text)]


def test_scenarios_with_the_same_note_share_a_line() -> None:
    records = [
        trial_record(algorithm, clients=clients, dataset=dataset)
        for algorithm in ("fedavg", "fedgmc")
        for dataset, clients in (("cora", 5), ("cora", 10), ("pubmed", 10))
    ]
    titles = [title for title, _ in scenario_notes(arrange(frame(records)))]
    assert titles == [f"Cora · metis · 5 clients, {CORA}", "PubMed · metis · 10 clients"]


def test_equally_tuned_methods_do_not_differ() -> None:
    assert scenario_notes(arrange(frame([trial_record("fedopt"), trial_record("fedgmc")]))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, f"{FEDAVG}; all weights travel; backbone gcn"),
        ({"method_shared": "encoder"}, f"{FEDAVG}; only the encoder travels; backbone gcn"),
        ({"method_shared": "classifier"}, f"{FEDAVG}; only the classifier weight travels; backbone gcn"),
        ({"method_shared": "none"}, "aggregation fedavg: nothing travels; backbone gcn"),
        (
            {"aggregation": "fedopt", "method_shared": "all_but_bias"},
            f"{FEDOPT}; all weights but the classifier bias travel; backbone gcn",
        ),
    ],
    ids=str,
)
def test_what_travels_is_what_was_tracked(changes: dict[str, object], expected: str) -> None:
    assert note("fedavg", **changes) == expected


def test_local_sends_nothing_and_calibration_without_weights_still_sends() -> None:
    assert note("local") == "aggregation none: nothing travels; backbone gcn"
    assert note("fedgmc", aggregation="none").startswith(
        "aggregation none: no weights travel; backbone h2gcn"
    )


def test_settings_that_depend_on_the_data_set_name_it() -> None:
    trials = frame([trial_record("fedopt"), trial_record("fedopt", dataset="tolokers", metric="auc")])
    ((_, text),) = row_notes(arrange(trials))
    assert text.startswith(
        f"{FEDOPT}; all weights but the classifier bias travel (Cora), only the encoder travels (Tolokers); "
        "backbone gcn"
    )


def test_changed_options_are_named_and_the_methods_note_then_speaks_of_its_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FedGMC, "note", "weights below 1")
    assert note("fedgmc").endswith("; backbone h2gcn; weights below 1")
    assert note("fedgmc", method_literal_weights=True).endswith(
        "; backbone h2gcn; options literal_weights=True; by default: weights below 1"
    )
    assert note("fedprox").endswith(f"; backbone gcn; {FedProx.note}")


def test_a_method_that_is_gone_has_what_was_tracked() -> None:
    record = trial_record("fedavg", label="Old", aggregation="own")
    record["params"] = {key: value for key, value in record["params"].items() if "method." not in key}
    record["params"]["algorithm"] = "old"
    assert row_notes(arrange(frame([record]))) == [("Old", "aggregation own; backbone gcn")]
