"""Client actors: cohorts in Ray worker processes, in fleets that outlive the runs they serve."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
import uuid
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedatlas.platform.errors import PlacementError
from fedatlas.platform.federation import state as states
from fedatlas.platform.federation.cohort import Precision, Task
from fedatlas.platform.federation.contract import Algorithm
from fedatlas.platform.federation.coordinator import Coordinator, Schedule, Snapshot
from fedatlas.platform.federation.host import CohortHost, CohortReport
from fedatlas.platform.federation.messages import Broadcast, Ragged, Upload
from fedatlas.platform.federation.phases import SERIALISATION, collected, phase
from fedatlas.platform.federation.placement import PlacementPlan
from fedatlas.platform.federation.privacy import UNPROTECTED, Privacy
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.platform.federation.runtime import CohortLost, Job
from fedatlas.platform.federation.scores import Scores
from fedatlas.platform.graphs.graph import ClientGraph

Arrays = dict[str, np.ndarray]
RaggedArrays = dict[str, tuple[np.ndarray, ...]]
Own = tuple[Arrays, RaggedArrays]
"""What a cohort receives or sends of its own: stacked arrays and ragged ones."""
START_SECONDS = 300.0

logger = logging.getLogger(__name__)


def carry(algorithm: Algorithm[Any, Any]) -> None:
    """Let a method that is not installed travel whole, since a worker cannot import it.

    Its class, those of its configuration and backbone are then sent with it instead of by name.
    """
    parts = (algorithm, algorithm.configuration, getattr(algorithm, "backbone", None))
    for part in parts:
        module = sys.modules.get(type(part).__module__)
        place = getattr(module, "__file__", None)
        if module is None or place is None or module.__name__.split(".")[0] in ("fedatlas", "__main__"):
            continue
        if "site-packages" not in place:
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Tensors as numpy arrays, which the object store shares without copies."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def to_ragged_arrays(tensors: Mapping[str, Ragged]) -> RaggedArrays:
    """Ragged fields as numpy arrays."""
    return {name: tuple(part.detach().cpu().numpy() for part in parts) for name, parts in tensors.items()}


def to_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Tensors over arrays of the object store: read-only by nature, and never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def to_ragged_tensors(arrays: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, Ragged]:
    """Ragged fields over arrays of the object store."""
    return {
        name: tuple(to_tensors({str(m): part for m, part in enumerate(parts)}).values())
        for name, parts in arrays.items()
    }


class CohortActor:
    """Body of a client actor: hosts one cohort for the run that leases it.

    Args:
        cpus, gpus: what the actor reserves; it runs one thread per whole CPU, at least one.
    """

    def __init__(self, cpus: float, gpus: float) -> None:
        torch.set_num_threads(max(1, int(cpus)))
        self._device = assigned_device(gpus)
        self._host: CohortHost | None = None

    def ready(self) -> int:
        """Process id, once the actor is up."""
        return os.getpid()

    def lease(
        self,
        algorithm: Algorithm[Any, Any],
        graphs: Sequence[ClientGraph],
        task: Task,
        precision: Precision,
        privacy: Privacy = UNPROTECTED,
    ) -> str:
        """Take the clients of a new run, forgetting those of the last; returns the device."""
        self._host = None
        self._host = CohortHost(algorithm, graphs, task, precision, self._device, privacy)
        return str(self._device)

    def release(self) -> None:
        """Forget the clients."""
        self._host = None

    def round(
        self,
        common: Arrays,
        own: Own,
        round_number: int,
        score: bool,
        participants: Collection[int] | None,
    ) -> tuple[Own, CohortReport]:
        """Train, evaluate and upload in one call; the upload travels as arrays."""
        with collected() as marked:
            with phase(SERIALISATION):
                broadcast = _received(common, own)
            report = self._leased().round(broadcast, round_number, score, participants)
            with phase(SERIALISATION):
                fields, rest = _sent(report)
        return fields, dataclasses.replace(rest, seconds={**rest.seconds, **marked})

    def prepare(self, common: Arrays, own: Own, step: int) -> tuple[Own, CohortReport]:
        """One preparation step; the upload travels as arrays."""
        return _sent(self._leased().prepare(_received(common, own), step))

    def personalise(
        self, common: Arrays | None, own: Own, step: int, round_number: int
    ) -> tuple[Own, CohortReport]:
        """One personal round, with what is received before the first."""
        broadcast = None if common is None else _received(common, own)
        return _sent(self._leased().personalise(broadcast, step, round_number))

    def evaluate(self, common: Arrays, own: Own) -> Scores:
        """Scores after receiving a broadcast."""
        return self._leased().evaluate(_received(common, own))

    def state(self) -> states.Packed:
        """Client states, [k, ...]."""
        return self._leased().state()

    def snapshot(self) -> Arrays:
        """The clients' part of a snapshot."""
        return self._leased().snapshot()

    def restore(self, packed: states.Packed) -> None:
        """Take client states of the whole federation."""
        self._leased().restore(packed)

    def _leased(self) -> CohortHost:
        if self._host is None:
            raise RuntimeError("the actor has no clients: lease it first")
        return self._host


