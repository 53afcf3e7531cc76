"""Search spaces beside the options."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from fedatlas.algorithms import registry
from fedatlas.algorithms.fedavg import FedAvg
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.algorithms.weight_sharing import WeightSharingConfiguration
from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps.spaces import COMMON, Choice, Interval, space_of


def searched(declared: Any) -> Any:
    return Field(0.1, ge=0, json_schema_extra={"search": declared})


def configuration(**fields: Any) -> type[WeightSharingConfiguration]:
    return type(
        "Configuration",
        (WeightSharingConfiguration,),
        {**fields, "__annotations__": dict.fromkeys(fields, float), "__module__": __name__},
    )


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a method whose configuration has some fields more."""

    def make(**fields: Any) -> str:
        kind = type("Tried", (FedAvg,), {"name": "tried", "configuration_type": configuration(**fields)})
        monkeypatch.setitem(registry.ALGORITHMS, "tried", kind)
        return "tried"

    return make


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_a_space_that_its_options_allow(name: str) -> None:
    space = space_of(name)
    fields = ALGORITHMS[name].configuration_type.model_fields
    assert set(space) <= set(fields)
    for option, each in space.items():
        each.distribution()
        assert each.nearest(fields[option].default) is not None


def test_a_method_declares_its_own_and_takes_common_ones_out(method: Any) -> None:
    name = method(
        pull=searched({"low": 0.01, "high": 1.0, "log": True}),
        rank=searched([1, 2, 4]),
        dropout=searched(None),
        hidden=searched([8.0, 16.0]),
    )
    space = space_of(name)
    assert set(space) == {*COMMON, "pull", "rank"} - {"dropout"}
    assert space["pull"] == Interval(low=0.01, high=1.0, log=True)
    assert space["rank"] == Choice(values=(1, 2, 4))
    assert space["hidden"] == Choice(values=(8.0, 16.0))
    assert set(space_of(name, ["lr", "pull"])) == {"lr", "pull"}


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"low": 1.0, "high": 0.1}, "low=1.0 must be below high=0.1"),
        ({"low": 0.0, "high": 1.0, "log": True}, "log needs low above 0"),
        ({"low": 0.1, "hihg": 1.0}, "search space of tried pull"),
        (3, "must be a list or an interval, not 3"),
        ({"low": -1.0, "high": 1.0}, "pull=-1.0"),
        ([0.1, -2.0], "pull=-2.0"),
    ],
)
def test_bad_spaces_are_named(method: Any, declared: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        space_of(method(pull=searched(declared)))


def test_options_without_a_space_are_named() -> None:
    with pytest.raises(ConfigurationError, match="option of fedavg 'lrr': did you mean lr"):
        space_of("fedavg", ["lrr"])
    with pytest.raises(ConfigurationError, match="option aggregation of fedavg has no search space: choose"):
        space_of("fedavg", ["aggregation"])


@pytest.mark.parametrize(
    ("space", "value", "nearest"),
    [
        (Interval(low=0.1, high=1.0), 0.5, 0.5),
        (Interval(low=0.1, high=1.0), 7, 1.0),
        (Interval(low=0.0, high=0.8, step=0.1), 0.52, 0.5),
        (Interval(low=1, high=8), 3, 3),
        (Interval(low=1, high=8), None, 1),
        (Choice(values=(32, 64)), 50, 64),
        (Choice(values=("a", "b")), "b", "b"),
        (Choice(values=("a", "b")), None, "a"),
    ],
)
def test_a_search_starts_within_its_space(space: Interval | Choice, value: Any, nearest: Any) -> None:
    found = space.nearest(value)
    assert found == pytest.approx(nearest)
    assert type(found) is type(nearest)


@pytest.mark.parametrize(
    ("name", "option", "space"),
    [
        ("fedprox", "mu", Interval(low=1e-5, high=1.0, log=True)),
        ("gcfl", "r1", Interval(low=0.1, high=0.9)),
        ("fedgmc", "templates", Choice(values=(16, 32, 64, 128))),
        ("fedsageplus", "generated_neighbours", Choice(values=(2, 5, 10))),
    ],
)
def test_spaces_of_the_methods_own_options(name: str, option: str, space: Interval | Choice) -> None:
    assert space_of(name)[option] == space
