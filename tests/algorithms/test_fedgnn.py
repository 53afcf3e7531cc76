"""FedGNN: which nodes match, what virtual nodes do, and FedAvg where there are none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.nn import GCNConv

from fedatlas.algorithms.matching import (
    feature_fingerprints,
    id_fingerprints,
    matches,
    neighbourhood_keys,
)
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.messages import Upload
from fedatlas.platform.federation.runtime import InlineRuntime


def disjoint(federation):
    """The federation as a partition without overlap: no id occurs twice."""
    start = 0
    for m, graph in enumerate(federation.graphs):
        federation = federation.changed(m, nodes=np.arange(start, start + graph.size))
        start += graph.size
    return federation


def neighbourhoods(graph):
    """Sorted ids of the neighbours of each node."""
    return [tuple(sorted(graph.nodes[graph.edges[1][graph.edges[0] == v]])) for v in range(graph.size)]


def keys_of(federation, fingerprints):
    cohort = stack(federation.graphs, federation.task)
    return neighbourhood_keys(cohort, fingerprints(cohort))


def expected_matches(federation, describe):
    """All ordered pairs of (client, node) with equal non-empty neighbourhoods, by comparison."""
    nodes = [
        (m, v, describe(graph, around))
        for m, graph in enumerate(federation.graphs)
        for v, around in enumerate(neighbourhoods(graph))
        if around
    ]
    return {(a[:2], b[:2]) for a in nodes for b in nodes if a[0] != b[0] and a[2] == b[2]}


def found_matches(federation, keys, cap=10**6):
    connected = [
        (m, v) for m, graph in enumerate(federation.graphs) for v, n in enumerate(neighbourhoods(graph)) if n
    ]
    own, other = matches(keys, cap, np.random.default_rng(0))
    return {(connected[a], connected[b]) for a, b in zip(own, other, strict=True)}


@pytest.fixture
def overlapping(make_federation):
    """Clients whose ids all coincide, so that sparse nodes often have equal neighbours."""
    return make_federation(sizes=(17, 12, 23, 20))


# Matching


def test_equal_ids_of_the_neighbours_match(overlapping):
    found = found_matches(overlapping, keys_of(overlapping, id_fingerprints))
    assert found == expected_matches(overlapping, lambda graph, around: around)
    assert len(found) > 4
    assert {(b, a) for a, b in found} == found
    assert all(a[0] != b[0] for a, b in found)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_equal_features_of_the_neighbours_match(make_federation, sparse):
    """Features are drawn from three rows, so that neighbourhoods coincide without common ids."""
    federation = disjoint(make_federation())
    rows = np.array([[1, 0, 0, 0.5, 0, 0], [0, 0.25, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=np.float32)
    kinds = [np.random.default_rng(m).integers(0, 3, graph.size) for m, graph in enumerate(federation.graphs)]
    for m, kind in enumerate(kinds):
        # Below the sixth decimal rows count as equal.
        noisy = rows[kind] + np.where(rows[kind] > 0, 1e-7, 0).astype(np.float32) * m
        federation = federation.changed(m, features=sp.csr_array(noisy) if sparse else noisy)

    def describe(graph, around):
        m = graph.client
        return tuple(sorted(kinds[m][np.searchsorted(graph.nodes, node)] for node in around))

    found = found_matches(federation, keys_of(federation, feature_fingerprints))
    assert found == expected_matches(federation, describe)
    assert len(found) > 4
    assert found_matches(federation, keys_of(federation, id_fingerprints)) == set()


def test_fingerprints_do_not_depend_on_the_form_of_the_features_or_on_the_cohort(make_federation):
    dense, sparse = (make_federation(sparse=form) for form in (False, True))
    together = feature_fingerprints(stack(dense.graphs, dense.task, "float64"))
    other = feature_fingerprints(stack(sparse.graphs, sparse.task, "float32"))
    for m, graph in enumerate(dense.graphs):
        (alone,) = feature_fingerprints(stack([graph], dense.task))
        np.testing.assert_array_equal(together[m], alone)
        np.testing.assert_array_equal(together[m], other[m])
        np.testing.assert_array_equal(np.unique(alone).size, np.unique(graph.features, axis=0).shape[0])
    salted = dataclasses.replace(dense.task, seed=1)
    assert not np.isin(together[0], feature_fingerprints(stack(dense.graphs, salted))[0]).any()


def test_isolated_nodes_have_no_key(make_federation):
    federation = make_federation(sizes=(7, 7)).changed(0, edges=np.zeros((2, 0), dtype=np.int64))
    connected = sum(1 for around in neighbourhoods(federation.graphs[1]) if around)
    assert [len(keys) for keys in keys_of(federation, id_fingerprints)] == [0, connected]


def test_the_cap_bounds_the_matches_of_a_node():
    """30 equal keys on each of three clients; a fourth client has others."""
    keys = [np.zeros(30, dtype=np.int64)] * 3 + [np.arange(1, 9)]
    own, other = matches(keys, 7, np.random.default_rng(0))
    assert np.bincount(own).tolist() == [7] * 90
    assert (own // 30 != other // 30).all()
    assert len(np.unique(own * 1000 + other)) == len(own)
    chosen = np.bincount(other, minlength=90)
    assert chosen.max() < 30
    again = matches(keys, 7, np.random.default_rng(0))
    np.testing.assert_array_equal(other, again[1])
    full, _ = matches(keys, 60, np.random.default_rng(0))
    assert np.bincount(full).tolist() == [60] * 90


@pytest.mark.parametrize("sizes", [(0,), (0, 0), (3,), (0, 3)], ids=str)
def test_nothing_to_match(sizes):
    own, other = matches([np.zeros(n, dtype=np.int64) for n in sizes], 5, np.random.default_rng(0))
    assert len(own) == len(other) == 0


# Rounds


def prepared(method, federation, precision="float64"):
    """Server state, client state and cohort after the exchange before round 0."""
    cohort = stack(federation.graphs, federation.task, precision)
    server, client = method.init(federation.task), method.join(cohort)
    for step in range(method.preparation_steps):
        upload = method.prepare(client, cohort, method.prepare_broadcast(server, step), step)
        server = method.prepare_aggregate(server, upload, step)
    return server, client, cohort


def one_round(method, server, client, cohort, number=0):
    method.receive(client, cohort, method.broadcast(server, number))
    upload = method.update(client, cohort, number).upload
    return method.aggregate(server, upload, number), upload


@pytest.mark.parametrize(
    "options", [{}, {"aggregation": "fedopt", "shared": "all_but_bias"}, {"aggregation": "none"}], ids=str
)
def test_without_matches_it_is_fedavg(make_federation, make_method, run, options):
    federation = disjoint(make_federation())
    mine = run(make_method("fedgnn", epochs=2, **options), federation)
    plain = run(make_method("fedavg", epochs=2, **options), federation)
    np.testing.assert_array_equal(mine.scores(), plain.scores())
    for name, weight in mine.clients["weights"].items():
        assert torch.equal(weight, plain.clients["weights"][name])
    assert mine.records[-1].metrics["matches/virtual_nodes"] == 0
    assert mine.records[-1].uplink["embeddings"] == mine.records[-1].downlink["embeddings"] == 0


def test_ids_decide_where_clients_share_them_and_features_elsewhere(overlapping, make_method):
    counts = {}
    for name, federation in (("overlapping", overlapping), ("disjoint", disjoint(overlapping))):
        same = federation
        for m, graph in enumerate(federation.graphs):
            same = same.changed(m, features=np.ones_like(graph.features))
        for kind in ("auto", "ids", "features"):
            server, _, _ = prepared(make_method("fedgnn", fingerprint=kind), same)
            counts[name, kind] = int(make_method("fedgnn").diagnostics(server)["matches/virtual_nodes"])
    assert counts["overlapping", "auto"] == counts["overlapping", "ids"] > 0
    assert counts["disjoint", "auto"] == counts["disjoint", "features"] > 0
    assert counts["disjoint", "ids"] == 0


def test_virtual_nodes_are_those_of_the_extended_graph(overlapping, make_method):
    """The second layer against PyG's on the graph with one more node per match."""
    method = make_method("fedgnn", activation="elu")
    server, client, cohort = prepared(method, overlapping)
    server, upload = one_round(method, server, client, cohort)
    sent = upload.ragged["embeddings/embeddings"]
    first = method._first(cohort, client.weights, None)
    for m, nodes in enumerate(client.needed):
        assert torch.equal(sent[m], first[m, nodes])
    method.receive(client, cohort, method.broadcast(server, 1))
    result = method.represent(client, cohort, client.weights, None)
    pairs = {m: [] for m in range(4)}
    for (m, v), (j, u) in expected_matches(overlapping, lambda graph, around: around):
        pairs[m].append((v, j, u))
    # Every client now has the broadcast weights; what it received was sent before they were averaged.
    before = {(j, int(u)): sent[j][row] for j in range(4) for row, u in enumerate(client.needed[j])}
    hidden = method._first(cohort, client.weights, None)
    for m, graph in enumerate(overlapping.graphs):
        size, extra = graph.size, len(pairs[m])
        assert extra == client.links[m].shape[1]
        values = torch.cat([hidden[m, :size], *[before[j, u][None] for _, j, u in pairs[m]]])
        links = torch.tensor([[v for v, _, _ in pairs[m]], list(range(size, size + extra))]).reshape(2, extra)
        edges = torch.cat([torch.as_tensor(graph.edges), links, links.flip(0)], dim=1)
        layer = GCNConv(8, 8).double()
        own = {name: weight[m] for name, weight in client.weights.items()}
        layer.load_state_dict({"lin.weight": own["encoder.1.weight"].T, "bias": own["encoder.1.bias"]})
        embedding = layer(values, edges)[:size]
        torch.testing.assert_close(result.embedding[m, :size], embedding)
        logits = torch.nn.functional.elu(embedding) @ own["classifier.weight"] + own["classifier.bias"]
        torch.testing.assert_close(result.logits[m, :size], logits)
    assert result.logits.shape[:2] == cohort.nodes.shape


