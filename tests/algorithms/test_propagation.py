"""Label propagation and its statistics against dense formulas, and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedatlas.algorithms.propagation import (
    label_propagation,
    moment_vector,
    propagated_labels,
    smoothing_confidence,
)
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.operators import gcn_operator


@pytest.fixture
def cohort(make_federation):
    federation = make_federation()
    return stack(federation.graphs, federation.task, "float64")


def simplex_rows(cohort, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(cohort.clients), cohort.width, cohort.task.classes)
    values = torch.randn(shape, dtype=torch.float64, generator=generator).mul(2).softmax(dim=2)
    return values * cohort.nodes[..., None]


def normalised_with_loops(adjacency):
    loops = adjacency.toarray() + np.eye(adjacency.shape[0])
    scale = 1 / np.sqrt(loops.sum(axis=1))
    return torch.as_tensor(scale[:, None] * loops * scale)


@pytest.mark.parametrize("rows", [True, False], ids=["known rows added", "nothing added"])
@pytest.mark.parametrize("steps", [1, 5])
def test_propagation_is_the_written_recursion(cohort, rows, steps):
    start, kappa = simplex_rows(cohort), 0.3
    added = cohort.train if rows else None
    found = label_propagation(cohort, gcn_operator(cohort), start, kappa, steps, added)
    for m, size in enumerate(cohort.sizes):
        smooth, own = normalised_with_loops(cohort.adjacencies[m]), start[m, :size]
        known = cohort.train[m, :size]
        expected = own
        for _ in range(steps):
            expected = kappa * smooth @ expected + (1 - kappa) * own
            if rows:
                expected[known] += own[known]
        torch.testing.assert_close(found[m, :size], expected)
    assert (found[~cohort.nodes] == 0).all()


def test_no_step_returns_the_start(cohort):
    start = simplex_rows(cohort)
    assert torch.equal(label_propagation(cohort, gcn_operator(cohort), start, 0.5, 0, cohort.train), start)


def test_depths_end_with_the_final_labels(cohort):
    start = simplex_rows(cohort)
    depths = list(propagated_labels(cohort, gcn_operator(cohort), start, 0.5, 4, cohort.train))
    assert len(depths) == 4
    for depth, labels in enumerate(depths, start=1):
        final = label_propagation(cohort, gcn_operator(cohort), start, 0.5, depth, cohort.train)
        assert torch.equal(labels, final)


def test_pure_cliques_keep_their_label(make_federation):
    """Two cliques, one known node in each: every node ends with its clique's class."""
    inside = np.array([[a, b] for a in range(4) for b in range(4) if a != b]).T
    federation = make_federation(sizes=(8,), classes=2).changed(
        0, edges=np.concatenate([inside, inside + 4], axis=1), labels=np.repeat([0, 1], 4)
    )
    cohort = stack(federation.graphs, federation.task, "float64")
    start = torch.full((1, 8, 2), 0.5, dtype=torch.float64)
    start[0, 0], start[0, 4] = torch.eye(2, dtype=torch.float64)
    known = torch.zeros(1, 8, dtype=torch.bool)
    known[0, [0, 4]] = True
    found = label_propagation(cohort, gcn_operator(cohort), start, 0.5, 10, known)
    assert found.argmax(dim=2).tolist() == [[0] * 4 + [1] * 4]


@pytest.mark.parametrize(("kind", "length"), [("origin", 4 * 3), ("mean", 4 * 3), ("hybrid", 2 * 4 * 3)])
def test_moments_are_means_of_powers(cohort, kind, length):
    values = simplex_rows(cohort)
    found = moment_vector(values, cohort.nodes, 4, kind)
    assert found.shape == (4, length)
    for m, size in enumerate(cohort.sizes):
        own = values[m, :size]
        raw = [(own**order).mean(dim=0) for order in range(1, 5)]
        central = [((own - own.mean(dim=0)) ** order).mean(dim=0) for order in range(1, 5)]
        expected = {"origin": raw, "mean": central, "hybrid": raw + central}[kind]
        torch.testing.assert_close(found[m], torch.cat(expected))


def test_first_moments(cohort):
    found = moment_vector(simplex_rows(cohort), cohort.nodes, 3, "hybrid").reshape(4, 6, 3)
    torch.testing.assert_close(found[:, 0].sum(dim=1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(found[:, 3], torch.zeros(4, 3, dtype=torch.float64))


def test_confidence_is_the_written_sum_within_its_bounds(cohort):
    generator = np.random.default_rng(0)
    degrees = torch.as_tensor(generator.integers(0, 6, cohort.nodes.shape) * cohort.nodes.numpy()).double()
    values = simplex_rows(cohort)
    found = smoothing_confidence(values, degrees)
    for m, size in enumerate(cohort.sizes):
        own = values[m, :size]
        summands = (math.exp(-1) + own * torch.log(own + 1e-8)).sum(dim=1)
        torch.testing.assert_close(found[m], (degrees[m, :size] * summands).sum(), rtol=1e-6, atol=0)
    upper = 3 / math.e * degrees.sum(dim=1)
    assert (found >= 0).all()
    assert (found < upper).all()
    certain = torch.nn.functional.one_hot(cohort.labels, 3).double()
    torch.testing.assert_close(smoothing_confidence(certain, degrees), upper)
    lowest = torch.full_like(values, 1 / math.e)
    assert (smoothing_confidence(lowest, degrees).abs() <= 1e-12).all()
    assert (smoothing_confidence(values, torch.zeros_like(degrees)) == 0).all()
