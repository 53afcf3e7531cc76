"""Stacked clients equal separate ones: structure, products, dropout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.platform.federation.cohort import Dropout, stack


def features_of(graph):
    values = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    return torch.as_tensor(np.array(values)).double()


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_padding_is_marked_and_empty(make_clients, task):
    graphs = make_clients()
    cohort = stack(graphs, task)
    assert cohort.clients == (0, 1, 2)
    assert cohort.sizes == (7, 4, 9)
    assert cohort.width == 9
    for m, graph in enumerate(graphs):
        n = graph.size
        assert cohort.nodes[m].tolist() == [True] * n + [False] * (9 - n)
        for name in ("labels", "train", "validation", "test"):
            row = getattr(cohort, name)[m]
            assert row[:n].tolist() == getattr(graph, name).tolist()
            assert not row[n:].any()
        torch.testing.assert_close(cohort.dense_features[m, :n].double(), features_of(graph))
        assert (cohort.dense_features[m, n:] == 0).all()


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("float64", torch.float64)])
def test_precision(make_clients, task, precision, dtype):
    for sparse in (False, True):
        cohort = stack(make_clients(sparse=sparse), task, precision)
        assert cohort.dtype == cohort.project(torch.ones(3, 5, 2, dtype=dtype)).dtype == dtype
        assert cohort.class_indicator().dtype == dtype


def test_block_diagonal_holds_each_clients_matrix_and_nothing_else(make_clients, task):
    graphs = make_clients()
    cohort = stack(graphs, task, "float64")
    dense = cohort.block_diagonal(cohort.adjacencies)._forward.tensor().to_dense()
    for m, graph in enumerate(graphs):
        block = dense[9 * m : 9 * m + graph.size, 9 * m : 9 * m + graph.size]
        expected = torch.zeros_like(block)
        expected[graph.edges[0], graph.edges[1]] = 1
        assert torch.equal(block, expected)
    assert int(dense.sum()) == sum(graph.edges.shape[1] for graph in graphs)


def test_propagation_equals_a_product_per_client(make_clients, task):
    cohort = stack(make_clients(), task, "float64")
    values = random(3, 9, 4)
    result = cohort.propagate(cohort.block_diagonal(cohort.adjacencies), values)
    for m, adjacency in enumerate(cohort.adjacencies):
        n = cohort.sizes[m]
        torch.testing.assert_close(result[m, :n], torch.as_tensor(adjacency.toarray()) @ values[m, :n])
        assert (result[m, n:] == 0).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_projection_and_its_gradient_equal_a_product_per_client(make_clients, task, sparse):
    graphs = make_clients(sparse=sparse)
    cohort = stack(graphs, task, "float64")
    weight, direction = random(3, 5, 4).requires_grad_(), random(3, 9, 4, seed=1)
    result = cohort.project(weight)
    (gradient,) = torch.autograd.grad((result * direction).sum(), weight)
    for m, graph in enumerate(graphs):
        X, n = features_of(graph), graph.size
        torch.testing.assert_close(result[m, :n], X @ weight[m])
        assert (result[m, n:] == 0).all()
        torch.testing.assert_close(gradient[m], X.T @ direction[m, :n])


def test_class_counts_and_means_use_training_nodes_only(make_clients, task):
    graphs = make_clients()
    cohort = stack(graphs, task)
    counts = cohort.class_counts()
    for m, graph in enumerate(graphs):
        expected = np.bincount(graph.labels[graph.train], minlength=3)
        assert counts[m].tolist() == expected.tolist()
    assert cohort.class_indicator()[~cohort.train].sum() == 0


def test_masked_mean(make_clients, task):
    graphs = make_clients()
    nobody = replace(graphs[1], train=np.zeros(4, dtype=bool))
    cohort = stack([graphs[0], nobody, graphs[2]], task, "float64")
    values = random(3, 9)
    mean = cohort.masked_mean(values, cohort.train)
    for m in (0, 2):
        torch.testing.assert_close(mean[m], values[m, cohort.train[m]].mean())
    assert mean[1] == 0
    assert cohort.trained.tolist() == [True, False, True]


def test_values_are_built_once(make_clients, task):
    cohort = stack(make_clients(), task)
    built = []
    for _ in range(2):
        assert cohort.keep("name", lambda: built.append(1) or "value") == "value"
    assert built == [1]


def test_streams_belong_to_the_client_not_to_its_place(make_clients, task):
    graphs = make_clients()
    together = stack(graphs, task).generators(4, "purpose")
    reversed_ = stack(graphs[::-1], task).generators(4, "purpose")
    draws = [generator.random() for generator in together]
    assert draws == [generator.random() for generator in reversed_][::-1]
    assert len(set(draws)) == 3


# Dropout


def mask(cohort, round_number=0, epoch=0, purpose="hidden", rate=0.5, width=6):
    ones = torch.ones(len(cohort.clients), cohort.width, width, dtype=cohort.dtype)
    return Dropout(cohort, round_number, epoch).apply(purpose, ones, rate)


@pytest.mark.parametrize("width", [1, 5, 6])
def test_masks_do_not_depend_on_cohort_or_padding(make_clients, task, width):
    graphs = make_clients()
    together = mask(stack(graphs, task), width=width)
    reordered = mask(stack([graphs[2], graphs[0]], task), width=width)
    for m, graph in enumerate(graphs):
        alone = mask(stack([graph], task), width=width)
        assert torch.equal(together[m, : graph.size], alone[0])
    assert torch.equal(together[2], reordered[0])
    assert torch.equal(together[0, :7], reordered[1, :7])


def test_masks_differ_between_clients_rounds_epochs_and_purposes(make_clients, task):
    cohort = stack(make_clients(sizes=(9, 9, 9)), task)
    first = mask(cohort)
    assert torch.equal(first, mask(cohort))
    assert not torch.equal(first[0], first[1])
    for other in (
        mask(cohort, round_number=1),
        mask(cohort, epoch=1),
        mask(cohort, purpose="other"),
        mask(stack(make_clients(sizes=(9, 9, 9)), replace(task, seed=1))),
    ):
        assert not torch.equal(first, other)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_rate_and_scale(make_clients, task, rate):
    cohort = stack(make_clients(sizes=(200,)), replace(task, clients=1), "float64")
    factors = mask(cohort, rate=rate, width=200)
    kept = factors != 0
    torch.testing.assert_close(
        factors[kept], torch.full_like(factors[kept], 1 / (1 - rate)), rtol=1e-6, atol=0
    )
    # 40,000 entries: five standard deviations.
    assert abs(kept.double().mean().item() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / 40_000)


def test_zero_rate_changes_nothing(make_clients, task):
    cohort = stack(make_clients(), task)
    values = random(3, 9, 4)
    assert Dropout(cohort, 0, 0).apply("hidden", values, 0.0) is values
    weight = torch.ones(3, 5, 2)
    assert torch.equal(cohort.project(weight, Dropout(cohort, 0, 0), 0.0), cohort.project(weight))


@pytest.mark.parametrize("sparse", [False, True])
def test_input_dropout_drops_features_and_does_not_depend_on_the_cohort(make_clients, task, sparse):
    graphs = make_clients(sparse=sparse)
    # With the identity as weight, the projection is the features themselves.
    eye = torch.eye(5).double()

    def dropped(chosen):
        cohort = stack(chosen, task, "float64")
        return cohort.project(eye.expand(len(chosen), 5, 5), Dropout(cohort, 2, 1), 0.4)

    together = dropped(graphs)
    for m, graph in enumerate(graphs):
        values, full = together[m, : graph.size], features_of(graph)
        assert torch.equal(values, dropped([graph])[0])
        kept = values != 0
        torch.testing.assert_close(values[kept], full[kept] / 0.6, rtol=1e-6, atol=0)
        assert 0 < kept.sum() < (full != 0).sum()


def test_gradient_passes_through_kept_entries_only(make_clients, task):
    cohort = stack(make_clients(), task, "float64")
    values = random(3, 9, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(Dropout(cohort, 0, 0).apply("hidden", values, 0.5).sum(), values)
    assert torch.equal(gradient, mask(cohort, width=4))


def test_sparse_input_dropout_has_the_gradient_of_the_dropped_features(make_clients, task):
    graphs = make_clients(sparse=True)
    cohort = stack(graphs, task, "float64")
    dropout = Dropout(cohort, 0, 0)
    dropped = cohort.project(torch.eye(5).double().expand(3, 5, 5), dropout, 0.4)
    weight, direction = random(3, 5, 2).requires_grad_(), random(3, 9, 2, seed=1)
    result = cohort.project(weight, dropout, 0.4)
    torch.testing.assert_close(result, torch.bmm(dropped, weight))
    (gradient,) = torch.autograd.grad((result * direction).sum(), weight)
    torch.testing.assert_close(gradient, torch.bmm(dropped.mT, direction))
