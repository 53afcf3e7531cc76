"""What every method of graph classification must satisfy, written once for all of the registry."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type, create
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.runtime import InlineRuntime

GRAPH_METHODS = [name for name, kind in ALGORITHMS.items() if "graph" in kind.levels]
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05},
    "adam": {"lr": 0.01},
}
every_method = pytest.mark.parametrize("name", GRAPH_METHODS)
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def settings(name, optimizer="sgd", **options):
    """Mini-batches of different numbers, dropout, decorrelation and two epochs."""
    known = algorithm_type(name).configuration_type.model_fields
    wanted = {
        "batch_size": 4,
        "epochs": 2,
        "input_dropout": 0.2,
        "dropout": 0.3,
        "repdec": 0.05,
        "weight_decay": 0.01,
        "warm_up": 1,
        "sequence_length": 2,
        **OPTIMIZERS[optimizer],
        **options,
    }
    return {option: value for option, value in wanted.items() if option in known}


@every_method
@pytest.mark.parametrize(
    ("backbone", "optimizer", "sparse"), [("gat", "sgd", True), ("gat", "adam", False), ("gin", "adam", True)]
)
def test_results_do_not_depend_on_placement(
    make_graph_federation, make_method, run, assert_same_run, name, backbone, optimizer, sparse
):
    federation = make_graph_federation(sparse=sparse)
    method = make_method(name, backbone, **settings(name, optimizer))
    together = run(method, federation)
    for per_cohort in (1, 3):
        assert_same_run(run(method, federation, per_cohort=per_cohort), together, 1e-5)


@every_method
@pytest.mark.parametrize("backbone", ["gat", "gin"])
def test_clients_of_other_widths_and_classes(
    make_graph_federation, make_method, run, assert_same_run, name, backbone
):
    """What travels has one shape, predictions stay among a client's classes, and placement has no say."""
    federation = make_graph_federation(features=7, classes=4, widths=(3, 7, 1, 5), own_classes=(2, 3, 4, 2))
    method = make_method(name, backbone, **settings(name))
    runtime = InlineRuntime()
    together = run(method, federation, runtime=runtime)
    assert_same_run(run(method, federation, per_cohort=1), together, 1e-5)
    (host,) = runtime._hosts
    predicted = method.predict(host._client, host.cohort).argmax(dim=2)
    for row, classes in enumerate((2, 3, 4, 2)):
        assert int(predicted[row].max()) < classes
    weights = together.clients["weights"]
    for row, width in enumerate((3, 7, 1, 5)):
        assert not weights["private.input.weight"][row, width:].any()
        assert weights["private.input.weight"][row, :width].any()
    assert not any(part.startswith("private.") for part in together.server["weights"])


@every_method
def test_a_run_repeats_bit_for_bit_and_another_seed_gives_another(
    make_graph_federation, make_method, run, assert_same_run, name
):
    federation = make_graph_federation()
    method = make_method(name, "gat", **settings(name))
    first = run(method, federation)
    assert_same_run(run(method, federation), first)
    other = dataclasses.replace(federation, task=dataclasses.replace(federation.task, seed=1))
    weights = run(method, other).clients["weights"]
    assert not torch.allclose(
        weights["private.input.weight"], first.clients["weights"]["private.input.weight"]
    )


@every_method
@every_optimizer
def test_a_resumed_run_equals_the_uninterrupted_one(
    make_graph_federation, make_method, run, assert_same_run, tmp_path, name, optimizer
):
    federation = make_graph_federation()
    method = make_method(name, "gat", **settings(name, optimizer))
    options = {"rounds": 5, "checkpoint_every": 2, "checkpoint_path": tmp_path / "run.checkpoint"}
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(**options))
    coordinator.start()
    for _ in range(3):
        coordinator.advance()
    assert_same_run(run(method, federation, per_cohort=1, **options), run(method, federation, rounds=5), 1e-5)


def one_graph(whole):
    client = whole.graphs[1]
    size = int(client.starts[1])
    edges = client.edges[:, client.edges[0] < size]
    kept = np.ones(1, dtype=bool)
    return whole.changed(
        1,
        nodes=client.nodes[:size],
        features=client.features[:size],
        edges=edges,
        labels=client.labels[:1],
        train=kept,
        validation=~kept,
        test=~kept,
        starts=client.starts[:2],
    )


def untrained(whole):
    nobody = np.zeros_like(whole.graphs[3].train)
    return whole.changed(3, train=nobody, test=~whole.graphs[3].validation)


ODD = {
    "client with one graph": one_graph,
    "client of one class": lambda w: w.changed(1, labels=np.zeros_like(w.graphs[1].labels)),
    "client without edges": lambda w: w.changed(2, edges=np.zeros((2, 0), dtype=np.int64)),
    "client without training graphs": untrained,
    "client without validation and test graphs": lambda w: w.changed(
        0,
        train=np.ones_like(w.graphs[0].train),
        validation=np.zeros_like(w.graphs[0].train),
        test=np.zeros_like(w.graphs[0].train),
    ),
    "one client": lambda w: dataclasses.replace(
        w, graphs=w.graphs[:1], task=dataclasses.replace(w.task, clients=1)
    ),
    "features that are zero": lambda w: w.changed(1, features=np.zeros_like(w.graphs[1].features)),
}


@every_method
@pytest.mark.parametrize(
    ("odd", "batch_size"),
    [*((odd, 4) for odd in ODD), ("client with one graph", 1), ("client of one class", None)],
)
def test_odd_clients(make_graph_federation, make_method, run, assert_same_run, name, odd, batch_size):
    """Batches of one graph, for which the decorrelation is 0, are among them."""
    federation = ODD[odd](make_graph_federation())
    method = make_method(name, "gat", **settings(name, batch_size=batch_size, epochs=1, lr=0.002))
    together = run(method, federation, rounds=2)
    assert_same_run(run(method, federation, rounds=2, per_cohort=1), together, 1e-5)
    for tensor in together.clients["weights"].values():
        assert torch.isfinite(tensor).all()


