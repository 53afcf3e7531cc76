"""Neighbourhood routing against the written formula, its gradients, and what routing must keep."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.algorithms.routing import FactorGraph, factor_graph, route
from fedatlas.platform.federation.cohort import stack

NODES, WIDTH = 9, 4


@pytest.fixture(scope="module")
def adjacency():
    """Random symmetric graph; node 3 is isolated."""
    generator = np.random.default_rng(0)
    dense = np.triu(generator.random((NODES, NODES)) < 0.35, 1)
    dense = (dense | dense.T).astype(float)
    dense[3] = dense[:, 3] = 0
    return dense


def graph_of(adjacency, factors):
    return FactorGraph(sp.csr_array(adjacency), factors, torch.device("cpu"))


def vectors_of(factors, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(factors, NODES, WIDTH, dtype=torch.float64, generator=generator)


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=2)


def shares(vectors, centres, temperature):
    """a_uv,k for all pairs, [K, N, N]: node v in the neighbourhood of u."""
    return torch.softmax(torch.einsum("kup,kvp->kuv", centres, vectors) / temperature, dim=0)


def written(vectors, adjacency, iterations, temperature=1.0):
    x = centres = unit(vectors)
    mask = torch.as_tensor(adjacency)
    for _ in range(iterations):
        weights = shares(x, centres, temperature) * mask
        centres = unit(x + torch.einsum("kuv,kvp->kup", weights, x))
    return centres


@pytest.mark.parametrize("factors", [1, 2, 5])
@pytest.mark.parametrize(("iterations", "temperature"), [(1, 1.0), (3, 0.5)])
def test_routing_equals_the_written_formula(adjacency, factors, iterations, temperature):
    vectors = vectors_of(factors)
    routed = route(vectors, graph_of(adjacency, factors), iterations, temperature)
    torch.testing.assert_close(routed, written(vectors, adjacency, iterations, temperature))


@pytest.mark.parametrize("factors", [1, 3])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_gradients_are_those_of_the_written_formula(adjacency, factors, iterations):
    vectors = vectors_of(factors).requires_grad_()
    weight = vectors_of(factors, seed=1)
    mine = torch.autograd.grad(
        (route(vectors, graph_of(adjacency, factors), iterations) * weight).sum(), vectors
    )
    theirs = torch.autograd.grad((written(vectors, adjacency, iterations) * weight).sum(), vectors)
    torch.testing.assert_close(mine, theirs)


def test_gradients_are_those_of_finite_differences(adjacency):
    vectors = vectors_of(2).requires_grad_()
    graph = graph_of(adjacency, 2)
    assert torch.autograd.gradcheck(lambda x: route(x, graph, 2, 0.7), (vectors,))


def test_shares_of_a_neighbour_sum_to_one_over_the_factors(adjacency):
    """The sums over neighbours are recovered from dot products with the shares that the layer uses."""
    graph = graph_of(adjacency, 3)
    x = unit(vectors_of(3))
    dots = graph.dots(x, x)
    ends = np.nonzero(adjacency)
    torch.testing.assert_close(dots, torch.einsum("kup,kvp->kuv", x, x)[:, ends[0], ends[1]])
    found = torch.softmax(dots, dim=0)
    torch.testing.assert_close(found.sum(dim=0), torch.ones(graph.edges, dtype=torch.float64))
    torch.testing.assert_close(found, shares(x, x, 1.0)[:, ends[0], ends[1]])


@pytest.mark.parametrize("transposed", [False, True])
def test_weighted_sums_over_neighbours(adjacency, transposed):
    graph = graph_of(adjacency, 2)
    ends = np.nonzero(adjacency)
    values = torch.rand(2, graph.edges, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    dense = torch.zeros(2, NODES, NODES, dtype=torch.float64)
    dense[:, ends[0], ends[1]] = values
    if transposed:
        dense = dense.transpose(1, 2)
    start, x = vectors_of(2, seed=3), vectors_of(2)
    found = graph.add_sums(start.clone(), values, x, transposed)
    torch.testing.assert_close(found, start + dense @ x)


def test_every_factor_has_length_one_or_zero(adjacency):
    vectors = vectors_of(2)
    vectors[1, 5] = 0
    empty = adjacency.copy()
    empty[5] = empty[:, 5] = 0
    lengths = route(vectors, graph_of(empty, 2), 3).norm(dim=2)
    assert float(lengths[1, 5]) == 0
    lengths[1, 5] = 1
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_one_factor_is_a_plain_sum(adjacency):
    vectors = vectors_of(1)
    x = unit(vectors)
    plain = unit(x + torch.as_tensor(adjacency) @ x)
    for iterations in (1, 4):
        torch.testing.assert_close(route(vectors, graph_of(adjacency, 1), iterations), plain)


def test_an_isolated_node_keeps_its_direction(adjacency):
    vectors = vectors_of(2)
    torch.testing.assert_close(route(vectors, graph_of(adjacency, 2), 3)[:, 3], unit(vectors)[:, 3])


def test_length_of_the_input_does_not_matter(adjacency):
    vectors = vectors_of(2)
    graph = graph_of(adjacency, 2)
    torch.testing.assert_close(route(vectors * 100, graph, 2), route(vectors, graph, 2))


def test_factors_can_be_renumbered(adjacency):
    vectors, order = vectors_of(3), [2, 0, 1]
    graph = graph_of(adjacency, 3)
    torch.testing.assert_close(route(vectors[order], graph, 2), route(vectors, graph, 2)[order])


def test_a_zero_factor_has_a_zero_gradient(adjacency):
    """0 / |0| has no direction; dividing by a small number instead would give a huge gradient."""
    vectors = vectors_of(2)
    vectors[0, 3] = 0
    vectors.requires_grad_()
    (gradient,) = torch.autograd.grad(route(vectors, graph_of(adjacency, 2), 2).sum(), vectors)
    assert gradient.isfinite().all()
    assert (gradient[0, 3] == 0).all()


def test_no_edges():
    vectors = vectors_of(2).requires_grad_()
    routed = route(vectors, graph_of(np.zeros((NODES, NODES)), 2), 2)
    torch.testing.assert_close(routed, unit(vectors))
    (gradient,) = torch.autograd.grad((routed * vectors_of(2, seed=1)).sum(), vectors)
    (expected,) = torch.autograd.grad((unit(vectors) * vectors_of(2, seed=1)).sum(), vectors)
    torch.testing.assert_close(gradient, expected)


def test_the_input_and_the_gradient_are_left_alone(adjacency):
    vectors = vectors_of(2).requires_grad_()
    before, gradient = vectors.detach().clone(), vectors_of(2, seed=1)
    kept = gradient.clone()
    route(vectors, graph_of(adjacency, 2), 2).backward(gradient)
    assert torch.equal(vectors.detach(), before)
    assert torch.equal(gradient, kept)


def test_a_cohort_is_its_clients_side_by_side(make_federation):
    federation = make_federation(sizes=(7, 4, 9))
    cohort = stack(federation.graphs, federation.task, "float64")
    n = cohort.width
    vectors = torch.randn(2, 3 * n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = route(vectors, factor_graph(cohort, 2), 2)
    for row, size in enumerate(cohort.sizes):
        alone = graph_of(cohort.adjacencies[row].toarray(), 2)
        part = vectors[:, row * n : row * n + size]
        torch.testing.assert_close(together[:, row * n : row * n + size], route(part, alone, 2))
    assert factor_graph(cohort, 2) is factor_graph(cohort, 2)
