"""Hiding nodes, generating their features, mending graphs, and the training of generators with others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.algorithms.mending import client_graphs, impair, mend, mended_logits, parents
from fedatlas.algorithms.neighbour_generator import (
    GeneratorConfiguration,
    GeneratorTraining,
    NeighbourGenerator,
    nearest,
)
from fedatlas.platform.federation.cohort import Dropout, stack

SMALL = GeneratorConfiguration(
    generator_lr=0.05,
    hidden_portion=1.0,
    encoder_width=8,
    latent=8,
    inner_width=8,
    generator_width=8,
    feature_weight=0.7,
    classification_weight=0.6,
)


@pytest.fixture
def cohort(make_federation):
    federation = make_federation()
    return stack(federation.graphs, federation.task, "float64")


@pytest.fixture
def training(cohort):
    return trained(cohort)


def trained(cohort, configuration=SMALL, epochs=4):
    training = GeneratorTraining(cohort, configuration, GraphSAGE(hidden=8, dropout=0.3))
    for epoch in range(epochs):
        training.local_epoch(epoch)
    training.freeze()
    return training


def some_leaves(cohort, seed=0):
    """Random leaves of a cohort: features and counts per client, and counts [k, n]."""
    generator = torch.Generator().manual_seed(seed)
    counts = tuple(torch.randint(0, 4, (size,), generator=generator) for size in cohort.sizes)
    features = tuple(
        torch.randn(int(each.sum()), cohort.task.features, generator=generator, dtype=cohort.dtype)
        for each in counts
    )
    padded = torch.zeros(cohort.nodes.shape, dtype=torch.int64)
    for row, each in enumerate(counts):
        padded[row, : each.numel()] = each
    return features, counts, padded


def neighbours(graph, node):
    return graph.edges[1][graph.edges[0] == node].tolist()


# Impaired graphs


@pytest.mark.parametrize("portion", [0.5, 1.0])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_share_of_the_validation_nodes_is_hidden(make_federation, portion, sparse):
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    impaired = impair(cohort, portion, 2)
    left = client_graphs(impaired.cohort)
    for m, graph in enumerate(client_graphs(cohort)):
        kept = impaired.kept[m].numpy()
        hidden = np.setdiff1d(np.arange(graph.size), kept)
        assert (np.diff(kept) > 0).all()
        assert graph.validation[hidden].all()
        assert hidden.size == int(portion * graph.validation.sum())
        for name in ("labels", "train", "validation", "test"):
            np.testing.assert_array_equal(getattr(left[m], name), getattr(graph, name)[kept])
        difference = left[m].features - graph.features[kept]
        assert abs(difference).max() == 0
        for position, node in enumerate(kept):
            around = neighbours(graph, node)
            assert kept[neighbours(left[m], position)].tolist() == [u for u in around if u not in hidden]
            lost = [u for u in around if u in hidden]
            assert impaired.missing[m, position] == len(lost)
            assert impaired.targets[m][position].tolist() == [*lost, -1, -1][:2]
        assert impaired.active[m] == (impaired.missing[m].sum() > 0)


def test_hiding_does_not_depend_on_placement(make_federation):
    federation = make_federation()
    together = impair(stack(federation.graphs, federation.task), 0.5, 5)
    for m, graph in enumerate(federation.graphs):
        alone = impair(stack([graph], federation.task), 0.5, 5)
        assert torch.equal(alone.kept[0], together.kept[m])
        assert torch.equal(alone.targets[0], together.targets[m])


def test_clients_that_cannot_learn_are_left_alone(make_federation):
    """One validation node; no edge; no training node; and a client that can learn."""
    federation = make_federation(sizes=(12, 9, 10, 17))
    one = np.arange(12) == 4
    federation = federation.changed(0, validation=one, test=~one & ~federation.graphs[0].train)
    federation = federation.changed(1, edges=np.zeros((2, 0), dtype=np.int64))
    federation = federation.changed(2, train=np.zeros(10, dtype=bool))
    cohort = stack(federation.graphs, federation.task, "float64")
    impaired = impair(cohort, 1.0, 5)
    assert impaired.active.tolist() == [False, False, False, True]
    assert impaired.kept[0].tolist() == list(range(12))
    training = trained(cohort, epochs=6)
    start = training.generator.initialise(federation.task)
    for name, weight in start.items():
        torch.testing.assert_close(training.body[name][:3].float(), weight.expand(3, *weight.shape))
        assert not torch.equal(training.body[name][3].float(), weight)
    features, counts = training.leaves()
    assert [part.shape[0] for part in features[:3]] == [0, 0, 0]
    assert [int(part.sum()) for part in counts[:3]] == [0, 0, 0]
    assert training.heads[:3] == [None, None, None]


# Mended graphs


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_mended_graph_is_the_original_and_its_leaves(make_federation, sparse):
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    features, counts, _ = some_leaves(cohort)
    mended = mend(cohort, features, counts)
    assert mended.sizes == tuple(
        size + int(each.sum()) for size, each in zip(cohort.sizes, counts, strict=True)
    )
    for m, (before, after) in enumerate(zip(client_graphs(cohort), client_graphs(mended), strict=True)):
        n = before.size
        assert after.client == before.client
        np.testing.assert_array_equal(after.labels[:n], before.labels)
        for name in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(after, name)[:n], getattr(before, name))
            assert not getattr(after, name)[n:].any()
        found = torch.as_tensor(after.features)
        own = before.features.toarray() if sparse else before.features
        torch.testing.assert_close(found[:n], torch.as_tensor(own), rtol=0, atol=0)
        torch.testing.assert_close(found[n:], features[m], rtol=0, atol=0)
        for node in range(n):
            around = neighbours(after, node)
            assert [u for u in around if u < n] == neighbours(before, node)
            assert len(around) == len(neighbours(before, node)) + counts[m][node]
        for leaf, owner in enumerate(parents(counts[m]).tolist()):
            assert neighbours(after, n + leaf) == [owner]


def test_few_leaves_leave_sparse_features_sparse(make_federation, monkeypatch):
    federation = make_federation(sparse=True)
    cohort = stack(federation.graphs, federation.task, "float64")
    features, counts, _ = some_leaves(cohort)
    monkeypatch.setattr("fedatlas.algorithms.mending.SPARSE_SHARE", 1.0)
    kept, dense = mend(cohort, features, counts), mend(cohort, features, counts, dense=True)
    assert kept.sparse_features is not None
    assert dense.dense_features is not None
    weight = torch.randn(4, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(kept.project(weight), dense.project(weight))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_logits_without_building_the_mended_graph(make_federation, sparse):
    """They and their gradients equal those of the network on the mended graph."""
    federation = make_federation(sparse=sparse).changed(1, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    network = GraphSAGE(hidden=8, activation="elu")
    features, counts, padded = some_leaves(cohort)
    features = (features[0][:0], *features[1:])
    counts = (torch.zeros_like(counts[0]), *counts[1:])
    padded[0] = 0
    weights = {
        name: torch.randn(4, *weight.shape, dtype=torch.float64)
        for name, weight in network.initialise(federation.task).items()
    }
    leaves = tuple(each.clone().requires_grad_() for each in features)
    fast = mended_logits(network, weights, cohort, leaves, padded, None)
    mended = mend(cohort, features, counts, dense=True)
    mended.dense_features.requires_grad_()
    slow = network.forward(weights, mended, None).logits[:, : cohort.width]
    torch.testing.assert_close(fast[cohort.nodes], slow[cohort.nodes])
    found = torch.autograd.grad(fast[cohort.nodes].square().sum(), leaves)
    (whole,) = torch.autograd.grad(slow[cohort.nodes].square().sum(), mended.dense_features)
    for m, size in enumerate(cohort.sizes):
        torch.testing.assert_close(found[m], whole[m, size : mended.sizes[m]])


def test_dropout_of_the_helper_reaches_nodes_and_leaves(cohort):
    network = GraphSAGE(hidden=8, dropout=0.4)
    features, _, padded = some_leaves(cohort)
    weights = {
        name: weight.double().expand(4, *weight.shape)
        for name, weight in network.initialise(cohort.task).items()
    }
    dropout = Dropout(cohort, 0, 0)

    def logits(used, leaves, counts):
        return mended_logits(network, weights, cohort, leaves, counts, used)

    nothing = tuple(part[:0] for part in features), torch.zeros_like(padded)
    changed = logits(dropout, features, padded) - logits(None, features, padded)
    without = logits(dropout, *nothing) - logits(None, *nothing)
    assert not torch.allclose(changed, without)
    assert not torch.allclose(without, torch.zeros_like(without))


# The generator


def test_generated_rows_are_the_first_ones_of_the_written_head(make_federation):
    """The first c_v of q rows of each node, in order, with values in [-1, 1]."""
    task, generator = make_federation().task, NeighbourGenerator(SMALL)
    head = {
        name: 3 * torch.randn(*weight.shape, dtype=torch.float64)
        for name, weight in generator.initialise_head(task).items()
    }
    noisy, counts = torch.randn(6, 8, dtype=torch.float64), torch.tensor([2, 5, 1, 3, 3, 1])
    kept = torch.randint(0, 2, (6, 8)).double() * 2
    rows = generator.rows(head, noisy, counts, kept)
    hidden = torch.relu(noisy @ head["head.0.weight"] + head["head.0.bias"])
    hidden = kept * torch.relu(hidden @ head["head.1.weight"] + head["head.1.bias"])
    every = torch.tanh(torch.einsum("sw,qwf->sqf", hidden, head["head.2.weight"]) + head["head.2.bias"])
    expected = torch.cat([every[s, :count] for s, count in enumerate(counts.tolist())])
    torch.testing.assert_close(rows, expected)
    assert rows.abs().max() <= 1


def test_the_encoder_is_the_written_network_and_predicts_no_negative_number(cohort):
    generator = NeighbourGenerator(SMALL)
    weights = {
        name: torch.randn(4, *weight.shape, dtype=torch.float64)
        for name, weight in generator.initialise(cohort.task).items()
    }
    latent = generator.encode(weights, cohort, None)
    degrees = generator.degrees(weights, latent)
    for m, graph in enumerate(client_graphs(cohort)):
        P = torch.eye(graph.size, dtype=torch.float64)
        P[graph.edges[0], graph.edges[1]] = 1
        P = P / P.sum(dim=1, keepdim=True)
        z = torch.as_tensor(graph.features)
        for layer in (0, 1):
            z = torch.relu(
                P @ z @ weights[f"encoder.{layer}.weight"][m] + weights[f"encoder.{layer}.bias"][m]
            )
        torch.testing.assert_close(latent[m, : graph.size], z)
        expected = torch.relu(z @ weights["degree.weight"][m] + weights["degree.bias"][m])[:, 0]
        torch.testing.assert_close(degrees[m, : graph.size], expected)


def test_the_predicted_number_starts_alive(make_federation):
    """n~ is positive wherever z is not zero, so that it has a gradient."""
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    generator = NeighbourGenerator(SMALL)
    weights = {
        name: weight.double().expand(4, *weight.shape)
        for name, weight in generator.initialise(federation.task).items()
    }
    latent = generator.encode(weights, cohort, None)
    alive = latent.sum(dim=2) > 0
    assert alive.any()
    assert (generator.degrees(weights, latent)[alive] > 0).all()


def test_counts_are_whole_bounded_and_zero_on_padding(training):
    degrees = torch.full(training.cohort.nodes.shape, 0.999, dtype=torch.float64)
    degrees[:, 0], degrees[:, 1], degrees[:, 2] = 1.0, 2.7, 99.0
    counts = training._leaf_counts(degrees)
    assert counts[training.impaired.active][:, :4].tolist() == [[1, 2, 5, 0]] * int(
        training.impaired.active.sum()
    )
    assert (training._leaf_counts(degrees + 9)[~training.cohort.nodes] == 0).all()


def test_nearest_is_the_nearest_of_the_candidates(monkeypatch):
    monkeypatch.setattr("fedatlas.algorithms.neighbour_generator.CHUNK", 12)
    generator = torch.Generator().manual_seed(3)
    rows, features = (torch.randn(count, 4, generator=generator) for count in (9, 7))
    candidates = torch.randint(0, 7, (9, 3), generator=generator)
    candidates[2:5, 2], candidates[4, 1] = -1, -1
    found = nearest(rows, features, candidates)
    for row, names, best in zip(rows, candidates.tolist(), found, strict=True):
        options = features[[name for name in names if name >= 0]]
        assert torch.equal(best, options[(options - row).square().sum(dim=1).argmin()])


# Losses


def written_feature_loss(rows, counts, train, targets, q):
    """L_f of one client by loops over the formula."""
    total, place = torch.zeros((), dtype=rows.dtype), 0
    for v, count in enumerate(counts.tolist()):
        for j in range(count):
            if train[v] and len(targets[v]):
                distances = torch.stack([(rows[place + j] - t).square().mean() for t in targets[v]])
                total = total + distances.min()
        place += count
    return total / (q * max(1, int(train.sum())))


def hidden_features(training, m):
    features, size = client_graphs(training.whole)[m].features, training.cohort.sizes[m]
    return [
        [torch.as_tensor(features[u]) for u in names if u >= 0]
        for names in training.impaired.targets[m].tolist()[:size]
    ]


def test_the_feature_loss_and_its_gradient_are_the_written_ones(training):
    _, _, padded = some_leaves(training.cohort)
    rows, _, _ = some_leaves(training.cohort)
    for m, each in enumerate(rows):
        each.requires_grad_()
        mine = training._feature_loss(m, each, padded[m])
        size = training.cohort.sizes[m]
        written = written_feature_loss(
            each, padded[m, :size], training.cohort.train[m], hidden_features(training, m), 5
        )
        torch.testing.assert_close(mine, written)
        if written.requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(mine, each)[0], torch.autograd.grad(written, each)[0]
            )


def test_generating_a_true_neighbour_costs_nothing(training):
    for m, size in enumerate(training.cohort.sizes):
        targets = hidden_features(training, m)
        counts = torch.zeros(training.cohort.width, dtype=torch.int64)
        counts[:size] = torch.tensor([2 * bool(each) for each in targets])
        rows = [each[place % len(each)] for each in targets if each for place in (0, 1)]
        if rows:
            assert training._feature_loss(m, torch.stack(rows), counts) == 0
            assert training._feature_loss(m, torch.stack(rows) + 0.1, counts) > 0


def test_the_helper_learns_the_labels_of_the_nodes_that_it_sees(training):
    """Positions in the impaired graph are not positions in the whole graph."""
    for m, kept in enumerate(training.impaired.kept):
        assert torch.equal(training.cohort.labels[m, : kept.numel()], training.whole.labels[m, kept])
        assert kept.tolist() != list(range(kept.numel()))


def test_a_local_step_follows_the_gradient_of_the_whole_loss(cohort):
    """Head and encoder are stepped apart; together their gradients are those of one loss."""
    configuration = SMALL.model_copy(update={"generator_dropout": 0.0, "generator_weight_decay": 0.0})
    training = GeneratorTraining(cohort, configuration, GraphSAGE(hidden=8, dropout=0.0))
    for epoch in range(4):
        training.local_epoch(epoch)
    body = {name: weight.clone().requires_grad_() for name, weight in training.body.items()}
    generator = training.generator
    latent = generator.encode(body, training.cohort, None)
    degrees = generator.degrees(body, latent)
    counts = training._leaf_counts(degrees)
    rows = training._generate(list(latent), counts, 4, "local", train=True)
    terms = training._leaf_losses(tuple(rows), counts, body, None)
    missing = torch.nn.functional.smooth_l1_loss(degrees, training.impaired.missing, reduction="none")
    terms = terms + training.cohort.masked_mean(missing, training.cohort.train)
    m = next(m for m, each in enumerate(rows) if each.shape[0])
    head = training.heads[m]
    expected = torch.autograd.grad(terms.sum(), [*body.values(), *head.values()])
    found = {}

    def capture(weights, gradients, *rest):
        found.update({(id(training.body) == id(weights), name): each for name, each in gradients.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedatlas.algorithms.neighbour_generator.adam_step", capture)
        others = [other for other in range(4) if other != m]
        for other in others:
            training.heads[other] = training.heads[other] or head
        loss = training.local_epoch(4)
    torch.testing.assert_close(loss, terms.detach())
    for name, gradient in zip(body, expected, strict=False):
        torch.testing.assert_close(found[True, name], gradient)


# Exchange


def exchanged(trainings, epoch):
    """One exchange between clients that each have a training of their own; returns what was sent."""
    offers = [training.offer(epoch) for training in trainings]
    features, counts = ([offer[part][0] for offer in offers] for part in (0, 1))
    received = []
    for j, training in enumerate(trainings):
        others = [m for m in range(len(trainings)) if m != j]
        (answer,) = training.respond(
            epoch, (torch.cat([features[m] for m in others]),), (torch.cat([counts[m] for m in others]),)
        )
        received.append(dict(zip(others, answer.split([len(features[m]) for m in others]), strict=True)))
    return features, [
        sum((answers[m] for j, answers in enumerate(received) if j != m), torch.zeros_like(features[m]))
        for m in range(len(trainings))
    ]


@pytest.fixture
def trainings(make_federation):
    federation = make_federation()
    return [trained(stack([graph], federation.task, "float64")) for graph in federation.graphs]


def test_the_gradient_of_an_exchange_is_that_of_the_written_loss(trainings):
    """With all data in one place: (1/M) [local + b sum_j L_f(x~; neighbours drawn from client j)]."""
    epoch = 1
    offers, sums = exchanged(trainings, epoch)
    found = {}
    for i, training in enumerate(trainings):
        training._step_heads = lambda rows, gradients, inputs, i=i: found.update({i: gradients[0]})
        sent = training._sent[0].detach().requires_grad_()
        counts = training._counts[0]
        training.apply((sums[i],))
        total = training._leaf_losses((sent,), training._counts, training.body, None)[0]
        train = training.cohort.train[0]
        before = sum(int(other.cohort.train.sum()) for other in trainings[:i])
        for j, other in enumerate(trainings):
            if j == i:
                continue
            everyone = sum(int(each.cohort.train.sum()) for each in trainings) - int(other.cohort.train.sum())
            drawn = other._stand_ins(0, epoch, everyone)
            start = before - (int(other.cohort.train.sum()) if j < i else 0)
            features = torch.as_tensor(client_graphs(other.whole)[0].features)
            targets, place = [], start
            for inside in train.tolist():
                targets.append(list(features[drawn[place]]) if inside else [])
                place += inside
            total = total + 0.7 * written_feature_loss(sent, counts, train, targets, 5)
        (expected,) = torch.autograd.grad(total / 4, sent)
        torch.testing.assert_close(found[i], expected)
    assert any(len(each) for each in offers)


def test_only_the_feature_heads_learn_in_an_exchange(trainings):
    before = [{name: weight.clone() for name, weight in each.body.items()} for each in trainings]
    for training in trainings:
        training._counts = 2 * training.cohort.nodes.long()
        training.offer(0)
    heads = [{n: w.detach().clone() for n, w in each.heads[0].items()} for each in trainings]
    for epoch in range(2):
        _, sums = exchanged(trainings, epoch)
        for training, received in zip(trainings, sums, strict=True):
            for rows in training._sent:
                if rows.requires_grad:
                    unused = torch.autograd.grad(
                        rows.sum(),
                        [each.requires_grad_() for each in training.body.values()],
                        retain_graph=True,
                        allow_unused=True,
                    )
                    assert unused == (None,) * len(unused)
            for weight in training.body.values():
                weight.requires_grad_(False)
            training.apply((received,))
    for training, body, head in zip(trainings, before, heads, strict=True):
        assert all(torch.equal(weight, body[name]) for name, weight in training.body.items())
        assert all(not torch.equal(weight, head[name]) for name, weight in training.heads[0].items())


def test_an_exchange_brings_generated_rows_closer_to_the_neighbours_of_others(make_federation):
    federation = make_federation(sizes=(30, 26))
    configuration = SMALL.model_copy(update={"generator_dropout": 0.0, "classification_weight": 0.0})
    trainings = [
        trained(stack([graph], federation.task, "float64"), configuration) for graph in federation.graphs
    ]
    sizes = []
    for training in trainings:
        training._counts = 2 * training.cohort.nodes.long()
    for epoch in range(40):
        _, sums = exchanged(trainings, epoch)
        sizes.append(sum(float(each.square().sum()) for each in sums))
        for training, received in zip(trainings, sums, strict=True):
            training.apply((received,))
    assert np.mean(sizes[-5:]) < np.mean(sizes[:5])


def test_a_client_without_edges_returns_zeros_and_one_without_others_gets_nothing(make_federation):
    federation = make_federation(sizes=(12,)).changed(0, edges=np.zeros((2, 0), dtype=np.int64))
    training = trained(stack(federation.graphs, federation.task, "float64"))
    (answer,) = training.respond(0, (torch.ones(3, 6).double(),), (torch.tensor([1, 0, 2]),))
    assert torch.equal(answer, torch.zeros(3, 6).double())
    alone = trained(stack(make_federation(sizes=(17,)).graphs, replace(federation.task, clients=1)))
    alone.offer(0)
    nothing = torch.zeros(0, 6), torch.zeros(0, dtype=torch.int32)
    assert alone.respond(0, (nothing[0],), (nothing[1],))[0].shape == (0, 6)


def test_a_node_that_stands_in_has_neighbours_and_they_are_its_own(make_federation):
    federation = make_federation()
    edges = federation.graphs[0].edges
    federation = federation.changed(0, edges=edges[:, (edges >= 8).all(axis=0)])
    training = trained(stack(federation.graphs, federation.task, "float64"), epochs=0)
    graph, drawn = federation.graphs[0], training._stand_ins(0, 0, 50)
    around = [set(neighbours(graph, node)) for node in range(graph.size)]
    for row in drawn.tolist():
        assert any(set(row) <= each for each in around)
    assert len({tuple(row) for row in drawn.tolist()}) > 5


def test_leaves_belong_to_nodes_that_were_kept(training):
    features, counts = training.leaves()
    assert any(part.numel() for part in features)
    for m, (rows, number) in enumerate(zip(features, counts, strict=True)):
        assert number.numel() == training.whole.sizes[m]
        assert int(number.sum()) == rows.shape[0]
        hidden = np.setdiff1d(np.arange(number.numel()), training.impaired.kept[m].numpy())
        assert (number[hidden] == 0).all()
        assert rows.numel() == 0 or rows.abs().max() <= 1
    again, _ = training.leaves()
    assert all(torch.equal(one, other) for one, other in zip(features, again, strict=True))
