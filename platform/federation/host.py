"""Runs one cohort: the same object in the coordinator's process and inside a Ray actor."""

from __future__ import annotations

import resource
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.errors import FedatlasError, NonFiniteError
from fedatlas.platform.federation import state as states
from fedatlas.platform.federation.allocator import keep_freed_memory
from fedatlas.platform.federation.cohort import Precision, Task, stack
from fedatlas.platform.federation.contract import Algorithm, LocalUpdate
from fedatlas.platform.federation.devices import full_precision
from fedatlas.platform.federation.messages import Broadcast, Upload, undeclared
from fedatlas.platform.federation.phases import collected
from fedatlas.platform.federation.privacy import UNPROTECTED, Privacy, protect
from fedatlas.platform.federation.scores import Scores, evaluate
from fedatlas.platform.graphs.graph import ClientGraph


@dataclass(frozen=True)
class CohortReport:
    """What a cohort returns from one round.

    Attributes:
        upload: fields [k, ...] and one tensor per client of the ragged ones.
        scores: scores [k] after local training and before aggregation; None if they were not asked for.
        metrics: tracked figures [k] of local training.
        seconds: wall time of ``train`` (with what the method computes for its upload), ``evaluate`` and the
            phases that the method marks in its training, see `fedatlas.platform.federation.phases`.
        peak_bytes: largest memory of the process so far, or of its GPU where it has one.
    """

    upload: Upload
    scores: Scores | None
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0


