"""FedGTA against its formulas, and the methods that it becomes in the limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from fedatlas.algorithms.mixing import PersonalisedServer, row_stochastic
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.messages import Upload


@pytest.fixture
def cohort(make_federation):
    federation = make_federation()
    return stack(federation.graphs, federation.task, "float64")


def logits_of(cohort):
    generator = torch.Generator().manual_seed(3)
    shape = (*cohort.nodes.shape, cohort.task.classes)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def written_statistics(cohort, m, logits, given):
    """The client's equations, one client, dense, in order."""
    size, known = cohort.sizes[m], cohort.train[m, : cohort.sizes[m]]
    hot = one_hot(cohort.labels[m, :size], cohort.task.classes).double()
    adjacency = torch.as_tensor(cohort.adjacencies[m].toarray())
    loops = adjacency + torch.eye(size)
    scale = loops.sum(dim=1).rsqrt()
    smooth = scale[:, None] * loops * scale

    start = torch.softmax(logits[m, :size], dim=1)
    start[known] = hot[known]
    labels, depths = start, []
    for _ in range(given.lp_steps):
        labels = given.alpha * smooth @ labels + (1 - given.alpha) * start
        labels[known] += start[known]
        depths.append(labels)
    found = []
    for labels in depths if given.all_depths else depths[-1:]:
        sharp = torch.softmax(labels, dim=1)
        sharp[known] = hot[known]
        orders = range(1, given.moment_order + 1)
        raw = [(sharp**order).mean(dim=0) for order in orders]
        central = [((sharp - sharp.mean(dim=0)) ** order).mean(dim=0) for order in orders]
        found += {"origin": raw, "mean": central, "hybrid": raw + central}[given.moments]
    flat = torch.softmax(depths[-1] / given.temperature, dim=1)
    flat[known] = hot[known]
    summands = (np.exp(-1) + flat * torch.log(flat + 1e-8)).sum(dim=1)
    return torch.cat(found), (adjacency.sum(dim=1) * summands).sum()


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 2 * 10 * 3),
        ({"moments": "origin", "moment_order": 4}, 4 * 3),
        ({"moments": "mean", "moment_order": 4, "lp_steps": 2, "alpha": 0.8}, 4 * 3),
        ({"moment_order": 4, "all_depths": True, "temperature": 3.0}, 5 * 2 * 4 * 3),
    ],
    ids=str,
)
def test_statistics_are_the_written_ones(cohort, make_method, options, length):
    method = make_method("fedgta", **options)
    logits = logits_of(cohort)
    moments, confidence = method.statistics(cohort, logits)
    assert moments.shape == (4, length)
    upper = cohort.task.classes / np.e * torch.tensor([a.sum() for a in cohort.adjacencies])
    assert ((confidence >= 0) & (confidence <= upper)).all()
    for m in range(4):
        vector, trust = written_statistics(cohort, m, logits, method.configuration)
        torch.testing.assert_close(moments[m], vector)
        torch.testing.assert_close(confidence[m], trust, rtol=1e-6, atol=0)


def test_without_propagation_the_predictions_are_read(cohort, make_method):
    logits = logits_of(cohort)
    moments, _ = make_method("fedgta", lp_steps=0, moments="origin", moment_order=1).statistics(
        cohort, logits
    )
    for m, size in enumerate(cohort.sizes):
        known = cohort.train[m, :size]
        hot = one_hot(cohort.labels[m, :size], 3).double()
        start = torch.where(known[:, None], hot, torch.softmax(logits[m, :size], dim=1))
        sharp = torch.where(known[:, None], hot, torch.softmax(start, dim=1))
        torch.testing.assert_close(moments[m], sharp.mean(dim=0))


def mixing_of(method, moments, confidence, gives=None):
    upload = Upload({"moments/moments": moments, "confidence/confidence": confidence})
    gives = torch.ones(len(confidence), dtype=torch.bool) if gives is None else gives
    return row_stochastic(method.mixing(PersonalisedServer({}), upload, 0), gives)


def test_mixing_by_hand(make_method):
    """Three directions at 0, 45 and 90 degrees: only neighbours are closer than 60 degrees."""
    moments = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    rows = mixing_of(make_method("fedgta", eps=0.5), moments, torch.tensor([1.0, 2.0, 5.0]))
    expected = torch.tensor([[1 / 3, 2 / 3, 0], [1 / 8, 2 / 8, 5 / 8], [0, 2 / 7, 5 / 7]])
    torch.testing.assert_close(rows, expected.double())
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(3).double())


