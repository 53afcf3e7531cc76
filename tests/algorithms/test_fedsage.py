"""FedSage is FedAvg with GraphSAGE, FedSage+ without new neighbours is FedSage, and features stay home."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedatlas.algorithms.fedsage import _of_the_others, _summed_for_each
from fedatlas.algorithms.neighbour_generator import NeighbourGenerator
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.runtime import InlineRuntime


def assert_same_training(first, second):
    np.testing.assert_array_equal(first.scores(), second.scores())
    for name, weight in first.clients["weights"].items():
        torch.testing.assert_close(weight, second.clients["weights"][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["fedavg", "fedopt", "none"])
def test_fedsage_is_fedavg_with_graphsage(make_federation, make_method, run, aggregation):
    federation = make_federation()
    plain = run(make_method("fedavg", "sage", aggregation=aggregation, epochs=2), federation)
    sage = run(make_method("fedsage", aggregation=aggregation, epochs=2), federation)
    assert_same_training(sage, plain)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_without_generation_it_is_fedsage(make_federation, make_method, run, sparse):
    federation = make_federation(sparse=sparse)
    off = run(make_method("fedsageplus", cross_client=False, input_dropout=0.2), federation)
    assert_same_training(off, run(make_method("fedsage", input_dropout=0.2), federation))
    assert off.records[0].preparation is None or not off.records[0].preparation.uplink


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_without_missing_neighbours_it_is_fedsage(make_federation, make_method, run, monkeypatch, sparse):
    monkeypatch.setattr(
        NeighbourGenerator, "degrees", lambda self, weights, latent: 0 * latent.sum(dim=2) + 0.9
    )
    federation = make_federation(sparse=sparse)
    outcome = run(make_method("fedsageplus"), federation)
    assert_same_training(outcome, run(make_method("fedsage"), federation))
    assert outcome.records[-1].metrics["generator/leaves"] == 0


def test_generated_neighbours_change_what_is_learned(make_federation, make_method, run):
    federation = make_federation()
    outcome = run(make_method("fedsageplus"), federation)
    assert outcome.records[0].metrics["generator/leaves"] > 0
    plain = run(make_method("fedsage"), federation)
    weight = outcome.clients["weights"]["encoder.0.weight"]
    assert not torch.allclose(weight, plain.clients["weights"]["encoder.0.weight"])


def test_leaves_are_kept_and_generators_are_not(make_federation, make_method, run):
    federation = make_federation()
    outcome = run(make_method("fedsageplus"), federation)
    assert outcome.clients.keys() == {"weights", "optimizer", "leaves", "leaf_counts"}
    assert outcome.server["features"] == outcome.server["counts"] == outcome.server["gradients"] == ()
    for graph, leaves, counts in zip(
        federation.graphs, outcome.clients["leaves"], outcome.clients["leaf_counts"], strict=True
    ):
        assert counts.shape == (graph.size,)
        assert leaves.shape == (int(counts.sum()), 6)
        assert counts.max() <= 5
        # Everything may be hidden here, and hidden nodes get no neighbours.
        assert (counts[graph.validation] == 0).all()


@pytest.mark.parametrize("backbone", ["sage", "gcn", "h2gcn"])
def test_every_client_is_trained_and_scored_on_its_mended_graph(make_federation, make_method, backbone):
    """Logits of its own nodes equal those of the network on original and leaves."""
    federation = make_federation()
    method = make_method("fedsageplus", backbone)
    client, cohort = prepared(method, federation)
    mended = method._mended(client, cohort)
    assert mended.sizes == tuple(
        size + int(counts.sum()) for size, counts in zip(cohort.sizes, client.leaf_counts, strict=True)
    )
    assert mended.sizes > cohort.sizes
    logits = method.predict(client, cohort)
    assert logits.shape == (4, cohort.width, 3)
    whole = method.backbone.forward(client.weights, mended, None).logits
    dropped = method.represent(client, cohort, client.weights, Dropout(cohort, 3, 1))
    expected = method.backbone.forward(client.weights, mended, Dropout(mended, 3, 1))
    for m, size in enumerate(cohort.sizes):
        assert torch.equal(logits[m, :size], whole[m, :size])
        assert torch.equal(dropped.embedding[m, :size], expected.embedding[m, :size])


def prepared(method, federation, runtime=None):
    """The client states and the cohort after preparation, everybody in one cohort."""
    runtime = runtime or InlineRuntime()
    runtime.setup(federation.job(method))
    server = method.init(federation.task)
    for step in range(method.preparation_steps):
        (report,) = runtime.prepare(method.prepare_broadcast(server, step), step)
        server = method.prepare_aggregate(server, report.upload, step)
    return runtime._hosts[0]._client, runtime._hosts[0].cohort


def rows_of(tensor, features):
    """Whether a tensor holds a row of features, in its last axis."""
    if not tensor.is_floating_point() or tensor.dim() == 0 or tensor.shape[-1] != features.shape[1]:
        return False
    flat = tensor.reshape(-1, features.shape[1])
    return bool((flat[:, None] == features[None]).all(dim=2).any())


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_no_row_of_features_leaves_a_client(make_federation, make_method, monkeypatch, sparse):
    """Every field that is uploaded, before and in a round, against every row of the sender's features."""
    federation = make_federation(sparse=sparse)
    method = make_method("fedsageplus")
    runtime, seen = InlineRuntime(1), set()
    runtime.setup(federation.job(method))
    server = method.init(federation.task)

    def check(reports):
        for graph, report in zip(federation.graphs, reports, strict=True):
            dense = graph.features.toarray() if sparse else graph.features
            features = torch.as_tensor(dense[dense.any(axis=1)], dtype=torch.float64)
            fields = {**report.upload.fields, **{n: parts[0] for n, parts in report.upload.ragged.items()}}
            for name, tensor in fields.items():
                seen.add(name.split("/")[0])
                assert not rows_of(tensor, features), name
                # What was sent need not be the row itself, it may differ by a factor.
                if tensor.is_floating_point() and tensor.dim() == 2 and tensor.shape[1] == 6:
                    scaled = torch.nn.functional.normalize(tensor, dim=1)
                    cosines = scaled @ torch.nn.functional.normalize(features, dim=1).T
                    assert not tensor.numel() or cosines.abs().max() < 1 - 1e-6, name

    for step in range(method.preparation_steps):
        broadcast = method.prepare_broadcast(server, step)
        reports = runtime.prepare(broadcast, step)
        check(reports)
        uploads = [report.upload for report in reports]
        ragged = {name: tuple(upload.ragged[name][0] for upload in uploads) for name in uploads[0].ragged}
        server = method.prepare_aggregate(server, dataclasses.replace(uploads[0], ragged=ragged), step)
    check(runtime.round(method.broadcast(server, 0), 0))
    assert seen == {"generated", "gradients", "weights", "size"}
    graph = federation.graphs[0]
    own = torch.as_tensor(graph.features.toarray() if sparse else graph.features, dtype=torch.float64)
    assert rows_of(own[:3], own)


