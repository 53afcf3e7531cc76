from __future__ import annotations

import pytest
import torch

from fedatlas.algorithms.aggregation import normalised_client_weights, shared_names, weighted_mean

NAMES = ("encoder.weight", "encoder.bias", "classifier.weight", "classifier.bias")


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ("all", NAMES),
        ("all_but_bias", NAMES[:3]),
        ("encoder", NAMES[:2]),
        ("none", ()),
    ],
)
def test_shared_names(shared, expected):
    assert shared_names(NAMES, shared) == expected


def sizes(train, nodes):
    return {"size/train_nodes": torch.tensor(train), "size/nodes": torch.tensor(nodes)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uniform", [1 / 3, 0, 1 / 3, 1 / 3]),
        ("train_nodes", [0.2, 0, 0.3, 0.5]),
        ("nodes", [4 / 16, 0, 4 / 16, 8 / 16]),
    ],
)
def test_clients_without_training_nodes_have_no_weight(kind, expected):
    weights = normalised_client_weights(kind, sizes([2, 0, 3, 5], [4, 9, 4, 8]))
    torch.testing.assert_close(weights, torch.tensor(expected).double())


@pytest.mark.parametrize("kind", ["uniform", "train_nodes", "nodes"])
def test_all_weights_are_equal_if_nobody_trains(kind):
    weights = normalised_client_weights(kind, sizes([0, 0], [3, 4]))
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5]).double())


def stacked(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return {"w": torch.randn(4, 3, 2, dtype=dtype, generator=generator), "b": torch.ones(4, dtype=dtype)}


def test_weighted_mean_is_the_written_sum():
    weights, tensors = torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), stacked()
    mean = weighted_mean(tensors, weights)
    torch.testing.assert_close(mean["w"], sum(p * w for p, w in zip(weights, tensors["w"], strict=True)))
    torch.testing.assert_close(mean["b"], torch.tensor(1.0).double())


def test_mean_lies_between_the_clients_and_does_not_depend_on_their_order():
    tensors, weights = stacked(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    mean = weighted_mean(tensors, weights)["w"]
    assert (mean <= tensors["w"].amax(dim=0)).all()
    assert (mean >= tensors["w"].amin(dim=0)).all()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(weighted_mean({"w": tensors["w"][order]}, weights[order])["w"], mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_of_equal_clients_is_that_client(dtype):
    one = stacked(dtype)["w"][:1]
    mean = weighted_mean({"w": one.expand(4, 3, 2)}, torch.full((4,), 0.25).double())["w"]
    assert torch.equal(mean, one[0])
    assert mean.dtype == dtype
    assert torch.equal(weighted_mean({"w": one}, torch.ones(1).double())["w"], one[0])
