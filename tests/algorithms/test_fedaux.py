"""FedAux: golden values, the role of the projection vector, and the methods it reduces to."""

from __future__ import annotations

import math

import pytest
import torch

from fedatlas.algorithms.fedaux import APV, FedAux, alignment, cosines
from fedatlas.algorithms.fedavg import FedAvg
from fedatlas.algorithms.fedpub import MASK
from fedatlas.algorithms.mixing import PersonalisedServer, row_stochastic
from fedatlas.algorithms.registry import create
from fedatlas.algorithms.weight_sharing import WeightSharingConfiguration
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.messages import Broadcast, Upload, prefixed


def upload(apvs, trained=None, **weights):
    train = torch.ones(len(apvs)) if trained is None else torch.tensor(trained, dtype=torch.float32)
    return Upload({**prefixed("weights", {APV: apvs, **weights}), "size/train_nodes": train})


def joined(make_federation, method, **arguments):
    """A cohort in float64 and the state of its clients before round 0."""
    federation = make_federation(**arguments)
    cohort = stack(federation.graphs, federation.task, "float64")
    return cohort, method.join(cohort)


@pytest.fixture
def golden_apvs():
    return torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)


# Server


def test_golden_weights(make_method, golden_apvs):
    server = PersonalisedServer({})
    found = make_method("fedaux", alpha=1.0).mixing(server, upload(golden_apvs), 0)
    expected = [
        [0.473041, 0.174022, 0.352937],
        [0.174022, 0.473041, 0.352937],
        [0.299374, 0.299374, 0.401251],
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=1e-5)
    found = make_method("fedaux", alpha=10.0).mixing(server, upload(golden_apvs), 0)[0]
    torch.testing.assert_close(
        found, torch.tensor([0.949217, 0.000043, 0.050740]).double(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("similarity", ["apv", "weights", "uniform"])
def test_weights_are_rows_of_sum_one_and_equal_without_sharpness(make_method, golden_apvs, similarity):
    sent = upload(golden_apvs, **{"encoder.0.weight": torch.randn(3, 4, 2).double()})
    found = make_method("fedaux", similarity=similarity).mixing(PersonalisedServer({}), sent, 0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3).double())
    equal = make_method("fedaux", similarity=similarity, alpha=0).mixing(PersonalisedServer({}), sent, 0)
    torch.testing.assert_close(equal, torch.full((3, 3), 1 / 3).double())


def test_great_sharpness_keeps_every_client_its_own(make_method, golden_apvs):
    found = make_method("fedaux", alpha=1e4).mixing(PersonalisedServer({}), upload(golden_apvs), 0)
    torch.testing.assert_close(found, torch.eye(3).double())


def test_similarity_of_weights_leaves_the_projection_vector_out(make_method, golden_apvs):
    method = make_method("fedaux", similarity="weights")
    weights = {
        "encoder.0.weight": torch.randn(3, 4, 2).double(),
        "classifier.bias": torch.randn(3, 2).double(),
    }
    found = method.mixing(PersonalisedServer({}), upload(golden_apvs, **weights), 0)
    other = method.mixing(PersonalisedServer({}), upload(golden_apvs.flip(0), **weights), 0)
    flat = torch.cat([weight.flatten(1) for weight in weights.values()], dim=1)
    cosine = torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=2)
    torch.testing.assert_close(found, torch.softmax(10 * cosine, dim=1))
    assert torch.equal(found, other)


def test_clients_without_training_nodes_give_nothing(make_method, golden_apvs):
    """Leaving a client out of the softmax and dropping its column are the same."""
    method = make_method("fedaux", alpha=1.0)
    sent = upload(golden_apvs, trained=[1, 1, 0])
    rows = row_stochastic(method.mixing(PersonalisedServer({}), sent, 0), sent.fields["size/train_nodes"] > 0)
    torch.testing.assert_close(rows[0], torch.softmax(torch.tensor([1.0, 0.0, -math.inf]).double(), dim=0))
    torch.testing.assert_close(rows[2], torch.tensor([0.5, 0.5, 0.0]).double())


# Client


