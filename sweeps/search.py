"""Hyperparameter search through Ray Tune: Optuna proposes configurations, ASHA stops the poor ones early.

A search sees validation scores only. Its clients hold no test nodes: their masks are emptied before anything
is trained, so that no test score exists that could be looked at.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from fedatlas.algorithms.references import short
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.coordinator import Coordinator
from fedatlas.platform.federation.placement import Cluster
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.platform.files import write_text_whole
from fedatlas.platform.graphs.federated import build
from fedatlas.platform.graphs.graph import FederatedGraph
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.platform.tracking.operations import KIND_TAG, STUDY_TAG, RunStatus
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps.driver import FOLDERS, PROCESS_FAILURES, TUNE_ENVIRONMENT
from fedatlas.sweeps.execution import inline_device, job, planned
from fedatlas.sweeps.experiment import Experiment, Resolved, require_blind, resolve
from fedatlas.sweeps.preflight import TRIAL_BYTES
from fedatlas.sweeps.spaces import Space
from fedatlas.sweeps.tuned import Tuned

METRIC = "validation"
ROUNDS = "rounds"
REDUCTION = 3
"""At every rung, ASHA lets one of so many configurations go on; there are two rungs before the end."""
REPORTS = 30
"""A configuration reports so often."""


@dataclass(frozen=True)
class Evaluated:
    """A configuration that was tried.

    Attributes:
        options: values of the options searched.
        validation: best client-mean validation score, mean over the seeds; 0 if training failed.
        rounds: how far it ran.
        error: why training failed; empty if it did not.
    """

    options: dict[str, Any]
    validation: float
    rounds: int
    error: str = ""


@dataclass(frozen=True)
class Search:
    """What is searched, and how far.

    Attributes:
        resolved: the experiment with the options that the search starts from and the seed 0.
        space: option -> its values.
        configurations: number of configurations to try, those of an earlier start included.
        seeds: every configuration is scored as the mean over these.
        sampler_seed: seed of Optuna's sampler.
        concurrent: upper bound of configurations at the same time.
    """

    resolved: Resolved
    space: Mapping[str, Space]
    configurations: int
    seeds: tuple[int, ...] = (0,)
    sampler_seed: int = 0
    concurrent: int | None = None

    @property
    def rounds(self) -> int:
        """Rounds of a configuration that is not stopped, its personal ones included."""
        rounds = self.resolved.experiment.rounds
        assert rounds is not None
        return rounds + self.resolved.method().personal_rounds

    @property
    def name(self) -> str:
        """Folder and MLflow experiment: what is searched, and a hash of all that decides its scores."""
        given = self.resolved.experiment
        content = {
            **self.resolved.identity(),
            "seeds": self.seeds,
            "space": {key: space.model_dump(mode="json") for key, space in self.space.items()},
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
        words = (
            short(given.algorithm),
            self.resolved.data_name,
            self.resolved.partition_name,
            str(given.clients),
        )
        return "-".join(("tune", *(re.sub(r"[^\w.-]", "-", word) for word in words), digest))

    @property
    def folder(self) -> Path:
        """Where it keeps what it has tried."""
        return results_folder() / FOLDERS["search"] / self.name

    def start(self) -> dict[str, Any]:
        """The present values of the options, moved into the space where they lie outside."""
        options = self.resolved.experiment.options
        return {key: space.nearest(options[key]) for key, space in self.space.items()}


@dataclass
class SearchOutcome:
    """What a search has found.

    Attributes:
        tried: every configuration, in the order in which they ended.
        best: the one with the highest validation score among those that ran to the end.
        tuned: the best one as a file for `run` and `sweep`.
        path: that file.
        interrupted: whether Ctrl-C ended the search.
    """

    tried: list[Evaluated] = field(default_factory=list)
    best: Evaluated | None = None
    tuned: Tuned | None = None
    path: Path | None = None
    interrupted: bool = False


def blind(federated: FederatedGraph) -> FederatedGraph:
    """The same clients without test nodes: what is computed from them cannot know a test score."""
    return replace(
        federated,
        clients=tuple(replace(graph, test=np.zeros_like(graph.test)) for graph in federated.clients),
    )


class SearchTrial(tune.Trainable):
    """Scores one configuration: all seeds in step, reported as the mean of their best validation scores."""

    def setup(
        self, config: dict[str, Any], resolved: Resolved | None = None, seeds: Sequence[int] = ()
    ) -> None:
        """Take what all configurations share.

        Args:
            config: values of the options searched.
            resolved: the experiment without them.
            seeds: seeds to score it on.
        """
        torch.set_num_threads(1)
        self._resolved, self._seeds = resolved, seeds
        self._options = dict(config)
        self._runs: list[Coordinator] = []
        self._best: list[float] = []

    def step(self) -> dict[str, Any]:
        """Run some rounds and report."""
        try:
            if not self._runs:
                self._start()
            until = self._done() + self._stride
            while not self._runs[0].finished and self._done() < until:
                self._advance()
        except FedatlasError as error:
            return self._failed(str(error))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return self._failed(f"{type(error).__name__} at {where}: {error}")
        return {
            METRIC: float(np.mean(self._best)),
            ROUNDS: self._done(),
            "error": "",
            "done": self._runs[0].finished,
        }

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Score another configuration in the same process."""
        self._options = dict(new_config)
        self._runs = []
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: a configuration whose process died begins anew."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing."""

    def _start(self) -> None:
        assert self._resolved is not None
        given = self._resolved.experiment
        changed = given.model_copy(update={"options": {**given.options, **self._options}})
        self._best = [0.0] * len(self._seeds)
        runs = []
        for seed in self._seeds:
            resolved = resolve(changed.model_copy(update={"seed": seed}))
            work = planned(resolved)
            self._stride = max(1, work.rounds // REPORTS)
            clients = job(resolved, blind(build(resolved.scenario())))
            runtime = InlineRuntime(device=inline_device(given))
            runs.append(Coordinator(clients, runtime, work.schedule(None, every=0)))
            runs[-1].start()
        self._runs = runs

    def _advance(self) -> None:
        for place, run in enumerate(self._runs):
            score = run.advance().validation
            if np.isfinite(score):
                self._best[place] = max(self._best[place], score)

    def _failed(self, error: str) -> dict[str, Any]:
        """The lowest score: the sampler should look elsewhere."""
        return {METRIC: 0.0, ROUNDS: self._done(), "error": error, "done": True}

    def _done(self) -> int:
        return len(self._runs[0].records) if self._runs else 0


class _Notes(tune.Callback):
    """Writes down what was tried, in the driver."""

    def __init__(
        self,
        search: Search,
        tried: list[Evaluated],
        tracker: Tracker | None,
        parent: str | None,
        show: Callable[[Sequence[Evaluated], int], None],
    ) -> None:
        self._search, self._tried = search, tried
        self._tracker, self._parent, self._show = tracker, parent, show
        self._runs: dict[str, str] = {}
        self._points: dict[str, list[tuple[str, float, int]]] = {}

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Tune saves its callbacks to restore a run; searches are continued from their notes instead."""
        return tune.Callback, ()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self._tracker is not None and trial.trial_id not in self._runs:
            name = f"configuration {len(self._tried) + len(self._runs)}"
            params = {f"method.{key}": value for key, value in trial.config.items()}
            tags = {KIND_TAG: "configuration", STUDY_TAG: self._search.name}
            self._runs[trial.trial_id] = self._tracker.open(
                self._search.name, name, params, tags, self._parent
            )

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        point = ("val/best_score", float(result[METRIC]), int(result[ROUNDS]))
        self._points.setdefault(trial.trial_id, []).append(point)
        self._show(self._tried, self._search.configurations)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        result = trial.last_result
        self._note(
            trial, Evaluated(dict(trial.config), float(result[METRIC]), int(result[ROUNDS]), result["error"])
        )

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = f"the process died {PROCESS_FAILURES + 1} times: look for lack of memory"
        self._note(trial, Evaluated(dict(trial.config), 0.0, 0, error))

    def stop(self) -> None:
        """Mark what was running as stopped from outside."""
        for run in self._runs.values():
            if self._tracker is not None:
                self._tracker.close(run, "KILLED")
        self._runs.clear()

    def _note(self, trial: Any, evaluated: Evaluated) -> None:
        self._tried.append(evaluated)
        with (self._search.folder / _TRIED_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(evaluated)) + "\n")
        run = self._runs.pop(trial.trial_id, None)
        if self._tracker is not None and run is not None:
            self._tracker.points(run, self._points.pop(trial.trial_id, []))
            tags = {"fedatlas.error": evaluated.error} if evaluated.error else {}
            self._tracker.close(run, "FAILED" if evaluated.error else "FINISHED", tags)
        self._show(self._tried, self._search.configurations)


_TRIED_FILE = "tried.jsonl"


def tried_before(search: Search) -> list[Evaluated]:
    """Configurations that an earlier start of the same search has tried; a line cut off is left out."""
    path = search.folder / _TRIED_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Evaluated(**json.loads(line)) for line in lines]


def run_search(
    search: Search,
    cluster: Cluster,
    tracker: Tracker | None,
    show: Callable[[Sequence[Evaluated], int], None] = lambda tried, total: None,
    output: Path | None = None,
    command: str = "",
) -> SearchOutcome:
    """Try configurations and write the best one down. Ray must be connected.

    Args:
        search: what is searched.
        cluster: what there is to run on.
        tracker: None leaves the tracking store out.
        show: told what was tried so far, and how many are wanted.
        output: file for the best configuration; `best.yaml` in the search's folder if not given.
        command: how the search was started, for the file.

    Raises:
        ConfigurationError: validation scores would depend on test nodes.
    """
    require_blind(search.resolved.experiment)
    search.folder.mkdir(parents=True, exist_ok=True)
    outcome = SearchOutcome(tried_before(search))
    left = search.configurations - len(outcome.tried)
    if left > 0:
        _tune(search, cluster, tracker, show, outcome, left)
    complete = [each for each in outcome.tried if not each.error and each.rounds >= search.rounds]
    if complete:
        outcome.best = max(complete, key=lambda each: each.validation)
        outcome.tuned = _tuned(search, outcome.best, len(outcome.tried))
        outcome.path = output or search.folder / "best.yaml"
        _write(outcome.path, outcome.tuned, command)
    return outcome


def _tune(
    search: Search,
    cluster: Cluster,
    tracker: Tracker | None,
    show: Callable[[Sequence[Evaluated], int], None],
    outcome: SearchOutcome,
    left: int,
) -> None:
    import optuna

    os.environ.update(TUNE_ENVIRONMENT)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = f"{search.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    storage = results_folder() / "tune"
    parent = None
    if tracker is not None:
        parent = tracker.open(
            search.name, "search", search.resolved.params(), {KIND_TAG: "search", STUDY_TAG: search.name}
        )
    notes = _Notes(search, outcome.tried, tracker, parent, show)
    room = min(int(cluster.cpus), int(cluster.memory / TRIAL_BYTES), search.concurrent or left, left)
    tuner = tune.Tuner(
        tune.with_resources(
            tune.with_parameters(SearchTrial, resolved=search.resolved, seeds=search.seeds),
            _resources(search.resolved.experiment),
        ),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(search, outcome.tried),
            scheduler=ASHAScheduler(
                time_attr=ROUNDS,
                metric=METRIC,
                mode="max",
                max_t=search.rounds,
                grace_period=math.ceil(search.rounds / REDUCTION**2),
                reduction_factor=REDUCTION,
            ),
            num_samples=left,
            max_concurrent_trials=max(1, room),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(storage),
            failure_config=tune.FailureConfig(max_failures=PROCESS_FAILURES),
            callbacks=[notes],
            verbose=0,
        ),
    )
    status: RunStatus = "FINISHED"
    try:
        tuner.fit()
    except KeyboardInterrupt:
        outcome.interrupted = True
        status = "KILLED"
    except BaseException:
        status = "FAILED"
        raise
    finally:
        notes.stop()
        shutil.rmtree(storage / name, ignore_errors=True)
        if tracker is not None and parent is not None:
            if outcome.tried:
                tracker.file(parent, search.folder / _TRIED_FILE)
            tracker.close(parent, status)


def _searcher(search: Search, tried: Sequence[Evaluated]) -> OptunaSearch:
    """Optuna's sampler, told what was tried before or where to start."""
    space = {key: each.distribution() for key, each in search.space.items()}
    points, rewards = [search.start()], None
    if tried:
        points = [each.options for each in tried]
        rewards = [each.validation for each in tried]
    return OptunaSearch(
        space=space,
        metric=METRIC,
        mode="max",
        points_to_evaluate=points,
        evaluated_rewards=rewards,
        # A search that goes on must not draw again what it has drawn.
        seed=search.sampler_seed + len(tried),
    )


def _resources(given: Experiment) -> dict[str, float]:
    return {"CPU": 1, "GPU": min(1.0, given.client_gpus or 1.0)} if given.device == "cuda" else {"CPU": 1}


def _tuned(search: Search, best: Evaluated, tried: int) -> Tuned:
    """The best configuration with every option that is not the method's default."""
    given = search.resolved.experiment
    usual = type(search.resolved.method()).configuration_type().model_dump(mode="json")
    changed = {
        key: value for key, value in given.options.items() if key != "epochs" and value != usual.get(key)
    }
    return Tuned(
        algorithm=given.algorithm,
        backbone=given.backbone,
        dataset=given.dataset,
        options={**changed, **best.options},
        found={
            "partition": given.partition,
            "clients": given.clients,
            "rounds": given.rounds,
            "epochs": given.epochs,
            "seeds": list(search.seeds),
            "configurations": tried,
            "validation": round(best.validation, 6),
            "searched": sorted(search.space),
        },
    )


def _write(path: Path, tuned: Tuned, command: str) -> None:
    where = " ".join(f"--{key} {tuned.found[key]}" for key in ("partition", "clients", "rounds"))
    lines = [f"# fedatlas run --tuned {path.name} {where}"]
    if command:
        lines.append(f"# Found by: {command}")
    text = yaml.safe_dump(tuned.model_dump(), sort_keys=False, default_flow_style=None)
    write_text_whole(path, "\n".join([*lines, text]))
