"""Runs a study through Ray Tune: one Tune run for each shape of placement, one writer of results."""

from __future__ import annotations

import errno
import gc
import glob
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedatlas.platform.errors import FedatlasError, TrackingError
from fedatlas.platform.federation.actors import Fleet
from fedatlas.platform.federation.placement import PlacementPlan
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.platform.tracking.operations import (
    FINGERPRINT_TAG,
    KIND_TAG,
    RAY_TAG,
    REPLACED_TAG,
    STUDY_TAG,
    TRIALS_TAG,
    RunStatus,
)
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps.execution import Planned, checkpoint_path, drop_checkpoint, export_path
from fedatlas.sweeps.preflight import Preflight, named
from fedatlas.sweeps.recording import STALE_TAG, Recording, discard, note_failure
from fedatlas.sweeps.trial import FederatedTrial, FleetBroker

PROCESS_FAILURES = 2
"""How often the process of a trial may die before the trial counts as failed."""

FOLDERS = {"study": "studies", "search": "searches"}
"""In the results folder: where each kind of work keeps its files."""
FOLDER_TAG = "fedatlas.folder"
"""On a sweep's own run: machine and results folder of its driver."""

# Ray's own loggers and tables would repeat what the tracking store and the progress bar show, and its signal
# handler would swallow Ctrl-C. MLflow would print two lines for every trial that ends on a server.
TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass
class StudyOutcome:
    """What happened.

    Attributes:
        finished: summaries of the trials that finished now.
        failed: cell -> error.
        interrupted: whether Ctrl-C ended the study.
        seconds: wall time.
        parent: local name of the sweep's own run; None without tracking, or if there was nothing to do.
        held_back: cell -> error of trials that failed before and were not tried again.
        report: the HTML report, if one was written.
    """

    finished: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0
    parent: str | None = None
    held_back: dict[str, str] = field(default_factory=dict)
    report: Path | None = None


@dataclass(frozen=True)
class Progress:
    """Counts of trials for a progress display."""

    total: int
    done: int
    running: int
    failed: int
    rounds_done: int
    rounds_total: int


def _noted(method: Callable[..., None]) -> Callable[..., None]:
    """The same callback; an error of its own is kept as it is, for Tune passes on its text only."""

    @wraps(method)
    def call(writer: _Writer, *arguments: Any, **named: Any) -> None:
        try:
            method(writer, *arguments, **named)
        except Exception as error:
            writer.error = error
            raise

    return call


class _Writer(tune.Callback):
    """Tune's callback in the driver: the only place that writes results.

    Attributes:
        error: what ended the study here: results that could not be written.
    """

    def __init__(
        self,
        study: str,
        work: Sequence[tuple[Planned, PlacementPlan]],
        preflight: Preflight,
        tracker: Tracker | None,
        parent: str | None,
        outcome: StudyOutcome,
        show: Callable[[Progress], None],
    ) -> None:
        self._study = study
        self._work = work
        self._preflight = preflight
        self._tracker = tracker
        self._parent = parent
        self._outcome = outcome
        self._show = show
        self._results = results_folder()
        self._results_identity = self._results.stat()
        self.recordings: dict[int, Recording] = {}
        self.error: Exception | None = None
        self._ended: set[int] = set()
        self._rounds_done = 0
        self.reclaim: Callable[[int], None] = lambda position: None
        """Takes back what a trial whose process died had leased."""

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Tune saves its callbacks to restore a run; runs are never restored from there, so nothing is."""
        return tune.Callback, ()

    @_noted
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        position = int(trial.config["position"])
        if position in self.recordings or position in self._ended:
            return
        planned, placed = self._work[position]
        recording = Recording(planned, self._study, placed.reason, self._tracker, self._parent)
        recording.open(self._preflight.interrupted.get(planned.fingerprint))
        self.recordings[position] = recording
        self._report()

    @_noted
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._check_results_folder()
        position = int(trial.config["position"])
        if position in self._ended:
            # Its process died after its last report, and Tune has started it once more.
            if result.get("done"):
                drop_checkpoint(self._study, self._work[position][0].fingerprint)
            return
        recording = self.recordings[position]
        recording.startup = float(result.get("startup_seconds", recording.startup))
        recording.clients = result.get("clients", recording.clients)
        recording.partition_sha256 = result.get("partition_sha256", recording.partition_sha256)
        recording.add([RoundRecord.from_plain(record) for record in result.get("records", [])])
        recording.flush()
        if result.get("error"):
            self._fail(position, str(result["error"]), own=bool(result.get("own", True)))
        elif result.get("done"):
            self._outcome.finished.append(recording.finish())
            self._rounds_done += recording.planned.rounds
            del self.recordings[position]
            self._ended.add(position)
        self._report()

    @_noted
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        position = int(trial.config["position"])
        if position not in self._ended:
            self.reclaim(position)
            times = PROCESS_FAILURES + 1
            self._fail(position, f"the trial's process died {times} times: look for lack of memory")
            self._report()

    def _check_results_folder(self) -> None:
        """Refuse to go on in a folder that was removed: writing would make it anew, without its content."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._results.stat(), self._results_identity):
                return
        reason = "The results folder was removed while the study ran"
        raise FileNotFoundError(errno.ENOENT, reason, str(self._results))

    def fail_unfinished(self) -> None:
        """Mark the trials of which nothing more will come as failed; it is not their own doing."""
        for position in set(range(len(self._work))) - self._ended:
            self._fail(position, "Tune ended without a result for this trial", own=False)

    def _report(self) -> None:
        running = list(self.recordings.values())
        self._show(
            Progress(
                total=len(self._preflight.todo),
                done=len(self._outcome.finished),
                running=len(running),
                failed=len(self._outcome.failed),
                rounds_done=self._rounds_done + sum(len(recording.records) for recording in running),
                rounds_total=sum(planned.rounds for planned, _ in self._preflight.todo),
            )
        )

    def stop(self) -> None:
        """Mark what was running as stopped from outside; it can be continued."""
        for recording in self.recordings.values():
            recording.fail("", killed=True)
        self.recordings.clear()

    def _fail(self, position: int, error: str, own: bool = True) -> None:
        recording = self.recordings.pop(position, None)
        if recording is not None:
            recording.fail(error)
        self._ended.add(position)
        planned = self._work[position][0]
        if own:
            note_failure(self._study, planned, error)
        self._outcome.failed[named(planned, self._outcome.failed)] = error


