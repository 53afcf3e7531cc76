"""Real Ray actors give the numbers of one process, whatever dies on the way, and leave nothing behind.

Never more than four actors that import torch are alive at once.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from fedatlas.algorithms.registry import create
from fedatlas.platform.errors import FedatlasError, NonFiniteError, PlacementError
from fedatlas.platform.federation import actors as actors_module
from fedatlas.platform.federation.actors import ActorRuntime, CoordinatorActor, Fleet
from fedatlas.platform.federation.cluster import connected
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.coordinator import MAX_RECOVERIES, Coordinator, Schedule
from fedatlas.platform.federation.placement import PlacementPlan
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.platform.federation.runtime import InlineRuntime, Job, contiguous_groups
from fedatlas.sweeps.federations import make_graph_federation

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[3]
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": {"hidden": 8},
    "fedgmc": {"hidden": 8, "templates": 4, "sampled_nodes": 6},
    "seal": {"hidden": 8, "batch_size": 4},
}
SEPARATE = PlacementPlan("actors", contiguous_groups(4, 1), cpus=0.5, gpus=0.1)
PACKED = PlacementPlan("packed", contiguous_groups(4, 3), cpus=0.5, gpus=0.3)
SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with 8 CPUs and one GPU that does not exist, its workers in the repository's root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.delenv("RAY_ADDRESS", raising=False)
        with connected(cpus=8, gpus=1):
            yield


@pytest.fixture(scope="module")
def four(cluster: None) -> Iterator[Fleet]:
    """Four actors with a tenth of the GPU each."""
    fleet = Fleet(SEPARATE)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def job(make_clients: Callable[..., Any]) -> Callable[[str], Job]:
    """A run of four clients in float64; those of SEAL have graphs to classify."""
    task = Task(clients=4, features=5, classes=3, metric="accuracy", seed=0)
    graphs = make_clients((7, 4, 9, 6))
    sets = make_graph_federation()

    def made(method: str) -> Job:
        if method == "seal":
            return Job(create(method, None, OPTIONS[method]), sets.graphs, sets.task, "float64")
        return Job(create(method, None, OPTIONS[method]), graphs, task, "float64")

    return made


def run(coordinator: Coordinator, rounds: int = 3) -> list[RoundRecord]:
    coordinator.start()
    return [coordinator.advance() for _ in range(rounds)]


def numbers(records: list[RoundRecord]) -> list[dict[str, Any]]:
    """Everything but wall time and memory."""
    return [{**record.to_plain(), "seconds": None, "peak_bytes": 0} for record in records]


def assert_equal(found: list[RoundRecord], expected: list[RoundRecord], tolerance: float) -> None:
    assert len(found) == len(expected)
    for one, other in zip(numbers(found), numbers(expected), strict=True):
        for key in ("client_validation", "client_test"):
            np.testing.assert_allclose(one.pop(key), other.pop(key), rtol=0, atol=tolerance)
        assert one.pop("metrics") == pytest.approx(other.pop("metrics"), rel=0, abs=tolerance, nan_ok=True)
        for key in ("validation", "test"):
            assert one.pop(key) == pytest.approx(other.pop(key), rel=0, abs=tolerance, nan_ok=True)
        assert one == other


def free() -> dict[str, float]:
    found = ray.available_resources()
    return {key: found.get(key, 0.0) for key in ("CPU", "GPU")}


def wait_for(condition: Callable[[], bool]) -> None:
    """Ray gives resources back shortly after a group is removed."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"not reached in {SECONDS} s; free: {free()}"
        time.sleep(0.05)


def kill(fleet: Fleet, index: int) -> None:
    """End the process of an actor as the kernel does when memory runs out."""
    os.kill(ray.get(fleet.actors()[index].ready.remote()), signal.SIGKILL)


def test_packed_actors_give_the_numbers_of_one_process_and_leave_nothing(
    cluster: None, job: Callable[[str], Job]
) -> None:
    before = free()
    fleet = Fleet(PACKED)
    handles = fleet.actors()
    try:
        for method in OPTIONS:
            inline = run(Coordinator(job(method), InlineRuntime(), Schedule(3)))
            packed = run(Coordinator(job(method), ActorRuntime(fleet, PACKED.groups), Schedule(3)))
            assert_equal(packed, inline, 1e-12)
    finally:
        fleet.close()
    wait_for(lambda: free() == before)
    for handle in handles:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(handle.ready.remote(), timeout=SECONDS)
    table = ray.util.placement_group_table().values()
    assert [group["state"] for group in table if group["name"].startswith("fedatlas")] == ["REMOVED"]


@pytest.mark.parametrize("method", OPTIONS)
def test_one_actor_per_client_gives_the_numbers_of_one_process(
    four: Fleet, job: Callable[[str], Job], method: str
) -> None:
    inline = run(Coordinator(job(method), InlineRuntime(), Schedule(3)))
    alone = run(Coordinator(job(method), InlineRuntime(1), Schedule(3)))
    separate = run(Coordinator(job(method), ActorRuntime(four, SEPARATE.groups), Schedule(3)))
    assert_equal(alone, inline, 1e-12)
    assert_equal(separate, inline, 1e-12)