class CohortHost:
    """A cohort with its client states.

    Args:
        algorithm: the method.
        graphs: the cohort's client graphs.
        task: the federation's task.
        precision: floating-point type.
        device: torch device.
        privacy: how uploads are protected.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        graphs: Sequence[ClientGraph],
        task: Task,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
        privacy: Privacy = UNPROTECTED,
    ) -> None:
        keep_freed_memory()
        self._algorithm = algorithm
        self._privacy = privacy
        full_precision(torch.device(device))
        self.cohort = stack(graphs, task, precision, device)
        self._client = algorithm.join(self.cohort)

    def round(
        self,
        broadcast: Broadcast,
        round_number: int,
        score: bool = True,
        participants: Collection[int] | None = None,
    ) -> CohortReport:
        """Receive, train, evaluate.

        Args:
            broadcast: personal fields already cut to the cohort, [k, ...].
            round_number: 0-based.
            score: whether to evaluate.
            participants: clients that train and upload in this round; the others receive, to be evaluated.
                None: all.

        Raises:
            NonFiniteError: a loss or an uploaded field is not finite.
        """
        begin = time.perf_counter()
        with collected() as marked:
            self._receive(broadcast)
            result = self._update(round_number, participants)
        self._check(result.upload, result.metrics, f"round {round_number}")
        if self._privacy.active:
            result = self._protected(result, broadcast, round_number, participants)
        trained = time.perf_counter()
        scores = self._scores() if score else None
        done = time.perf_counter()
        return CohortReport(
            upload=result.upload.map(Tensor.cpu),
            scores=scores,
            metrics=_figures(result.metrics),
            seconds={"train": trained - begin, "evaluate": done - trained, **marked},
            peak_bytes=peak_memory(self.cohort.device),
        )

    def prepare(self, broadcast: Broadcast, step: int) -> CohortReport:
        """The cohort's part of a preparation step.

        Raises:
            NonFiniteError: an uploaded field is not finite.
        """
        begin = time.perf_counter()
        upload = self._algorithm.prepare(self._client, self.cohort, self._placed(broadcast), step)
        self._check(upload, {}, f"preparation step {step}")
        return CohortReport(
            upload.map(Tensor.cpu), None, seconds={"train": time.perf_counter() - begin, "evaluate": 0.0}
        )

    def personalise(self, broadcast: Broadcast | None, step: int, round_number: int) -> CohortReport:
        """Receive the last broadcast (before the first step only), train alone, evaluate.

        Raises:
            NonFiniteError: a tracked figure is not finite.
        """
        begin = time.perf_counter()
        if broadcast is not None:
            self._receive(broadcast)
        metrics = self._algorithm.personalise(self._client, self.cohort, step)
        self._check(Upload(), metrics, f"round {round_number}")
        trained = time.perf_counter()
        scores = self._scores()
        seconds = {"train": trained - begin, "evaluate": time.perf_counter() - trained}
        return CohortReport(Upload(), scores, _figures(metrics), seconds)

    def evaluate(self, broadcast: Broadcast) -> Scores:
        """Scores after receiving a broadcast, without training."""
        self._receive(broadcast)
        return self._scores()

    def state(self) -> states.Packed:
        """Copy of the client states, every tensor [k, ...], in main memory."""
        return states.to_cpu(states.pack(self._client))

    def snapshot(self) -> dict[str, np.ndarray]:
        """The clients' part of a snapshot, [k, ...] by name; see `Algorithm.snapshot`."""
        with torch.no_grad():
            found = self._algorithm.snapshot(self._client, self.cohort)
        return {name: tensor.cpu().numpy() for name, tensor in found.items()}

    def restore(self, packed: states.Packed) -> None:
        """Take client states gathered over the whole federation [M, ...]."""
        rows = states.select(packed, self.cohort.clients)
        self._client = states.unpack(self._client, states.to_device(rows, self.cohort.device))

    def _update(self, round_number: int, participants: Collection[int] | None) -> LocalUpdate:
        if participants is None or set(self.cohort.clients) <= set(participants):
            return self._algorithm.update(self._client, self.cohort, round_number)
        before = states.to_device(states.to_cpu(states.pack(self._client)), self.cohort.device)
        result = self._algorithm.update(self._client, self.cohort, round_number)
        rows = torch.tensor([client in participants for client in self.cohort.clients])
        merged = states.merge(before, states.pack(self._client), rows)
        self._client = states.unpack(self._client, merged)
        chosen = rows.nonzero()[:, 0].tolist()
        metrics = {name: value[chosen] for name, value in result.metrics.items()}
        return LocalUpdate(result.upload.rows(chosen), metrics)

    def _protected(
        self,
        result: LocalUpdate,
        broadcast: Broadcast,
        round_number: int,
        participants: Collection[int] | None,
    ) -> LocalUpdate:
        everyone = range(self.cohort.task.clients)
        senders = everyone if participants is None else participants
        rows = [row for row, client in enumerate(self.cohort.clients) if client in senders]
        placed = self._placed(broadcast)
        reference = {
            name: (tensor[rows] if name in placed.personal else tensor).to(self.cohort.dtype)
            for name, tensor in self._algorithm.reference(placed).items()
        }
        clients = [self.cohort.clients[row] for row in rows]
        return protect(
            self._algorithm,
            self.cohort.task,
            self._privacy,
            result,
            reference,
            clients,
            senders,
            round_number,
        )

    def _receive(self, broadcast: Broadcast) -> None:
        self._algorithm.receive(self._client, self.cohort, self._placed(broadcast))

    def _placed(self, broadcast: Broadcast) -> Broadcast:
        place = self.cohort.device
        return broadcast if place.type == "cpu" else broadcast.map(lambda tensor: tensor.to(place))

    def _scores(self) -> Scores:
        with torch.no_grad():
            return evaluate(self.cohort, self._algorithm.predict(self._client, self.cohort))

    def _check(self, upload: Upload, metrics: Mapping[str, Tensor], when: str) -> None:
        extra = undeclared(upload.names(), self._algorithm.uploads)
        if extra:
            raise FedatlasError(
                f"{self._algorithm.name} uploads undeclared fields: {', '.join(extra)}: name them in "
                "`uploads`"
            )
        named = [*metrics.items(), *upload.fields.items()]
        # A sum is finite only if every entry is, and reads a tensor once without a copy.
        sums = [tensor.sum() for _, tensor in named if tensor.is_floating_point()]
        if sums and not bool(torch.isfinite(sum(sums[1:], sums[0]))):
            self._check_clients(named, when)
        for name, parts in upload.ragged.items():
            for client, part in zip(self.cohort.clients, parts, strict=True):
                if part.is_floating_point() and not bool(torch.isfinite(part.sum())):
                    raise NonFiniteError(name, client, when)

    def _check_clients(self, named: Sequence[tuple[str, Tensor]], when: str) -> None:
        """Find the client whose values are not finite; finite ones can still have an infinite sum."""
        for name, tensor in named:
            if tensor.is_floating_point():
                finite = torch.isfinite(tensor.flatten(1).sum(dim=1) if tensor.dim() > 1 else tensor)
                if not bool(finite.all()):
                    first = int((~finite).nonzero()[0, 0])
                    raise NonFiniteError(name, self.cohort.clients[first], when)


def peak_memory(device: torch.device) -> int:
    """Bytes: the largest resident memory of this process so far, or what torch has held on its GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts KiB.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _figures(metrics: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().double().cpu().numpy() for name, value in metrics.items()}
