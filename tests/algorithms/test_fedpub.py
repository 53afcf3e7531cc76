"""FED-PUB is masked training with averages by similarity; without both it is FedAvg."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.fedpub import MASK, masked, masks, proxy_cohort
from fedatlas.algorithms.weight_sharing import cross_entropy
from fedatlas.platform.federation.cohort import Dropout, stack
from fedatlas.platform.federation.messages import Broadcast, Upload, prefixed

FREE = {"lambda1": 0.0, "lambda2": 0.0}


@pytest.fixture
def federation(make_federation):
    return make_federation()


@pytest.fixture
def cohort(federation):
    return stack(federation.graphs, federation.task, "float64")


def moved(method, cohort, seed=0):
    """A client state whose parameters, masks among them, are random."""
    client = method.join(cohort)
    generator = torch.Generator().manual_seed(seed)
    for weight in client.weights.values():
        weight += 0.5 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return client


# Equalities


def test_equal_weights_and_frozen_masks_are_fedavg(federation, make_method, run, monkeypatch):
    method = make_method("fedpub", tau=0.0, epochs=2, **FREE)
    usual = method.rates
    monkeypatch.setattr(method, "rates", lambda name: (0.0, 0.0) if name.startswith(MASK) else usual(name))
    personal, plain = run(method, federation), run(make_method("fedavg", epochs=2), federation)
    np.testing.assert_array_equal(personal.scores(), plain.scores())
    for name, weight in plain.clients["weights"].items():
        torch.testing.assert_close(personal.clients["weights"][name], weight, rtol=0, atol=1e-12)
    for name, weight in plain.server["weights"].items():
        for row in personal.server["personal"][name]:
            torch.testing.assert_close(row, weight, rtol=0, atol=1e-12)


def test_without_masks_and_with_equal_weights_it_is_fedavg(federation, make_method, run):
    personal = run(make_method("fedpub", tau=0.0, masks=False, **FREE), federation)
    plain = run(make_method("fedavg"), federation)
    assert personal.clients["weights"].keys() == plain.clients["weights"].keys()
    for name, weight in plain.clients["weights"].items():
        torch.testing.assert_close(personal.clients["weights"][name], weight, rtol=0, atol=1e-12)


def test_one_client_averages_with_itself(make_federation, make_method, run):
    federation = make_federation(sizes=(14,))
    personal = run(make_method("fedpub", masks=False, lambda2=0.0), federation)
    local = run(make_method("local"), federation)
    assert personal.server["mixing"].tolist() == [[1.0]]
    for name, weight in local.clients["weights"].items():
        torch.testing.assert_close(personal.clients["weights"][name], weight, rtol=0, atol=1e-12)


def test_equal_clients_have_equal_rows_and_models(federation, make_method, run):
    graphs = list(federation.graphs)
    graphs[2] = dataclasses.replace(graphs[0], client=2)
    outcome = run(make_method("fedpub", dropout=0.0), dataclasses.replace(federation, graphs=tuple(graphs)))
    mixing = outcome.server["mixing"]
    torch.testing.assert_close(mixing[0], mixing[2], rtol=0, atol=1e-12)
    for weight in [*outcome.clients["weights"].values(), *outcome.server["personal"].values()]:
        torch.testing.assert_close(weight[0], weight[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("released_code", [False, True])
def test_one_local_step_does_not_feel_the_pull(federation, make_method, run, released_code):
    weak, strong = (
        run(make_method("fedpub", lambda2=lambda2, released_code=released_code), federation)
        for lambda2 in (0.0, 10.0)
    )
    for name, weight in weak.clients["weights"].items():
        torch.testing.assert_close(weight, strong.clients["weights"][name], rtol=0, atol=1e-12)


# Masks


@pytest.mark.parametrize("backbone", [name for name, kind in BACKBONES.items() if "node" in kind.levels])
def test_masks_of_ones_change_nothing(make_method, cohort, backbone):
    method = make_method("fedpub", backbone)
    client = method.join(cohort)
    for dropout in (None, Dropout(cohort, 0, 0)):
        found = method.represent(client, cohort, client.weights, dropout)
        plain = {name: w for name, w in client.weights.items() if not name.startswith(MASK)}
        torch.testing.assert_close(found.logits, method.backbone.forward(plain, cohort, dropout).logits)


def test_every_weight_matrix_has_a_mask_and_no_bias_has(make_method, cohort):
    client = make_method("fedpub").join(cohort)
    found = masks(client.weights)
    assert set(found) == {"encoder.0.weight", "encoder.1.weight", "classifier.weight"}
    for name, mask in found.items():
        assert mask.shape == client.weights[name].shape
        assert mask.eq(1).all()


def test_evaluation_zeroes_what_lies_below_the_threshold():
    weight, mask = torch.tensor([2.0, 2.0, 2.0, 2.0]), torch.tensor([0.05, -0.05, 0.1, -0.3])
    weights = {"w": weight, "b": weight, f"{MASK}w": mask}
    assert masked(weights, 0.0).keys() == {"w", "b"}
    torch.testing.assert_close(masked(weights, 0.0)["w"], torch.tensor([0.1, -0.1, 0.2, -0.6]))
    torch.testing.assert_close(masked(weights, 0.1)["w"], torch.tensor([0.0, 0.0, 0.2, -0.6]))
    assert torch.equal(masked(weights, 0.1)["b"], weight)


@pytest.mark.parametrize("lambda1", [0.01, 0.2])
def test_training_and_evaluation_agree_unless_something_is_pruned(make_method, cohort, lambda1):
    method = make_method("fedpub", lambda1=lambda1, dropout=0.0)
    client = moved(method, cohort)
    for name, mask in masks(client.weights).items():
        client.weights[MASK + name].copy_(mask.sign() * mask.abs().clamp(min=0.1))
    training = method.represent(client, cohort, client.weights, Dropout(cohort, 0, 0)).logits
    assert torch.equal(method.predict(client, cohort), training) == (lambda1 <= 0.1)
    assert bool(method.own_metrics(client)["mask/pruned"].gt(0).all()) == (lambda1 > 0.1)


def test_the_pruned_share_counts_all_masks(make_method, cohort):
    method = make_method("fedpub", lambda1=0.5)
    client = method.join(cohort)
    client.weights[f"{MASK}classifier.weight"][1] = 0.1
    total = sum(mask[0].numel() for mask in masks(client.weights).values())
    pruned = client.weights["classifier.weight"][0].numel() / total
    expected = torch.tensor([0.0, pruned, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(method.own_metrics(client)["mask/pruned"], expected)


def test_a_download_replaces_weights_and_leaves_masks(make_method, cohort):
    method = make_method("fedpub")
    client = moved(method, cohort)
    kept = {name: mask.clone() for name, mask in masks(client.weights).items()}
    sent = {
        name: torch.full_like(client.weights[name], 7.0) for name in ("encoder.0.weight", "classifier.bias")
    }
    method.receive(client, cohort, Broadcast(personal=prefixed("weights", sent)))
    assert all(client.weights[name].eq(7).all() for name in sent)
    for name, mask in masks(client.weights).items():
        assert torch.equal(mask, kept[name])


# Penalties


def penalised(make_method, cohort, round_number=1, **options):
    """The two penalties and their gradients at random weights, after a download of zeros."""
    method = make_method("fedpub", **options)
    client = moved(method, cohort)
    names = [name for name in client.weights if not name.startswith(MASK)]
    client.received = {name: torch.zeros_like(client.weights[name][0]) for name in names}
    live = {name: weight.requires_grad_() for name, weight in client.weights.items()}
    return live, method.losses(client, cohort, live, None, round_number)


def test_the_papers_penalties(make_method, cohort):
    live, found = penalised(make_method, cohort, lambda1=0.3, lambda2=0.7)
    sparsity = sum(mask.abs().flatten(1).sum(dim=1) for mask in masks(live).values())
    shared = [name for name in live if not name.startswith(MASK)]
    pull = sum(live[name].square().flatten(1).sum(dim=1) for name in shared)
    torch.testing.assert_close(found["sparsity"], 0.3 * sparsity)
    torch.testing.assert_close(found["proximal"], 0.7 * pull)
    total = found["sparsity"].sum() + found["proximal"].sum()
    for name, gradient in zip(live, torch.autograd.grad(total, list(live.values())), strict=True):
        weight = live[name].detach()
        torch.testing.assert_close(gradient, 0.3 * weight.sign() if name.startswith(MASK) else 1.4 * weight)


def test_the_released_codes_penalties_have_no_gradient(make_method, cohort):
    options = {"lambda1": 0.3, "lambda2": 0.7, "released_code": True}
    live, found = penalised(make_method, cohort, **options)
    shared = [name for name in live if not name.startswith(MASK)]
    pull = sum(live[name].detach().flatten(1).norm(dim=1) for name in shared)
    torch.testing.assert_close(found["proximal"], 0.7 * pull)
    assert found["sparsity"].gt(0).all()
    assert not found["sparsity"].requires_grad
    assert not found["proximal"].requires_grad
    assert penalised(make_method, cohort, round_number=0, **options)[1]["proximal"].eq(0).all()


@pytest.mark.parametrize("released_code", [False, True])
def test_the_gradient_of_a_mask_is_that_of_the_written_objective(make_method, cohort, released_code):
    method = make_method("fedpub", lambda1=0.3, released_code=released_code)
    client = moved(method, cohort)
    _, found = method._gradients(client, next(method._steps(cohort, 1, 0)), 1)
    live = {name: weight.clone().requires_grad_() for name, weight in client.weights.items()}
    products = {
        name: live[name] * live[MASK + name] if MASK + name in live else live[name]
        for name in masked(live, 0)
    }
    loss = cross_entropy(cohort, method.backbone.forward(products, cohort, Dropout(cohort, 1, 0)).logits)
    names = [name for name in live if name.startswith(MASK)]
    for name, gradient in zip(names, torch.autograd.grad(loss.sum(), [live[n] for n in names]), strict=True):
        sign = torch.zeros_like(gradient) if released_code else 0.3 * client.weights[name].sign()
        torch.testing.assert_close(found[name], gradient + sign)


# Similarity


def upload(embeddings, train_nodes=None):
    sizes = torch.tensor(train_nodes or [5] * len(embeddings))
    return Upload({"functional/embedding": embeddings, "size/train_nodes": sizes})


def test_weights_are_a_softmax_of_cosines(make_method):
    embeddings = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 4)))
    found = make_method("fedpub", tau=3.0).mixing(None, upload(embeddings), 0)
    cosine = torch.nn.functional.cosine_similarity(embeddings[:, None], embeddings[None], dim=2)
    expected = (3 * cosine).exp() / (3 * cosine).exp().sum(dim=1, keepdim=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert found.gt(0).all()
    assert torch.equal(found.argmax(dim=1), torch.arange(6))


def test_golden_weights_and_a_zero_embedding(make_method):
    """Cosines 1, 0 and -1; a client whose model is silent is at 0 from all, itself too."""
    embeddings = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0], [0.0, 0.0]])
    found = make_method("fedpub", tau=1.0).mixing(None, upload(embeddings), 0)
    e = np.e
    first = torch.tensor([e, 1, 1 / e, 1], dtype=torch.float64)
    torch.testing.assert_close(found[0], first / first.sum())
    torch.testing.assert_close(found[3], torch.full((4,), 0.25, dtype=torch.float64))


def test_clients_without_training_nodes_give_nothing(make_method, make_federation):
    method = make_method("fedpub")
    server = method.init(make_federation(sizes=(9, 9, 9)).task)
    sent = upload(torch.eye(3), [5, 0, 5])
    weights = {f"weights/{name}": weight.expand(3, *weight.shape) for name, weight in server.weights.items()}
    after = method.aggregate(server, dataclasses.replace(sent, fields={**sent.fields, **weights}), 0)
    assert after.mixing[:, 1].eq(0).all()
    torch.testing.assert_close(after.mixing[1], torch.tensor([0.5, 0, 0.5], dtype=torch.float64))


def test_the_embedding_is_the_mean_second_convolution_of_each_clients_own_model(make_method, cohort):
    method = make_method("fedpub", lambda1=0.2)
    client = moved(method, cohort)
    found = method.own_upload(client, cohort, 0)["functional/embedding"]
    proxy = proxy_cohort(cohort, 5)
    dense = torch.from_numpy(proxy.adjacencies[0].toarray()) + torch.eye(500)
    scale = dense.sum(dim=1).rsqrt()
    operator, features = scale[:, None] * dense * scale, proxy.dense_features[0]
    for m in range(4):
        w = {name: weight[m] for name, weight in masked(client.weights, 0.2).items()}
        hidden = torch.relu(operator @ features @ w["encoder.0.weight"] + w["encoder.0.bias"])
        second = operator @ hidden @ w["encoder.1.weight"] + w["encoder.1.bias"]
        torch.testing.assert_close(found[m], second.mean(dim=0))


def test_the_proxy_graph_is_the_same_for_all_clients_and_has_separate_blocks(federation):
    whole = proxy_cohort(stack(federation.graphs, federation.task), 5)
    single = proxy_cohort(stack(federation.graphs[2:3], federation.task), 5)
    assert whole.dense_features.shape == (4, 500, federation.task.features)
    for m in range(4):
        assert torch.equal(whole.dense_features[m], single.dense_features[0])
        assert (whole.adjacencies[m] != single.adjacencies[0]).nnz == 0
    adjacency = whole.adjacencies[0].toarray()
    block = np.arange(500) // 100
    assert np.array_equal(adjacency, adjacency.T)
    assert not adjacency.diagonal().any()
    assert not adjacency[block[:, None] != block[None, :]].any()
    assert adjacency.sum() / (5 * 100 * 99) == pytest.approx(0.1, abs=0.005)
    assert whole.dense_features[0].mean().abs() < 0.1
    assert float(whole.dense_features[0].std()) == pytest.approx(1.0, abs=0.05)
    task = dataclasses.replace(federation.task, seed=1)
    assert (proxy_cohort(stack(federation.graphs, task), 5).adjacencies[0] != whole.adjacencies[0]).nnz > 0


def test_what_travels(federation, make_method, run):
    """P weights and p values up, P weights down; masks stay."""
    method = make_method("fedpub")
    outcome = run(method, federation, rounds=2, precision="float32")
    plain = run(make_method("fedavg"), federation, rounds=2, precision="float32")
    assert not any(name.startswith(MASK) for name in outcome.server["personal"])
    for record, other in zip(outcome.records, plain.records, strict=True):
        assert record.uplink == {**other.uplink, "functional": 4 * 4 * 8}
        assert record.downlink == other.downlink
        assert {"loss/sparsity", "loss/proximal", "mask/pruned", "mixing/entropy"} <= record.metrics.keys()
