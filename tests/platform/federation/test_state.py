"""States survive packing, grouping, saving and loading without knowing the method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from fedatlas.platform.federation.state import gather, pack, select, to_cpu, transient, unpack


@dataclass
class Moments:
    first: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0


@dataclass
class State:
    weights: dict[str, Tensor]
    moments: Moments
    rate: float = 0.5
    label: str | None = None
    flag: bool = False
    cache: Tensor | None = transient()


def build(clients, offset=0.0):
    rows = torch.as_tensor(clients, dtype=torch.float32)[:, None] + offset
    return State(
        {"w": rows * torch.ones(1, 3), "b": rows[:, 0].clone()},
        Moments({"w": -rows * torch.ones(1, 3)}, step=4),
        rate=0.25,
        label="x",
        flag=True,
        cache=torch.ones(1),
    )


def assert_equal(first, second):
    assert pack(first).keys() == pack(second).keys()
    for one, other in zip(leaves(pack(first)), leaves(pack(second)), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def leaves(packed):
    for name in sorted(packed):
        value = packed[name]
        yield from leaves(value) if isinstance(value, dict) else [value]


def test_round_trip():
    state = build([0, 1, 2])
    back = unpack(build([9, 9, 9]), pack(state))
    assert_equal(back, state)
    assert isinstance(back.moments, Moments)
    assert back.moments.step == 4


def test_caches_are_neither_packed_nor_kept():
    assert "cache" not in pack(build([0]))
    assert unpack(build([5]), pack(build([0]))).cache is None


def test_unpacked_state_does_not_share_memory():
    state = build([0, 1])
    packed = pack(state)
    back = unpack(state, packed)
    back.weights["w"].add_(1)
    assert_equal(state, build([0, 1]))


def test_copies_in_main_memory_do_not_change_with_the_running_state():
    state = build([0, 1])
    kept = to_cpu(pack(state))
    state.weights["w"].add_(1)
    assert torch.equal(kept["weights"]["w"], build([0, 1]).weights["w"])
    assert not kept["weights"]["w"].requires_grad


def test_gathered_cohorts_are_the_whole_federation_and_can_be_cut_anew():
    whole = build([0, 1, 2, 3, 4])
    gathered = gather([pack(build([0, 1])), pack(build([2])), pack(build([3, 4]))])
    assert_equal(unpack(whole, gathered), whole)
    for group in ([0], [1, 2, 3], [4, 0]):
        assert_equal(unpack(whole, select(gathered, group)), build(group))


def test_clients_that_disagree_on_a_number_are_refused():
    other = build([1])
    other.moments.step = 5
    with pytest.raises(ValueError, match="disagree"):
        gather([pack(build([0])), pack(other)])


def test_missing_and_unknown_fields_are_named():
    packed = pack(build([0]))
    del packed["rate"]
    packed["other"] = 1
    with pytest.raises(ValueError, match=r"\['other', 'rate'\]"):
        unpack(build([0]), packed)


def test_only_tensors_and_plain_values_are_states():
    state = build([0])
    state.weights["w"] = np.ones(3)
    with pytest.raises(TypeError, match="ndarray"):
        pack(state)


def test_packed_state_loads_without_running_code(tmp_path):
    state = build([0, 1])
    torch.save(pack(state), tmp_path / "state")
    loaded = torch.load(tmp_path / "state", weights_only=True)
    assert_equal(unpack(state, loaded), state)