def _received(common: Arrays, own: Own) -> Broadcast:
    personal, ragged = own
    return Broadcast(to_tensors(common), to_tensors(personal), to_ragged_tensors(ragged))


def _sent(report: CohortReport) -> tuple[Own, CohortReport]:
    own = to_arrays(report.upload.fields), to_ragged_arrays(report.upload.ragged)
    return own, dataclasses.replace(report, upload=Upload())


def _returned(results: Sequence[tuple[Own, CohortReport]]) -> list[CohortReport]:
    return [
        dataclasses.replace(report, upload=Upload(to_tensors(fields), to_ragged_tensors(ragged)))
        for (fields, ragged), report in results
    ]


def assigned_device(gpus: float) -> torch.device:
    """Device from what Ray assigned to this process, never from what happens to be visible.

    Where a GPU share was assigned, this process is kept to that share of the device's memory.

    Raises:
        PlacementError: a GPU was assigned that torch does not see. Tests declare GPUs that do not exist; with
            `FEDATLAS_FAKE_GPUS=1` such a share is accepted and the CPU is used.
    """
    if gpus <= 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if os.environ.get("FEDATLAS_FAKE_GPUS") == "1":
            return torch.device("cpu")
        raise PlacementError(
            f"Ray assigned a GPU share of {gpus:g}, but torch sees no GPU there: install a CUDA build of "
            "torch on that node, or set client_gpus=0"
        )
    if gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    return torch.device("cuda")


