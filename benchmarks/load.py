"""Many trials, many clients, many actors: what a study holds on to, and what a small machine refuses.

    python benchmarks/load.py [--trials 200] [--clients 1000] [--part trials,clients,actors]

- trials: one sweep of so many trials of two rounds each on packed client actors. Every tenth of it: resident
  memory and open files of the driver, processes of all of Ray, actors alive, placement groups, and bytes and
  objects in the object store.
- clients: one run with so many clients on a stand-in, packed.
- actors: what `auto` makes of fifty clients whose actors import torch here, and what `actors` says; nothing
  is started.

The results folder is a temporary one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray
from ray._private.internal_api import memory_summary

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.cluster import connected
from fedatlas.platform.federation.placement import PlacementRequest, plan, this_machine
from fedatlas.sweeps import Study, run
from fedatlas.sweeps.driver import Progress

STUDY: dict[str, Any] = {
    "description": "Load.",
    "datasets": ["minesweeper"],
    "partitions": {"random": [4]},
    "methods": [{"algorithm": "fedavg", "options": {"hidden": 8}}],
    "rounds": 2,
    "settings": {"placement": "packed", "clients_per_actor": 2},
}
CPUS = 3


def held() -> dict[str, float]:
    """What this process and its Ray hold now."""
    own = psutil.Process()
    workers = [each for each in own.children(recursive=True) if each.is_running()]
    alive = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    groups = ray.util.placement_group_table().values()
    plasma = (
        memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
        .split("Plasma memory usage ")[-1]
        .split()
    )
    return {
        "driver MB": own.memory_info().rss / 1e6,
        "driver files": own.num_fds(),
        "processes": len(workers),
        "actors": len(alive),
        "groups": sum(group["state"] == "CREATED" for group in groups),
        "store MiB": float(plasma[0]),
        "store objects": float(plasma[2]),
    }


def trials(count: int, tell: Callable[[str], None] = print) -> list[dict[str, float]]:
    """Holdings over a sweep of so many trials, at every tenth of it."""
    found: list[dict[str, float]] = []

    def show(progress: Progress) -> None:
        if progress.done >= (len(found) + 1) * count / 10:
            found.append({"trials": progress.done, **held()})
            tell("  ".join(f"{name} {value:.1f}".removesuffix(".0") for name, value in found[-1].items()))

    with connected(cpus=CPUS, gpus=0):
        outcome = Study("load", {**STUDY, "seeds": count}).run(show=show, announce=lambda text: None)
        assert len(outcome.finished) == count, outcome.failed
    tell(f"{count} trials in {outcome.seconds:.0f} s")
    return found


def clients(count: int, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Summary of one run with so many clients, on two actors."""
    begin = time.monotonic()
    with connected(cpus=CPUS, gpus=0):
        found = run(
            "standin:ogbn-arxiv",
            count,
            "fedavg",
            partition="random",
            rounds=3,
            placement="packed",
            clients_per_actor=-(-count // 2),
            allow_untrained=True,
            options={"hidden": 16},
            tracking=False,
            progress=False,
            announce=tell,
        ).values
    megabytes = found["peak_memory_bytes"] / 1e6
    tell(
        f"{count} clients: {found['seconds_per_round']:.2f} s a round, {megabytes:.0f} MB in the largest "
        f"process, {time.monotonic() - begin:.0f} s in all"
    )
    return found


def actors(count: int = 50, tell: Callable[[str], None] = print) -> dict[str, str]:
    """What placements say of so many clients on this machine."""
    said = {}
    for placement in ("auto", "actors"):
        try:
            said[placement] = plan(PlacementRequest(placement, count), this_machine()).reason
        except FedatlasError as error:
            said[placement] = f"refused: {error}"
        tell(f"{placement}: {said[placement]}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--part", default="trials,clients,actors")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDATLAS_RESULTS"] = folder
        parts = given.part.split(",")
        if "actors" in parts:
            actors()
        if "trials" in parts:
            trials(given.trials)
        if "clients" in parts:
            clients(given.clients)


if __name__ == "__main__":
    main()