@contextmanager
def alone(name: str, kind: str = "study") -> Iterator[None]:
    """Keep other processes that share the results folder from running the same study or search.

    The lock ends with the process, however it ends.

    Args:
        name: of the study or the search.
        kind: ``study`` or ``search``.

    Raises:
        FedatlasError: another process runs it.
    """
    import fcntl

    path = results_folder() / FOLDERS[kind] / name / "running"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            who = file.read().strip() or "another process"
            raise FedatlasError(
                f"{kind} {name} is being run by {who}: wait for it, stop it, or set FEDATLAS_RESULTS to "
                "another folder"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def begin_anew(study: str, preflight: Preflight, store: Store | None) -> None:
    """Forget what the trials to run have left, and mark their runs in the store as replaced.

    Until a trial has finished again, tables show its old result.
    """
    again = {planned.fingerprint for planned, _ in preflight.todo}
    for fingerprint in again:
        discard(study, fingerprint)
    if store is not None:
        for run in store.runs(study, f"tags.`{KIND_TAG}` = 'trial'"):
            if run.data.tags.get(FINGERPRINT_TAG) in again:
                store.client.set_tag(run.info.run_id, REPLACED_TAG, "true")


def mark_stale(preflight: Preflight, store: Store) -> None:
    """Say in the store which runs an earlier version of the code has computed."""
    for each in preflight.stale:
        if each.run_id is not None:
            # The run may have been deleted, or be in another store.
            with suppress(Exception):
                store.client.set_tag(each.run_id, STALE_TAG, each.change)


def place() -> str:
    """This machine and results folder: one driver at a time runs a study from there."""
    return f"{socket.gethostname()}:{results_folder()}"


def close_abandoned(tracker: Tracker, study: str) -> None:
    """End the runs of earlier sweeps from this results folder whose process was killed."""
    if tracker.store is None:
        return
    with suppress(TrackingError):
        for run in tracker.store.runs(study, f"tags.`{KIND_TAG}` = 'sweep'"):
            if run.info.status == "RUNNING" and run.data.tags.get(FOLDER_TAG) == place():
                tracker.close(run.info.run_id, "KILLED")


def remove_abandoned(storage: Path, name: str) -> None:
    """Remove Tune's files of earlier starts whose process was killed; nobody else runs this now."""
    for folder in storage.glob(f"{glob.escape(name)}-*"):
        if re.fullmatch(r"-\d{8}-\d{6}-\d+-\d+", folder.name.removeprefix(name)):
            shutil.rmtree(folder, ignore_errors=True)


def run_study(
    study: str,
    preflight: Preflight,
    tracker: Tracker | None,
    show: Callable[[Progress], None] = lambda progress: None,
    export: bool = False,
    tags: Mapping[str, str] | None = None,
) -> StudyOutcome:
    """Run the trials of a preflight. Ray must be connected.

    Args:
        study: name of the study and of its experiment.
        preflight: what is to do.
        tracker: None leaves the tracking store out.
        show: told the progress at every report.
        export: keep case-study tables of every trial.
        tags: further tags of the sweep's own run.
    """
    os.environ.update(TUNE_ENVIRONMENT)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    outcome = StudyOutcome()
    begin = time.perf_counter()
    parent = None
    if tracker is not None:
        where = {
            KIND_TAG: "sweep",
            STUDY_TAG: study,
            FOLDER_TAG: place(),
            TRIALS_TAG: str(len(preflight.todo)),
            RAY_TAG: ray.get_runtime_context().gcs_address,
            **(tags or {}),
        }
        close_abandoned(tracker, study)
        parent = outcome.parent = tracker.open(study, f"{study} sweep", {}, where)
    groups: dict[tuple[int, float, float], list[tuple[Planned, PlacementPlan]]] = {}
    for item in preflight.todo:
        groups.setdefault(item[1].shape(), []).append(item)
    try:
        for shape, work in groups.items():
            writer = _Writer(study, work, preflight, tracker, parent, outcome, show)
            try:
                _run_group(study, work, preflight.concurrency.get(shape, 1), writer, export)
            except BaseException:
                writer.stop()
                raise
            writer.fail_unfinished()
        status: RunStatus = "FAILED" if outcome.failed else "FINISHED"
    except KeyboardInterrupt:
        outcome.interrupted = True
        status = "KILLED"
    except BaseException:
        status = "FAILED"
        raise
    finally:
        outcome.seconds = time.perf_counter() - begin
        if tracker is not None and parent is not None:
            tracker.close(parent, status)
    if outcome.interrupted:
        # Tune's controller holds the trials' processes and placement groups, and is part of a cycle.
        gc.collect()
    return outcome


def _run_group(
    study: str,
    work: list[tuple[Planned, PlacementPlan]],
    concurrency: int,
    writer: _Writer,
    export: bool = False,
) -> None:
    """One Tune run over trials whose placements have the same shape."""
    placed = work[0][1]
    concurrency = min(concurrency, len(work))
    checkpoints = [checkpoint_path(study, planned.fingerprint) for planned, _ in work]
    exports = [export_path(study, planned.fingerprint) for planned, _ in work] if export else []
    fleets: list[Fleet] = []
    broker: Any = None
    name = f"{study}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{len(placed.groups)}"
    storage = results_folder() / "tune"
    remove_abandoned(storage, study)
    try:
        if placed.kind != "inline":
            for number in range(concurrency):
                fleets.append(Fleet(placed, f"fedatlas-{study}-{number}"))
            # On this node: a study must not die with another one.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            broker = ray.remote(FleetBroker).options(num_cpus=0, scheduling_strategy=here).remote(fleets)
            writer.reclaim = broker.release.remote
        trainable = tune.with_resources(
            tune.with_parameters(
                FederatedTrial, work=work, checkpoints=checkpoints, broker=broker, exports=exports
            ),
            _trial_resources(work),
        )
        tuner = tune.Tuner(
            trainable,
            param_space={"position": tune.grid_search(list(range(len(work))))},
            tune_config=tune.TuneConfig(max_concurrent_trials=concurrency, reuse_actors=True),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=tune.FailureConfig(max_failures=PROCESS_FAILURES),
                callbacks=[writer],
                verbose=0,
            ),
        )
        tuner.fit()
    except Exception:
        if writer.error is not None:
            raise writer.error from None
        raise
    finally:
        if broker is not None:
            ray.kill(broker)
        for fleet in fleets:
            with suppress(Exception):
                fleet.close()
        # Tune's own files say nothing that the results do not.
        shutil.rmtree(storage / name, ignore_errors=True)


def _trial_resources(work: Sequence[tuple[Planned, PlacementPlan]]) -> dict[str, float]:
    """What the process of a trial reserves: the coordinator's CPU, and a GPU if it trains on one itself."""
    on_gpu = any(planned.resolved.experiment.device == "cuda" for planned, _ in work)
    return {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": 1}
