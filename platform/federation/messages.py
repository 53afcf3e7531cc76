"""Messages between coordinator and clients, and what they cost.

A field name is `group/part`; the group (`weights`, `anchors`, ...) is what a method declares and what
communication is accounted by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def prefixed(group: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Fields `group/name` for named tensors."""
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def unprefixed(group: str, fields: Mapping[str, Tensor]) -> Tensors:
    """The parts of one group, by their names within it."""
    start = f"{group}/"
    return {name[len(start) :]: tensor for name, tensor in fields.items() if name.startswith(start)}


@dataclass(frozen=True)
class Broadcast:
    """What the coordinator sends to the clients in one round.

    Attributes:
        common: tensors that every client receives.
        personal: tensors [M, ...]; each client receives its row.
    """

    common: Mapping[str, Tensor] = field(default_factory=dict)
    personal: Mapping[str, Tensor] = field(default_factory=dict)

    def for_clients(self, clients: Sequence[int]) -> Broadcast:
        """The part that a cohort receives: personal tensors become [k, ...]."""
        if not self.personal:
            return self
        rows = torch.as_tensor(list(clients))
        return Broadcast(self.common, {name: t[rows] for name, t in self.personal.items()})

    def bytes_per_field(self, clients: int) -> dict[str, int]:
        """Bytes sent to M clients in all, by field group."""
        total: dict[str, int] = {}
        for name, tensor in self.common.items():
            _add(total, name, size(tensor) * clients)
        for name, tensor in self.personal.items():
            _add(total, name, size(tensor))
        return total


@dataclass(frozen=True)
class Upload:
    """What clients send back: tensors with the client axis first, [k, ...] or, once stacked, [M, ...]."""

    fields: Mapping[str, Tensor] = field(default_factory=dict)

    def bytes_per_field(self) -> dict[str, int]:
        """Bytes sent by all the clients in this upload, by field group."""
        total: dict[str, int] = {}
        for name, tensor in self.fields.items():
            _add(total, name, size(tensor))
        return total


def concatenate(uploads: Sequence[Upload]) -> Upload:
    """Uploads of several cohorts, in client order, as one upload [M, ...]."""
    if len(uploads) == 1:
        return uploads[0]
    names = uploads[0].fields.keys()
    return Upload({name: torch.cat([u.fields[name] for u in uploads]) for name in names})


def undeclared(fields: Iterable[str], declared: Iterable[str]) -> list[str]:
    """Field groups that a method sends without having declared them."""
    known = set(declared)
    return sorted({name.split("/", 1)[0] for name in fields} - known)


def size(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _add(total: dict[str, int], name: str, count: int) -> None:
    group = name.split("/", 1)[0]
    total[group] = total.get(group, 0) + count