def test_fractions_of_a_gpu_are_reserved(four: Fleet) -> None:
    held = {key: ray.cluster_resources()[key] - value for key, value in free().items()}
    assert held == pytest.approx({"CPU": 4 * 0.5, "GPU": 4 * 0.1})
    # The GPU does not exist, so the actors compute on the CPU.
    assert [ray.get(actor.ready.remote()) > 0 for actor in four.actors()] == [True] * 4


def test_a_fleet_that_is_not_granted_says_so_and_leaves_nothing(
    four: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors_module, "START_SECONDS", 1.0)
    before = free()
    with pytest.raises(PlacementError, match=r"did not grant 1 bundles of .*'GPU': 0\.7"):
        Fleet(PlacementPlan("packed", ((0,),), cpus=0.5, gpus=0.7))
    assert free() == before


def test_a_killed_actor_does_not_change_the_records(four: Fleet, job: Callable[[str], Job]) -> None:
    expected = run(Coordinator(job("fedgmc"), InlineRuntime(), Schedule(5)), 5)
    coordinator = Coordinator(
        job("fedgmc"), ActorRuntime(four, SEPARATE.groups), Schedule(5, checkpoint_every=2)
    )
    coordinator.start()
    records = [coordinator.advance()]
    kill(four, 1)  # Nothing is committed yet but the state before round 0.
    records += [coordinator.advance(), coordinator.advance()]
    kill(four, 3)  # Round 2 is newer than the committed state after round 1.
    records += [coordinator.advance(), coordinator.advance()]
    assert_equal(records, expected, 1e-12)
    assert_equal(list(coordinator.records), expected, 1e-12)


def test_actors_that_keep_dying_end_the_run_with_a_remedy(four: Fleet, job: Callable[[str], Job]) -> None:
    coordinator = Coordinator(job("fedavg"), ActorRuntime(four, SEPARATE.groups), Schedule(2))
    coordinator.start()
    coordinator._recoveries = MAX_RECOVERIES
    kill(four, 0)
    with pytest.raises(FedatlasError, match="look for lack of memory"):
        coordinator.advance()
    four.replace_lost()


def test_nonfinite_loss_crosses_the_process_border_with_client_and_round(
    four: Fleet, job: Callable[[str], Job]
) -> None:
    whole = job("fedavg")
    broken = dataclasses.replace(
        whole.graphs[2], features=np.full_like(np.asarray(whole.graphs[2].features), np.nan)
    )
    graphs = (*whole.graphs[:2], broken, whole.graphs[3])
    coordinator = Coordinator(
        dataclasses.replace(whole, graphs=graphs), ActorRuntime(four, SEPARATE.groups), Schedule(2)
    )
    coordinator.start()
    with pytest.raises(NonFiniteError) as caught:
        coordinator.advance()
    assert (caught.value.client, caught.value.when) == (2, "round 0")
    assert "client 2 in round 0" in str(caught.value)


def test_a_lease_forgets_the_last_run(four: Fleet, job: Callable[[str], Job]) -> None:
    first = run(Coordinator(job("fedavg"), ActorRuntime(four, SEPARATE.groups), Schedule(3)))
    run(Coordinator(job("fedgmc"), ActorRuntime(four, SEPARATE.groups), Schedule(3)))
    again = run(Coordinator(job("fedavg"), ActorRuntime(four, SEPARATE.groups), Schedule(3)))
    assert numbers(again) == numbers(first)


@pytest.mark.slow
def test_a_coordinator_actor_continues_from_the_checkpoint_of_another(
    four: Fleet, job: Callable[[str], Job], tmp_path: Path
) -> None:
    expected = run(Coordinator(job("fedavg"), InlineRuntime(), Schedule(4)), 4)
    schedule = Schedule(4, checkpoint_every=2, checkpoint_path=tmp_path / "state.pt")
    remote: Any = ray.remote(CoordinatorActor)
    first = remote.remote(job("fedavg"), four, SEPARATE.groups, schedule)
    ray.get(first.start.remote())
    records = [ray.get(first.advance.remote()) for _ in range(3)]
    ray.kill(first)
    second = remote.remote(job("fedavg"), four, SEPARATE.groups, schedule)
    kept, _ = ray.get(second.start.remote())
    assert_equal(kept, expected[:2], 1e-12)
    records = [*kept, *(ray.get(second.advance.remote()) for _ in range(2))]
    ray.kill(second)
    assert_equal(records, expected, 1e-12)


def test_the_folder_platform_does_not_hide_the_standard_library(cluster: None) -> None:
    @ray.remote
    def where() -> tuple[str, str, str]:
        import importlib
        import os
        import sys

        sys.path.insert(0, os.getcwd())
        sys.modules.pop("platform")
        module = importlib.import_module("platform")
        return os.getcwd(), str(module.__file__), module.python_version()

    folder, file, version = ray.get(where.remote())
    assert Path(folder) == ROOT
    assert not Path(file).is_relative_to(ROOT)
    assert version == ".".join(map(str, sys.version_info[:3]))
