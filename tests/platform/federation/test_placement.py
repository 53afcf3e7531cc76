"""Plans are pure functions of needs and resources: every number here can be checked by hand."""

from __future__ import annotations

import re

import pytest

from fedatlas.platform.errors import ConfigurationError, PlacementError
from fedatlas.platform.federation.placement import (
    ACTOR_BYTES,
    Cluster,
    NodeResources,
    PlacementPlan,
    PlacementRequest,
    plan,
)


def cluster(*nodes: tuple[float, float], gigabytes: float = 1000.0) -> Cluster:
    """Nodes given as (CPUs, GPUs)."""
    return Cluster(tuple(NodeResources(cpus, gpus, gigabytes * 1e9) for cpus, gpus in nodes))


def ids(placed: PlacementPlan) -> list[int]:
    return [client for group in placed.groups for client in group]


LAPTOP = cluster((2, 0), gigabytes=16)
WORKSTATION = cluster((16, 1), gigabytes=64)


@pytest.mark.parametrize("placement", ["auto", "inline", "actors", "packed"])
@pytest.mark.parametrize("clients", [1, 2, 7])
@pytest.mark.parametrize("where", [LAPTOP, WORKSTATION], ids=["laptop", "workstation"])
def test_every_client_has_one_place(placement: str, clients: int, where: Cluster) -> None:
    placed = plan(PlacementRequest(placement, clients), where)
    assert ids(placed) == list(range(clients))
    actors, cpus, gpus = placed.shape()
    assert actors * cpus + 1 <= where.cpus
    assert actors * gpus <= where.gpus
    assert placed.kind in (placement, "inline", "actors", "packed")
    assert placed.reason.startswith(f"{placed.kind}: ")
    if placement != "auto":
        assert placed.kind == placement


def test_inline_reserves_nothing() -> None:
    placed = plan(PlacementRequest("inline", 50), LAPTOP)
    assert placed.groups == (tuple(range(50)),)
    assert placed.shape() == (0, 0.0, 0.0)


def test_actors_share_the_cpus_beside_the_coordinator() -> None:
    placed = plan(PlacementRequest("actors", 4), LAPTOP)
    assert placed.groups == ((0,), (1,), (2,), (3,))
    assert placed.shape() == (4, 0.25, 0.0)


def test_packed_groups_are_contiguous_and_as_asked() -> None:
    placed = plan(PlacementRequest("packed", 7, clients_per_actor=3), cluster((8, 0)))
    assert placed.groups == ((0, 1, 2), (3, 4, 5), (6,))
    assert placed.shape() == (3, 1.0, 0.0)


def test_packed_divides_clients_over_the_free_cpus_if_nothing_is_said() -> None:
    placed = plan(PlacementRequest("packed", 10), cluster((6, 0)))
    assert [len(group) for group in placed.groups] == [2, 2, 2, 2, 2]


def test_auto_takes_one_actor_per_client_while_they_fit() -> None:
    assert plan(PlacementRequest("auto", 5), cluster((6, 0))).shape() == (5, 1.0, 0.0)
    # One CPU short: a single packed actor without a GPU would only add a hop.
    assert plan(PlacementRequest("auto", 5), cluster((5, 0))).kind == "inline"


def test_auto_needs_memory_too() -> None:
    small = ACTOR_BYTES * 3 / 1e9
    assert plan(PlacementRequest("auto", 3), cluster((64, 0), gigabytes=small)).kind == "actors"
    assert plan(PlacementRequest("auto", 4), cluster((64, 0), gigabytes=small)).kind == "inline"


def test_auto_packs_as_little_as_the_gpu_demands() -> None:
    placed = plan(PlacementRequest("auto", 10), cluster((4, 1)))
    assert (placed.kind, placed.shape()) == ("packed", (1, 1.0, 1.0))
    placed = plan(PlacementRequest("auto", 20, client_gpus=0.1), cluster((8, 2)))
    assert (placed.kind, placed.shape()) == ("packed", (2, 1.0, 1.0))


@pytest.mark.parametrize("placement", ["auto", "packed"])
def test_default_gpu_share_never_keeps_clients_off_the_only_gpu(placement: str) -> None:
    placed = plan(PlacementRequest(placement, 20), cluster((2, 1)))
    assert (placed.kind, placed.shape()) == ("packed", (1, 1.0, 1.0))


def test_an_actor_leaves_the_coordinator_its_cpu() -> None:
    # A packed actor on the only CPU would wait for ever for its coordinator.
    assert plan(PlacementRequest("auto", 4), cluster((1, 1))).kind == "inline"


def test_fifty_clients_at_a_tenth_of_a_gpu_fit_two_nodes_of_five() -> None:
    for placement in ("actors", "auto"):
        placed = plan(PlacementRequest(placement, 50, client_gpus=0.1), cluster((32, 5), (32, 5)))
        assert placed.kind == "actors"
        assert placed.shape() == (50, 1.0, 0.1)


