"""FedTAD equals FedAvg without distillation, and distils towards the local models with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedatlas.algorithms import pseudo_graphs
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.messages import Upload


def uploaded(method, federation, spread=1.0):
    """Reliability and an upload of random local models around the initial one."""
    server = method.init(federation.task)
    clients = federation.task.clients
    shares = torch.rand(clients, federation.task.classes, generator=torch.Generator().manual_seed(0))
    server = method.prepare_aggregate(server, Upload({"reliability/classes": shares.double()}), 0)
    fields = {"size/train_nodes": torch.arange(1, clients + 1), "size/nodes": torch.arange(1, clients + 1)}
    for seed, (name, weight) in enumerate(server.weights.items()):
        noise = np.random.default_rng(seed).standard_normal((clients, *weight.shape))
        fields[f"weights/{name}"] = weight.double() + spread * torch.from_numpy(noise)
    return server, Upload(fields)


@pytest.mark.parametrize("options", [{"distillation_steps": 0}, {"pseudo_graphs": 0}], ids=str)
def test_without_distillation_it_is_fedavg(make_federation, make_method, run, options):
    federation = make_federation()
    found = run(make_method("fedtad", epochs=2, **options), federation)
    plain = run(make_method("fedavg", epochs=2, client_weights="nodes"), federation)
    np.testing.assert_array_equal(found.scores(), plain.scores())
    for name, weight in plain.clients["weights"].items():
        assert torch.equal(found.clients["weights"][name], weight)


def test_reliability_is_sent_once(make_federation, make_method, run):
    outcome = run(make_method("fedtad"), make_federation(), rounds=2)
    first, second = outcome.records
    assert first.preparation.uplink == {"reliability": 8 * 4 * 3}
    assert first.preparation.downlink == {}
    assert set(first.uplink) == set(second.uplink) == {"weights", "size"}
    assert set(first.downlink) == {"weights"}
    torch.testing.assert_close(outcome.server["reliability"].sum(dim=0), torch.ones(3, dtype=torch.float64))


def test_local_models_are_never_changed(make_federation, make_method):
    method = make_method("fedtad")
    server, upload = uploaded(method, make_federation())
    before = {name: tensor.clone() for name, tensor in upload.fields.items()}
    method.aggregate(server, upload, 0)
    for name, tensor in before.items():
        assert torch.equal(upload.fields[name], tensor)


def test_distillation_moves_the_average_towards_the_local_models(make_federation, make_method):
    federation = make_federation()
    left = []
    for steps in (1, 5, 25):
        method = make_method(
            "fedtad", pseudo_graphs=1, generator_steps=0, distillation_steps=steps, weight_decay=0.0
        )
        server, upload = uploaded(method, federation)
        left.append(method.aggregate(server, upload, 0).disagreement)
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]


def test_a_model_that_agrees_is_left_alone(make_federation, make_method):
    """The average of one model is that model: no disagreement, no gradient."""
    method = make_method("fedtad", weight_decay=0.0)
    server, upload = uploaded(method, make_federation(sizes=(14,)))
    after = method.aggregate(server, upload, 0)
    assert after.disagreement == 0
    for name, weight in after.weights.items():
        assert torch.equal(weight, upload.fields[f"weights/{name}"][0])


def test_the_generator_learns_what_local_models_recognise(make_federation, make_method):
    method = make_method(
        "fedtad", generator_steps=40, pseudo_graphs=2, generator_lr=0.01, diversity_weight=0.1
    )
    server, upload = uploaded(method, make_federation())
    first = method.aggregate(server, upload, 0)
    second = method.aggregate(first, upload, 1)
    assert second.semantic < first.semantic
    labels, noise = torch.arange(3), torch.ones(3, method.configuration.noise, dtype=torch.float64)
    features = pseudo_graphs.generate(second.generator, labels, noise)
    assert torch.isfinite(features).all()
    assert float(torch.pdist(features).min()) > 1e-3


def test_optimizers_go_on_over_the_rounds(make_federation, make_method):
    method = make_method("fedtad", pseudo_graphs=2, distillation_steps=3, generator_steps=2)
    server, upload = uploaded(method, make_federation())
    server = method.aggregate(method.aggregate(server, upload, 0), upload, 1)
    assert (server.generator_optimizer.step, server.distiller.step) == (8, 12)


def test_more_classes_than_pseudo_nodes_are_refused(make_federation, make_method):
    with pytest.raises(ConfigurationError, match="pseudo_nodes=2 cannot show 3 classes: use pseudo_nodes=3"):
        make_method("fedtad", pseudo_nodes=2).init(make_federation().task)


@pytest.mark.parametrize("option", [{"aggregation": "fedopt"}, {"shared": "encoder"}], ids=str)
def test_what_leaves_the_server_without_whole_models_is_refused(make_method, option):
    with pytest.raises(ConfigurationError):
        make_method("fedtad", **option)
