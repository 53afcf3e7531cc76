"""Where the time of a round goes, inline on one core.

    python benchmarks/phases.py --dataset cora --algorithms fedopt:h2gcn,fedgmc [--rounds 40]

Functions of the round are wrapped by a clock. A phase's time is its own: what it spends in another phase
counts there. `rest` is what no phase covers. Milliseconds per round; the share of each is in brackets.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from fedatlas.algorithms import fedgmc, procrustes, simplex, templates, transport, weight_sharing
from fedatlas.platform.federation import host
from fedatlas.platform.federation.cohort import Cohort, Dropout
from fedatlas.platform.federation.coordinator import Coordinator
from fedatlas.platform.federation.messages import Broadcast
from fedatlas.platform.federation.runtime import InlineRuntime
from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import execution
from fedatlas.sweeps.experiment import experiment, resolve

PHASES: list[tuple[str, Any, str]] = [
    ("features x weights", Cohort, "project"),
    ("propagation", Cohort, "propagate"),
    ("dropout masks", Dropout, "apply"),
    ("dropout masks", Dropout, "flat"),
    ("backward", torch.autograd, "grad"),
    ("client optimizer", weight_sharing, "adam_step"),
    ("semantic calibration", procrustes, "calibrate"),
    ("semantic calibration", procrustes, "class_means"),
    ("semantic calibration", procrustes, "squared_distances"),
    ("structural calibration", transport, "wasserstein_cost"),
    ("structural calibration", transport, "sinkhorn"),
    ("structural calibration", templates, "statistics"),
    ("structural calibration", fedgmc.FedGMC, "_radials"),
    ("structural calibration", fedgmc.FedGMC, "_sample"),
    ("refinement", simplex, "refine_anchors"),
    ("refinement", templates, "refine_templates"),
    ("refinement", simplex, "gram_error"),
    ("refinement", templates, "mean_cosine"),
    ("aggregation", weight_sharing, "weighted_mean"),
    ("scores", host, "evaluate"),
    ("checks of what is sent", host.CohortHost, "_check"),
    ("broadcast", Broadcast, "for_clients"),
]


class Clock:
    """Time of nested phases, each without what it spends in others."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[float] = []

    def wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            self._open.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                whole = time.perf_counter() - begin
                self.spent[phase] += whole - self._open.pop()
                if self._open:
                    self._open[-1] += whole

        return timed


def measure(values: dict[str, Any], rounds: int, warm: int = 5) -> tuple[dict[str, float], float]:
    """Seconds per round of each phase, and of the whole round."""
    resolved = resolve(experiment({**values, "rounds": warm + rounds}))
    work = execution.job(resolved, build(resolved.scenario()))
    schedule = execution.planned(resolved).schedule(None, every=0)
    coordinator = Coordinator(work, InlineRuntime(), schedule)
    coordinator.start()
    for _ in range(warm):
        coordinator.advance()
    clock = Clock()
    originals = [(owner, name, getattr(owner, name)) for _, owner, name in PHASES]
    try:
        for (phase, owner, name), (_, _, original) in zip(PHASES, originals, strict=True):
            setattr(owner, name, clock.wrap(phase, original))
        begin = time.perf_counter()
        for _ in range(rounds):
            coordinator.advance()
        whole = time.perf_counter() - begin
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
    per_round = {phase: spent / rounds for phase, spent in clock.spent.items()}
    per_round["rest"] = whole / rounds - sum(per_round.values())
    return per_round, whole / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="minesweeper")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--algorithms", default="fedavg,fedopt:h2gcn,fedgmc", help="name or name:backbone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = {}
    for entry in arguments.algorithms.split(","):
        algorithm, _, backbone = entry.partition(":")
        values = {"dataset": arguments.dataset, "clients": arguments.clients, "algorithm": algorithm}
        columns[entry] = measure({**values, "backbone": backbone or None}, arguments.rounds)
    phases = dict.fromkeys(phase for phase, _, _ in PHASES)
    print(f"{arguments.dataset}, {arguments.clients} clients, ms per round")
    print(f"{'phase':26}" + "".join(f"{name:>22}" for name in columns))
    for phase in [*phases, "rest"]:
        cells = [(found.get(phase, 0.0), whole) for found, whole in columns.values()]
        if any(spent for spent, _ in cells):
            print(
                f"{phase:26}" + "".join(f"{1000 * s:12.2f} ({100 * s / whole:4.1f} %)" for s, whole in cells)
            )
    print(f"{'round':26}" + "".join(f"{1000 * whole:12.2f}{'':9}" for _, whole in columns.values()))


if __name__ == "__main__":
    main()
