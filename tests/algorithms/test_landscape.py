"""Sharpness, slices and spectra equal what dense algebra gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms.landscape import (
    TrainingLoss,
    filter_normalised,
    largest_eigenvalue,
    loss_slice,
    representation_spectrum,
    training_sample,
)
from fedatlas.platform.federation.cohort import stack


class Quadratic:
    """Half w' H w of each client, with w in two tensors."""

    def __init__(self, hessians):
        self.hessians = hessians

    def _flat(self, weights):
        return torch.cat([weights["a"].flatten(1), weights["b"]], dim=1)

    def values(self, weights):
        flat = self._flat(weights)
        return 0.5 * torch.einsum("ki,kij,kj->k", flat, self.hessians, flat)

    def gradients(self, weights):
        gradient = torch.einsum("kij,kj->ki", self.hessians, self._flat(weights))
        return {"a": gradient[:, :4].reshape(-1, 2, 2), "b": gradient[:, 4:]}


@pytest.fixture
def trained(make_graph_federation, make_method):
    federation = make_graph_federation(graphs=(21, 9), features=2, classes=2)
    method = make_method("fedavg", "gat", hidden=4, layers=1, dropout=0.0, optimizer="sgd", lr=0.1)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    method.update(client, cohort, 0)
    return method, client, cohort


@pytest.mark.parametrize("spectrum", [[5.0, 2.0, 1.0, 0.5, 0.1, 0.0], [-5.0, 2.0, 1.0, 0.5, 0.1, 0.0]])
def test_power_iteration_finds_the_eigenvalue_of_largest_magnitude(trained, spectrum):
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 6, 6, dtype=torch.float64, generator=generator)).Q
    hessians = basis @ torch.diag(torch.tensor(spectrum).double()) @ basis.transpose(1, 2)
    weights = {"a": torch.ones(2, 2, 2).double(), "b": torch.ones(2, 2).double()}
    found = largest_eigenvalue(Quadratic(hessians), weights, trained[2], iterations=40)
    torch.testing.assert_close(found, torch.full((2,), spectrum[0]).double(), rtol=1e-6, atol=0)


def test_the_eigenvalue_is_that_of_the_whole_hessian(trained):
    method, client, cohort = trained
    loss = TrainingLoss(method, client, cohort)
    weights = client.weights
    rows = []
    for name, weight in weights.items():
        for place in range(weight[0].numel()):
            shift = torch.zeros_like(weight)
            shift.flatten(1)[:, place] = 1e-5
            ahead, behind = (loss.gradients({**weights, name: weight + sign * shift}) for sign in (1, -1))
            rows.append(
                torch.cat([(ahead[each] - behind[each]).flatten(1) for each in weights], dim=1) / 2e-5
            )
    hessians = torch.stack(rows, dim=1)
    exact = torch.linalg.eigvalsh((hessians + hessians.transpose(1, 2)) / 2)
    largest = exact.gather(1, exact.abs().argmax(dim=1, keepdim=True))[:, 0]
    found = largest_eigenvalue(loss, weights, cohort, iterations=200)
    torch.testing.assert_close(found, largest, rtol=1e-3, atol=1e-6)


def test_gradients_are_those_of_the_values(trained):
    method, client, cohort = trained
    loss = TrainingLoss(method, client, cohort)
    gradients = loss.gradients(client.weights)
    name = "encoder.0.weight"
    shift = torch.zeros_like(client.weights[name])
    shift[:, 1, 2] = 1e-6
    ahead, behind = (
        loss.values({**client.weights, name: client.weights[name] + sign * shift}) for sign in (1, -1)
    )
    torch.testing.assert_close((ahead - behind) / 2e-6, gradients[name][:, 1, 2], rtol=1e-4, atol=1e-8)


def test_directions_have_filters_as_long_as_those_of_the_weights(trained):
    _, client, cohort = trained
    direction = filter_normalised(client.weights, cohort, "direction/1")
    weight = client.weights["encoder.0.weight"]
    torch.testing.assert_close(direction["encoder.0.weight"].norm(dim=1), weight.norm(dim=1))
    torch.testing.assert_close(
        direction["encoder.0.end"].norm(dim=1), client.weights["encoder.0.end"].norm(dim=1)
    )
    assert not direction["encoder.0.bias"].any()
    other = filter_normalised(client.weights, cohort, "direction/2")
    assert not torch.allclose(direction["encoder.0.weight"], other["encoder.0.weight"])


def test_the_middle_of_a_slice_is_the_loss_and_its_axes_are_the_directions(trained):
    method, client, cohort = trained
    loss = TrainingLoss(method, client, cohort)
    first, second = (filter_normalised(client.weights, cohort, f"direction/{each}") for each in (1, 2))
    found = loss_slice(loss, client.weights, first, second, points=3)
    with torch.no_grad():
        torch.testing.assert_close(found[:, 1, 1], loss.values(client.weights))
        moved = {name: weight - first[name] for name, weight in client.weights.items()}
        torch.testing.assert_close(found[:, 0, 1], loss.values(moved))


def test_the_spectrum_is_that_of_the_covariance(trained):
    method, client, cohort = trained
    batch = training_sample(cohort).cohort
    with torch.no_grad():
        embedding = method.represent(client, batch, client.weights, None).embedding
    found = representation_spectrum(method, client, cohort)
    for row in range(2):
        rows = embedding[row, batch.train[row]].numpy()
        expected = np.linalg.svd(np.cov(rows.T, bias=True))[1]
        np.testing.assert_allclose(found[row], expected, atol=1e-10)


def test_figures_are_exported_for_every_client(trained):
    method, client, cohort = trained
    found = method.snapshot(client, cohort)
    assert {name: tuple(each.shape) for name, each in found.items()} == {
        "spectrum": (2, 4),
        "landscape": (2, 11, 11),
        "sharpness": (2,),
    }
    assert method.exports("graph")
    assert not method.exports("node")
