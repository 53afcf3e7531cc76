"""The coordinator: owns the server state and runs the rounds.

broadcast -> local update on every cohort -> evaluate -> aggregate -> checkpoint -> report
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation import state as states
from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.federation.host import CohortReport
from fedatlas.platform.federation.messages import Broadcast, concatenate, undeclared
from fedatlas.platform.federation.records import RoundRecord, RunResult, summarise
from fedatlas.platform.federation.runtime import CohortLost, Job, Runtime
from fedatlas.platform.federation.scores import ClientWeighting, client_mean

EvaluationPoint = Literal["after_local", "after_aggregate"]
MAX_RECOVERIES = 3
"""How often clients may be lost between two checkpoints before the run gives up."""


@dataclass(frozen=True)
class Schedule:
    """How a run proceeds.

    Attributes:
        rounds: number of rounds R.
        evaluation: ``after_local`` scores each client's own model after local training and before
            aggregation (the protocol's default); ``after_aggregate`` scores what the next broadcast brings.
        weighting: weights of the client mean of scores.
        checkpoint_every: rounds between checkpoints; 0 for none but the state before round 0.
        checkpoint_path: file, or None to keep checkpoints in memory only.
    """

    rounds: int
    evaluation: EvaluationPoint = "after_local"
    weighting: ClientWeighting = "uniform"
    checkpoint_every: int = 25
    checkpoint_path: Path | None = None


@dataclass(frozen=True)
class Snapshot:
    """State of a method at one moment, for figures.

    Attributes:
        round: last finished round.
        server: arrays of the server, by name.
        clients: one dictionary per client, in order; arrays as in `Algorithm.snapshot` without the axis k.
    """

    round: int
    server: dict[str, np.ndarray]
    clients: tuple[dict[str, np.ndarray], ...]


class Coordinator:
    """Runs a job on a runtime.

    Args:
        job: algorithm, client graphs and task.
        runtime: where the clients live; set up by `start`.
        schedule: rounds, evaluation, checkpoints.
    """

    def __init__(self, job: Job, runtime: Runtime, schedule: Schedule) -> None:
        self._job = job
        self._algorithm = job.algorithm
        self._runtime = runtime
        self._schedule = schedule
        self._server: Any = None
        self._records: list[RoundRecord] = []
        self._committed: Checkpoint | None = None
        self._recoveries = 0
        self._weights = _score_weights(job, schedule.weighting)
        self.startup_seconds = 0.0

    @property
    def records(self) -> Sequence[RoundRecord]:
        """Finished rounds, in order."""
        return self._records

    @property
    def finished(self) -> bool:
        return len(self._records) >= self._schedule.rounds

    def start(self) -> None:
        """Set the clients up and continue from the checkpoint file if there is one."""
        begin = time.perf_counter()
        self._server = self._algorithm.init(self._job.task)
        self._committed = Checkpoint(0, states.to_cpu(states.pack(self._server)), None, ())
        path = self._schedule.checkpoint_path
        if path is not None and path.exists():
            self._committed = Checkpoint.load(path)
        try:
            self._runtime.setup(self._job)
            self._return_to(self._committed)
        except CohortLost as error:
            self._until_done(lambda: None, error)
        self.startup_seconds = time.perf_counter() - begin

    def advance(self) -> RoundRecord:
        """Run one round and return its record.

        A lost cohort is replaced, and the rounds since the last committed state are redone; since every
        draw is keyed by its round, the result is the same.

        Raises:
            NonFiniteError: a client's loss or upload is not finite.
            FedatlasError: cohorts keep dying.
        """
        target = len(self._records)

        def run() -> None:
            while len(self._records) <= target:
                self._round(len(self._records))

        self._until_done(run)
        return self._records[target]

    def _until_done(self, work: Callable[[], None], lost: CohortLost | None = None) -> None:
        """Do some work; whenever clients are lost, during it or while they are replaced, recover and redo."""
        while True:
            try:
                if lost is not None:
                    self._recover(lost)
                    lost = None
                work()
                return
            except CohortLost as error:
                lost = error

    def result(self) -> RunResult:
        """Summary of the finished rounds."""
        return summarise(self._records)

    def snapshot(self) -> Snapshot:
        """What the method offers for export after the last finished round."""
        server = {
            name: tensor.detach().cpu().numpy()
            for name, tensor in self._algorithm.server_snapshot(self._server).items()
        }
        clients: list[dict[str, np.ndarray]] = []
        for cohort in self._runtime.snapshot():
            size = len(next(iter(cohort.values()))) if cohort else 0
            clients += [{name: array[row] for name, array in cohort.items()} for row in range(size)]
        return Snapshot(len(self._records) - 1, server, tuple(clients))

    def _round(self, number: int) -> None:
        begin = time.perf_counter()
        broadcast = self._broadcast(number)
        sent = time.perf_counter()
        local = self._schedule.evaluation == "after_local"
        reports = self._runtime.round(broadcast, number, score=local)
        received = time.perf_counter()
        upload = concatenate([report.upload for report in reports])
        self._server = self._algorithm.aggregate(self._server, upload, number)
        aggregated = time.perf_counter()
        if local:
            scores = [report.scores for report in reports if report.scores is not None]
        else:
            scores = self._runtime.evaluate(self._broadcast(number + 1))
        evaluated = time.perf_counter()
        validation = np.concatenate([score.validation for score in scores])
        test = np.concatenate([score.test for score in scores])
        metrics = {
            name: client_mean(np.concatenate([report.metrics[name] for report in reports]))
            for name in reports[0].metrics
        }
        metrics.update(self._algorithm.diagnostics(self._server))
        done = time.perf_counter()
        self._records.append(
            RoundRecord(
                round=number,
                validation=client_mean(validation, self._weights),
                test=client_mean(test, self._weights),
                client_validation=tuple(validation.tolist()),
                client_test=tuple(test.tolist()),
                metrics=metrics,
                uplink=upload.bytes_per_field(),
                downlink=broadcast.bytes_per_field(self._job.task.clients),
                seconds={
                    "broadcast": sent - begin,
                    "clients": received - sent,
                    "train": _slowest(reports, "train"),
                    "evaluate": _slowest(reports, "evaluate") if local else evaluated - aggregated,
                    "aggregate": aggregated - received,
                    "round": done - begin,
                },
            )
        )
        self._maybe_commit()

    def _broadcast(self, number: int) -> Broadcast:
        broadcast = self._algorithm.broadcast(self._server, number)
        extra = undeclared([*broadcast.common, *broadcast.personal], self._algorithm.downloads)
        if extra:
            raise FedatlasError(f"{self._algorithm.name} broadcasts undeclared fields: {', '.join(extra)}")
        return broadcast

    def _maybe_commit(self) -> None:
        done, every = len(self._records), self._schedule.checkpoint_every
        if every <= 0 or done % every or done >= self._schedule.rounds:
            return
        self._committed = Checkpoint(
            next_round=done,
            server=states.to_cpu(states.pack(self._server)),
            clients=self._runtime.state(),
            records=tuple(self._records),
        )
        if self._schedule.checkpoint_path is not None:
            self._committed.save(self._schedule.checkpoint_path)
        self._recoveries = 0

    def _recover(self, error: CohortLost) -> None:
        self._recoveries += 1
        if self._recoveries > MAX_RECOVERIES:
            raise FedatlasError(
                f"client processes died {self._recoveries} times ({error}): look for lack of memory, or "
                "use placement=packed with fewer processes"
            ) from error
        assert self._committed is not None
        self._runtime.recover()
        self._return_to(self._committed)

    def _return_to(self, checkpoint: Checkpoint) -> None:
        fresh = self._algorithm.init(self._job.task)
        self._server = states.unpack(fresh, checkpoint.server)
        if checkpoint.clients is not None:
            self._runtime.restore(checkpoint.clients)
        self._records = list(checkpoint.records)


def _slowest(reports: Sequence[CohortReport], phase: str) -> float:
    return max(report.seconds[phase] for report in reports)


def _score_weights(job: Job, weighting: ClientWeighting) -> np.ndarray | None:
    """Weights of the scores: one for each client, or for each scored group of an uncut graph."""
    if weighting == "uniform":
        return None
    counted: list[int] = []
    for graph in job.graphs:
        marks = np.ones(graph.size, dtype=bool) if weighting == "nodes" else graph.test
        groups = graph.groups if graph.groups is not None else (np.arange(graph.size),)
        counted += [int(marks[nodes].sum()) for nodes in groups]
    return np.array(counted, dtype=float)
