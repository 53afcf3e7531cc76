"""Gains over Local are differences of the same seed, and SEAL's printed figures stand beside them."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.dashboards.cells import arrange
from fedatlas.dashboards.gains import gain_table, gains
from fedatlas.dashboards.literature import Published, PublishedGain, published, published_gain
from fedatlas.dashboards.tables import method_by_scenario

from .conftest import frame, trial_record

SCORES = {
    ("local", 0): [0.5, 0.6, 0.7],
    ("local", 1): [0.5, 0.5, 0.5],
    ("seal", 0): [0.6, 0.6, 0.65],
    ("seal", 1): [0.6, 0.7, np.nan],
}


def graph_trial(algorithm: str, seed: int = 0, partition: str = "iid", **changes: object):
    return trial_record(algorithm, dataset="nci1", partition=partition, seed=seed, **changes)


def placed(records):
    return arrange(frame(records))


def scored(repetitions):
    return {each.run_id: np.array(SCORES[each.row.algorithm, each.seed]) for each in repetitions}


def test_gain_and_improved_clients_are_means_over_seeds() -> None:
    found = placed([graph_trial(name, seed) for name, seed in SCORES])
    ((key, gain),) = gains(found, scored(found)).items()
    assert key[0].algorithm == "seal"
    assert gain.mean == pytest.approx((5 / 3 + 15) / 2)
    assert (gain.improved, gain.improved_or_equal, gain.clients) == (1.5, 2.0, 3)
    assert gain.seeds == (0, 1)
    assert gain.published == PublishedGain(3.65, 7)
    row = gain_table({key: gain}).iloc[0]
    assert (row["method"], row["n"], row["published_improved"]) == ("SEAL", 2, 7)


def test_seeds_without_local_do_not_count() -> None:
    found = placed([graph_trial("local", 0), graph_trial("seal", 0), graph_trial("seal", 1)])
    (gain,) = gains(found, scored(found)).values()
    assert gain.seeds == (0,)
    assert not gains(found[:1], scored(found))


def test_a_variant_of_local_is_compared_with_local() -> None:
    varied = graph_trial("local", 0, label="Local + RepDec", method_repdec=0.005)
    found = placed([graph_trial("local", 0), varied])
    scores = {each.run_id: np.array([0.5, 0.4]) for each in found}
    (key,) = gains(found, scores)
    assert key[0].label == "Local + RepDec"


@pytest.mark.parametrize(
    ("record", "printed"),
    [
        (graph_trial("fedavg"), Published(64.03, 0.41, "SEAL")),
        (graph_trial("fedavg", label="FedAvg + RepDec", method_repdec=0.01), Published(66.27, 0.49, "SEAL")),
        (graph_trial("seal"), Published(67.62, 0.58, "SEAL")),
        (graph_trial("seal", label="SEAL w/o RepDec", method_repdec=0.0), Published(66.03, 0.42, "SEAL")),
        (graph_trial("seal", label="SEAL (rho=0.01)", method_rho=0.01), None),
        (graph_trial("seal", partition="dirichlet", concentration=0.01), Published(65.53, 0.70, "SEAL")),
        (graph_trial("seal", partition="dirichlet", concentration=0.5), None),
    ],
)
def test_a_cell_has_the_figure_of_what_it_is(record, printed) -> None:
    (table,) = method_by_scenario(frame([record]))
    (cell,) = table.cells.values()
    assert cell.published == printed


def test_printed_figures_of_the_groups() -> None:
    assert published("chem", "cross-dataset", 7, "gcflplus+repdec") == Published(76.43, 0.34, "SEAL")
    assert published_gain("biosncv", "cross-dataset", 9, "sealb") == PublishedGain(2.61, 6)
    assert published_gain("nci1", "iid", 10, "local") is None
