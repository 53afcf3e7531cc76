"""`fedatlas algorithms --uploads` prints what clients send; experiments with protected uploads."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedatlas.algorithms.aggregation import shared_names
from fedatlas.algorithms.registry import ALGORITHMS, create
from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import run
from fedatlas.sweeps.commands import app
from fedatlas.sweeps.experiment import experiment, resolve
from fedatlas.sweeps.uploads import HIDDEN, fields, groups

SETTING = {"dataset": "minesweeper", "partition": "random", "clients": 3, "rounds": 2}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_sent_is_declared_and_described(name, make_small):
    method = make_small(name)
    declared = {group.name: group for group in groups(method)}
    assert all(group.meaning for group in declared.values())
    sent = fields(method)
    assert {field.name.split("/")[0] for field in sent} <= set(declared)
    assert bool(sent) == (name != "local")


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "local"])
def test_the_weights_that_travel_are_the_shared_parameters(name, make_small):
    """Nothing else hides in the group `weights`, and no private parameter."""
    method = make_small(name)
    parts = {field.name.removeprefix("weights/") for field in fields(method) if "weights/" in field.name}
    assert parts == set(shared_names(parts, method.configuration.travelling))
    assert not any(part.startswith("private.") for part in parts)


@pytest.fixture(scope="module")
def make_small():
    from fedatlas.sweeps.federations import SMALL

    def make(name):
        known = ALGORITHMS[name].configuration_type.model_fields
        return create(name, options={k: v for k, v in {**SMALL, "hidden": HIDDEN}.items() if k in known})

    return make


def test_the_command_prints_groups_and_fields():
    result = CliRunner().invoke(app, ["algorithms", "--uploads"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "class means, alignment losses and counts" in result.output
    one = CliRunner().invoke(app, ["algorithms", "fedgmc", "--uploads"], env={"COLUMNS": "200"})
    lines = [" ".join(line.split()) for line in one.output.splitlines()]
    assert "semantic/means round [p, C] float32" in lines
    assert "weights/encoder.weight round [f, p] float32" in lines


def protected(**values):
    return resolve(experiment({**SETTING, "algorithm": "fedavg", **values}))


def test_settings_that_protect_nothing_leave_the_identity_alone():
    plain = protected().identity_hash()
    assert protected(secure_aggregation=False).identity_hash() == plain
    assert protected(secure_aggregation=True).identity_hash() != plain
    assert protected(clip_norm=1.0).identity_hash() != plain
    assert "clip_norm" not in protected().params()
    noisy = protected(clip_norm=1.0, noise_multiplier=2.0)
    assert noisy.params()["noise_delta"] == 1e-5
    assert noisy.params()["noise_target"] == "upload"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise_multiplier": 1.0}, "noise_multiplier=1 is in units of clip_norm"),
        ({"clip_norm": 0}, "clip_norm=0: .*greater than 0"),
        ({"clip_norm": float("inf")}, "clip_norm=inf: .*finite"),
        ({"noise_delta": 1e-6}, "noise_delta=1e-06 belongs to noise_multiplier"),
        (
            {"clip_norm": 1, "noise_multiplier": 1, "noise_target": "sum"},
            "noise_target=sum protects the sum alone: set secure_aggregation=true",
        ),
        (
            {
                "clip_norm": 1,
                "noise_multiplier": 1,
                "noise_target": "sum",
                "secure_aggregation": True,
                "options": {"client_weights": "nodes"},
            },
            "client_weights=nodes: a client's weight multiplies its update beyond clip_norm",
        ),
        ({"algorithm": "local", "clip_norm": 1}, "Local as configured sends no update"),
        (
            {"algorithm": "fedgta", "secure_aggregation": True},
            "FedGTA needs confidence, moments, size, weights of each client by itself",
        ),
        (
            {"algorithm": "fedgmc", "secure_aggregation": True, "options": {"template_upload": "raw"}},
            "FedGMC needs structural of each client by itself",
        ),
        ({"secure_aggregation": True, "participation": 0.3}, "at least two participants"),
    ],
    ids=str,
)
def test_what_cannot_be_protected_is_refused_before_anything_starts(values, message):
    with pytest.raises(ConfigurationError, match=message):
        protected(**values)


def test_a_noisy_run_says_what_is_covered_and_tracks_epsilon():
    said = []
    found = run(
        **SETTING,
        algorithm="fedgmc",
        clip_norm=0.5,
        noise_multiplier=4.0,
        noise_target="sum",
        secure_aggregation=True,
        tracking=False,
        progress=False,
        announce=said.append,
    )
    (line,) = [text for text in said if text.startswith("privacy:")]
    assert "noise on the sum of all clients' weights" in line
    assert "not covered by epsilon: semantic, size, structural (sent in sums, without noise)" in line
    spent = found.rounds["privacy/epsilon"]
    assert 0 < spent[0] < spent[1] == found.values["epsilon"]