class Fleet:
    """A placement group with its actors.

    The actors belong to the process that makes the fleet and end with it. A fleet can be sent to another
    process, which uses it and replaces actors that died; whoever made it closes it.

    Args:
        plan: number of actors and what each reserves.
        name: shown by Ray's tools, with a suffix that makes it unique.

    Raises:
        PlacementError: the cluster did not grant the placement group in time.
    """

    def __init__(self, plan: PlacementPlan, name: str = "fedatlas-fleet") -> None:
        count, self._cpus, self._gpus = plan.shape()
        bundle = {"CPU": self._cpus, **({"GPU": self._gpus} if self._gpus > 0 else {})}
        # Ray refuses a name that another group of this job has, or had a moment ago.
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        self._group: PlacementGroup = placement_group([bundle] * count, strategy="PACK", name=unique)
        self._actors: list[ActorHandle[Any]] = []
        try:
            if not self._group.wait(START_SECONDS):
                raise PlacementError(
                    f"the cluster did not grant {count} bundles of {bundle} within {START_SECONDS:g} s: "
                    "look for other work on it (`ray status`)"
                )
            self._actors = [self._start(index) for index in range(count)]
            ray.get([actor.ready.remote() for actor in self._actors], timeout=START_SECONDS)
        except GetTimeoutError as error:
            self.close()
            raise PlacementError(f"{count} client actors did not start in {START_SECONDS:g} s") from error
        except BaseException:
            self.close()
            raise

    def _start(self, index: int) -> ActorHandle[Any]:
        options: dict[str, Any] = {
            "num_cpus": self._cpus,
            "num_gpus": self._gpus,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            ),
        }
        remote: Any = ray.remote(CohortActor)
        handle: ActorHandle[Any] = remote.options(**options).remote(self._cpus, self._gpus)
        return handle

    def actors(self) -> Sequence[ActorHandle[Any]]:
        return tuple(self._actors)

    def replace_lost(self) -> Sequence[ActorHandle[Any]]:
        """The actors, after replacing those that died or hang.

        Raises:
            PlacementError: a replacement did not start in time.
        """
        pings: list[Any] = [actor.ready.remote() for actor in self._actors]
        for index, ping in enumerate(pings):
            try:
                ray.get(ping, timeout=START_SECONDS)
            except (RayActorError, GetTimeoutError):
                # An actor that hangs still holds the bundle that its replacement needs.
                ray.kill(self._actors[index])
                self._actors[index] = self._start(index)
        try:
            ray.get([actor.ready.remote() for actor in self._actors], timeout=START_SECONDS)
        except (RayActorError, GetTimeoutError) as error:
            raise PlacementError(
                f"a lost client actor could not be replaced within {START_SECONDS:g} s: look for other work "
                "on the cluster (`ray status`)"
            ) from error
        return self.actors()

    def close(self) -> None:
        """End the actors and give the resources back."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        remove_placement_group(self._group)


class ActorRuntime:
    """Cohorts on client actors.

    Args:
        fleet: the actors, one per group.
        groups: client ids of each actor.
    """

    def __init__(self, fleet: Fleet, groups: tuple[tuple[int, ...], ...]) -> None:
        self._fleet = fleet
        self._groups = groups
        self._actors = fleet.actors()
        self._job: Job | None = None

    def setup(self, job: Job) -> None:
        carry(job.algorithm)
        self._job = job
        calls: list[Any] = []
        for actor, group in zip(self._actors, self._groups, strict=True):
            graphs = [job.graphs[m] for m in group]
            calls.append(actor.lease.remote(job.algorithm, graphs, job.task, job.precision, job.privacy))
        _get(calls)

    def round(
        self,
        broadcast: Broadcast,
        round_number: int,
        score: bool = True,
        participants: Collection[int] | None = None,
    ) -> list[CohortReport]:
        results = self._send("round", broadcast, round_number, score, participants)
        with phase(SERIALISATION):
            return _returned(results)

    def prepare(self, broadcast: Broadcast, step: int) -> list[CohortReport]:
        return _returned(self._send("prepare", broadcast, step))

    def personalise(self, broadcast: Broadcast | None, step: int, round_number: int) -> list[CohortReport]:
        if broadcast is not None:
            return _returned(self._send("personalise", broadcast, step, round_number))
        nothing: Own = ({}, {})
        return _returned(
            _get([actor.personalise.remote(None, nothing, step, round_number) for actor in self._actors])
        )

    def evaluate(self, broadcast: Broadcast) -> list[Scores]:
        return self._send("evaluate", broadcast)

    def state(self) -> states.Packed:
        return states.gather(_get([actor.state.remote() for actor in self._actors]))

    def snapshot(self) -> list[Arrays]:
        return _get([actor.snapshot.remote() for actor in self._actors])

    def restore(self, packed: states.Packed) -> None:
        whole = ray.put(packed)
        _get([actor.restore.remote(whole) for actor in self._actors])

    def recover(self) -> None:
        assert self._job is not None
        begin = time.perf_counter()
        self._actors = self._fleet.replace_lost()
        self.setup(self._job)
        logger.warning("replaced lost client actors in %.1f s", time.perf_counter() - begin)

    def _send(self, call: str, broadcast: Broadcast, *arguments: Any) -> list[Any]:
        """Results of a call on every actor with its part of a broadcast."""
        with phase(SERIALISATION):
            common = ray.put(to_arrays(broadcast.common))
        calls: list[Any] = []
        for actor, group in zip(self._actors, self._groups, strict=True):
            with phase(SERIALISATION):
                part = Broadcast({}, broadcast.personal, broadcast.ragged).for_clients(group)
                own: Own = (to_arrays(part.personal), to_ragged_arrays(part.ragged))
            calls.append(getattr(actor, call).remote(common, own, *arguments))
        return _get(calls)


class CoordinatorActor:
    """Body of the coordinator's actor under `fedatlas run`."""

    def __init__(
        self, job: Job, fleet: Fleet, groups: tuple[tuple[int, ...], ...], schedule: Schedule
    ) -> None:
        torch.set_num_threads(1)
        self._coordinator = Coordinator(job, ActorRuntime(fleet, groups), schedule)

    def start(self) -> tuple[list[RoundRecord], float]:
        """Set the clients up; returns the rounds that a checkpoint held and the seconds it took."""
        self._coordinator.start()
        return list(self._coordinator.records), self._coordinator.startup_seconds

    def advance(self) -> RoundRecord:
        """Run one round."""
        return self._coordinator.advance()

    def snapshot(self) -> Snapshot:
        """What there is to export now."""
        return self._coordinator.snapshot()


def _get(calls: list[Any]) -> list[Any]:
    """Results of actor calls; a dead actor becomes `CohortLost`, an actor's own error is raised as it was."""
    try:
        results: list[Any] = ray.get(calls)
        return results
    except RayTaskError as error:
        raise (error.cause or error) from None
    except RayActorError as error:
        raise CohortLost(str(error).splitlines()[0]) from error
