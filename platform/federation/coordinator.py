"""The coordinator: owns the server state and runs the rounds.

prepare -> (broadcast -> local update on every cohort -> evaluate -> aggregate -> checkpoint -> report) per
round -> personal rounds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation import state as states
from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.federation.host import CohortReport
from fedatlas.platform.federation.messages import Broadcast, Upload, concatenate, undeclared
from fedatlas.platform.federation.phases import collected
from fedatlas.platform.federation.privacy import epsilon
from fedatlas.platform.federation.records import EPSILON, Preparation, RoundRecord, RunResult, summarise
from fedatlas.platform.federation.runtime import CohortLost, Job, Runtime
from fedatlas.platform.federation.scores import ClientWeighting, Scores, client_mean
from fedatlas.platform.federation.secure_aggregation import unmasked
from fedatlas.platform.randomness import SERVER, stream

EvaluationPoint = Literal["after_local", "after_aggregate"]
MIXING_ROUNDS = 10
"""In how many rounds, evenly spaced from the first to the last, the mixing matrix is kept."""
MAX_RECOVERIES = 3
"""How often clients may be lost between two checkpoints before the run gives up."""


@dataclass(frozen=True)
class Schedule:
    """How a run proceeds.

    Attributes:
        rounds: number of federated rounds R; a method's personal rounds come on top.
        evaluation: ``after_local`` scores each client's own model after local training and before
            aggregation (the protocol's default); ``after_aggregate`` scores what the next broadcast brings.
        weighting: weights of the client mean of scores.
        checkpoint_every: rounds between checkpoints; 0 for none but the state when clients join.
        checkpoint_path: file, or None to keep checkpoints in memory only.
        participation: share of the clients that train in each round, drawn anew for each; None for all.
    """

    rounds: int
    evaluation: EvaluationPoint = "after_local"
    weighting: ClientWeighting = "uniform"
    checkpoint_every: int = 25
    checkpoint_path: Path | None = None
    participation: float | None = None


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
        self._preparation: Preparation | None = None
        self._committed: Checkpoint | None = None
        self._recoveries = 0
        self._weights = _score_weights(job, schedule.weighting)
        self._mixing_rounds = frozenset(
            np.linspace(0, schedule.rounds - 1, min(MIXING_ROUNDS, schedule.rounds))
            .round()
            .astype(int)
            .tolist()
        )
        self.startup_seconds = 0.0

    @property
    def records(self) -> Sequence[RoundRecord]:
        """Finished rounds, in order."""
        return self._records

    @property
    def finished(self) -> bool:
        return len(self._records) >= self._total

    @property
    def _total(self) -> int:
        return self._schedule.rounds + self._algorithm.personal_rounds

    def start(self) -> None:
        """Set the clients up and continue from the checkpoint file if there is one, else prepare.

        Raises:
            ConfigurationError: the method cannot classify what the task asks for.
            NonFiniteError: a field of a preparation step is not finite.
            FedatlasError: cohorts keep dying.
        """
        self._algorithm.require(self._job.task.level)
        share = self._schedule.participation
        total = len(self._job.graphs)
        self._job.privacy.require(self._algorithm, total if share is None else participating(share, total))
        # Loads the accountant, which takes longer than a round.
        self._spent(0)
        begin = time.perf_counter()
        self._server = self._algorithm.init(self._job.task)
        self._committed = Checkpoint(0, states.to_cpu(states.pack(self._server)), None, ())
        path = self._schedule.checkpoint_path
        if path is not None and path.exists():
            self._committed = Checkpoint.load(path)
        lost: CohortLost | None = None
        try:
            self._runtime.setup(self._job)
            self._return_to(self._committed)
        except CohortLost as error:
            lost = error
        self._until_done(lambda: None, lost)
        self.startup_seconds = time.perf_counter() - begin
        self._until_done(self._prepare)

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
            self._prepare()
            while len(self._records) <= target:
                number = len(self._records)
                if number < self._schedule.rounds:
                    self._round(number)
                else:
                    self._personal_round(number)
                self._maybe_commit()

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

    def _prepare(self) -> None:
        """The exchanges before round 0, unless they have happened."""
        if self._preparation is not None:
            return
        spent = Preparation()
        for step in range(self._algorithm.preparation_steps):
            begin = time.perf_counter()
            broadcast = self._declared(self._algorithm.prepare_broadcast(self._server, step))
            upload = concatenate([report.upload for report in self._runtime.prepare(broadcast, step)])
            self._server = self._algorithm.prepare_aggregate(self._server, upload, step)
            downlink = broadcast.bytes_per_field(self._job.task.clients)
            spent = spent.added(upload.bytes_per_field(), downlink, time.perf_counter() - begin)
        self._preparation = spent
        if self._algorithm.preparation_steps:
            self._commit()

    def _round(self, number: int) -> None:
        begin = time.perf_counter()
        broadcast = self._broadcast(number)
        sent = time.perf_counter()
        local = self._schedule.evaluation == "after_local"
        participants = self._participants(number)
        with collected() as moved:
            reports = self._runtime.round(broadcast, number, local, participants)
        received = time.perf_counter()
        upload = concatenate([report.upload for report in reports])
        with collected() as server:
            self._server = self._algorithm.aggregate(self._server, self._opened(upload, participants), number)
        aggregated = time.perf_counter()
        if local:
            scores = [report.scores for report in reports if report.scores is not None]
        else:
            scores = self._runtime.evaluate(self._broadcast(number + 1))
        evaluated = time.perf_counter()
        diagnostics = {**self._algorithm.diagnostics(self._server), **self._spent(number)}
        seconds = {
            "broadcast": sent - begin,
            "clients": received - sent,
            "train": _slowest(reports, "train"),
            "evaluate": _slowest(reports, "evaluate") if local else evaluated - aggregated,
            "aggregate": aggregated - received,
            "round": time.perf_counter() - begin,
        }
        seconds.update(_marked(reports, moved, server))
        received_by = broadcast if participants is None else broadcast.for_clients(participants)
        downlink = received_by.bytes_per_field(len(participants or self._job.graphs))
        mixing = self._algorithm.mixing_matrix(self._server) if number in self._mixing_rounds else None
        self._record(
            number, scores, reports, diagnostics, upload.bytes_per_field(), downlink, seconds, mixing
        )

    def _opened(self, upload: Upload, participants: Sequence[int] | None) -> Upload:
        """What the server aggregates: the uploads, or what their sum alone tells."""
        if not self._job.privacy.secure_aggregation:
            return upload
        dtype = torch.float64 if self._job.precision == "float64" else torch.float32
        count = len(participants if participants is not None else self._job.graphs)
        return self._algorithm.combined(self._server, unmasked(upload, count, dtype))

    def _spent(self, number: int) -> dict[str, float]:
        """Epsilon of the rounds up to this one."""
        given = self._job.privacy
        if given.noise_multiplier is None:
            return {}
        return {EPSILON: epsilon(given.noise_multiplier, number + 1, given.noise_delta)}

    def _participants(self, number: int) -> tuple[int, ...] | None:
        share = self._schedule.participation
        if share is None:
            return None
        total = len(self._job.graphs)
        draw = stream(self._job.task.seed, SERVER, number, "participants").permutation(total)
        return tuple(sorted(int(m) for m in draw[: participating(share, total)]))

    def _personal_round(self, number: int) -> None:
        begin = time.perf_counter()
        step = number - self._schedule.rounds
        broadcast = self._broadcast(number) if step == 0 else None
        sent = time.perf_counter()
        reports = self._runtime.personalise(broadcast, step, number)
        scores = [report.scores for report in reports if report.scores is not None]
        done = time.perf_counter()
        seconds = {
            "broadcast": sent - begin,
            "clients": done - sent,
            "train": _slowest(reports, "train"),
            "evaluate": _slowest(reports, "evaluate"),
            "aggregate": 0.0,
            "round": done - begin,
        }
        downlink = broadcast.bytes_per_field(self._job.task.clients) if broadcast is not None else {}
        self._record(number, scores, reports, {}, {}, downlink, seconds)

    def _record(
        self,
        number: int,
        scores: Sequence[Scores],
        reports: Sequence[CohortReport],
        diagnostics: Mapping[str, float],
        uplink: dict[str, int],
        downlink: dict[str, int],
        seconds: dict[str, float],
        mixing: Tensor | None = None,
    ) -> None:
        validation = np.concatenate([score.validation for score in scores])
        test = np.concatenate([score.test for score in scores])
        local = {
            name: client_mean(np.concatenate([report.metrics[name] for report in reports]))
            for name in reports[0].metrics
        }
        prepared = number == 0 and self._algorithm.preparation_steps > 0
        self._records.append(
            RoundRecord(
                round=number,
                validation=client_mean(validation, self._weights),
                test=client_mean(test, self._weights),
                client_validation=tuple(validation.tolist()),
                client_test=tuple(test.tolist()),
                metrics={**local, **diagnostics},
                uplink=uplink,
                downlink=downlink,
                seconds=seconds,
                preparation=self._preparation if prepared else None,
                mixing=None if mixing is None else tuple(tuple(row) for row in mixing.tolist()),
                peak_bytes=max(report.peak_bytes for report in reports),
            )
        )

    def _broadcast(self, number: int) -> Broadcast:
        return self._declared(self._algorithm.broadcast(self._server, number))

    def _declared(self, broadcast: Broadcast) -> Broadcast:
        extra = undeclared(broadcast.names(), self._algorithm.downloads)
        if extra:
            raise FedatlasError(
                f"{self._algorithm.name} broadcasts undeclared fields: {', '.join(extra)}: name them in "
                "`downloads`"
            )
        return broadcast

    def _maybe_commit(self) -> None:
        done, every = len(self._records), self._schedule.checkpoint_every
        if every > 0 and done % every == 0 and done < self._total:
            self._commit()

    def _commit(self) -> None:
        self._committed = Checkpoint(
            next_round=len(self._records),
            server=states.to_cpu(states.pack(self._server)),
            clients=self._runtime.state(),
            records=tuple(self._records),
            preparation=self._preparation,
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
        self._preparation = checkpoint.preparation


def participating(share: float, total: int) -> int:
    """Number of clients that train in a round."""
    return max(1, round(share * total))


def _slowest(reports: Sequence[CohortReport], phase: str) -> float:
    return max(report.seconds[phase] for report in reports)


def _marked(reports: Sequence[CohortReport], *here: Mapping[str, float]) -> dict[str, float]:
    """Seconds of marked phases: of the slowest cohort, and of this process on top."""
    names = {name for report in reports for name in report.seconds} - {"train", "evaluate"}
    marked = {name: max(report.seconds.get(name, 0.0) for report in reports) for name in sorted(names)}
    for found in here:
        marked.update({name: marked.get(name, 0.0) + value for name, value in found.items()})
    return marked


def _score_weights(job: Job, weighting: ClientWeighting) -> np.ndarray | None:
    """Weights of the scores: one for each client, or for each scored group of an uncut graph."""
    if weighting == "uniform":
        return None
    counted: list[int] = []
    for graph in job.graphs:
        marks = np.ones(graph.items, dtype=bool) if weighting == "nodes" else graph.test
        groups = graph.groups if graph.groups is not None else (np.arange(graph.items),)
        counted += [int(marks[nodes].sum()) for nodes in groups]
    return np.array(counted, dtype=float)