def gradient_of_apv(method, client, cohort):
    live = {name: weight.clone().requires_grad_() for name, weight in client.weights.items()}
    logits = method.represent(client, cohort, live, None).logits
    loss = torch.nn.functional.cross_entropy(logits[cohort.train], cohort.labels[cohort.train])
    (gradient,) = torch.autograd.grad(loss, live[APV], allow_unused=True)
    return gradient


def test_the_projection_vector_has_a_gradient_orthogonal_to_it(make_federation, make_method):
    method = make_method("fedaux", sigma=1.0)
    cohort, client = joined(make_federation, method)
    gradient = gradient_of_apv(method, client, cohort)
    assert gradient.isfinite().all()
    assert (gradient.norm(dim=1) > 1e-8).all()
    assert (gradient * client.weights[APV]).sum(dim=1).abs().max() < 1e-10
    for rule in ("sort", "none"):
        method = make_method("fedaux", smoothing=rule)
        assert gradient_of_apv(method, method.join(cohort), cohort) is None


@pytest.mark.parametrize("rule", ["kernel", "sort"])
def test_the_length_of_the_projection_vector_does_not_matter(make_federation, make_method, rule):
    method = make_method("fedaux", smoothing=rule)
    cohort, client = joined(make_federation, method)
    logits = method.predict(client, cohort)
    client.weights[APV].mul_(3)
    torch.testing.assert_close(method.predict(client, cohort), logits, rtol=0, atol=1e-10)


def test_a_zero_embedding_has_score_zero_and_no_gradient():
    hidden = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]], dtype=torch.float64, requires_grad=True)
    apv = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    scores = cosines(hidden, apv)
    torch.testing.assert_close(scores.detach(), torch.tensor([[0.0, 0.6]]).double())
    to_hidden, to_apv = torch.autograd.grad(scores.sum(), (hidden, apv))
    assert not to_hidden[0, 0].any()
    torch.testing.assert_close(to_apv, torch.tensor([[0.0, 0.8]]).double())
    assert not cosines(hidden, torch.zeros_like(apv)).any()


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
@pytest.mark.parametrize("epoch", [None, 1], ids=["evaluation", "training"])
def test_the_classifier_reads_the_embedding_and_its_mean(make_federation, make_method, backbone, epoch):
    """With sigma = infinity: logits = Phi^T [h | mean h] + b, with the h of the network, dropout included."""
    method = make_method("fedaux", backbone, sigma=1e9, input_dropout=0.2)
    cohort, client = joined(make_federation, method)
    dropout = None if epoch is None else Dropout(cohort, 3, epoch)
    found = method.represent(client, cohort, client.weights, dropout).logits
    reader = {**client.weights, "classifier.weight": torch.eye(8).double().expand(4, 8, 8)}
    reader["classifier.bias"] = torch.zeros(4, 8).double()
    hidden = method.backbone.forward(reader, cohort, dropout).logits
    for row, size in enumerate(cohort.sizes):
        h = hidden[row, :size]
        both = torch.cat([h, h.mean(dim=0).expand_as(h)], dim=1)
        logits = both @ client.weights["classifier.weight"][row] + client.weights["classifier.bias"][row]
        torch.testing.assert_close(found[row, :size], logits, rtol=0, atol=1e-9)


def test_shapes_and_bytes_of_the_messages(make_federation, make_method, run):
    federation = make_federation()
    method = make_method("fedaux")
    record = run(method, federation, rounds=2).records[-1]
    p, features, classes, clients = 8, 6, 3, 4
    parameters = features * p + p + p * p + p + 2 * p * classes + classes + p
    assert record.uplink["weights"] == record.downlink["weights"] == 8 * parameters * clients


def test_projection_vectors_keep_length_one(make_federation, make_method, run):
    federation = make_federation()
    for options in ({}, {"keep_local_apv": True}, {"apv_init": "uniform"}):
        clients = run(make_method("fedaux", epochs=2, **options), federation).clients
        torch.testing.assert_close(clients["weights"][APV].norm(dim=1), torch.ones(4).double())
    released = make_method("fedaux", released_code=True)
    assert (run(released, federation).clients["weights"][APV].norm(dim=1) - 1).abs().min() > 0.1
    assert released.rates(APV) == (0.01, 1e-6)
    assert make_method("fedaux").rates(APV) == (0.01, 0.0)


