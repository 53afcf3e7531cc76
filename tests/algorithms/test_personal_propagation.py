"""AdaFGL's modules: the blockwise signed propagation equals the written dense formula, with gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from fedatlas.algorithms import personal_propagation as module
from fedatlas.algorithms.personal_propagation import (
    Outputs,
    SimilarPairs,
    combined,
    homophily_confidence,
    optimised_operator,
    signed_propagation,
    similar_predictions,
    smoothed_features,
)
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.operators import gcn_operator
from fedatlas.platform.graphs.edges import undirected


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def predictions(cohort, seed=0):
    """Random probabilities, [n_m, C] of each client."""
    return [torch.softmax(2 * normal(n, cohort.task.classes, seed=seed + n), dim=1) for n in cohort.sizes]


def similar_of(cohort, threshold=0.97, most=3):
    return tuple(similar_predictions(rows, threshold, most) for rows in predictions(cohort))


@pytest.fixture
def cohort(make_federation):
    whole = make_federation(sizes=(17, 1, 9, 23))
    return stack(whole.graphs, whole.task, "float64")


# Similar predictions and the topology made from them


def test_the_double_softmax_brings_different_predictions_together():
    """G10: two different one-hot rows in seven classes have cosine 0.779485."""
    hot = torch.eye(7)[:2]
    assert similar_predictions(hot, 0.779484, None).nnz == 2
    assert similar_predictions(hot, 0.779486, None).nnz == 0


def test_pairs_are_symmetric_without_diagonal_and_above_the_threshold(cohort):
    for rows in predictions(cohort):
        pairs = similar_predictions(rows, 0.97, None).toarray()
        unit = normalize(torch.softmax(rows, dim=1), dim=1)
        cosine = (unit @ unit.T).fill_diagonal_(0)
        np.testing.assert_array_equal(pairs, (cosine > 0.97).double().numpy())


@pytest.mark.parametrize("entries", [2**19, 50])
def test_a_bound_keeps_the_most_similar_pairs_of_both_ends(monkeypatch, entries):
    monkeypatch.setitem(module.BLOCK_ENTRIES, "cpu", entries)
    rows = torch.softmax(normal(30, 3), dim=1)
    unit = normalize(torch.softmax(rows, dim=1), dim=1)
    cosine = (unit @ unit.T).fill_diagonal_(-1).numpy()
    best = np.zeros((30, 30), dtype=bool)
    np.put_along_axis(best, np.argsort(-cosine, axis=1)[:, :4], True, axis=1)
    expected = best & best.T & (cosine > 0.9)
    np.testing.assert_array_equal(similar_predictions(rows, 0.9, 4).toarray(), expected)


def test_equal_predictions_join_near_nodes_and_leave_nobody_out():
    """Undecided two-class predictions: without the rule for ties the first nodes would take all places."""
    pairs = similar_predictions(torch.full((40, 2), 0.5), 0.999, 6)
    assert (pairs.sum(axis=1) == 6).all()
    assert similar_predictions(torch.full((40, 2), 0.5), 0.999, None).nnz == 40 * 39


def test_alpha_one_is_the_given_graph(cohort):
    similar = similar_of(cohort)
    found = optimised_operator(cohort, similar, 1.0).scipy().toarray()
    np.testing.assert_allclose(found, gcn_operator(cohort).scipy().toarray(), atol=1e-12)


def test_smoothed_features_are_powers_of_the_optimised_graph(cohort):
    similar = similar_of(cohort)
    smoothed = smoothed_features(cohort, optimised_operator(cohort, similar, 0.3), 2)
    assert smoothed.shape == (4, 23, 18)
    joined = 0.3 * cohort.adjacencies[3].toarray() + 0.7 * similar[3].toarray() + np.eye(23)
    scale = joined.sum(axis=1) ** -0.5
    operator = scale[:, None] * joined * scale
    features = cohort.dense_features[3].numpy()
    expected = np.concatenate([features, operator @ features, operator @ operator @ features], axis=1)
    np.testing.assert_allclose(smoothed[3].numpy(), expected, atol=1e-12)


# Homophily confidence


def test_two_pure_cliques_are_recovered_entirely(make_federation):
    nodes = np.arange(17)
    source, target = np.triu_indices(17, 1)
    within = (source < 8) == (target < 8)
    whole = make_federation(sizes=(17, 9)).changed(
        0,
        labels=(nodes >= 8).astype(np.int64),
        edges=undirected(np.stack([source[within], target[within]]), 17),
        train=nodes % 2 == 0,
    )
    found = homophily_confidence(stack(whole.graphs, whole.task, "float64"), 0.5, 10)
    assert float(found[0]) == 1
    assert 0 <= float(found[1]) <= 1


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_training_nodes_leave_confidence_open(make_federation, count):
    whole = make_federation(sizes=(17, 9)).changed(0, train=np.arange(17) < count)
    assert float(homophily_confidence(stack(whole.graphs, whole.task), 0.5, 10)[0]) == 0.5


def test_confidence_does_not_see_other_labels(make_federation):
    whole = make_federation()
    changed = whole
    for m, graph in enumerate(whole.graphs):
        changed = changed.changed(m, labels=np.where(graph.train, graph.labels, 0))
    one, other = (homophily_confidence(stack(w.graphs, w.task), 0.5, 10) for w in (whole, changed))
    assert torch.equal(one, other)


# Signed propagation


def dense_formula(embedding, pairs, beta, slope, official):
    """As written, for one client."""
    unit = normalize(torch.softmax(embedding, dim=1), dim=1)
    cosine = unit @ unit.T
    relation = beta * pairs + (1 - beta) * (cosine - torch.diag(torch.diag(cosine)))
    mean, highest = relation.mean(), relation.max()
    below = -relation / mean if official else -(mean - relation) / mean
    scaled = torch.where(relation > mean, (relation - mean) / (highest - mean), below)
    if len(relation) == 1:
        scaled = torch.zeros_like(relation)
    one = torch.eye(len(relation), dtype=relation.dtype)
    scaled = scaled * (1 - one) + one

    def prelu(values):
        return values.clamp(min=0) + slope * values.clamp(max=0)

    return prelu(scaled) @ embedding, prelu(-scaled) @ embedding


@pytest.mark.parametrize("scale", ["ours", "official"])
@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("entries", [2**19, 60], ids=["one block", "many blocks"])
def test_signed_propagation_is_the_dense_formula(monkeypatch, cohort, scale, beta, entries):
    monkeypatch.setitem(module.BLOCK_ENTRIES, "cpu", entries)
    similar = similar_of(cohort)
    embedding = normal(4, 23, 3).requires_grad_()
    slope = torch.tensor([0.25, 0.1, -0.3, 0.5], dtype=torch.float64, requires_grad=True)
    found = signed_propagation(cohort, embedding, SimilarPairs.of(cohort, similar), beta, slope, scale)
    factors = normal(2, 4, 23, 3, seed=1) * cohort.nodes[..., None]
    total = torch.zeros((), dtype=torch.float64)
    for m, size in enumerate(cohort.sizes):
        pairs = torch.from_numpy(similar[m].toarray())
        expected = dense_formula(embedding[m, :size], pairs, beta, slope[m], scale == "official")
        for side in range(2):
            torch.testing.assert_close(found[side][m, :size], expected[side])
            total = total + (factors[side, m, :size] * expected[side]).sum()
    own = (factors[0] * found[0] + factors[1] * found[1]).sum()
    for one, other in zip(
        torch.autograd.grad(own, [embedding, slope]),
        torch.autograd.grad(total, [embedding, slope]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


# Combination


def outputs(k=2, n=5, classes=3):
    return Outputs(*(normal(k, n, classes, seed=seed) for seed in range(4)))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_combination_is_a_distribution(share):
    probabilities = torch.softmax(normal(2, 5, 3, seed=9), dim=2)
    found = combined(outputs(), probabilities, torch.full((2,), share, dtype=torch.float64))
    assert float(found.min()) > 0
    torch.testing.assert_close(found.sum(dim=2), torch.ones(2, 5, dtype=torch.float64))


def test_full_confidence_is_the_homophilous_module():
    parts, probabilities = outputs(), torch.softmax(normal(2, 5, 3, seed=9), dim=2)
    found = combined(parts, probabilities, torch.tensor([1.0, 0.0], dtype=torch.float64))
    homophilous = (torch.softmax(parts.homophilous, dim=2) + torch.softmax(probabilities, dim=2)) / 2
    torch.testing.assert_close(found[0], homophilous[0])
    others = [torch.softmax(each[1], dim=1) for each in (parts.features, parts.smoothed, parts.propagated)]
    torch.testing.assert_close(found[1], sum(others) / 3)
