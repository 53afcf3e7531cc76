"""FedGMC: its objective against the written formula, its degenerate settings against simpler methods."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedatlas.algorithms.registry import create
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.randomness import stream

OFF = {"semantic": False, "structural": False}
NO_WEIGHT = {"semantic_weight": 0.0, "structural_weight": 0.0}


def assert_same_weights(first, second):
    np.testing.assert_array_equal(first.scores(), second.scores())
    for one, other in ((first.server, second.server), (first.clients, second.clients)):
        for name, weight in other["weights"].items():
            assert torch.equal(one["weights"][name], weight), name


@pytest.mark.parametrize("options", [OFF, NO_WEIGHT], ids=["parts off", "weights zero"])
@pytest.mark.parametrize(
    ("simpler", "setting"),
    [
        ("fedopt", {}),
        ("fedavg", {"aggregation": "fedavg", "shared": "all"}),
        ("fedper", {"aggregation": "fedavg", "shared": "encoder"}),
        ("local", {"aggregation": "none"}),
    ],
)
def test_without_calibration_it_is_the_simpler_method(
    make_federation, make_method, run, simpler, setting, options
):
    federation = make_federation()
    shared = {"activation": "elu", "input_dropout": 0.3}
    outcome = run(make_method("fedgmc", **shared, **setting, **options), federation)
    expected = run(make_method(simpler, "h2gcn", **shared), federation)
    assert_same_weights(outcome, expected)
    if options is OFF:
        for one, other in zip(outcome.records, expected.records, strict=True):
            assert (one.uplink, one.downlink, one.metrics) == (other.uplink, other.downlink, other.metrics)


def test_literal_weights_are_weights_of_one(make_federation, make_method, run, assert_same_run):
    federation = make_federation()
    ones = make_method("fedgmc", semantic_weight=1.0, structural_weight=1.0)
    assert_same_run(run(make_method("fedgmc", literal_weights=True), federation), run(ones, federation))
    part = make_method("fedgmc", literal_weights=True, structural=False)
    assert part.configuration.weight("structural") == 0.0


def test_both_template_uploads_give_the_same_run(make_federation, make_method, run, assert_same_run):
    federation = make_federation()
    stats, raw = (run(make_method("fedgmc", template_upload=kind), federation) for kind in ("stats", "raw"))
    for name in ("templates", "anchors"):
        torch.testing.assert_close(stats.server[name], raw.server[name], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(stats.scores(), raw.scores())


def test_without_refinement_anchors_and_templates_stay(make_federation, make_method, run):
    federation = make_federation()
    method = make_method("fedgmc", refinement=False)
    outcome, start = run(method, federation), method.init(federation.task)
    assert torch.equal(outcome.server["anchors"], start.anchors)
    assert torch.equal(outcome.server["templates"], start.templates)
    moved = run(make_method("fedgmc"), federation).server
    assert not torch.allclose(moved["anchors"], start.anchors)
    assert not torch.allclose(moved["templates"], start.templates)


# The objective


def start_in_double(method, federation):
    """Server in float64, one client joined and sent the broadcast."""
    server = method.init(federation.task)
    server = dataclasses.replace(server, weights={n: w.double() for n, w in server.weights.items()})
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    method.receive(client, cohort, method.broadcast(server, 0))
    return server, client, cohort


def dense_rings(graph):
    """Normalised exact 1-hop and 2-hop rings, dense."""
    one = np.zeros((graph.size, graph.size))
    one[graph.edges[0], graph.edges[1]] = 1
    two = (one @ one > 0) & (one == 0) & ~np.eye(graph.size, dtype=bool)
    out = []
    for ring in (one, two.astype(float)):
        degree = ring.sum(axis=1)
        scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
        out.append(torch.as_tensor(scale[:, None] * ring * scale))
    return out


def written_plan(cost, epsilon, iterations):
    """Alternate scalings to column sums B/Q and row sums 1, rows last."""
    nodes, templates = cost.shape
    plan = torch.exp(-cost / epsilon)
    for _ in range(iterations):
        plan = plan / plan.sum(dim=1, keepdim=True)
        plan = plan / plan.sum(dim=0, keepdim=True) * nodes / templates
    return plan / plan.sum(dim=1, keepdim=True)


def written_terms(graph, weights, anchors, templates, configuration, sample):
    """Cross-entropy, semantic and structural loss of one client, by the paper's formulas."""
    A1, A2 = dense_rings(graph)
    X, y = torch.as_tensor(graph.features).double(), torch.as_tensor(graph.labels)
    train = torch.as_tensor(graph.train)
    act = torch.nn.functional.elu
    H = act(X @ weights["encoder.weight"] + weights["encoder.bias"])
    Z1, Z2 = A1 @ H, A2 @ H
    logits = torch.cat([H, Z1, Z2], dim=1) @ weights["classifier.weight"] + weights["classifier.bias"]
    entropy = torch.nn.functional.cross_entropy(logits[train], y[train])

    with torch.no_grad():
        present = [c for c in range(anchors.shape[1]) if (train & (y == c)).any()]
        P = torch.stack([H[train & (y == c)].mean(dim=0) for c in present], dim=1)
        U, _, Vt = torch.linalg.svd(anchors[:, present] @ P.T)
        R = U @ Vt
    semantic = torch.stack(
        [(R @ H[v] - anchors[:, y[v]]).square().sum() for v in np.flatnonzero(graph.train)]
    )

    rows = []
    for v in sample:
        r = [Z1[v] / Z1[v].norm(), (Z1[v] + Z2[v]) / (Z1[v] + Z2[v]).norm()]
        rows.append(
            torch.stack(
                [
                    torch.minimum(
                        ((r[0] - t[0]).square().sum() + (r[1] - t[1]).square().sum()) / 2,
                        ((r[0] - t[1]).square().sum() + (r[1] - t[0]).square().sum()) / 2,
                    )
                    for t in templates
                ]
            )
        )
    cost = torch.stack(rows)
    plan = written_plan(cost.detach(), configuration.epsilon, configuration.sinkhorn_iterations)
    structural = (plan * cost).sum() / len(sample)
    return (
        entropy,
        configuration.weight("semantic") * semantic.mean(),
        configuration.weight("structural") * structural,
    )


