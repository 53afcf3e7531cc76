"""A Tune trial: coordinates one experiment in the trial's own process.

A trial never writes results. It reports finished rounds to the process that drives the study. Its own errors
are reported too instead of raised, so that the process is reused; a process that dies is Tune's affair.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray import tune

from fedatlas.platform.errors import DataError, FedatlasError
from fedatlas.platform.federation.coordinator import Coordinator
from fedatlas.platform.federation.placement import PlacementPlan
from fedatlas.platform.graphs.description import client_rows
from fedatlas.platform.graphs.federated import build
from fedatlas.platform.graphs.graph import FederatedGraph
from fedatlas.sweeps import casestudy
from fedatlas.sweeps.execution import Planned, job, runtime

if TYPE_CHECKING:
    from fedatlas.platform.federation.actors import Fleet

REPORT_SECONDS = 2.0
"""A step runs rounds for this long before it reports; short enough to watch, long enough to cost nothing."""


class FederatedTrial(tune.Trainable):
    """Runs the experiment whose position in the study is `config["position"]`."""

    def setup(
        self,
        config: dict[str, Any],
        work: Sequence[tuple[Planned, PlacementPlan]] = (),
        checkpoints: Sequence[Path] = (),
        broker: Any = None,
        exports: Sequence[Path] = (),
    ) -> None:
        """Take what all trials of the study share.

        Args:
            config: holds the position of the experiment.
            work: experiments with their placement.
            checkpoints: their checkpoint files, reachable from every node.
            broker: actor that leases fleets; None if all experiments are inline.
            exports: where their case-study tables are kept; empty if none are wanted.
        """
        torch.set_num_threads(1)
        self._work = work
        self._checkpoints = checkpoints
        self._broker = broker
        self._exports = exports
        self._position = int(config["position"])
        self._coordinator: Coordinator | None = None
        self._fleet: Fleet | None = None
        self._federated: FederatedGraph | None = None

    def step(self) -> dict[str, Any]:
        """Run rounds for a while and report them."""
        report: dict[str, Any] = {"records": [], "error": "", "own": True, "done": False}
        try:
            if self._coordinator is None:
                report.update(self._start())
            self._run(report)
        except FedatlasError as error:
            report.update(error=str(error), done=True)
        except OSError as error:
            # A full disk is not the trial's doing: the study's next start tries again.
            report.update(error=f"on {socket.gethostname()}: {error}", own=False, done=True)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            report.update(error=f"{type(error).__name__} at {where}: {error}", done=True)
        if report["done"]:
            self._release()
        return report

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another experiment in the same process."""
        self._release()
        self._position = int(new_config["position"])
        return True

    def cleanup(self) -> None:
        """Give the fleet back."""
        self._release()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the coordinator keeps its own checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the coordinator finds its own checkpoint."""

    def _start(self) -> dict[str, Any]:
        planned, placed = self._work[self._position]
        given = planned.resolved.experiment
        federated = build(planned.resolved.scenario())
        if federated.sha256 != planned.data_sha256:
            raise DataError(
                f"{given.dataset} on node {socket.gethostname()} has sha256 {federated.sha256}, but where "
                f"the study was started {planned.data_sha256}: FEDATLAS_DATA must name the same data on "
                "every node"
            )
        self._federated = federated
        if placed.kind != "inline":
            import ray

            self._fleet = ray.get(self._broker.lease.remote(self._position))
            self._fleet.replace_lost()
        self._coordinator = Coordinator(
            job(planned.resolved, federated),
            runtime(given, placed, self._fleet),
            planned.schedule(self._checkpoints[self._position]),
        )
        self._coordinator.start()
        return {
            "records": [record.to_plain() for record in self._coordinator.records],
            "startup_seconds": self._coordinator.startup_seconds,
            "partition_sha256": federated.partition_sha256,
            "clients": client_rows(federated),
        }

    def _run(self, report: dict[str, Any]) -> None:
        coordinator = self._coordinator
        assert coordinator is not None
        until = time.perf_counter() + REPORT_SECONDS
        while not coordinator.finished and time.perf_counter() < until:
            record = coordinator.advance()
            report["records"].append(record.to_plain())
            if self._exports and (record.round == 0 or coordinator.finished):
                assert self._federated is not None
                casestudy.stage(coordinator.snapshot(), self._federated, self._exports[self._position])
        report["done"] = coordinator.finished

    def _release(self) -> None:
        self._coordinator = None
        self._federated = None
        if self._fleet is not None:
            import ray
            from ray.exceptions import RayActorError

            # An idle fleet would keep the data of its last clients.
            calls: list[Any] = [actor.release.remote() for actor in self._fleet.actors()]
            for call in calls:
                with suppress(RayActorError):
                    ray.get(call)
            ray.get(self._broker.release.remote(self._position, self._fleet))
            self._fleet = None


class FleetBroker:
    """Body of the actor that leases fleets to trials; a trial waits until one is free.

    Args:
        fleets: all fleets, of one shape.
    """

    def __init__(self, fleets: Sequence[Fleet]) -> None:
        import asyncio

        self._free: asyncio.Queue[Fleet] = asyncio.Queue()
        for fleet in fleets:
            self._free.put_nowait(fleet)
        self._lent: dict[int, Fleet] = {}

    async def lease(self, position: int) -> Fleet:
        """A fleet that no other trial uses; a trial that starts again after its process died keeps its fleet.

        Args:
            position: position of the trial in the study.
        """
        if position not in self._lent:
            fleet = await self._free.get()
            if position in self._lent:
                self._free.put_nowait(fleet)
            else:
                self._lent[position] = fleet
        return self._lent[position]

    async def release(self, position: int, fleet: Fleet | None = None) -> None:
        """Take back what a trial has leased, if anything.

        Args:
            position: position of the trial in the study.
            fleet: the fleet as the trial leaves it, with the actors it replaced; None if its process died.
        """
        lent = self._lent.pop(position, None)
        if lent is not None:
            self._free.put_nowait(fleet or lent)
