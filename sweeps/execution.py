"""Carrying one experiment out: from its description to a coordinator that has clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.coordinator import Coordinator, Schedule, Snapshot
from fedatlas.platform.federation.placement import (
    PlacementPlan,
    PlacementRequest,
    plan,
    this_machine,
)
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.platform.federation.runtime import InlineRuntime, Job, Runtime
from fedatlas.platform.files import remove_partial
from fedatlas.platform.graphs.federated import data_sha256
from fedatlas.platform.graphs.graph import FederatedGraph
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.sweeps.experiment import Experiment, Resolved

if TYPE_CHECKING:
    from fedatlas.platform.federation.actors import Fleet


@dataclass(frozen=True)
class Planned:
    """An experiment and the identity of its numbers, without its data.

    Attributes:
        resolved: the experiment.
        data_sha256: hash of the data set.
        fingerprint: identity of its numbers.
    """

    resolved: Resolved
    data_sha256: str
    fingerprint: str

    @cached_property
    def rounds(self) -> int:
        """All rounds of the run: the federated ones and a method's personal ones."""
        return self._federated + self.resolved.method().personal_rounds

    @property
    def _federated(self) -> int:
        rounds = self.resolved.experiment.rounds
        assert rounds is not None
        return rounds

    def schedule(self, checkpoint: Path | None, every: int = 25) -> Schedule:
        """Rounds, evaluation and checkpoints."""
        given = self.resolved.experiment
        return Schedule(
            self._federated, given.evaluation, given.weighting, every, checkpoint, given.participation
        )


def planned(resolved: Resolved) -> Planned:
    """Identify an experiment.

    Raises:
        DataError: the data set cannot be read.
    """
    sha256 = data_sha256(resolved.experiment.dataset)
    return Planned(resolved, sha256, resolved.fingerprint(sha256))


def job(resolved: Resolved, federated: FederatedGraph) -> Job:
    """Algorithm, client graphs and task of an experiment on its divided graph."""
    given = resolved.experiment
    task = Task(
        clients=len(federated.clients),
        features=federated.features,
        classes=federated.classes,
        metric=federated.metric,
        seed=given.seed,
        level=federated.level,
    )
    return Job(resolved.method(), federated.clients, task, given.precision, resolved.protection())


def checkpoint_path(study: str, fingerprint: str) -> Path:
    """Where a trial of a study keeps its checkpoint until it is finished."""
    return results_folder() / "checkpoints" / study / f"{fingerprint}.pt"


def drop_checkpoint(study: str, fingerprint: str) -> None:
    """Remove a trial's checkpoint, and what a process that was killed has left of one."""
    path = checkpoint_path(study, fingerprint)
    path.unlink(missing_ok=True)
    remove_partial(path.parent, path.name)


def export_path(study: str, fingerprint: str) -> Path:
    """Where a trial of a study keeps its case-study tables until it is finished."""
    return checkpoint_path(study, fingerprint).with_suffix(".casestudy")


def request(given: Experiment, runs: int = 1) -> PlacementRequest:
    """What an experiment asks of the cluster."""
    return PlacementRequest(
        placement="inline" if given.uncut else given.placement,
        clients=1 if given.uncut else given.clients,
        clients_per_actor=given.clients_per_actor,
        client_cpus=given.client_cpus,
        client_gpus=given.client_gpus,
        runs=runs,
    )


def inline_device(given: Experiment) -> str:
    """Device of the in-process runtime.

    Raises:
        ConfigurationError: a GPU is asked for that torch does not see.
    """
    if given.device != "cuda":
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError("device=cuda: torch sees no GPU in this process: use device=cpu")
    return "cuda"


def runtime(given: Experiment, placed: PlacementPlan, fleet: Fleet | None) -> Runtime:
    """The runtime of a plan; all but ``inline`` need a fleet."""
    if placed.kind == "inline":
        return InlineRuntime(device=inline_device(given))
    from fedatlas.platform.federation.actors import ActorRuntime

    assert fleet is not None
    return ActorRuntime(fleet, placed.groups)


class Driver(Protocol):
    """What steps a run forward, in this process or in a coordinator actor."""

    def start(self) -> tuple[Sequence[RoundRecord], float]:
        """Set up; returns the rounds of a checkpoint and the start-up seconds."""

    def advance(self) -> RoundRecord:
        """Run one round."""

    def snapshot(self) -> Snapshot:
        """What the method offers for export now."""


class _InProcess:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def start(self) -> tuple[Sequence[RoundRecord], float]:
        self._coordinator.start()
        return list(self._coordinator.records), self._coordinator.startup_seconds

    def advance(self) -> RoundRecord:
        return self._coordinator.advance()

    def snapshot(self) -> Snapshot:
        return self._coordinator.snapshot()


class _Remote:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def start(self) -> tuple[Sequence[RoundRecord], float]:
        result: tuple[Sequence[RoundRecord], float] = self._call(self._actor.start.remote())
        return result

    def advance(self) -> RoundRecord:
        result: RoundRecord = self._call(self._actor.advance.remote())
        return result

    def snapshot(self) -> Snapshot:
        result: Snapshot = self._call(self._actor.snapshot.remote())
        return result

    def _call(self, call: Any) -> Any:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(call)
        except RayTaskError as error:
            raise (error.cause or error) from None
        except RayActorError as error:
            raise FedatlasError(
                f"the coordinator's process died ({str(error).splitlines()[0]}): look for lack of memory "
                "(`fedatlas doctor`), or give the study fewer trials at once (concurrent: 1)"
            ) from error


def _joins_cluster() -> bool:
    """Whether a Ray cluster is at hand already."""
    loaded = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (loaded is not None and loaded.is_initialized())


@contextmanager
def driver(
    work: Job, given: Experiment, schedule: Schedule, announce: Callable[[PlacementPlan], None]
) -> Iterator[Driver]:
    """A driver for one run of its own; actors and cluster connection end with the block.

    ``inline`` stays in this process and does not touch Ray. Other placements make a fleet, and a coordinator
    actor that talks to it.

    Args:
        work: algorithm, client graphs and task.
        given: the experiment, for its placement.
        schedule: rounds and checkpoints.
        announce: told the plan before anything starts.
    """
    asked = request(given)
    if asked.placement == "inline" or (asked.placement == "auto" and not _joins_cluster()):
        # What runs in this process needs no Ray, which takes seconds to start.
        placed = plan(asked, this_machine())
        if placed.kind == "inline":
            announce(placed)
            yield _InProcess(Coordinator(work, runtime(given, placed, None), schedule))
            return
    from fedatlas.platform.federation.cluster import connected

    with connected() as cluster:
        placed = plan(asked, cluster)
        announce(placed)
        if placed.kind == "inline":
            yield _InProcess(Coordinator(work, runtime(given, placed, None), schedule))
            return
        import ray

        from fedatlas.platform.federation.actors import CoordinatorActor, Fleet, carry

        carry(work.algorithm)
        fleet = Fleet(placed)
        actor: Any = None
        try:
            remote: Any = ray.remote(CoordinatorActor)
            actor = remote.options(num_cpus=1).remote(work, fleet, placed.groups, schedule)
            yield _Remote(actor)
        finally:
            if actor is not None:
                ray.kill(actor)
            fleet.close()
