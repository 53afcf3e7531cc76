"""What every method must satisfy on nodes. A method of the registry is tested here without further code.

`test_graph_level` is the same for graphs.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type, create, validate
from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.messages import Upload
from fedatlas.platform.federation.runtime import CohortLost, InlineRuntime

NODE_METHODS = [name for name, kind in ALGORITHMS.items() if "node" in kind.levels]
every_method = pytest.mark.parametrize("name", NODE_METHODS)
every_pair = pytest.mark.parametrize(
    ("name", "backbone"),
    [
        (name, backbone)
        for name in NODE_METHODS
        for backbone, network in BACKBONES.items()
        if backbone in (ALGORITHMS[name].backbones or BACKBONES) and "node" in network.levels
    ],
)


def settings(name, **options):
    """Settings under which every source of randomness and every kind of state is in use."""
    known = algorithm_type(name).configuration_type.model_fields
    wanted = {"input_dropout": 0.2, "activation": "elu", "epochs": 2, **options}
    return {option: value for option, value in wanted.items() if option in known}


@every_pair
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_results_do_not_depend_on_placement(
    make_federation, make_method, run, assert_same_run, name, backbone, sparse
):
    federation = make_federation(sparse=sparse)
    method = make_method(name, backbone, **settings(name))
    together = run(method, federation)
    for per_cohort in (1, 2, 3):
        assert_same_run(run(method, federation, per_cohort=per_cohort), together, 1e-5)


@every_method
def test_single_precision_agrees_between_placements(make_federation, make_method, run, name):
    federation = make_federation()
    method = make_method(name, **settings(name))
    together, apart = (run(method, federation, per_cohort=k, precision="float32") for k in (4, 1))
    for part, weight in together.clients["weights"].items():
        torch.testing.assert_close(weight, apart.clients["weights"][part], rtol=0, atol=1e-3)


@every_method
def test_a_run_repeats_bit_for_bit(make_federation, make_method, run, assert_same_run, name):
    federation = make_federation()
    method = make_method(name, **settings(name))
    assert_same_run(run(method, federation), run(method, federation))


@every_method
def test_another_seed_gives_another_run(make_federation, make_method, run, name):
    federation = make_federation()
    method = make_method(name, **settings(name))
    other = dataclasses.replace(federation, task=dataclasses.replace(federation.task, seed=1))
    first, second = run(method, federation).clients, run(method, other).clients
    assert all(not torch.allclose(w, second["weights"][part]) for part, w in first["weights"].items())


def stopped(method, federation, schedule, rounds, per_cohort=None):
    """Start a run and leave it after some rounds, as if it had been killed."""
    coordinator = Coordinator(federation.job(method), InlineRuntime(per_cohort), schedule)
    coordinator.start()
    for _ in range(rounds):
        coordinator.advance()


@every_method
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_resumed_run_equals_the_uninterrupted_one(
    make_federation, make_method, run, assert_same_run, tmp_path, name, rounds
):
    """Stopped before, at and after the checkpoint of round 2."""
    federation = make_federation()
    method = make_method(name, **settings(name))
    options = {"rounds": 5, "checkpoint_every": 2, "checkpoint_path": tmp_path / "run.checkpoint"}
    stopped(method, federation, Schedule(**options), rounds)
    assert options["checkpoint_path"].exists() == (rounds >= 2 or method.preparation_steps > 0)
    assert_same_run(run(method, federation, **options), run(method, federation, rounds=5))


@every_method
def test_a_run_can_be_resumed_under_another_placement(
    make_federation, make_method, run, assert_same_run, tmp_path, name
):
    federation = make_federation()
    method = make_method(name, **settings(name))
    options = {"rounds": 5, "checkpoint_every": 2, "checkpoint_path": tmp_path / "run.checkpoint"}
    stopped(method, federation, Schedule(**options), 3, per_cohort=3)
    resumed = run(method, federation, per_cohort=1, **options)
    assert_same_run(resumed, run(method, federation, rounds=5), 1e-5)


class Dying(InlineRuntime):
    """Loses a cohort in some rounds, once each, after its clients have already trained."""

    def __init__(self, rounds):
        super().__init__(2)
        self.left = list(rounds)
        self.recoveries = 0

    def round(self, broadcast, round_number, score=True, participants=None):
        reports = super().round(broadcast, round_number, score, participants)
        if round_number in self.left:
            self.left.remove(round_number)
            raise CohortLost("killed by the test")
        return reports

    def recover(self):
        self.recoveries += 1
        super().recover()


@every_method
@pytest.mark.parametrize("lost", [(0,), (3,), (1, 4, 4)], ids=str)
def test_a_lost_cohort_does_not_change_the_result(
    make_federation, make_method, run, assert_same_run, name, lost
):
    federation = make_federation()
    method = make_method(name, **settings(name))
    runtime = Dying(lost)
    outcome = run(method, federation, rounds=5, runtime=runtime, checkpoint_every=2)
    assert runtime.recoveries == len(lost)
    assert_same_run(outcome, run(method, federation, rounds=5, per_cohort=2))


@every_method
def test_edge_cases_stay_finite_and_do_not_depend_on_placement(
    odd_federation, make_method, run, assert_same_run, name
):
    method = make_method(name, **settings(name, epochs=1))
    outcome = run(method, odd_federation, rounds=3)
    for state in (outcome.server, outcome.clients):
        assert all(tensor.isfinite().all() for tensor in tensors_of(state))
    for record in outcome.records:
        assert np.isfinite(list(record.metrics.values())).all()
        for scores, role in ((record.client_validation, "validation"), (record.client_test, "test")):
            assert np.isfinite(scores).tolist() == [
                defined(g, role, odd_federation) for g in odd_federation.graphs
            ]
    assert_same_run(run(method, odd_federation, rounds=3, per_cohort=1), outcome, 1e-5)


def tensors_of(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from tensors_of(value)
        elif isinstance(value, torch.Tensor):
            yield value


def defined(graph, role, federation):
    """Whether a client has a score: it has nodes of the role, of both classes if the score is an AUC."""
    labels = graph.labels[getattr(graph, role)]
    return len(set(labels)) == 2 if federation.task.metric == "auc" else len(labels) > 0


@every_method
def test_labels_of_validation_and_test_nodes_are_never_used(
    make_federation, make_method, run, assert_same_run, name
):
    federation = make_federation()
    changed = federation
    for m, graph in enumerate(federation.graphs):
        changed = changed.changed(m, labels=np.where(graph.train, graph.labels, (graph.labels + 1) % 3))
    # AdaFGL may select its extractor by validation scores; training itself must not see the labels.
    method = make_method(name, **settings(name, extractor="last"))
    first, second = run(method, federation), run(method, changed)
    assert_same_run(first, second, scores=False)
    assert (first.scores() != second.scores()).any()


@every_method
def test_local_training_leaves_the_broadcast_alone(make_federation, make_method, name):
    """A broadcast may lie in shared, read-only memory."""
    federation = make_federation()
    method = make_method(name, **settings(name))
    runtime = InlineRuntime()
    runtime.setup(federation.job(method))
    broadcast = method.broadcast(method.init(federation.task), 0)
    before = {field: tensor.clone() for field, tensor in broadcast.common.items()}
    runtime.round(broadcast, 0)
    runtime.round(broadcast, 1)
    for field, tensor in before.items():
        assert torch.equal(broadcast.common[field], tensor)


@every_method
def test_an_uploaded_field_that_is_not_declared_is_refused(make_federation, make_method, monkeypatch, name):
    federation = make_federation()
    method = make_method(name)
    update = method.update

    def and_more(client, cohort, round_number):
        result = update(client, cohort, round_number)
        extra = {**result.upload.fields, "labels/all": cohort.labels}
        return dataclasses.replace(result, upload=Upload(extra))

    monkeypatch.setattr(method, "update", and_more)
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(1))
    coordinator.start()
    with pytest.raises(FedatlasError, match=f"{name} uploads undeclared fields: labels"):
        coordinator.advance()


@every_method
def test_traffic_of_weights(make_federation, make_method, run, name):
    """Local sends nothing; others send their shared weights each way, and two counts."""
    federation = make_federation()
    method = make_method(name)
    outcome = run(method, federation, 2, precision="float32")
    shared = sum(weight.numel() for weight in outcome.server["weights"].values())
    for record in outcome.records[:2]:
        assert record.uplink.get("weights", 0) == record.downlink.get("weights", 0) == 4 * 4 * shared
        assert record.uplink.get("size", 0) == (4 * 2 * 4 if shared else 0)
        if name == "local":
            assert record.uplink == record.downlink == {}


@every_method
def test_description_is_complete_and_plain(make_method, name):
    method = make_method(name, **settings(name))
    assert method.name == name
    assert method.version >= 1
    assert method.describe()["backbone"] == method.default_backbone
    assert validate(name, method.configuration.model_dump(mode="json")) == method.configuration


@pytest.mark.parametrize("option", [{"propagation": 2}, {"second_hop_limit": 8}], ids=str)
def test_an_option_of_another_network_is_refused(option):
    with pytest.raises(ConfigurationError, match=r"has no meaning for gcn: it belongs to backbone=h2gcn"):
        create("fedavg", "gcn", option)
    assert create("fedavg", "h2gcn", option).describe()["backbone"] == "h2gcn"


def test_fedgmc_refuses_a_network_without_rings_before_anything_starts():
    with pytest.raises(ConfigurationError, match="use backbone=h2gcn"):
        create("fedgmc", "gcn")


# Configuration


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedgmc", {"eta": 0}, r"eta=0: .*greater than 0"),
        ("fedgmc", {"tau": -1.0}, r"tau=-1\.0: .*greater than 0"),
        ("fedgmc", {"templates": 0}, r"templates=0: .*greater than or equal to 1"),
        ("fedgmc", {"sampled_nodes": 0}, r"sampled_nodes=0: .*greater than or equal to 1"),
        ("fedgmc", {"epsilon": 0.0}, r"epsilon=0\.0: .*greater than 0"),
        ("fedgmc", {"semantic_weight": -0.1}, r"semantic_weight=-0\.1: .*greater than or equal to 0"),
        ("fedgmc", {"propagation": 2}, "propagation must be 1"),
        ("fedgmc", {"template_upload": "some"}, "template_upload='some': .*'stats' or 'raw'"),
        ("fedavg", {"lr": 0}, r"lr=0: .*greater than 0"),
        ("fedavg", {"lr": float("nan")}, "lr=nan: .*finite"),
        ("fedavg", {"dropout": 1.0}, r"dropout=1\.0: .*less than 1"),
        ("fedavg", {"epochs": 0}, r"epochs=0: .*greater than or equal to 1"),
        ("fedavg", {"hiden": 8}, "unknown option of fedavg 'hiden': did you mean hidden"),
        ("fedavg", {"eta": 0.1}, "unknown option of fedavg 'eta'"),
    ],
    ids=str,
)
def test_bad_options_are_refused_with_their_limit(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        create(name, options=options)


def test_more_classes_than_dimensions_are_refused(make_federation, make_method, run):
    with pytest.raises(ConfigurationError, match="hidden=4 cannot hold 5 equidistant anchors"):
        run(make_method("fedgmc", hidden=4), make_federation(classes=5))


def test_unknown_names_get_suggestions():
    with pytest.raises(ConfigurationError, match="unknown algorithm 'fedgcm': did you mean fedgmc"):
        create("fedgcm")
    with pytest.raises(ConfigurationError, match="unknown backbone 'h2gnc': did you mean h2gcn"):
        create("fedavg", "h2gnc")


def test_options_reach_the_network():
    method = create("fedgmc", options={"hidden": 32, "dropout": 0.1, "second_hop_limit": 5})
    assert method.backbone == BACKBONES["h2gcn"](
        hidden=32, dropout=0.1, second_hop_limit=5, activation=method.configuration.activation
    )


def test_configurations_are_frozen(make_method):
    with pytest.raises(ValidationError, match="frozen"):
        make_method("fedavg").configuration.lr = 1.0
