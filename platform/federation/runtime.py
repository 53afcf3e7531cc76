"""Where cohorts run. This module holds the interface and the in-process runtime; it needs torch only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fedatlas.platform.federation import state as states
from fedatlas.platform.federation.cohort import Precision, Task
from fedatlas.platform.federation.contract import Algorithm
from fedatlas.platform.federation.host import CohortHost, CohortReport
from fedatlas.platform.federation.messages import Broadcast
from fedatlas.platform.federation.privacy import UNPROTECTED, Privacy
from fedatlas.platform.federation.scores import Scores
from fedatlas.platform.graphs.graph import ClientGraph


@dataclass(frozen=True)
class Job:
    """What a runtime needs to set up the clients of one run."""

    algorithm: Algorithm[Any, Any]
    graphs: tuple[ClientGraph, ...]
    task: Task
    precision: Precision = "float32"
    privacy: Privacy = UNPROTECTED


class CohortLost(Exception):  # noqa: N818 - an event that the coordinator handles, not a user's error
    """A process that hosted clients died; the runtime can `recover`."""


class Runtime(Protocol):
    """Hosts the cohorts of a run. Lists are in client order."""

    def setup(self, job: Job) -> None:
        """Make every client join."""

    def round(
        self,
        broadcast: Broadcast,
        round_number: int,
        score: bool = True,
        participants: Collection[int] | None = None,
    ) -> list[CohortReport]:
        """One local round on every cohort, scored or not. Raises `CohortLost` if a host died."""

    def prepare(self, broadcast: Broadcast, step: int) -> list[CohortReport]:
        """One preparation step on every cohort."""

    def personalise(self, broadcast: Broadcast | None, step: int, round_number: int) -> list[CohortReport]:
        """One personal round on every cohort; there is a broadcast before the first one only."""

    def evaluate(self, broadcast: Broadcast) -> list[Scores]:
        """Scores after receiving a broadcast."""

    def state(self) -> states.Packed:
        """Client states of the whole federation, [M, ...]."""

    def snapshot(self) -> list[dict[str, np.ndarray]]:
        """Snapshot of every cohort, in client order."""

    def restore(self, packed: states.Packed) -> None:
        """Set the client states of the whole federation."""

    def recover(self) -> None:
        """Replace hosts that died and make every client join afresh."""


def contiguous_groups(clients: int, per_cohort: int) -> tuple[tuple[int, ...], ...]:
    """Client ids 0..M-1 in order, at most `per_cohort` to a cohort."""
    starts = range(0, clients, per_cohort)
    return tuple(tuple(range(start, min(start + per_cohort, clients))) for start in starts)


class InlineRuntime:
    """All cohorts in this process.

    Args:
        clients_per_cohort: cohort size k; None puts all clients into one cohort.
        device: torch device.
    """

    def __init__(self, clients_per_cohort: int | None = None, device: torch.device | str = "cpu") -> None:
        self._per_cohort = clients_per_cohort
        self._device = device
        self._hosts: Sequence[CohortHost] = ()
        self._groups: tuple[tuple[int, ...], ...] = ()
        self._job: Job | None = None

    def setup(self, job: Job) -> None:
        self._job = job
        total = len(job.graphs)
        self._groups = contiguous_groups(total, self._per_cohort or total)
        self._hosts = [
            CohortHost(
                job.algorithm,
                [job.graphs[m] for m in group],
                job.task,
                job.precision,
                self._device,
                job.privacy,
            )
            for group in self._groups
        ]

    def round(
        self,
        broadcast: Broadcast,
        round_number: int,
        score: bool = True,
        participants: Collection[int] | None = None,
    ) -> list[CohortReport]:
        return [
            host.round(broadcast.for_clients(group), round_number, score, participants)
            for host, group in zip(self._hosts, self._groups, strict=True)
        ]

    def prepare(self, broadcast: Broadcast, step: int) -> list[CohortReport]:
        return [
            host.prepare(broadcast.for_clients(group), step)
            for host, group in zip(self._hosts, self._groups, strict=True)
        ]

    def personalise(self, broadcast: Broadcast | None, step: int, round_number: int) -> list[CohortReport]:
        return [
            host.personalise(broadcast and broadcast.for_clients(group), step, round_number)
            for host, group in zip(self._hosts, self._groups, strict=True)
        ]

    def evaluate(self, broadcast: Broadcast) -> list[Scores]:
        return [
            host.evaluate(broadcast.for_clients(group))
            for host, group in zip(self._hosts, self._groups, strict=True)
        ]

    def state(self) -> states.Packed:
        return states.gather([host.state() for host in self._hosts])

    def snapshot(self) -> list[dict[str, np.ndarray]]:
        return [host.snapshot() for host in self._hosts]

    def restore(self, packed: states.Packed) -> None:
        for host in self._hosts:
            host.restore(packed)

    def recover(self) -> None:
        assert self._job is not None
        self.setup(self._job)
