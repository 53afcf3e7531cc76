"""Every method keeps its tensors on the device of its cohort, and gives the same numbers there.

There is no GPU where these tests run. In its place stands a pretended device: its tensors say that they are
elsewhere (on torch's "meta" device) and hold their values in main memory. An operation that mixes tensors of
both places fails, as it would with a GPU, and so does `numpy()` on a tensor that is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedatlas.algorithms.backbones import BACKBONES
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.federation.runtime import InlineRuntime

ELSEWHERE = torch.device("meta")
TAKES_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""CUDA takes indices from main memory."""
MOVES = {"_to_copy", "copy_"}
NODE_NETWORKS = [name for name, network in BACKBONES.items() if "node" in network.levels]
PAIRS = [
    *((name, None) for name, kind in ALGORITHMS.items() if "node" in kind.levels),
    *(("fedavg", network) for network in NODE_NETWORKS),
]


class Remote(torch.Tensor):
    """A tensor that says it is elsewhere; `held` is in main memory."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, values):
        strides = values.stride() if values.layout == torch.strided else None
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=strides, dtype=values.dtype, device=ELSEWHERE
        )
        made.held = values
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        return carry_out(function, arguments, named or {})


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return carry_out(function, arguments, named or {})


class Calls(TorchFunctionMode):
    """What torch does without dispatching an operation."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = dict(named or {})
        if function in (torch.tensor, torch.as_tensor) and on(named.get("device")):
            device = named.pop("device")
            return function(*arguments, **named).to(device)
        if function is torch.Tensor.tolist and isinstance(arguments[0], Remote):
            return arguments[0].held.tolist()
        return function(*arguments, **named)


def on(device) -> bool:
    return device is not None and torch.device(device) == ELSEWHERE


def carry_out(function, arguments, named):
    """One operation: refused if it mixes devices, else computed in main memory."""
    tensors = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
    remote = [tensor for tensor in tensors if isinstance(tensor, Remote)]
    target = named.get("device")
    if not remote and not on(target):
        return function(*arguments, **named)
    name = function.overloadpacket.__name__
    mixed = [tuple(t.shape) for t in tensors if not isinstance(t, Remote) and t.dim() > 0]
    if name in TAKES_INDICES:
        # The tensor and what is put into it have to be in one place.
        rest = [leaf for leaf in (arguments[0], *arguments[2:3]) if isinstance(leaf, torch.Tensor)]
        mixed = [tuple(t.shape) for t in rest if not isinstance(t, Remote) and t.dim() > 0]
    if mixed and remote and name not in MOVES:
        raise RuntimeError(f"{name} mixes devices: {mixed} are in main memory")

    def here(leaf):
        if isinstance(leaf, Remote):
            return leaf.held
        return torch.device("cpu") if isinstance(leaf, torch.device) and on(leaf) else leaf

    result = function(*tree_map(here, arguments), **tree_map(here, named))
    if name == "copy_":
        return arguments[0]
    known = {id(tensor.held): tensor for tensor in remote}
    stays = target is None or on(target)

    def there(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known.get(id(leaf), Remote(leaf) if stays else leaf)

    return tree_map(there, result)


@contextmanager
def pretended_device() -> Iterator[str]:
    with Calls(), Operations():
        yield ELSEWHERE.type


def test_the_pretended_device_refuses_what_a_gpu_refuses() -> None:
    with pretended_device() as device:
        remote, local = torch.ones(3, device=device), torch.ones(3)
        assert remote.device.type == device
        assert (remote + remote).cpu().tolist() == [2, 2, 2]
        assert (torch.tensor([1.0, 2.0], device=device) * 2).tolist() == [2, 4]
        assert remote[torch.tensor([0, 1])].shape == (2,)
        with pytest.raises(RuntimeError, match="mixes devices"):
            remote + local
        with pytest.raises(RuntimeError, match="mixes devices"):
            remote[torch.tensor([0, 1])] = torch.ones(2)
        with pytest.raises((RuntimeError, TypeError)):
            remote.numpy()


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_nodes(make_federation, make_method, run, assert_same_run, name, backbone, sparse) -> None:
    federation = make_federation(sparse=sparse)
    expected = run(make_method(name, backbone), federation, rounds=2)
    with pretended_device() as device:
        runtime = InlineRuntime(device=device)
        found = run(make_method(name, backbone), federation, rounds=2, runtime=runtime)
    assert_same_run(found, expected)


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if "graph" in kind.levels])
@pytest.mark.parametrize("backbone", ["gat", "gin"])
def test_graphs(make_graph_federation, make_method, run, assert_same_run, name, backbone) -> None:
    federation = make_graph_federation(sparse=True)
    expected = run(make_method(name, backbone, batch_size=4), federation, rounds=2)
    with pretended_device() as device:
        runtime = InlineRuntime(device=device)
        found = run(make_method(name, backbone, batch_size=4), federation, rounds=2, runtime=runtime)
    assert_same_run(found, expected)
