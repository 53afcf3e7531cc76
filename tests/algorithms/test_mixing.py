"""Personalised averaging: its two extremes, and what the rows of the mixing matrix are."""

from __future__ import annotations

import pytest
import torch

from fedatlas.algorithms.backbones import GCN
from fedatlas.algorithms.mixing import (
    PersonalisedAveraging,
    PersonalisedConfiguration,
    PersonalisedServer,
    cosine_similarity,
    mixed,
    row_stochastic,
)
from fedatlas.algorithms.weight_sharing import SharedClient


class Fixed(PersonalisedAveraging[PersonalisedConfiguration, PersonalisedServer, SharedClient]):
    """Mixes with a matrix given in advance."""

    name = "fixed"
    title = "Fixed"
    configuration_type = PersonalisedConfiguration

    def __init__(self, matrix, **options):
        configuration = PersonalisedConfiguration(hidden=8, **options)
        super().__init__(configuration, GCN(hidden=8))
        self.matrix = matrix

    def mixing(self, server, upload, round_number):
        return self.matrix


def weights_of(outcome):
    return outcome.clients["weights"]


@pytest.mark.parametrize("shared", ["all", "encoder"])
def test_equal_entries_are_fedavg(make_federation, make_method, run, shared):
    federation = make_federation()
    found = run(Fixed(torch.ones(4, 4), shared=shared), federation)
    expected = run(make_method("fedavg", shared=shared), federation)
    for name, weight in weights_of(found).items():
        torch.testing.assert_close(weight, weights_of(expected)[name], rtol=0, atol=1e-12)
    assert [r.uplink for r in found.records] == [r.uplink for r in expected.records]
    assert [r.downlink for r in found.records] == [r.downlink for r in expected.records]


def test_the_identity_is_local(make_federation, make_method, run):
    federation = make_federation()
    found, expected = run(Fixed(torch.eye(4)), federation), run(make_method("local"), federation)
    for name, weight in weights_of(found).items():
        torch.testing.assert_close(weight, weights_of(expected)[name], rtol=0, atol=1e-12)
    assert found.records[-1].metrics["mixing/self"] == 1
    assert found.records[-1].metrics["mixing/entropy"] == 0


def test_aggregation_none_sends_nothing(make_federation, run):
    outcome = run(Fixed(torch.ones(4, 4), aggregation="none"), make_federation())
    assert all(record.uplink == record.downlink == {} for record in outcome.records)


def test_a_client_without_training_nodes_gives_nothing_and_receives(make_federation, run):
    federation = make_federation()
    nobody = federation.graphs[3].train & False
    federation = federation.changed(3, train=nobody, test=~federation.graphs[3].validation)
    outcome = run(Fixed(torch.ones(4, 4)), federation, rounds=2)
    expected = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0], dtype=torch.float64).expand(4, 4)
    torch.testing.assert_close(outcome.server["mixing"], expected)


def test_rows_without_weight_keep_their_own_client():
    rows = row_stochastic(torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([True, True]))
    assert rows.tolist() == [[1, 0], [0.25, 0.75]]
    assert row_stochastic(torch.ones(2, 2), torch.tensor([False, False])).tolist() == [[1, 0], [0, 1]]


def test_mixing_acts_on_the_client_axis_of_any_shape():
    stacked = {"a": torch.tensor([[1.0], [3.0]]), "b": torch.tensor([[[2.0]], [[6.0]]])}
    found = mixed(stacked, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    assert found["a"].tolist() == [[2], [3]]
    assert found["b"].tolist() == [[[4]], [[6]]]


def test_cosines_are_symmetric_with_zero_for_zero_rows():
    found = cosine_similarity(torch.tensor([[1.0, 0.0], [3.0, 3.0], [0.0, 0.0]]))
    expected = torch.tensor([[1, 0.5**0.5, 0], [0.5**0.5, 1, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
