"""A rehearsal gives the bytes that a run is seen to send."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.sweeps import run
from fedatlas.sweeps.experiment import Experiment, experiment, resolve
from fedatlas.sweeps.rehearsal import traffic

SETTING = {"dataset": "minesweeper", "partition": "random", "rounds": 2}


def given(**values: Any) -> Experiment:
    return resolve(experiment({**SETTING, **values})).experiment


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"algorithm": "local", "clients": 3}, {}),
        ({"algorithm": "fedavg", "clients": 4}, {"hidden": 16, "lr": 0.1}),
        ({"algorithm": "fedavg", "clients": 2, "backbone": "h2gcn"}, {}),
        ({"algorithm": "fedper", "clients": 3}, {"hidden": 32}),
        ({"algorithm": "fedopt", "clients": 3}, {"shared": "encoder"}),
        ({"algorithm": "fedgmc", "clients": 5}, {"templates": 16}),
        ({"algorithm": "fedavg", "clients": 4, "participation": 0.5}, {}),
        ({"algorithm": "fedgmc", "clients": 3, "secure_aggregation": True}, {}),
    ],
)
def test_bytes_of_a_run_are_known_before_it(values: dict[str, Any], options: dict[str, Any]) -> None:
    expected = traffic(given(**values, options=options))
    done = run(
        **SETTING, **values, options=options, tracking=False, progress=False, announce=lambda text: None
    )
    assert done.values["uplink_bytes_per_round"] == pytest.approx(expected.uplink, abs=0.5)
    assert done.values["downlink_bytes_per_round"] == pytest.approx(expected.downlink, abs=0.5)
    assert expected.preparation == 0


def test_bytes_grow_with_features_classes_and_clients() -> None:
    """FedAvg with a GCN of two layers sends f p + p C weights and p + C biases, and two sizes."""
    for dataset, features, classes in (("cora", 1433, 7), ("ogbn-arxiv", 128, 40), ("questions", 301, 2)):
        for clients in (5, 50):
            values = {"dataset": dataset, "partition": "metis", "clients": clients, "algorithm": "fedavg"}
            found = traffic(resolve(experiment(values)).experiment)
            weights = 4 * sum((features * 128, 128, *(128 * 128, 128), 128 * classes, classes))
            assert found.downlink == clients * weights
            assert found.uplink == clients * (weights + 8)