@every_method
def test_a_client_without_training_graphs_keeps_what_it_received(
    make_graph_federation, make_method, run, name
):
    federation = untrained(make_graph_federation())
    method = make_method(name, "gat", **settings(name))
    outcome = run(method, federation, rounds=1)
    start = method.init(federation.task).weights
    for part, weight in start.items():
        torch.testing.assert_close(outcome.clients["weights"][part][3], weight.double(), rtol=0, atol=0)


@every_method
def test_traffic_is_that_of_the_shared_weights(make_graph_federation, make_method, run, name):
    method = make_method(name, "gat", **settings(name))
    outcome = run(method, make_graph_federation(), 2, precision="float32")
    shared = sum(weight.numel() for weight in outcome.server["weights"].values())
    for record in outcome.records:
        assert record.uplink.get("weights", 0) == record.downlink.get("weights", 0) == 4 * 4 * shared
        assert record.uplink.get("size", 0) == (4 * 2 * 4 if shared else 0)
    assert (shared == 0) == (name == "local")


@every_method
def test_training_lowers_the_loss(make_graph_federation, make_method, run, name):
    options = settings(name, "adam", dropout=0.0, input_dropout=0.0, repdec=0.0, epochs=4)
    records = run(make_method(name, "gat", **options), make_graph_federation(), rounds=15).records
    first, last = (record.metrics["loss/cross_entropy"] for record in (records[0], records[-1]))
    assert last < 0.8 * first


# Equalities between methods


def same_weights(first, second, tolerance=1e-12):
    for part, weight in first.clients["weights"].items():
        torch.testing.assert_close(weight, second.clients["weights"][part], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seal", {"rho": 0.0, "repdec": 0.0}),
        ("sealb", {"rho": 0.0, "repdec": 0.0}),
        ("fedprox", {"mu": 0.0, "repdec": None}),
        ("gcflplus", {"warm_up": 1000, "repdec": None}),
    ],
    ids=str,
)
def test_what_equals_fedavg(make_graph_federation, make_method, run, name, options):
    federation = make_graph_federation()
    common = {"client_weights": "train_nodes"}
    plain = make_method("fedavg", "gat", **settings("fedavg", repdec=None, **common))
    other = make_method(name, "gat", **settings(name, **common, **options))
    first, second = run(plain, federation), run(other, federation)
    same_weights(first, second)
    np.testing.assert_array_equal(first.scores(), second.scores())


def test_seal_with_unit_scales_is_seal_b(make_graph_federation, make_method, run, assert_same_run):
    federation = make_graph_federation()
    plain = make_method("seal", "gat", **settings("seal", perturbation="plain"))
    assert_same_run(run(plain, federation), run(make_method("sealb", "gat", **settings("sealb")), federation))


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedavg", "gcflplus"])
def test_with_one_client_it_is_local(make_graph_federation, make_method, run, name):
    """FedNova's momentum starts anew in each round, so it is compared without."""
    federation = make_graph_federation(graphs=(21,))
    changes = {"momentum": 0.0} if name == "fednova" else {}
    alone = run(make_method("local", "gat", **settings("local", **changes)), federation)
    same_weights(run(make_method(name, "gat", **settings(name, **changes)), federation), alone, 1e-10)


def test_fednova_with_equal_steps_is_fedavg(make_graph_federation, make_method, run):
    federation = make_graph_federation(graphs=(21, 21, 21))
    options = {"momentum": 0.0, "client_weights": "train_nodes"}
    plain = make_method("fedavg", "gat", **settings("fedavg", **options))
    nova = make_method("fednova", "gat", **settings("fednova", **options))
    same_weights(run(plain, federation), run(nova, federation), 1e-10)


def test_fedstar_that_shares_nothing_is_its_local_network(
    make_graph_federation, make_method, run, assert_same_run
):
    federation = make_graph_federation()
    alone = make_method("fedstar", "gin", **settings("fedstar", aggregation="none"))
    assert_same_run(run(alone, federation, per_cohort=1), run(alone, federation), 1e-5)
    for record in run(alone, federation).records:
        assert record.uplink == record.downlink == {}


# What is refused


@pytest.mark.parametrize(
    ("name", "backbone", "options", "message"),
    [
        ("fedgmc", None, {}, "fedgmc classifies nodes, and the task is of graphs"),
        ("fedavg", "gcn", {}, "backbone=gcn classifies nodes.*use backbone=gat or backbone=gin"),
        ("fedavg", "gat", {"momentum": 0.5}, "momentum=0.5 belongs to optimizer=sgd"),
        ("fedavg", "gat", {"aggregation": "fedopt"}, "aggregation=fedopt takes full-batch gradients"),
    ],
)
def test_what_does_not_fit_graphs_is_refused_before_anything_starts(
    make_graph_federation, run, name, backbone, options, message
):
    with pytest.raises(ConfigurationError, match=message):
        run(create(name, backbone, options), make_graph_federation())


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"repdec": 0.1}], ids=str)
def test_what_does_not_fit_nodes_is_refused_before_anything_starts(make_federation, run, options):
    with pytest.raises(ConfigurationError, match="is for the classification of graphs"):
        run(create("fedavg", "gcn", options), make_federation())
    with pytest.raises(ConfigurationError, match="seal classifies graphs, and the task is of nodes"):
        run(create("seal"), make_federation())


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigurationError, match="hidden=10 cannot be divided among heads=4"):
        create("fedavg", "gat", {"hidden": 10})
