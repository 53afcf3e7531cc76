"""What the clients of a method send: as declared, and as two rounds among small clients show it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedatlas.algorithms.registry import Method
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.host import CohortReport
from fedatlas.platform.federation.messages import Broadcast, size
from fedatlas.platform.federation.privacy import additive
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.sweeps.federations import make_federation, make_graph_federation

FEATURES, CLASSES, HIDDEN = 29, 5, 44
"""Sizes that no other number has, so that they can be told in a shape."""
SIZES = (31, 23, 19)


@dataclass(frozen=True)
class Group:
    """A declared group of uploaded fields.

    Attributes:
        meaning: what it holds.
        clipped: bounded by `clip_norm`, and covered by epsilon where there is noise.
        summed: the server needs its sum only, so secure aggregation can hide the parts.
    """

    name: str
    meaning: str
    clipped: bool
    summed: bool


@dataclass(frozen=True)
class Field:
    """An uploaded field of one client.

    Attributes:
        name: `group/part`.
        when: ``before round 0``, or ``round``.
        shape: in the symbols f, C and p; `varies` where it differs between clients.
        kind: type of its numbers.
        bytes: of the largest client of the rehearsal.
    """

    name: str
    when: str
    shape: str
    kind: str
    bytes: int


def groups(method: Method) -> list[Group]:
    """What a method declares."""
    clipped, summed = method.clipped(), additive(method)
    return [
        Group(name, type(method).meaning(name), name in clipped, name in summed)
        for name in sorted(method.uploads)
    ]


def fields(method: Method) -> list[Field]:
    """What a method is seen to send in its preparation and two rounds.

    Args:
        method: with `hidden=HIDDEN`, if it has the option, so that widths are recognised.
    """
    make = make_federation if "node" in method.levels else make_graph_federation
    federation = make(SIZES, CLASSES, FEATURES)
    seen: dict[tuple[str, str], list[Tensor]] = {}

    class Listening(InlineRuntime):
        def round(
            self,
            broadcast: Broadcast,
            round_number: int,
            score: bool = True,
            participants: Collection[int] | None = None,
        ) -> list[CohortReport]:
            return _noted(super().round(broadcast, round_number, score, participants), "round", seen)

        def prepare(self, broadcast: Broadcast, step: int) -> list[CohortReport]:
            return _noted(super().prepare(broadcast, step), "before round 0", seen)

    job = federation.job(method, "float32")
    coordinator = Coordinator(job, Listening(), Schedule(rounds=2, checkpoint_every=0))
    coordinator.start()
    for _ in range(2):
        coordinator.advance()
    return [_field(name, when, parts) for (when, name), parts in seen.items()]


def _noted(
    reports: list[CohortReport], when: str, seen: dict[tuple[str, str], list[Tensor]]
) -> list[CohortReport]:
    for report in reports:
        for name, tensor in report.upload.fields.items():
            seen.setdefault((when, name), []).extend(tensor)
        for name, parts in report.upload.ragged.items():
            seen.setdefault((when, name), []).extend(parts)
    return reports


def _field(name: str, when: str, parts: Sequence[Tensor]) -> Field:
    shapes = {tuple(part.shape) for part in parts}
    shape = _shown(next(iter(shapes))) if len(shapes) == 1 else "varies"
    return Field(name, when, shape, str(parts[0].dtype).removeprefix("torch."), max(map(size, parts)))


def _shown(shape: Sequence[int]) -> str:
    known = {FEATURES: "f", CLASSES: "C", HIDDEN: "p", 2 * HIDDEN: "2p"}
    return f"[{', '.join(known.get(length, str(length)) for length in shape)}]" if shape else "number"