@pytest.mark.parametrize("case", ["all classes", "absent class", "few nodes sampled"])
def test_gradient_is_that_of_the_written_objective(make_federation, make_method, case):
    federation = make_federation(sizes=(17,), classes=3)
    if case == "absent class":
        federation = federation.changed(0, labels=federation.graphs[0].labels % 2)
    graph = federation.graphs[0]
    count = 6 if case == "few nodes sampled" else 40
    method = make_method(
        "fedgmc", shared="all", dropout=0.0, activation="elu", hidden=5, epsilon=0.1, sampled_nodes=count
    )
    server, client, cohort = start_in_double(method, federation)

    connected = np.unique(graph.edges[0])
    sample = stream(federation.task.seed, 0, 5, "neighbourhoods").choice(
        connected, min(count, connected.size), replace=False
    )
    live = {name: weight.clone().requires_grad_() for name, weight in server.weights.items()}
    terms = written_terms(graph, live, server.anchors, server.templates, method.configuration, sample)
    expected = dict(zip(live, torch.autograd.grad(sum(terms), list(live.values())), strict=True))

    result = method.update(client, cohort, 5)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            result.upload.fields[f"weights/{name}"][0], gradient, rtol=0, atol=1e-12, msg=name
        )
    for name, term in zip(("cross_entropy", "semantic", "structural"), terms, strict=True):
        torch.testing.assert_close(result.metrics[f"loss/{name}"][0], term.detach())
    torch.testing.assert_close(result.metrics["loss/total"][0], sum(terms).detach())