def test_the_server_relays_to_everybody_else_and_back():
    """The two are adjoint: sum_j <others(x)_j, a_j> = sum_m <x_m, back(a)_m>; nobody gets its own."""
    generator = torch.Generator().manual_seed(0)
    parts = tuple(torch.randn(count, 3, generator=generator) for count in (2, 0, 4, 1))
    others = _of_the_others(parts)
    assert [len(each) for each in others] == [5, 7, 3, 6]
    assert torch.equal(others[2], torch.cat([parts[0], parts[1], parts[3]]))
    answers = [torch.randn(each.shape, generator=generator) for each in others]
    back = _summed_for_each(answers, parts)
    assert [each.shape for each in back] == [each.shape for each in parts]
    there = sum(float((one * other).sum()) for one, other in zip(others, answers, strict=True))
    again = sum(float((one * other).sum()) for one, other in zip(parts, back, strict=True))
    assert there == pytest.approx(again, rel=1e-5)
    assert [part.shape for part in _of_the_others(parts[:1])] == [(0, 3)]
    assert torch.equal(_summed_for_each([parts[0][:0]], parts[:1])[0], torch.zeros(2, 3))


def test_traffic_of_the_preparation(make_federation, make_method, run):
    """Everything goes to the server once and from there to the other three; sums of gradients come back."""
    federation = make_federation()
    method = make_method("fedsageplus", exchange_epochs=1)
    outcome = run(method, federation, rounds=1, precision="float32")
    spent = outcome.records[0].preparation
    trained = sum(int(graph.train.sum()) for graph in federation.graphs)
    generated = spent.uplink["generated"] - 4 * trained
    assert generated > 0
    assert generated % (4 * 6) == 0
    assert spent.downlink["generated"] == 3 * spent.uplink["generated"]
    assert spent.uplink["gradients"] == 3 * generated
    assert spent.downlink["gradients"] == generated


def test_without_an_exchange_generators_are_local(make_federation, make_method, run):
    federation = make_federation()
    method = make_method("fedsageplus", exchange_epochs=0)
    assert method.preparation_steps == 1
    outcome = run(method, federation)
    assert outcome.records[0].preparation.uplink == {}
    assert outcome.records[0].metrics["generator/leaves"] > 0
    features = federation.graphs[1].features + 1
    other = run(method, federation.changed(1, features=features), rounds=1)
    for m in (0, 2, 3):
        assert torch.equal(outcome.clients["leaves"][m], other.clients["leaves"][m])


def test_one_client_generates_for_itself(make_federation, make_method, run):
    outcome = run(make_method("fedsageplus"), make_federation(sizes=(23,)))
    assert np.isfinite(outcome.scores()).all()
    assert outcome.records[0].preparation.downlink.get("generated", 0) == 0


@pytest.mark.parametrize("change", ["no edges", "one validation node each", "no training nodes"])
def test_where_nobody_can_learn_it_is_fedsage(make_federation, make_method, run, change):
    federation = make_federation()
    for m, graph in enumerate(federation.graphs):
        if change == "no edges":
            federation = federation.changed(m, edges=np.zeros((2, 0), dtype=np.int64))
        elif change == "no training nodes":
            federation = federation.changed(m, train=np.zeros(graph.size, dtype=bool))
        else:
            one = np.arange(graph.size) == 1
            federation = federation.changed(m, validation=one, test=~one & ~graph.train)
    assert_same_training(run(make_method("fedsageplus"), federation), run(make_method("fedsage"), federation))


def test_input_dropout_does_not_depend_on_placement_with_few_leaves(make_federation, make_method, run):
    """A cohort whose clients generated nothing draws the same masks as one with leaves."""
    federation = make_federation(sparse=True).changed(1, edges=np.zeros((2, 0), dtype=np.int64))
    method = make_method("fedsageplus", input_dropout=0.3)
    together, apart = run(method, federation), run(method, federation, per_cohort=1)
    assert together.clients["leaves"][1].shape[0] == 0
    assert sum(each.shape[0] for each in together.clients["leaves"]) > 0
    for name, weight in together.clients["weights"].items():
        torch.testing.assert_close(weight, apart.clients["weights"][name], rtol=0, atol=1e-9)


def test_a_cohort_keeps_its_features_if_nothing_was_generated(make_federation, make_method):
    federation = make_federation(sparse=True)
    method = make_method("fedsageplus")
    cohort = stack(federation.graphs, federation.task)
    client = method.join(cohort)
    assert method._mended(client, cohort) is cohort