def test_a_received_vector_is_normalised_or_kept(make_federation, make_method):
    method = make_method("fedaux", keep_local_apv=False)
    cohort, client = joined(make_federation, method)
    own = client.weights[APV].clone()
    personal = {name: weight.clone() for name, weight in client.weights.items()}
    personal[APV] = torch.eye(8).double()[:4] * torch.tensor([[2.0], [0.5], [0.0], [1.0]]).double()
    sent = Broadcast(personal=prefixed("weights", personal))
    method.receive(client, cohort, sent)
    expected = torch.eye(8).double()[:4]
    expected[2] = own[2]
    assert torch.equal(client.weights[APV], expected)
    local = make_method("fedaux", keep_local_apv=True)
    client = local.join(cohort)
    local.receive(client, cohort, sent)
    assert torch.equal(client.weights[APV], own)


def test_hard_sorting_leaves_the_vector_as_it_was_drawn(make_federation, make_method, run):
    federation = make_federation()
    outcome = run(make_method("fedaux", smoothing="sort", epochs=2, weight_decay=0.1), federation)
    vectors = outcome.clients["weights"][APV]
    torch.testing.assert_close(vectors, vectors[:1].expand_as(vectors), rtol=0, atol=1e-12)
    assert outcome.records[-1].metrics["mixing/entropy"] == pytest.approx(math.log(4))
    assert not torch.allclose(outcome.clients["weights"]["encoder.taps"], torch.tensor(0.2).double())


# What it reduces to


class NarrowFedAvg(FedAvg):
    """FedAvg that starts where FedAux without smoothing does."""

    start: FedAux

    def initialise(self, task):
        weights = self.start.initialise(task)
        del weights[APV]
        return {**weights, "classifier.weight": weights["classifier.weight"][:8]}


def test_without_smoothing_and_sharpness_it_is_fedavg(make_federation, make_method, run):
    federation = make_federation()
    method = make_method("fedaux", smoothing="none", alpha=0, masks=False, epochs=2)
    plain = NarrowFedAvg(WeightSharingConfiguration(hidden=8, epochs=2), method.backbone)
    plain.start = method
    found, expected = run(method, federation), run(plain, federation)
    for name, weight in expected.clients["weights"].items():
        mine = found.clients["weights"][name]
        mine = mine[:, :8] if name == "classifier.weight" else mine
        torch.testing.assert_close(mine, weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.from_numpy(found.scores()), torch.from_numpy(expected.scores()))


def test_masks_of_one_change_nothing_and_stay_with_the_client(make_federation, make_method, run):
    federation = make_federation()
    plain, masked = make_method("fedaux"), make_method("fedaux", masks=True)
    cohort = stack(federation.graphs, federation.task, "float64")
    torch.testing.assert_close(
        masked.predict(masked.join(cohort), cohort), plain.predict(plain.join(cohort), cohort)
    )
    outcome = run(masked, federation)
    names = [name for name in outcome.clients["weights"] if name.startswith(MASK)]
    assert len(names) == 3
    assert not any(name.startswith(MASK) for name in outcome.server["personal"])


# The claim about Oja's rule


def covariance(rows):
    centred = rows - rows.mean(dim=0)
    return centred.T @ centred / len(rows)


