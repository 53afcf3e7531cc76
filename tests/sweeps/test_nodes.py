"""Studies on clusters of several nodes (raylets on this machine): placement, and nodes that are lost.

Never more than three processes that import torch are alive at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

from fedatlas.platform.federation.cluster import resources, worker_environment
from fedatlas.platform.federation.placement import PlacementRequest, plan
from fedatlas.sweeps import Study, run
from fedatlas.sweeps.driver import Progress

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Write = Callable[..., str]
Call = Callable[..., tuple[int, str]]
GIGABYTE = 10**9
NOTICE = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
"""A node that does not answer for five seconds is lost; Ray's own patience is longer."""
SECONDS = 60.0
ROUNDS = 80


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster with the given nodes, joins it, and ends it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made: list[Cluster] = []

    def start(*sizes: dict[str, Any]) -> Cluster:
        head = {"include_dashboard": False, "_system_config": NOTICE, **sizes[0]}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        made.append(cluster)
        for size in sizes[1:]:
            cluster.add_node(**size)
        cluster.wait_for_nodes()
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": worker_environment()},
        )
        return cluster

    yield start
    ray.shutdown()
    for cluster in made:
        cluster.shutdown()


def test_fifty_clients_share_the_gpus_of_two_nodes_and_sixty_do_not(
    nodes: Callable[..., Cluster], results: Path, write_study: Write, fedatlas: Call
) -> None:
    size = {"num_cpus": 40, "memory": 20 * GIGABYTE}
    nodes({**size, "num_gpus": 3}, {**size, "num_gpus": 2})
    settings = {"placement": "actors", "client_gpus": 0.1}
    path = write_study("wide", partitions={"random": [50]}, methods=["local"], seeds=1, settings=settings)
    code, printed = fedatlas("sweep", path, "--dry-run")
    assert code == 0
    assert (
        "placement of 1 trials: actors: 50 actors with 1 client each, 1 CPUs and 0.1 GPUs per actor"
        in printed
    )
    assert (
        "= 50 CPUs and 5 GPUs beside 1 for coordination, of 80 CPUs, 5 GPUs and 40.0 GB on 2 nodes" in printed
    )

    # Ray grants what was planned, as many bundles to a node as it has tenths of a GPU.
    count, cpus, gpus = plan(PlacementRequest("actors", 50, client_gpus=0.1), resources()).shape()
    group = placement_group([{"CPU": cpus, "GPU": gpus}] * count, strategy="PACK")
    assert group.wait(60)
    [entry] = [each for each in ray.util.placement_group_table().values() if each["state"] == "CREATED"]
    assert sorted(Counter(entry["bundles_to_node_id"].values()).values()) == [20, 30]
    remove_placement_group(group)

    for placement in ("actors", "auto"):
        settings = {"placement": placement, "client_gpus": 0.1}
        path = write_study(
            "wider", partitions={"random": [60]}, methods=["local"], seeds=1, settings=settings
        )
        code, printed = fedatlas("sweep", path, "--dry-run")
        if placement == "auto":
            # Fewer actors with several clients each would still need the sixth GPU.
            assert "need 6 GPUs" in printed
        assert code == 2
        assert "60" in printed
        assert "6 GPUs" in printed
        assert "the cluster has 80 CPUs, 5 GPUs and 40.0 GB on 2 nodes" in printed
        assert "client_gpus" in printed


def undisturbed(algorithm: str) -> dict[str, Any]:
    return run(
        "minesweeper",
        3,
        algorithm,
        partition="random",
        rounds=ROUNDS,
        placement="inline",
        tracking=False,
        progress=False,
        announce=lambda text: None,
    ).values


def same_numbers(summary: dict[str, Any]) -> None:
    expected = undisturbed(summary["algorithm"])
    for key in ("fingerprint", "best_round", "val_score", "test_score", "last_test_score"):
        assert summary[key] == expected[key], key
    assert summary["client_test_scores"] == expected["client_test_scores"]


def lose(cluster: Cluster, node: Any, after: int, then: Callable[[], None]) -> Callable[[Progress], None]:
    """A progress display that removes a node once so many rounds are done."""
    lost: list[Any] = []

    def show(progress: Progress) -> None:
        if progress.rounds_done >= after and not lost:
            lost.append(node)
            cluster.remove_node(node, allow_graceful=False)
            then()

    return show


def wait_for_loss() -> None:
    end = time.monotonic() + SECONDS
    while all(each["Alive"] for each in ray.nodes()):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_trial_whose_node_is_lost_goes_on_elsewhere(
    nodes: Callable[..., Cluster], results: Path, write_study: Write
) -> None:
    """Two trials at once, one on each node; the second node goes while they run."""
    cluster = nodes({"num_cpus": 1, "memory": 4 * GIGABYTE}, {"num_cpus": 1, "memory": 4 * GIGABYTE})
    study = Study(write_study("orphan", methods=["local", "fedavg"], seeds=1, rounds=ROUNDS))
    [node] = cluster.worker_nodes
    show = lose(cluster, node, ROUNDS // 2, lambda: None)
    outcome = study.run(tracking=False, show=show, announce=lambda text: None)
    wait_for_loss()
    assert (len(outcome.finished), outcome.failed) == (2, {})
    for summary in outcome.finished:
        same_numbers(summary)


def test_clients_whose_node_is_lost_are_replaced_elsewhere(
    nodes: Callable[..., Cluster], results: Path, write_study: Write
) -> None:
    """The coordinator is on the head, all client actors on a node that goes; another one comes."""
    cluster = nodes({"num_cpus": 1, "memory": 4 * GIGABYTE}, {"num_cpus": 2, "memory": 4 * GIGABYTE})
    settings = {"placement": "packed", "clients_per_actor": 2}
    study = Study(write_study("moved", methods=["fedavg"], seeds=1, rounds=ROUNDS, settings=settings))
    [node] = cluster.worker_nodes

    def replace_it() -> None:
        cluster.add_node(num_cpus=2, memory=4 * GIGABYTE)

    show = lose(cluster, node, ROUNDS // 2, replace_it)
    outcome = study.run(tracking=False, show=show, announce=lambda text: None)
    wait_for_loss()
    assert (len(outcome.finished), outcome.failed) == (1, {})
    [summary] = outcome.finished
    assert summary["placement"] == "packed"
    same_numbers(summary)