@pytest.mark.parametrize("placement", ["actors", "auto"])
def test_sixty_clients_at_a_tenth_of_a_gpu_are_refused_on_five(placement: str) -> None:
    with pytest.raises(PlacementError) as caught:
        plan(PlacementRequest(placement, 60, client_gpus=0.1), cluster((128, 5)))
    text = str(caught.value)
    assert "60" in text
    assert "6 GPUs" in text
    assert "5 GPUs" in text
    assert "client_gpus" in text


def test_a_bundle_does_not_span_nodes() -> None:
    where = cluster((4, 0.5), (4, 0.5))
    assert where.fits(1, 0.5, 0) == 2
    with pytest.raises(PlacementError, match="which holds 0"):
        plan(PlacementRequest("packed", 6, clients_per_actor=6, client_gpus=0.1), where)


def test_shares_above_one_gpu_are_whole() -> None:
    assert plan(PlacementRequest("actors", 2, client_gpus=1.5), cluster((4, 4))).shape() == (2, 1.0, 2.0)


def test_an_actor_of_several_clients_holds_at_most_one_gpu() -> None:
    """A process computes on one GPU: it would hold the others idle."""
    where = cluster((4, 2))
    assert plan(PlacementRequest("auto", 15, client_gpus=0.1), where).shape() == (2, 1.0, 0.8)
    # The one free CPU asks for one actor, the GPUs for two.
    assert plan(PlacementRequest("packed", 15, client_gpus=0.1), cluster((2, 2))).shape() == (2, 0.5, 1.0)
    for placement in ("auto", "packed"):
        # A client that asks for more than one has it, alone.
        assert plan(PlacementRequest(placement, 1, client_gpus=1.5), where).shape() == (1, 1.0, 2.0)
    with pytest.raises(PlacementError, match=r"clients_per_actor=15 at client_gpus=0\.1 needs 1\.5 GPUs"):
        plan(PlacementRequest("packed", 15, clients_per_actor=15, client_gpus=0.1), where)


@pytest.mark.parametrize(
    ("request_", "where", "words"),
    [
        (
            PlacementRequest("auto", 5),
            LAPTOP,
            "inline: .*5 actors need 5 CPUs beside the coordinator's, the cluster has 2 CPUs",
        ),
        (
            PlacementRequest("auto", 4),
            cluster((64, 0), gigabytes=1.1),
            r"inline: .*4 actors need 1\.4 GB, the cluster has 64 CPUs, 0 GPUs and 1\.1 GB",
        ),
        (PlacementRequest("auto", 20), cluster((64, 1)), r"packed: .*\(20 actors need 2 GPUs\)"),
        (PlacementRequest("auto", 20), cluster((8, 1)), r"\(20 actors need 20 CPUs .*and 2 GPUs\)"),
        (
            PlacementRequest("auto", 2),
            cluster((64, 0), gigabytes=0.2),
            r"no actor fits: 1 actor needs 0\.3 GB",
        ),
        (
            PlacementRequest("auto", 2, client_cpus=2, client_gpus=0.2),
            cluster((3, 1), (8, 0)),
            r"packed: .*\(2 actors need CPUs, GPUs and memory on the same node\)",
        ),
    ],
)
def test_the_reason_names_what_is_short(request_: PlacementRequest, where: Cluster, words: str) -> None:
    assert re.search(words, plan(request_, where).reason)


@pytest.mark.parametrize(
    ("request_", "where", "words"),
    [
        (
            PlacementRequest("actors", 50),
            LAPTOP,
            ("50 actors", "17.5 GB", "16.0 GB", "placement=packed"),
        ),
        (
            PlacementRequest("packed", 4, client_gpus=0.1),
            LAPTOP,
            ("0.4 GPUs", "0 GPUs", "client_gpus"),
        ),
        (
            PlacementRequest("actors", 4, client_cpus=1),
            LAPTOP,
            ("4 CPUs", "1 for the coordinator", "2 CPUs"),
        ),
        (PlacementRequest("packed", 4), cluster((1, 0)), ("1 CPUs", "placement=inline")),
    ],
)
def test_refusals_name_need_have_and_setting(
    request_: PlacementRequest, where: Cluster, words: tuple[str, ...]
) -> None:
    with pytest.raises(PlacementError) as caught:
        plan(request_, where)
    for word in words:
        assert word in str(caught.value)


def test_runs_at_once_need_a_coordinator_each() -> None:
    assert plan(PlacementRequest("auto", 3, runs=2), cluster((8, 0))).kind == "actors"
    assert plan(PlacementRequest("auto", 3, runs=2), cluster((7, 0))).kind == "inline"


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (PlacementRequest("acters", 4), "'acters': did you mean actors"),
        (PlacementRequest("packed", 4, clients_per_actor=0), "clients_per_actor=0 must be at least 1"),
        (PlacementRequest("packed", 4, client_cpus=0), r"client_cpus=0 must be a number of at least 0\.01"),
        (PlacementRequest("actors", 4, client_gpus=-0.1), r"client_gpus=-0\.1"),
        (PlacementRequest("actors", 4, client_gpus=float("nan")), "client_gpus=nan"),
        (PlacementRequest("actors", 4, client_cpus=float("inf")), "client_cpus=inf"),
    ],
)
def test_settings_out_of_range_are_refused(request_: PlacementRequest, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        plan(request_, WORKSTATION)
