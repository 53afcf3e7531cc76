"""Batches of graphs hold exactly the chosen graphs; sums over neighbourhoods equal dense ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.platform.federation.batching import scattered, scored_batches, training_batches
from fedatlas.platform.federation.cohort import NEVER, Dropout, Task, stack
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import ClientGraph


def client(number: int, sizes: list[int], width: int = 4, sparse: bool = False) -> ClientGraph:
    generator = np.random.default_rng(number)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    source, target = np.triu_indices(len(owner), 1)
    kept = (owner[source] == owner[target]) & (generator.random(source.size) < 0.6)
    values = np.maximum(generator.standard_normal((len(owner), width)), 0).astype(np.float32)
    roles = np.arange(len(sizes)) % 3
    return ClientGraph(
        client=number,
        nodes=np.arange(len(owner)),
        features=sp.csr_array(values) if sparse else values,
        edges=undirected(np.stack([source[kept], target[kept]]), len(owner)),
        labels=np.arange(len(sizes)) % 2,
        train=roles == 0,
        validation=roles == 1,
        test=roles == 2,
        starts=starts,
    )


CLIENTS = ([3, 1, 5, 2, 4], [2, 6], [1, 1, 3, 3, 2, 2, 7])
TASK = Task(3, 4, 2, "accuracy", 0, level="graph")


def cohort(sparse: bool = False):
    return stack([client(m, sizes, sparse=sparse) for m, sizes in enumerate(CLIENTS)], TASK, "float64")


def test_a_cohort_of_graphs_has_items_besides_nodes() -> None:
    whole = cohort()
    assert (whole.items, whole.width) == (7, 19)
    assert whole.held.tolist() == [5, 2, 7]
    assert whole.trained.tolist() == [True] * 3
    assert whole.labels[1].tolist() == [0, 1, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="clients of a task of nodes hold something else"):
        stack([client(0, [2, 3])], replace(TASK, level="node"))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_batch_is_the_union_of_the_chosen_graphs(sparse: bool) -> None:
    chosen = [np.array([4, 1]), np.array([6, 0, 3])]
    batch = cohort(sparse).batch([0, 2], chosen)
    assert (batch.clients, batch.sizes, batch.items, batch.width) == ((0, 2), (5, 11), 3, 11)
    assert batch.train.tolist() == [[True, True, False], [True, True, True]]
    closed = batch.union.summing._forward.tensor().to_dense()
    weight = torch.eye(4, dtype=torch.float64).expand(2, 4, 4).contiguous()
    features = batch.project(weight)
    expected = torch.zeros(22, 22, dtype=torch.float64)
    for row, (member, ids) in enumerate(zip((0, 2), chosen, strict=True)):
        source = client(member, CLIENTS[member])
        begin = 0
        for place, graph in enumerate(ids):
            nodes = np.arange(source.starts[graph], source.starts[graph + 1])
            end = begin + len(nodes)
            torch.testing.assert_close(
                features[row, begin:end], torch.from_numpy(source.features[nodes]).double()
            )
            inside = np.isin(source.edges[0], nodes)
            ends = source.edges[:, inside] - nodes[0] + begin + 11 * row
            expected[ends[0], ends[1]] = 1
            assert batch.labels[row, place] == source.labels[graph]
            assert batch.union.counts[row, place] == len(nodes)
            np.testing.assert_array_equal(batch.node_ids[row][begin:end], nodes)
            begin = end
        real = torch.arange(11 * row, 11 * row + begin)
        expected[real, real] = 1
        assert not features[row, begin:].any()
    assert torch.equal(closed, expected)


def dense_of(batch):
    closed = batch.union.summing._forward.tensor().to_dense()
    return closed, closed.nonzero().T


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_over_neighbourhoods_equal_dense_ones_with_their_gradients(heads: int) -> None:
    batch = cohort().batch([0, 1, 2], [np.array([0, 2, 4]), np.array([1]), np.array([2, 3, 0, 6])])
    neighbours, (closed, (rows, columns)) = batch.union.neighbours, dense_of(batch)
    n, generator = len(closed), torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    ends, starts, values = draw(n, heads), draw(n, heads), draw(n, heads, 2)
    weights = neighbours.softmax(neighbours.pairs(ends, starts))
    result = neighbours.weighted_sum(weights, values)
    scores = (ends[:, None] + starts[None]).masked_fill(closed[..., None] == 0, -torch.inf)
    dense = torch.where(closed[..., None] > 0, torch.softmax(scores, dim=1), 0.0).nan_to_num()
    torch.testing.assert_close(weights, dense[rows, columns])
    torch.testing.assert_close(result, torch.einsum("ijh,jhd->ihd", dense, values))
    seen = torch.randn(result.shape, dtype=torch.float64, generator=generator)
    found = torch.autograd.grad((result * seen).sum(), [ends, starts, values])
    real = closed.diagonal() > 0
    parts = [torch.where(real[:, None], part, part.detach()) for part in (ends, starts)]
    scores = (parts[0][:, None] + parts[1][None]).masked_fill(closed[..., None] == 0, -1e30)
    safe = torch.softmax(scores, dim=1) * (closed[..., None] > 0)
    expected = torch.autograd.grad(
        (torch.einsum("ijh,jhd->ihd", safe, values) * seen).sum(), [ends, starts, values]
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_pooling_sums_and_averages_the_nodes_of_each_graph() -> None:
    batch = cohort().batch([0, 2], [np.array([2, 1]), np.array([0, 6, 4])])
    values = torch.randn(2, batch.width, 3, dtype=torch.float64)
    begins = {0: [0, 5, 6], 1: [0, 1, 8, 10]}
    summed, averaged = batch.union.summed(values), batch.union.averaged(values)
    for row, bounds in begins.items():
        for place, (begin, end) in enumerate(pairwise(bounds)):
            torch.testing.assert_close(summed[row, place], values[row, begin:end].sum(dim=0))
            torch.testing.assert_close(averaged[row, place], values[row, begin:end].mean(dim=0))
    assert not summed[0, 2:].any()


def test_the_normalised_operator_is_that_of_gcn() -> None:
    batch = cohort().batch([0, 1], [np.arange(5), np.arange(2)])
    closed, _ = dense_of(batch)
    scale = closed.sum(dim=1).clamp(min=1).rsqrt()
    normalised = batch.union.normalised._forward.tensor().to_dense()
    torch.testing.assert_close(normalised, scale[:, None] * closed * scale)


def test_an_epoch_sees_every_training_graph_once_and_clients_drop_out() -> None:
    whole = cohort()
    batches = list(training_batches(whole, 1, round_number=3, epoch=0))
    assert [batch.rows.tolist() for batch in batches] == [[0, 1, 2], [0, 2], [2]]
    for row, train in enumerate(whole.train.numpy()):
        seen = [
            int(batch.graphs[batch.rows.tolist().index(row)][0]) for batch in batches if row in batch.rows
        ]
        assert sorted(seen) == np.flatnonzero(train).tolist()
    (single,) = training_batches(whole, None, 3, 0)
    assert single.cohort.train.sum(dim=1).tolist() == [2, 1, 3]


def test_shuffles_belong_to_a_client_and_a_round() -> None:
    def order(whole, row, round_number):
        return [
            batch.graphs[batch.rows.tolist().index(row)].tolist()
            for batch in training_batches(whole, 1, round_number, 0)
            if row in batch.rows
        ]

    whole = stack([client(m, [1] * 30) for m in range(2)], replace(TASK, clients=2), "float64")
    alone = stack([client(1, [1] * 30)], replace(TASK, clients=2), "float64")
    assert order(whole, 1, 0) == order(alone, 0, 0)
    assert order(whole, 1, 0) != order(whole, 1, 1)
    assert order(whole, 1, 0) != order(whole, 0, 0)


def test_without_training_graphs_there_is_one_step_that_counts_nothing() -> None:
    graphs = [replace(client(m, [2, 2]), train=np.zeros(2, dtype=bool)) for m in range(2)]
    (batch,) = training_batches(stack(graphs, replace(TASK, clients=2)), 1, 0, 0)
    assert batch.rows.tolist() == [0, 1]
    assert not batch.cohort.train.any()


def test_all_validation_and_test_graphs_are_scored_once() -> None:
    whole = cohort()
    found = torch.zeros(3, whole.items)
    for batch in scored_batches(whole):
        scattered(batch, torch.ones(len(batch.rows), batch.cohort.items), found)
    assert torch.equal(found > 0, whole.validation | whole.test)
    assert scored_batches(whole) is scored_batches(whole)


def test_classes_that_a_client_lacks_have_probability_zero() -> None:
    graphs = [replace(client(m, [2, 3]), classes=count) for m, count in enumerate((2, 3))]
    whole = stack(graphs, replace(TASK, clients=2, classes=3), "float64")
    logits = whole.own_logits(torch.zeros(2, 2, 3, dtype=torch.float64))
    assert (logits[0, :, 2] == NEVER).all()
    assert torch.softmax(logits, dim=2)[0, 0].tolist() == [0.5, 0.5, 0.0]
    assert not logits[1].any()


def test_dropout_of_graphs_does_not_depend_on_padding() -> None:
    whole = cohort()
    wide = whole.batch([1, 2], [np.arange(2), np.arange(7)])
    alone = whole.batch([1], [np.arange(2)])
    both = Dropout(wide, 0, "0.1").apply("readout", torch.ones(2, 7, 5), 0.5, [2, 7])
    one = Dropout(alone, 0, "0.1").apply("readout", torch.ones(1, 2, 5), 0.5, [2])
    assert torch.equal(both[0, :2], one[0])
    assert not both[0, 2:].any()