def test_training_sees_virtual_nodes_without_changing_them(overlapping, make_method):
    method = make_method("fedgnn", dropout=0.3)
    server, client, cohort = prepared(method, overlapping)
    server, _ = one_round(method, server, client, cohort)
    method.receive(client, cohort, method.broadcast(server, 1))
    live = {name: weight.clone().requires_grad_() for name, weight in client.weights.items()}
    result = method.represent(client, cohort, live, Dropout(cohort, 1, 0))
    assert not client.inflow.requires_grad
    (mine,) = torch.autograd.grad(result.logits.sum(), [live["encoder.1.weight"]])
    client.inflow = torch.zeros_like(client.inflow)
    result = method.represent(client, cohort, live, Dropout(cohort, 1, 0))
    (without,) = torch.autograd.grad(result.logits.sum(), [live["encoder.1.weight"]])
    assert not torch.allclose(mine, without)


def test_the_first_round_has_no_virtual_nodes(overlapping, make_method, run):
    mine, plain = (run(make_method(name), overlapping, rounds=1) for name in ("fedgnn", "fedavg"))
    for name, weight in mine.clients["weights"].items():
        assert torch.equal(weight, plain.clients["weights"][name])
    later = [run(make_method(name), overlapping, rounds=2) for name in ("fedgnn", "fedavg")]
    weights = [outcome.clients["weights"]["encoder.1.weight"] for outcome in later]
    assert not torch.allclose(*weights)


