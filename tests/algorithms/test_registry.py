"""What every method must satisfy on nodes. A method of the registry is tested here without further code.

`test_graph_level` is the same for graphs.
"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type, create, validate
from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import checks
from fedatlas.sweeps.checks import Subject
from fedatlas.sweeps.federations import ODD

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


def subject(name, backbone=None):
    return Subject(algorithm_type(name), backbone)


@every_pair
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_results_do_not_depend_on_placement(name, backbone, sparse):
    checks.placement(subject(name, backbone), sparse)


@every_method
def test_single_precision_agrees_between_placements(name):
    checks.single_precision(subject(name))


@every_method
def test_a_run_repeats_bit_for_bit(name):
    checks.repetition(subject(name))


@every_method
def test_another_seed_gives_another_run(name):
    checks.another_seed(subject(name))


@every_method
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_resumed_run_equals_the_uninterrupted_one(name, rounds):
    """Stopped before, at and after the checkpoint of round 2."""
    checks.resumption(subject(name), rounds)


@every_method
def test_a_run_can_be_resumed_under_another_placement(name):
    checks.resumption_elsewhere(subject(name))


@every_method
@pytest.mark.parametrize("lost", [(0,), (3,), (1, 4, 4)], ids=str)
def test_a_lost_cohort_does_not_change_the_result(name, lost):
    checks.lost_cohort(subject(name), lost)


@every_method
@pytest.mark.parametrize("case", ODD)
def test_edge_cases_stay_finite_and_do_not_depend_on_placement(name, case):
    checks.edge_case(subject(name), case)


@every_method
def test_labels_of_validation_and_test_nodes_are_never_used(name):
    checks.hidden_labels(subject(name))


@every_method
def test_local_training_leaves_the_broadcast_alone(name):
    """A broadcast may lie in shared, read-only memory."""
    checks.untouched_broadcast(subject(name))


@every_method
def test_an_uploaded_field_that_is_not_declared_is_refused(name):
    checks.declared_fields(subject(name))


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
def test_description_is_complete_and_plain(name):
    checks.description(subject(name))
    method = subject(name).method()
    assert method.name == name
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
