"""Marked phases are counted where somebody collects them, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.platform.federation.coordinator import MIXING_ROUNDS, Coordinator, Schedule
from fedatlas.platform.federation.phases import collected, phase
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps.execution import job
from fedatlas.sweeps.experiment import experiment, resolve

SMALL = {"dataset": "minesweeper", "clients": 4, "partition": "random", "placement": "inline"}


def test_parts_of_one_name_add_up_and_nothing_is_kept_outside() -> None:
    with phase("nobody listens"):
        pass
    with collected() as outer:
        with phase("a"), phase("b"):
            pass
        with collected() as inner, phase("a"):
            pass
        with phase("a"):
            pass
    assert set(outer) == {"a", "b"}
    assert set(inner) == {"a"}
    assert outer["a"] >= outer["b"] >= 0


def run(algorithm: str, rounds: int, per_cohort: int | None = None, **options: object) -> Coordinator:
    resolved = resolve(experiment({**SMALL, "algorithm": algorithm, "rounds": rounds, "options": options}))
    coordinator = Coordinator(
        job(resolved, build(resolved.scenario())), InlineRuntime(per_cohort), Schedule(rounds)
    )
    coordinator.start()
    while not coordinator.finished:
        coordinator.advance()
    return coordinator


def test_fedgmc_tells_calibration_and_refinement_apart() -> None:
    for record in run("fedgmc", 2, hidden=8, templates=4).records:
        assert 0 < record.seconds["calibration"] < record.seconds["train"]
        assert 0 < record.seconds["refinement"] < record.seconds["aggregate"]
        assert "time/calibration_seconds" in record.tracked()


@pytest.mark.parametrize("per_cohort", [None, 1])
def test_the_mixing_matrix_is_kept_in_a_few_rounds(per_cohort: int | None) -> None:
    rounds = MIXING_ROUNDS + 7
    records = run("fedgta", rounds, per_cohort, hidden=8).records
    kept = [record.round for record in records if record.mixing is not None]
    assert len(kept) == MIXING_ROUNDS
    assert (kept[0], kept[-1]) == (0, rounds - 1)
    shares = np.array(records[-1].mixing)
    assert shares.shape == (4, 4)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)


def test_shared_averages_have_no_mixing_matrix() -> None:
    assert all(record.mixing is None for record in run("fedavg", 2, hidden=8).records)
