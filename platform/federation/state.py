"""Generic handling of server and client states.

A state is a dataclass of tensors, dictionaries of tensors, plain numbers and nested states. In a client
state every tensor carries the client axis first, a tuple holds one tensor per client (of shapes that may
differ), and a plain number is the same for all clients. Nothing else is needed to save a state, to load it
under another placement, or to check it. Fields with metadata ``transient`` are caches and are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
Packed = dict[str, Any]
"""Nested dictionaries of tensors and plain numbers: loads with `torch.load(weights_only=True)`."""


def transient() -> Any:
    """Field of a state that is a cache: empty at first, never saved or moved."""
    return dataclasses.field(default=None, metadata={"transient": True}, repr=False)


def pack(state: Any) -> Packed:
    """Nested plain dictionary of a state."""
    out: Packed = {}
    for entry in dataclasses.fields(state):
        if not entry.metadata.get("transient"):
            out[entry.name] = _pack_value(getattr(state, entry.name))
    return out


def unpack(template: S, packed: Packed) -> S:
    """A state of the template's type with packed values; its caches are empty.

    Raises:
        ValueError: a field is missing or unknown.
    """
    names = {e.name for e in dataclasses.fields(template) if not e.metadata.get("transient")}  # type: ignore[arg-type]
    if names != packed.keys():
        raise ValueError(f"state fields differ: {sorted(names ^ packed.keys())}")
    values = {name: _unpack_value(getattr(template, name), packed[name]) for name in names}
    values |= {e.name: None for e in dataclasses.fields(template) if e.metadata.get("transient")}  # type: ignore[arg-type]
    return dataclasses.replace(template, **values)  # type: ignore[type-var]


def gather(parts: Sequence[Packed]) -> Packed:
    """Packed client states of several cohorts, in client order, as one [M, ...]."""
    return {name: _gather_value([part[name] for part in parts]) for name in parts[0]}


def select(packed: Packed, clients: Sequence[int]) -> Packed:
    """Rows of a gathered client state for some clients."""
    rows = torch.as_tensor(list(clients))

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        if isinstance(value, tuple):
            return tuple(value[m] for m in clients) if value else value
        return {name: take(item) for name, item in value.items()} if isinstance(value, dict) else value

    selected: Packed = take(packed)
    return selected


def merge(before: Packed, after: Packed, rows: Tensor) -> Packed:
    """A packed client state with the given rows from `after` and the others from `before`.

    Plain numbers are those of `after`.

    Args:
        before, after: states of the same k clients.
        rows: bool [k].
    """

    def choose(old: Any, new: Any) -> Any:
        if isinstance(new, Tensor):
            return torch.where(rows.to(new.device).view(-1, *[1] * (new.dim() - 1)), new, old)
        if isinstance(new, tuple):
            return tuple(b if chosen else a for a, b, chosen in zip(old, new, rows.tolist(), strict=True))
        if isinstance(new, dict):
            return {name: choose(old[name], item) for name, item in new.items()}
        return new

    return {name: choose(before[name], value) for name, value in after.items()}


def to_cpu(packed: Packed) -> Packed:
    """Copies of all tensors in main memory, detached from the running state."""
    return _map(packed, lambda tensor: tensor.detach().to("cpu", copy=True))


def to_device(packed: Packed, device: torch.device) -> Packed:
    """The packed state with its tensors on a device."""
    return _map(packed, lambda tensor: tensor.to(device))


def _map(packed: Packed, change: Callable[[Tensor], Tensor]) -> Packed:
    def apply(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if isinstance(value, tuple):
            return tuple(change(part) for part in value)
        return _map(value, change) if isinstance(value, dict) else value

    return {name: apply(value) for name, value in packed.items()}


def _pack_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return pack(value)
    if isinstance(value, dict):
        return {name: _pack_value(item) for name, item in value.items()}
    if isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value):
        return value
    if value is None or isinstance(value, Tensor | int | float | bool | str):
        return value
    raise TypeError(f"a state cannot hold {type(value).__name__}")


def _unpack_value(template: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        return unpack(template, value)
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(part.clone() for part in value)
    if isinstance(value, dict):
        return {name: _unpack_value(None, item) for name, item in value.items()}
    return value


def _gather_value(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(values)
    if isinstance(first, tuple):
        return tuple(part for value in values for part in value)
    if isinstance(first, dict):
        return {name: _gather_value([value[name] for value in values]) for name in first}
    if any(value != first for value in values):
        raise ValueError(f"clients disagree on a plain number of their state: {values}")
    return first