def test_a_client_without_confidence_or_partner_keeps_its_model(make_method):
    method = make_method("fedgta", eps=0.5)
    moments = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert torch.equal(mixing_of(method, moments, torch.tensor([0.0, 2.0, 1.0])), torch.eye(3).double())
    # A client without training nodes gives nothing, and takes where it is similar.
    gives = torch.tensor([True, False])
    rows = mixing_of(method, torch.ones(2, 2), torch.tensor([2.0, 5.0]), gives)
    assert rows.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_equal_clients_are_fully_similar_and_stay_equal(make_federation, make_method, run):
    federation = make_federation(sizes=(17, 17), seed=1)
    federation = federation.changed(
        1, **{name: getattr(federation.graphs[0], name) for name in ("features", "edges", "labels")}
    )
    method = make_method("fedgta", dropout=0.0, eps=0.999)
    outcome = run(method, federation)
    torch.testing.assert_close(outcome.server["mixing"], torch.full((2, 2), 0.5).double())
    for weight in outcome.clients["weights"].values():
        torch.testing.assert_close(weight[0], weight[1])


@pytest.mark.parametrize("backbone", ["gamlp", "gcn"])
def test_without_partners_it_is_local(make_federation, make_method, run, backbone):
    """Also where two clients are equal, whose cosine rounding may lift above 1."""
    federation = make_federation(sizes=(17, 17, 9))
    federation = federation.changed(
        1, **{name: getattr(federation.graphs[0], name) for name in ("features", "edges", "labels")}
    )
    options = {"hidden": 8, "epochs": 2}
    alone = run(make_method("local", backbone, **options), federation)
    personal = run(make_method("fedgta", backbone, eps=1.0, **options), federation)
    none = run(make_method("fedgta", backbone, aggregation="none", **options), federation)
    for other in (personal, none):
        np.testing.assert_array_equal(other.scores(), alone.scores())
        for name, weight in other.clients["weights"].items():
            assert torch.equal(weight, alone.clients["weights"][name])
    assert all(record.uplink == {} for record in none.records)


def test_with_all_partners_and_equal_confidence_it_is_fedavg(make_federation, make_method, run, monkeypatch):
    federation = make_federation()
    method = make_method("fedgta", eps=-1.0)
    statistics = method.statistics

    def equally_sure(cohort, logits):
        moments, confidence = statistics(cohort, logits)
        return moments, torch.full_like(confidence, 3.0)

    monkeypatch.setattr(method, "statistics", equally_sure)
    mine, plain = run(method, federation), run(make_method("fedavg", "gamlp"), federation)
    np.testing.assert_array_equal(mine.scores(), plain.scores())
    for name, weight in mine.clients["weights"].items():
        torch.testing.assert_close(weight, plain.clients["weights"][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backbone", ["gcn", "h2gcn"])
def test_any_backbone_works(make_federation, make_method, run, backbone):
    outcome = run(make_method("fedgta", backbone), make_federation())
    assert np.isfinite(outcome.scores()).all()


def test_figures_and_traffic(make_federation, make_method, run):
    federation = make_federation()
    outcome = run(make_method("fedgta", moment_order=4), federation, rounds=2, precision="float32")
    rows = outcome.server["mixing"]
    last = outcome.records[-1]
    assert last.metrics["mixing/clients"] == pytest.approx((rows > 0).sum().item() / 4)
    assert last.metrics["mixing/self"] == pytest.approx(rows.diagonal().mean().item())
    assert last.uplink["moments"] == 4 * (2 * 4 * 3) * 4
    assert last.uplink["confidence"] == 4 * 4
    assert set(last.downlink) == {"weights"}


def test_evaluation_uses_the_forward_pass_of_the_statistics(make_federation, make_method, monkeypatch):
    """One forward pass per epoch, and one in evaluation mode."""
    federation = make_federation()
    method = make_method("fedgta", epochs=2)
    cohort = stack(federation.graphs, federation.task, "float64")
    client = method.join(cohort)
    method.receive(client, cohort, method.broadcast(method.init(federation.task), 0))
    passes = []
    represent = method.represent
    monkeypatch.setattr(
        method,
        "represent",
        lambda client, cohort, weights, dropout: (
            passes.append(dropout is None) or represent(client, cohort, weights, dropout)
        ),
    )
    method.update(client, cohort, 0)
    logits = method.predict(client, cohort)
    assert passes == [False, False, True]
    torch.testing.assert_close(logits, method.backbone.forward(client.weights, cohort, None).logits)


def test_one_client_is_local(make_federation, make_method, run):
    federation = make_federation(sizes=(14,))
    mine = run(make_method("fedgta"), federation)
    alone = run(make_method("local", "gamlp"), federation)
    np.testing.assert_array_equal(mine.scores(), alone.scores())


def test_bad_options_are_refused(make_method):
    for option in ({"eps": 1.5}, {"temperature": 0.0}, {"moments": "some"}, {"aggregation": "fedopt"}):
        with pytest.raises(ConfigurationError, match=next(iter(option))):
            make_method("fedgta", **option)