def test_the_kernel_falls_along_the_covariance_where_gaps_are_small():
    """grad of mean_ij kappa_ij = -(4 / sigma^2) Cov(h) a, within 1 % if all gaps are below sigma / 20."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(200, 6, generator=generator, dtype=torch.float64) * torch.linspace(1, 0.2, 6)
    a = torch.nn.functional.normalize(torch.randn(6, generator=generator, dtype=torch.float64), dim=0)
    a.requires_grad_()
    scores = hidden @ a
    gaps = scores[:, None] - scores[None]
    sigma = 20.01 * float(gaps.detach().abs().max())
    (gradient,) = torch.autograd.grad(torch.exp(-gaps.square() / sigma**2).mean(), a)
    expected = -(4 / sigma**2) * covariance(hidden) @ a.detach()
    assert float((gradient - expected).norm() / expected.norm()) < 0.01
    # In the other limit the kernel is the identity and has no gradient left.
    (gradient,) = torch.autograd.grad(
        torch.exp(-((hidden @ a)[:, None] - hidden @ a).square() / 1e-12).mean(), a
    )
    assert not gradient.any()


def test_power_iteration_reaches_the_axis_that_alignment_measures():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 50, 5, generator=generator, dtype=torch.float64) * torch.linspace(1.5, 0.3, 5)
    rows[1, 30:] = 100.0
    nodes = torch.arange(50)[None] < torch.tensor([[50], [30]])
    a = torch.nn.functional.normalize(torch.randn(2, 5, generator=generator, dtype=torch.float64), dim=1)
    first = alignment(rows, a, nodes)
    for row, size in enumerate((50, 30)):
        values, vectors = torch.linalg.eigh(covariance(rows[row, :size]))
        along = a[row] @ covariance(rows[row, :size]) @ a[row]
        assert float(first["geometry/apv_alignment"][row]) == pytest.approx(
            abs(float(vectors[:, -1] @ a[row])), abs=1e-3
        )
        assert float(first["geometry/apv_variance"][row]) == pytest.approx(
            float(along / values[-1]), rel=1e-3
        )
        assert float(first["geometry/score_spread"][row]) == pytest.approx(float(along.sqrt()), rel=1e-9)
    for _ in range(200):
        step = torch.stack([covariance(rows[0]) @ a[0], covariance(rows[1, :30]) @ a[1]])
        a = torch.nn.functional.normalize(a + step, dim=1)
    last = alignment(rows, a, nodes)
    torch.testing.assert_close(last["geometry/apv_alignment"], torch.ones(2).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(last["geometry/apv_variance"], torch.ones(2).double(), rtol=0, atol=1e-3)
    equal = alignment(torch.ones_like(rows), a, nodes)
    assert not any(figure.abs().max() > 1e-7 for figure in equal.values())


# Settings

OPTIONS = {
    "local vectors": {"keep_local_apv": True},
    "released program": {"released_code": True, "apv_init": "uniform", "masks": True},
    "hard sorting": {"smoothing": "sort", "similarity": "weights"},
    "no smoothing": {"smoothing": "none"},
    "encoder only": {"shared": "encoder"},
    "nothing travels": {"aggregation": "none"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_settings_do_not_depend_on_placement(make_federation, make_method, run, assert_same_run, options):
    federation = make_federation()
    method = make_method("fedaux", input_dropout=0.2, epochs=2, **options)
    together = run(method, federation)
    for per_cohort in (1, 3):
        assert_same_run(run(method, federation, per_cohort=per_cohort), together, 1e-5)


def test_the_series_does_not_depend_on_placement(make_federation, make_method, run, assert_same_run):
    """Large enough that the series is used, with different numbers of terms in different cohorts."""
    federation = make_federation(sizes=(130, 40, 150))
    method, exact = make_method("fedaux"), make_method("fedaux", kernel="exact")
    together = run(method, federation)
    assert_same_run(run(method, federation, per_cohort=1), together, 1e-6)
    assert_same_run(run(exact, federation), together, 1e-6)


def test_options_that_cannot_be_meant(make_method, make_federation, run):
    with pytest.raises(ConfigurationError, match="window"):
        create("fedaux", options={"window": 4})
    with pytest.raises(ConfigurationError, match="similarity=weights"):
        create("fedaux", options={"shared": "classifier"})
    with pytest.raises(ConfigurationError, match="backbone=gcn or backbone=sage"):
        create("fedaux", "h2gcn")
    with pytest.raises(ConfigurationError, match="kernel=series cannot represent"):
        run(make_method("fedaux", kernel="series", sigma=0.01), make_federation(), rounds=1)
    assert make_method("fedaux", shared="classifier", similarity="weights")


def test_a_single_client_trains_as_locally(make_federation, make_method, run):
    federation = make_federation(sizes=(14,))
    found = run(make_method("fedaux"), federation)
    local = run(make_method("fedaux", aggregation="none"), federation)
    for name, weight in local.clients["weights"].items():
        torch.testing.assert_close(found.clients["weights"][name], weight, rtol=0, atol=1e-10)
