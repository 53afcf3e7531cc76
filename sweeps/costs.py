"""What a trial costs: measured where it has run, fitted where others have, else reckoned from its arithmetic.

The fitted model says how much longer or shorter a round takes than its arithmetic,

    log(seconds / reckoned seconds) = mean + method + data set + placement,

by least squares over the scenarios that finished trials have measured, with the effects shrunk to 0 as if
each had been seen once more without any.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedatlas.algorithms.registry import ALGORITHMS, create
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.sweeps.experiment import Experiment

if TYPE_CHECKING:
    from fedatlas.platform.tracking.store import Store

OPERATIONS_PER_SECOND = 4e9
"""Multiply-adds as `reckoned_round` counts them, per second and core.

Measured on one core of an AMD EPYC server: inline rounds on Minesweeper give 4e9 with 5 and 20
clients, on the stand-in of ogbn-arxiv 1e10.
"""
SECONDS_PER_ROUND = 0.002
"""Seconds of a round beside training and scoring, measured there: 0.0004 (FedAvg, 5 clients) to 0.002
(FedGMC, 20 clients)."""
SECONDS_PER_TRIAL = 0.3
"""Seconds of a trial beside its rounds, measured there over 20 trials: 0.1, and 0.35 with tracking into
sqlite."""

Source = Literal["measured", "fitted", "reckoned"]


@dataclass(frozen=True)
class Measured:
    """A finished trial.

    Attributes:
        fingerprint: its identity.
        dataset, partition, clients, algorithm, backbone, epochs, hidden: what it ran.
        placement: where its clients lived: inline, actors or packed.
        seconds: median wall time of a round.
    """

    fingerprint: str
    dataset: str
    partition: str
    clients: int
    algorithm: str
    backbone: str
    epochs: int
    hidden: int
    placement: str
    seconds: float

    def cell(self) -> tuple[Any, ...]:
        """What trials that cost the same have in common."""
        return (
            *(self.algorithm, self.backbone, self.epochs, self.hidden),
            *(self.dataset, self.partition, self.clients, self.placement),
        )


@dataclass(frozen=True)
class Cost:
    """Expected seconds of a round, and where they come from."""

    seconds: float
    source: Source


@dataclass(frozen=True)
class CostModel:
    """Expected wall time of trials.

    Attributes:
        measured: cell -> median seconds of a round.
        effects: name of an effect -> its value; empty if nothing has been measured.
        error: median factor by which the fitted model is wrong about a cell that it has not seen.
    """

    measured: Mapping[tuple[Any, ...], float] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    error: float = math.nan
    trials: int = 0

    def round_seconds(self, given: Experiment, placement: str) -> Cost:
        """Seconds of a round of a resolved experiment whose clients live there."""
        hidden = int(given.options.get("hidden", 128))
        cell = (
            *(given.algorithm, str(given.backbone), given.epochs, hidden),
            *(given.dataset, given.partition, given.clients, placement),
        )
        if cell in self.measured:
            return Cost(self.measured[cell], "measured")
        reckoned = reckoned_round(
            given.dataset, given.partition, given.clients, str(given.backbone), given.epochs or 1, hidden
        )
        if not self.effects:
            return Cost(reckoned, "reckoned")
        names = _names(given.algorithm, str(given.backbone), given.dataset, placement)
        return Cost(reckoned * math.exp(sum(self.effects.get(name, 0.0) for name in names)), "fitted")

    def trial_seconds(self, given: Experiment, placement: str) -> float:
        """Seconds of a whole trial: its federated and personal rounds, and what is beside them."""
        rounds = given.rounds or entry(given.dataset).rounds
        rounds += _personal_rounds(given.algorithm, given.backbone, json.dumps(given.options))
        return SECONDS_PER_TRIAL + rounds * self.round_seconds(given, placement).seconds

    def describe(self) -> str:
        """Where the figures come from, in words."""
        if not self.effects:
            return "no trial has finished yet: times are reckoned from the arithmetic of training steps"
        accuracy = "" if math.isnan(self.error) else f", typically wrong by a factor of {self.error:.2g}"
        return f"cost model fitted on {self.trials} finished trials of {len(self.measured)} kinds{accuracy}"


def fit(trials: Iterable[Measured]) -> CostModel:
    """Fit the model on finished trials."""
    cells: dict[tuple[Any, ...], list[Measured]] = {}
    for each in trials:
        if each.seconds > 0 and math.isfinite(each.seconds):
            cells.setdefault(each.cell(), []).append(each)
    if not cells:
        return CostModel()
    measured = {cell: float(np.median([each.seconds for each in group])) for cell, group in cells.items()}
    firsts = [group[0] for group in cells.values()]
    names = [_names(each.algorithm, each.backbone, each.dataset, each.placement) for each in firsts]
    known = list(dict.fromkeys(name for row in names for name in row))
    design = np.array([[float(name in row) for name in known] for row in names])
    target = np.array([math.log(measured[each.cell()] / _reckoned(each)) for each in firsts])
    penalty = np.diag([0.0 if name == "mean" else 1.0 for name in known])
    normal = design.T @ design + penalty
    solution = np.linalg.lstsq(normal, design.T @ target, rcond=None)[0]
    leverage = np.einsum("ij,ji->i", design, np.linalg.lstsq(normal, design.T, rcond=None)[0])
    error = math.nan
    if len(firsts) > 1:
        left_out = np.abs(target - design @ solution) / np.maximum(1 - leverage, 1e-3)
        error = float(np.exp(np.median(left_out)))
    count = sum(map(len, cells.values()))
    return CostModel(measured, dict(zip(known, solution.tolist(), strict=True)), error, count)


def _names(algorithm: str, backbone: str, dataset: str, placement: str) -> tuple[str, ...]:
    return ("mean", f"{algorithm}/{backbone}", f"on {dataset}", f"as {placement}")


@lru_cache(maxsize=1024)
def _personal_rounds(algorithm: str, backbone: str | None, options: str) -> int:
    return create(algorithm, backbone, json.loads(options)).personal_rounds


def _reckoned(each: Measured) -> float:
    return reckoned_round(each.dataset, each.partition, each.clients, each.backbone, each.epochs, each.hidden)


def reckoned_round(
    dataset: str, partition: str, clients: int, backbone: str, epochs: int, hidden: int
) -> float:
    """Rough seconds of one round on one core, from the arithmetic of its training steps."""
    sizes = entry(dataset)
    overlap = 2.5 if partition == "metis-overlap" else 1.0
    dense = sizes.nodes * min(sizes.features, 300) * hidden * 2.0
    sparse = sizes.published_edges * 2 * hidden * (8 if backbone == "h2gcn" else 4)
    if sizes.level == "graph":
        # Three attention layers, with factors that give the 0.6 s of FedAvg on NCI1.
        dense = sizes.nodes * (sizes.features + 3 * hidden) * hidden // 8
        sparse = sizes.published_edges * 2 * hidden * 25
    weights = clients * sizes.features * hidden * 12
    step = (overlap * (dense + sparse) * 3 + weights) / OPERATIONS_PER_SECOND
    return SECONDS_PER_ROUND + step * (epochs + 0.4)


def makespan(seconds: Iterable[float], slots: int) -> float:
    """Wall time of trials that run longest first, as many at once as there are slots."""
    free = [0.0] * max(1, slots)
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def finished_trials(store: Store | None = None) -> list[Measured]:
    """Finished trials of the results folder and, if one is given, of all experiments of a store."""
    found: dict[str, Measured] = {}
    for path in (results_folder() / "studies").glob("*/*/summary.json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        _take(found, values, values.get("options", {}))
    if store is not None:
        from fedatlas.platform.tracking.reading import trials

        for each in store.client.search_experiments():
            table = trials(store, each.name)
            for row in table[table["status"] == "FINISHED"].to_dict("records"):
                params = json.loads(row["params"])
                _take(found, row, {"hidden": params.get("method.hidden", 128)})
    return list(found.values())


def _take(found: dict[str, Measured], values: Mapping[Any, Any], options: Mapping[str, Any]) -> None:
    """Add a trial if it is one of a method and a data set that are known."""
    try:
        entry(str(values["dataset"]))
        one = Measured(
            fingerprint=str(values["fingerprint"]),
            dataset=str(values["dataset"]),
            partition=str(values["partition"]),
            clients=int(values["clients"]),
            algorithm=str(values["algorithm"]),
            backbone=str(values["backbone"]),
            epochs=int(values["epochs"]),
            hidden=int(options.get("hidden", 128)),
            placement=str(values["placement"]).partition(":")[0],
            seconds=float(values["seconds_per_round"]),
        )
    except (KeyError, TypeError, ValueError, ConfigurationError):
        return
    if one.algorithm in ALGORITHMS:
        found.setdefault(one.fingerprint, one)
