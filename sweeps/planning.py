"""What studies cost: trials, bytes and hours, worked out without data and without starting anything."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedatlas.platform.federation.placement import Cluster, PlacementPlan
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.sweeps.costs import CostModel, Source, makespan
from fedatlas.sweeps.experiment import Resolved
from fedatlas.sweeps.preflight import Placing, scenarios
from fedatlas.sweeps.recording import SUMMARY_FILE
from fedatlas.sweeps.rehearsal import Traffic, traffic


@dataclass(frozen=True)
class Forecast:
    """One trial.

    Attributes:
        resolved: the trial.
        placed: where its clients live.
        seconds: expected wall time; `source` says where it comes from.
        traffic: bytes of all clients.
        finished: whether the results folder has it.
    """

    resolved: Resolved
    placed: PlacementPlan
    seconds: float
    source: Source
    traffic: Traffic
    finished: bool

    @property
    def bytes(self) -> float:
        """Bytes of the whole trial."""
        given = self.resolved.experiment
        return self.traffic.total(given.rounds or entry(given.dataset).rounds)


@dataclass(frozen=True)
class Part:
    """Trials that have something in common: a method, a data set, or a whole study.

    Attributes:
        name: what they have in common.
        trials, finished: how many there are, and how many of them have finished.
        uplink, downlink: smallest and largest bytes per round of a trial, all clients together.
        bytes: of all trials.
        seconds: wall time of all trials, one after another.
        sources: where the times come from -> trials.
    """

    name: str
    trials: int
    finished: int
    uplink: tuple[float, float]
    downlink: tuple[float, float]
    bytes: float
    seconds: float
    sources: dict[Source, int]


@dataclass(frozen=True)
class StudyPlan:
    """A study, or several together.

    Attributes:
        name: of the study; the names joined for several.
        scenarios, methods, seeds: sizes of the grid.
        whole: all trials as one part.
        by_method, by_dataset: the same by label and by data set, in the order of the study.
        placements: arithmetic of the placements -> trials.
        concurrent: largest number of trials at the same time.
        seconds: expected duration on the cluster of everything, and of what has not finished.
    """

    name: str
    scenarios: int
    methods: int
    seeds: int
    whole: Part
    by_method: tuple[Part, ...]
    by_dataset: tuple[Part, ...]
    placements: dict[str, int]
    concurrent: int
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Plans:
    """Plans of some studies, of all together last, with what they rest on.

    Attributes:
        studies: one plan each, and one of all together where there are several.
        cluster: what they would run on.
        costs: where the times come from.
    """

    studies: tuple[StudyPlan, ...]
    cluster: Cluster
    costs: CostModel

    def to_plain(self) -> dict[str, Any]:
        """All figures as plain values: bytes and seconds."""
        return {
            "cluster": self.cluster.describe(),
            "costs": self.costs.describe(),
            "studies": [asdict(each) for each in self.studies],
        }


def forecast(
    study: str, experiments: Sequence[Resolved], placing: Placing, costs: CostModel
) -> list[Forecast]:
    """Expected cost of every trial of a study.

    Raises:
        PlacementError: a trial can never be placed.
    """
    done, hashes = _finished(study)
    out = []
    for resolved in experiments:
        given = resolved.experiment
        placed = placing.place(given)
        finished = any(resolved.fingerprint(sha256) in done for sha256 in hashes.get(given.dataset, ()))
        out.append(
            Forecast(
                resolved,
                placed,
                costs.trial_seconds(given, placed.kind),
                costs.round_seconds(given, placed.kind).source,
                traffic(given),
                finished,
            )
        )
    return out


def plan_study(
    name: str, trials: Sequence[Forecast], concurrency: dict[tuple[int, float, float], int]
) -> StudyPlan:
    """Sum the trials of a study, or of several, up."""
    experiments = [each.resolved for each in trials]
    return StudyPlan(
        name=name,
        scenarios=scenarios(experiments),
        methods=len({str(each.experiment.label) for each in experiments}),
        seeds=len({each.experiment.seed for each in experiments}),
        whole=_part(name, trials),
        by_method=_parts(trials, lambda each: str(each.resolved.experiment.label)),
        by_dataset=_parts(trials, lambda each: each.resolved.data_name),
        placements=dict(Counter(each.placed.reason for each in trials)),
        concurrent=max(concurrency.values(), default=0),
        seconds=(
            _duration(trials, concurrency),
            _duration([each for each in trials if not each.finished], concurrency),
        ),
    )


def plan_studies(
    studies: Sequence[tuple[str, Sequence[Resolved], int | None]], cluster: Cluster, costs: CostModel
) -> Plans:
    """Plans of studies on a cluster and, where there are several, of all of them one after another.

    Args:
        studies: name, trials and upper bound of concurrent trials of each.
        cluster: what there is to run on.
        costs: expected wall time of trials.

    Raises:
        PlacementError: a trial can never be placed.
    """
    plans: list[StudyPlan] = []
    together: list[Forecast] = []
    for name, experiments, concurrent in studies:
        placing = Placing(cluster, len(experiments), concurrent)
        trials = forecast(name, experiments, placing, costs)
        plans.append(plan_study(name, trials, placing.concurrency))
        together += trials
    if len(plans) > 1:
        whole = plan_study(" + ".join(plan.name for plan in plans), together, {})
        everything, rest = (sum(plan.seconds[which] for plan in plans) for which in (0, 1))
        concurrent = max(plan.concurrent for plan in plans)
        plans.append(replace(whole, seconds=(everything, rest), concurrent=concurrent))
    return Plans(tuple(plans), cluster, costs)


def _finished(study: str) -> tuple[set[str], dict[str, set[str]]]:
    """Fingerprints of finished trials of the results folder, and the hashes of the data that they used."""
    done: set[str] = set()
    hashes: dict[str, set[str]] = {}
    for path in (results_folder() / "studies" / study).glob(f"*/{SUMMARY_FILE}"):
        values = json.loads(path.read_text(encoding="utf-8"))
        done.add(path.parent.name)
        hashes.setdefault(values["dataset"], set()).add(values["data_sha256"])
    return done, hashes


def _duration(trials: Iterable[Forecast], concurrency: dict[tuple[int, float, float], int]) -> float:
    groups: dict[tuple[int, float, float], list[float]] = {}
    for each in trials:
        groups.setdefault(each.placed.shape(), []).append(each.seconds)
    return sum(makespan(seconds, concurrency.get(shape, 1)) for shape, seconds in groups.items())


def _parts(trials: Iterable[Forecast], name: Callable[[Forecast], str]) -> tuple[Part, ...]:
    groups: dict[str, list[Forecast]] = {}
    for each in trials:
        groups.setdefault(name(each), []).append(each)
    return tuple(_part(key, group) for key, group in groups.items())


def _part(name: str, trials: Sequence[Forecast]) -> Part:
    up = [each.traffic.uplink for each in trials]
    down = [each.traffic.downlink for each in trials]
    return Part(
        name=name,
        trials=len(trials),
        finished=sum(each.finished for each in trials),
        uplink=(min(up), max(up)),
        downlink=(min(down), max(down)),
        bytes=sum(each.bytes for each in trials),
        seconds=sum(each.seconds for each in trials),
        sources=dict(Counter(each.source for each in trials).most_common()),
    )