def test_no_gradient_passes_through_rotation_and_plan(make_federation, make_method):
    """Perturbing along a direction: the objective with R and F frozen has the uploaded slope."""
    federation = make_federation(sizes=(17,))
    method = make_method("fedgmc", shared="all", dropout=0.0, activation="elu", hidden=5, epsilon=0.1)
    _, client, cohort = start_in_double(method, federation)
    sent = method.update(client, cohort, 0)
    frozen = method._calibrate(client, cohort, method.backbone.forward(client.weights, cohort, None).ego)
    direction = {name: torch.ones_like(weight) for name, weight in client.weights.items()}
    slope = sum((sent.upload.fields[f"weights/{n}"] * d).sum() for n, d in direction.items()).item()

    plans = []
    plan_of = method._plan

    def keep(cost, drawn):
        plans.append(plan_of(cost, drawn) if not plans else plans[0])
        return plans[-1]

    method._plan, method._calibrate = keep, lambda *arguments: frozen

    def objective(step):
        weights = {name: weight + step * direction[name] for name, weight in client.weights.items()}
        moved = dataclasses.replace(client, weights=weights)
        metrics = method._gradients(moved, next(method._steps(cohort, 0, 0)), 0)[0]
        return metrics["loss/total"].item()

    objective(0.0)
    assert (objective(1e-5) - objective(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("activation", ["relu", "elu", "tanh", "identity"])
def test_neighbourhoods_of_zero_give_no_gradient(make_federation, make_method, activation):
    """A node whose neighbours embed to zero has no direction; it must not blow up the bias."""
    federation = make_federation(sizes=(17, 9))
    federation = federation.changed(1, features=np.zeros((9, 6), dtype=np.float32))
    method = make_method("fedgmc", shared="all", dropout=0.0, activation=activation, semantic=False)
    off = make_method("fedgmc", shared="all", dropout=0.0, activation=activation, **OFF)
    sent = []
    for each in (method, off):
        _, client, cohort = start_in_double(each, federation)
        sent.append(each.update(client, cohort, 0).upload.fields)
    for name in ("weights/encoder.weight", "weights/encoder.bias", "weights/classifier.weight"):
        torch.testing.assert_close(sent[0][name][1], sent[1][name][1])
        assert sent[0][name].abs().max() < 10


def test_empty_second_ring_repeats_the_first_radial(make_federation, make_method):
    triangle = np.array([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    federation = make_federation(sizes=(3,)).changed(0, edges=triangle)
    method = make_method("fedgmc", activation="elu")
    _, client, cohort = start_in_double(method, federation)
    representation = method.backbone.forward(client.weights, cohort, None)
    radials = method._radials(representation, torch.tensor([[0, 1, 2]]))
    torch.testing.assert_close(radials[:, :, 0], radials[:, :, 1])
    torch.testing.assert_close(radials.norm(dim=3), torch.ones(1, 3, 2).double())


def test_sample_holds_connected_nodes_once_and_changes_every_round(make_federation, make_method):
    federation = make_federation()
    edges = federation.graphs[2].edges
    federation = federation.changed(2, edges=edges[:, (edges >= 12).all(axis=0)])
    federation = federation.changed(3, edges=np.zeros((2, 0), dtype=np.int64))
    method = make_method("fedgmc", sampled_nodes=20)
    cohort = stack(federation.graphs, federation.task, "float64")
    chosen, drawn = method._sample(cohort, 0)
    for m, graph in enumerate(federation.graphs):
        nodes = chosen[m, drawn[m]].tolist()
        connected = np.unique(graph.edges[0])
        assert len(nodes) == len(set(nodes)) == min(20, len(connected))
        assert set(nodes) <= set(connected.tolist())
    again, _ = method._sample(cohort, 0)
    later, _ = method._sample(cohort, 1)
    assert torch.equal(chosen, again)
    assert not torch.equal(chosen, later)


# What travels


def test_uploaded_alignment_losses_are_class_means_of_the_distances(make_federation, make_method):
    federation = make_federation().changed(1, labels=np.full(9, 2))
    method = make_method("fedgmc", shared="all", dropout=0.0, hidden=5)
    server, client, cohort = start_in_double(method, federation)
    fields = method.update(client, cohort, 0).upload.fields
    H = method.backbone.forward(client.weights, cohort, None).ego
    for m, graph in enumerate(federation.graphs):
        rows = [np.flatnonzero(graph.train & (graph.labels == c)) for c in range(3)]
        present = [c for c in range(3) if len(rows[c])]
        P = torch.stack([H[m, rows[c]].mean(dim=0) for c in present], dim=1)
        U, _, Vt = torch.linalg.svd(server.anchors[:, present] @ P.T)
        for c in range(3):
            assert fields["semantic/counts"][m, c] == len(rows[c])
            expected = torch.zeros(()).double()
            if c in present:
                aligned = H[m, rows[c]] @ (U @ Vt).T
                expected = (aligned - server.anchors[:, c]).square().sum(dim=1).mean()
            else:
                assert (fields["semantic/means"][m, :, c] == 0).all()
            torch.testing.assert_close(fields["semantic/losses"][m, c], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("upload", ["stats", "raw"])
@pytest.mark.parametrize("shared", ["all", "all_but_bias", "encoder", "none"])
def test_message_sizes(make_federation, make_method, run, upload, shared):
    p, F, C, Q, B, M = 8, 6, 3, 4, 6, 4
    outcome = run(
        make_method("fedgmc", template_upload=upload, shared=shared),
        make_federation(),
        2,
        precision="float32",
    )
    encoder, classifier = F * p + p, 3 * p * C
    weights = {"all": encoder + classifier + C, "all_but_bias": encoder + classifier, "encoder": encoder}
    structural = Q * (2 * p + 2) if upload == "stats" else B * 2 * p + B * Q
    up = {"semantic": 4 * M * (p * C + 2 * C), "structural": 4 * M * structural}
    down = {"anchors": 4 * M * p * C, "templates": 4 * M * Q * 2 * p}
    if shared != "none":
        up |= {"weights": 4 * M * weights[shared], "size": M * 2 * 4}
        down |= {"weights": 4 * M * weights[shared]}
    for record in outcome.records:
        assert record.uplink == up
        assert record.downlink == down


def test_anchors_stay_near_the_simplex_over_a_run(make_federation, make_method, run):
    method = make_method("fedgmc", activation="elu", hidden=64, semantic_weight=1.0)
    outcome = run(method, make_federation(), 80, precision="float32")
    errors = [record.metrics["geometry/gram_error"] for record in outcome.records]
    assert max(errors) < 0.05
    assert errors[-1] > 0.001


# What is refused


def test_backbones_without_rings_are_refused(make_federation, make_method):
    with pytest.raises(ConfigurationError, match="use backbone=h2gcn"):
        make_method("fedgmc", "gcn").init(make_federation().task)


def test_a_classifier_in_the_anchors_frame_does_not_depend_on_the_placement(
    make_federation, make_method, run, assert_same_run
):
    federation = make_federation()
    method = make_method("fedgmc", classifier_frame="anchors", shared="classifier")
    together = run(method, federation)
    assert_same_run(run(method, federation, per_cohort=1), together, 1e-5)
    plain = run(make_method("fedgmc", shared="classifier"), federation)
    assert together.records[-1].metrics["loss/total"] != plain.records[-1].metrics["loss/total"]


def test_the_anchors_frame_needs_the_semantic_part():
    with pytest.raises(ConfigurationError, match="classifier_frame=anchors needs the rotation"):
        create("fedgmc", options={"classifier_frame": "anchors", "semantic": False})
