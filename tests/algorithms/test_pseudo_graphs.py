"""Pseudo graphs and the losses on them equal the written formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms import pseudo_graphs
from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.fedtad import FedTAD
from fedatlas.platform.federation.cohort import Task, stack
from fedatlas.platform.graphs.graph import ClientGraph

TASK = Task(clients=3, features=6, classes=4, metric="accuracy", seed=0)


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def made(nodes=14, noise=5):
    weights = {name: w.double() for name, w in pseudo_graphs.initial_generator(TASK, noise).items()}
    labels = pseudo_graphs.pseudo_labels(nodes, TASK.classes)
    return weights, labels, normal(nodes, noise)


@pytest.mark.parametrize(
    ("nodes", "classes", "counts"), [(100, 7, [14] * 6 + [16]), (4, 4, [1] * 4), (5, 2, [2, 3])], ids=str
)
def test_the_last_class_gets_the_remainder(nodes, classes, counts):
    labels = pseudo_graphs.pseudo_labels(nodes, classes)
    assert torch.bincount(labels).tolist() == counts
    assert labels.tolist() == sorted(labels.tolist())


def test_the_generator_maps_noise_and_class_to_features():
    weights, labels, noise = made()
    features = pseudo_graphs.generate(weights, labels, noise)
    assert features.shape == (14, 6)
    assert torch.isfinite(features).all()
    same = pseudo_graphs.generate(weights, torch.arange(4), noise[:1].expand(4, -1))
    assert float(torch.pdist(same).min()) > 1e-3
    assert [tuple(weights[f"{layer}.weight"].shape) for layer in range(4)] == [
        (9, 64), (64, 128), (128, 256), (256, 6),
    ]  # fmt: skip


def test_nodes_are_joined_to_their_most_similar_ones():
    features = normal(20, 6)
    adjacency = pseudo_graphs.nearest_neighbours(features, 5)
    dense = adjacency.toarray()
    assert set(np.unique(dense)) == {0, 1}
    np.testing.assert_array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    assert ((dense + np.eye(20)).sum(axis=1) >= 5).all()
    rows = (features / features.norm(dim=1, keepdim=True)).numpy()
    best = np.argsort(-rows @ rows.T, axis=1)[:, :5]
    expected = np.zeros((20, 20))
    np.put_along_axis(expected, best, 1, axis=1)
    np.testing.assert_array_equal(dense + np.eye(20), np.maximum(expected, expected.T))


def test_more_neighbours_than_nodes_join_everyone():
    assert pseudo_graphs.nearest_neighbours(normal(3, 6), 5).nnz == 6


@pytest.mark.parametrize("backbone", FedTAD.backbones)
def test_models_see_the_pseudo_graph_as_a_client_would(backbone):
    """One batched pass over replicas equals one pass per model, and gradients reach the features."""
    weights, labels, noise = made()
    network = BACKBONES[backbone](hidden=8)
    models = {
        name: torch.stack([w.double() + 0.1 * normal(*w.shape, seed=m) for m in range(3)])
        for name, w in network.initialise(TASK).items()
    }
    features = pseudo_graphs.generate(weights, labels, noise).requires_grad_()
    adjacency = pseudo_graphs.nearest_neighbours(features, 5)
    graph = pseudo_graphs.replicated_graph(TASK, features, adjacency, labels, 3)
    together = network.forward(models, graph, None).logits
    everyone = np.ones(14, dtype=bool)
    alone = ClientGraph(
        client=0,
        nodes=np.arange(14),
        features=features.detach().numpy(),
        edges=np.stack(adjacency.nonzero()),
        labels=labels.numpy(),
        train=everyone,
        validation=~everyone,
        test=~everyone,
    )
    cohort = stack([alone], TASK, "float64")
    for m in range(3):
        single = {name: weight[m : m + 1] for name, weight in models.items()}
        torch.testing.assert_close(together[m], network.forward(single, cohort, None).logits[0])
    (gradient,) = torch.autograd.grad(together.square().sum(), features)
    assert float(gradient.abs().sum(dim=1).min()) > 0


def test_losses_are_the_written_sums():
    labels = pseudo_graphs.pseudo_labels(10, 4)
    local, shared = normal(3, 10, 4), normal(10, 4, seed=1)
    phi = normal(3, 4, seed=2).abs()
    average = pseudo_graphs.class_average(labels, 4, torch.float64)
    semantic = distance = 0.0
    for m in range(3):
        for c in range(4):
            rows = labels == c
            semantic += phi[m, c] * torch.nn.functional.cross_entropy(local[m, rows], labels[rows])
            distance += phi[m, c] * (shared[rows] - local[m, rows]).abs().mean(dim=1).mean()
    torch.testing.assert_close(pseudo_graphs.semantic_loss(local, labels, average, phi), semantic)
    torch.testing.assert_close(pseudo_graphs.disagreement(shared, local, average, phi), distance)


def test_equal_models_do_not_disagree_and_local_models_get_no_gradient():
    labels = pseudo_graphs.pseudo_labels(10, 4)
    average = pseudo_graphs.class_average(labels, 4, torch.float64)
    shared = normal(10, 4)
    local = shared.expand(3, -1, -1).clone().requires_grad_()
    phi = torch.full((3, 4), 1 / 3, dtype=torch.float64)
    assert float(pseudo_graphs.disagreement(shared, local, average, phi)) == 0
    moved = shared.clone().requires_grad_()
    assert not pseudo_graphs.disagreement(shared, local, average, phi).requires_grad
    assert pseudo_graphs.disagreement(moved, local, average, phi).requires_grad


def test_diversity_is_the_written_mean_and_falls_as_features_spread():
    features, noise = normal(9, 6), normal(9, 5, seed=1)
    apart = (features[:, None] - features).abs().mean(dim=2)
    noisy = (noise[:, None] - noise).square().mean(dim=2)
    torch.testing.assert_close(
        pseudo_graphs.diversity_loss(features, noise), torch.exp(-(apart * noisy).mean())
    )
    spread = [float(pseudo_graphs.diversity_loss(scale * features, noise)) for scale in (0.0, 0.5, 1.0, 2.0)]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] == 1