def test_traffic_is_the_stated_one(overlapping, make_method):
    method = make_method("fedgnn")
    coordinator = Coordinator(overlapping.job(method, "float32"), InlineRuntime(2), Schedule(rounds=2))
    coordinator.start()
    first, second = coordinator.advance(), coordinator.advance()
    server, _, _ = prepared(method, overlapping)
    needed, received, virtual = (
        sum(part.shape[-1] for part in parts) for parts in (server.needed, server.received, server.links)
    )
    connected = sum(1 for graph in overlapping.graphs for around in neighbourhoods(graph) if around)
    assert needed > 0
    # Virtual nodes that carry one embedding cost it once.
    assert virtual >= received >= needed
    assert first.uplink["embeddings"] == second.uplink["embeddings"] == needed * 8 * 4
    assert "embeddings" not in first.downlink
    assert second.downlink["embeddings"] == received * 8 * 4
    steps = first.preparation
    # Both kinds of keys, 8 bytes each.
    assert steps.uplink == {"keys": 2 * connected * 8}
    assert steps.downlink == {"matches": (needed + 2 * virtual) * 4}


def test_noise_is_added_to_what_is_sent_and_nothing_else(overlapping, make_method):
    sent = []
    for noise in (0.0, 0.5):
        method = make_method("fedgnn", noise=noise)
        server, client, cohort = prepared(method, overlapping)
        _, upload = one_round(method, server, client, cohort)
        sent.append((torch.cat(upload.ragged["embeddings/embeddings"]), client.weights["encoder.0.weight"]))
    added = sent[1][0] - sent[0][0]
    assert added.abs().mean().item() == pytest.approx(0.5, rel=0.2)
    assert torch.equal(sent[0][1], sent[1][1])


def test_noise_does_not_depend_on_placement(overlapping, make_method, run, assert_same_run):
    method = make_method("fedgnn", noise=0.1, cap=1)
    assert_same_run(run(method, overlapping, per_cohort=1), run(method, overlapping), 1e-5)


def test_one_client_and_an_unprepared_one_have_no_matches(make_federation, make_method):
    method = make_method("fedgnn")
    federation = make_federation(sizes=(14,))
    server, client, _ = prepared(method, federation)
    assert [part.shape for part in server.links] == [(2, 0)]
    assert [part.shape for part in client.needed] == [(0,)]
    assert method.prepare_aggregate(server, Upload(), 1) is server


def test_only_gcn_is_accepted(make_method):
    with pytest.raises(ConfigurationError, match="backbone=h2gcn: use backbone=gcn"):
        make_method("fedgnn", "h2gcn")
