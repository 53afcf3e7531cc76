"""Curves, effort and phases against hand computation."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.dashboards.cells import arrange
from fedatlas.dashboards.traces import Trace, curve, effort, mean_of, phases

from .conftest import frame, trial_record


def trace(test: list[float], sent: list[float]) -> Trace:
    return Trace(np.array(test), np.array(test), np.array(sent))


def test_a_curve_is_mean_and_population_deviation_per_round() -> None:
    found = curve([np.array([0.2, 0.4]), np.array([0.4, 0.8])])
    assert found.mean.tolist() == pytest.approx([30, 60])
    assert found.std.tolist() == pytest.approx([10, 20])
    assert (found.rounds.tolist(), found.n) == ([1, 2], 2)


def test_a_round_that_some_trials_lack_has_the_mean_of_the_others() -> None:
    found = curve([np.array([0.2, np.nan, 0.5]), np.array([0.4, 0.8])])
    assert found.mean.tolist() == pytest.approx([30, 80, 50])
    assert found.std.tolist() == pytest.approx([10, 0, 0])
    assert np.isnan(curve([np.array([np.nan])]).mean[0])


def test_effort_is_when_95_percent_is_first_reached() -> None:
    (first, second) = arrange(frame([trial_record("fedavg", 0.8, seed=seed) for seed in (0, 1)]))
    members = [
        (first, trace([0.5, 0.76, 0.7, 0.8], [1, 2, 3, 4])),
        (second, trace([0.5, 0.5, 0.5, 0.8], [1, 2, 3, 4])),
    ]
    found = effort(members)
    assert found is not None
    assert (found.rounds, found.megabytes) == (3, 3)
    assert effort([(first, trace([np.nan], [1]))]) is None


def test_phases_part_what_was_marked_from_what_holds_it() -> None:
    columns = {
        f"time/{name}_seconds": np.full(3, value)
        for name, value in {
            "clients": 1.0,
            "train": 0.6,
            "calibration": 0.2,
            "evaluate": 0.1,
            "serialisation": 0.05,
            "aggregate": 0.3,
            "refinement": 0.25,
            "broadcast": 0.0,
        }.items()
    }
    found = phases(columns, logging=0.01)
    assert found == pytest.approx(
        {
            "training": 0.4,
            "calibration": 0.2,
            "evaluation": 0.1,
            "transport": 0.25,
            "serialisation": 0.05,
            "aggregation": 0.05,
            "refinement": 0.25,
            "logging": 0.01,
        }
    )


def test_scores_after_aggregation_take_no_transport() -> None:
    columns = {
        "time/clients_seconds": np.array([0.5]),
        "time/train_seconds": np.array([0.5]),
        "time/evaluate_seconds": np.array([0.4]),
    }
    assert phases(columns) == pytest.approx({"training": 0.5, "evaluation": 0.4})


def test_what_a_trial_lacks_counts_as_nothing() -> None:
    assert mean_of([{"weights": 2.0}, {"weights": 4.0, "anchors": 1.0}]) == {"weights": 3.0, "anchors": 0.5}
