"""Messages between coordinator and clients, and what they cost.

A field name is `group/part`; the group (`weights`, `anchors`, ...) is what a method declares and what
communication is accounted by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Ragged = tuple[Tensor, ...]
"""One tensor per client, of shapes that differ between clients."""


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
        ragged: one tensor for each of the M clients, of different shapes.
    """

    common: Mapping[str, Tensor] = field(default_factory=dict)
    personal: Mapping[str, Tensor] = field(default_factory=dict)
    ragged: Mapping[str, Ragged] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All field names."""
        return (*self.common, *self.personal, *self.ragged)

    def for_clients(self, clients: Sequence[int]) -> Broadcast:
        """The part that a cohort receives: personal tensors become [k, ...], ragged ones tuples of k."""
        if not self.personal and not self.ragged:
            return self
        rows = torch.as_tensor(list(clients))
        return Broadcast(
            self.common,
            {name: tensor[rows] for name, tensor in self.personal.items()},
            {name: tuple(parts[m] for m in clients) for name, parts in self.ragged.items()},
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Broadcast:
        """The broadcast with every tensor changed."""
        return Broadcast(
            {name: change(tensor) for name, tensor in self.common.items()},
            {name: change(tensor) for name, tensor in self.personal.items()},
            {name: tuple(change(part) for part in parts) for name, parts in self.ragged.items()},
        )

    def bytes_per_field(self, clients: int) -> dict[str, int]:
        """Bytes sent to M clients in all, by field group."""
        total: dict[str, int] = {}
        for name, tensor in self.common.items():
            _add(total, name, size(tensor) * clients)
        for name, tensor in self.personal.items():
            _add(total, name, size(tensor))
        for name, parts in self.ragged.items():
            _add(total, name, sum(map(size, parts)))
        return total


@dataclass(frozen=True)
class Upload:
    """What clients send back.

    Attributes:
        fields: tensors with the client axis first, [k, ...] or, once stacked, [M, ...].
        ragged: one tensor per client, of different shapes: k of them or, once stacked, M.
    """

    fields: Mapping[str, Tensor] = field(default_factory=dict)
    ragged: Mapping[str, Ragged] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All field names."""
        return (*self.fields, *self.ragged)

    def rows(self, positions: Sequence[int]) -> Upload:
        """The part of some clients, by their position."""
        index = torch.as_tensor(list(positions), dtype=torch.int64)
        return Upload(
            {name: tensor[index.to(tensor.device)] for name, tensor in self.fields.items()},
            {name: tuple(parts[p] for p in positions) for name, parts in self.ragged.items()},
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Upload:
        """The upload with every tensor changed."""
        return Upload(
            {name: change(tensor) for name, tensor in self.fields.items()},
            {name: tuple(change(part) for part in parts) for name, parts in self.ragged.items()},
        )

    def bytes_per_field(self) -> dict[str, int]:
        """Bytes sent by all the clients in this upload, by field group."""
        total: dict[str, int] = {}
        for name, tensor in self.fields.items():
            _add(total, name, size(tensor))
        for name, parts in self.ragged.items():
            _add(total, name, sum(map(size, parts)))
        return total


def concatenate(uploads: Sequence[Upload]) -> Upload:
    """Uploads of several cohorts, in client order, as one upload [M, ...]."""
    if len(uploads) == 1:
        return uploads[0]
    return Upload(
        {name: torch.cat([upload.fields[name] for upload in uploads]) for name in uploads[0].fields},
        {
            name: tuple(part for upload in uploads for part in upload.ragged[name])
            for name in uploads[0].ragged
        },
    )


def group_of(name: str) -> str:
    """Group of a field name."""
    return name.split("/", 1)[0]


def undeclared(fields: Iterable[str], declared: Iterable[str]) -> list[str]:
    """Field groups that a method sends without having declared them."""
    known = set(declared)
    return sorted({group_of(name) for name in fields} - known)


def size(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _add(total: dict[str, int], name: str, count: int) -> None:
    group = group_of(name)
    total[group] = total.get(group, 0) + count
