"""Deciding where clients run: a pure function from needs and resources to a plan."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Literal

import torch

from fedatlas.platform.errors import ConfigurationError, PlacementError, unknown_name
from fedatlas.platform.federation.runtime import contiguous_groups

PlacementKind = Literal["inline", "actors", "packed"]
PLACEMENTS = ("auto", "inline", "actors", "packed")

ACTOR_BYTES = 350_000_000
"""Memory of one actor process that has imported torch, measured."""
COORDINATOR_CPUS = 1.0
SMALLEST_SHARE = 0.01
DEFAULT_CLIENT_GPUS = 0.1


@dataclass(frozen=True)
class NodeResources:
    """What one cluster node offers in all: CPUs, GPUs, bytes of memory."""

    cpus: float
    gpus: float
    memory: float


@dataclass(frozen=True)
class PlacementRequest:
    """What a run asks for.

    Attributes:
        placement: ``auto``, ``inline``, ``actors`` (one per client) or ``packed``.
        clients: number of clients M.
        clients_per_actor: cohort size k of ``packed``; None divides the clients over the free CPUs.
        client_cpus: CPUs of one actor; None takes 1, or an equal share where ``actors`` is asked for and
            the cluster has fewer.
        client_gpus: GPU share of one client; None takes 0.1 where the cluster has a GPU, and at most one
            whole GPU for an actor with several clients.
        runs: runs at the same time, each with a coordinator.
    """

    placement: str
    clients: int
    clients_per_actor: int | None = None
    client_cpus: float | None = None
    client_gpus: float | None = None
    runs: int = 1


@dataclass(frozen=True)
class PlacementPlan:
    """Where the clients of a run live.

    Attributes:
        kind: ``inline`` has no actors: all clients are one cohort in the coordinator's process.
        groups: client ids of each actor.
        cpus, gpus: what each actor reserves.
        reason: the arithmetic, in words; logged once before anything starts.
    """

    kind: PlacementKind
    groups: tuple[tuple[int, ...], ...]
    cpus: float = 0.0
    gpus: float = 0.0
    reason: str = ""

    def shape(self) -> tuple[int, float, float]:
        """Number of actors and what each reserves: runs of equal shape can share a fleet."""
        return (len(self.groups) if self.kind != "inline" else 0, self.cpus, self.gpus)


@dataclass(frozen=True)
class Cluster:
    """The nodes of a Ray cluster."""

    nodes: tuple[NodeResources, ...] = field(default_factory=tuple)

    @property
    def cpus(self) -> float:
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> float:
        return sum(node.gpus for node in self.nodes)

    @property
    def memory(self) -> float:
        return sum(node.memory for node in self.nodes)

    def fits(self, cpus: float, gpus: float, memory: float) -> int:
        """How many bundles of this size the nodes hold; a bundle cannot span nodes."""
        total = 0
        for node in self.nodes:
            pairs = ((node.cpus, cpus), (node.gpus, gpus), (node.memory, memory))
            limits = [math.floor(have / need + 1e-9) for have, need in pairs if need > 0]
            total += min(limits, default=0)
        return total

    def describe(self) -> str:
        return (
            f"{self.cpus:g} CPUs, {self.gpus:g} GPUs and {self.memory / 1e9:.1f} GB "
            f"on {len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
        )


def this_machine() -> Cluster:
    """What a Ray cluster on this machine would offer, found out without starting one."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    memory = 0.7 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Cluster((NodeResources(float(cpus), float(gpus), memory),))


def plan(request: PlacementRequest, cluster: Cluster) -> PlacementPlan:
    """Place the clients of a run.

    ``auto`` takes one actor per client if every actor gets its CPU, GPU share and memory; otherwise as few
    packed actors as hold all clients; one packed actor without a GPU would only add a hop, so it becomes
    ``inline``.

    Raises:
        ConfigurationError: unknown placement or a setting out of range.
        PlacementError: the need, what the cluster has, and the setting to change.
    """
    if request.placement not in PLACEMENTS:
        raise unknown_name("placement", request.placement, PLACEMENTS)
    _check(request)
    if request.placement == "inline":
        return _inline(request, "as asked")
    if request.placement == "actors":
        return _actors(request, cluster)
    if request.placement == "packed":
        return _packed(request, cluster)
    return _auto(request, cluster)


def _check(request: PlacementRequest) -> None:
    if request.clients_per_actor is not None and request.clients_per_actor < 1:
        raise ConfigurationError(f"clients_per_actor={request.clients_per_actor} must be at least 1")
    for name, least in (("client_cpus", SMALLEST_SHARE), ("client_gpus", 0.0)):
        value = getattr(request, name)
        if value is not None and not (value >= least and math.isfinite(value)):
            raise ConfigurationError(f"{name}={value:g} must be a number of at least {least:g}")


def _inline(request: PlacementRequest, why: str) -> PlacementPlan:
    reason = f"inline: {request.clients} clients as one cohort in the coordinator's process ({why})"
    return PlacementPlan("inline", (tuple(range(request.clients)),), reason=reason)


def _free_cpus(request: PlacementRequest, cluster: Cluster) -> float:
    return cluster.cpus - COORDINATOR_CPUS * request.runs


def _actors(request: PlacementRequest, cluster: Cluster) -> PlacementPlan:
    actors = request.clients * request.runs
    gpus = _gpu_share(request, cluster, 1)
    share = _floor_share(max(_free_cpus(request, cluster), 0.0) / actors)
    cpus = request.client_cpus if request.client_cpus is not None else min(1.0, max(share, SMALLEST_SHARE))
    _require(request, cluster, actors, cpus, gpus, "use placement=packed or a smaller client_gpus")
    groups = contiguous_groups(request.clients, 1)
    return PlacementPlan(
        "actors", groups, cpus, gpus, _reason("actors", request, groups, cpus, gpus, cluster)
    )


def _packed(request: PlacementRequest, cluster: Cluster) -> PlacementPlan:
    per_actor = request.clients_per_actor
    if per_actor is None:
        count = max(1, math.floor(max(_free_cpus(request, cluster), 1.0) / request.runs))
        per_actor = math.ceil(request.clients / count)
        while _spans_gpus(request, cluster, per_actor):
            per_actor -= 1
    elif _spans_gpus(request, cluster, per_actor):
        raise PlacementError(
            f"clients_per_actor={per_actor} at client_gpus={request.client_gpus:g} needs "
            f"{per_actor * (request.client_gpus or 0):g} GPUs for one process, which computes on one: use "
            "fewer clients_per_actor or a smaller client_gpus"
        )
    groups = contiguous_groups(request.clients, per_actor)
    share = _floor_share(max(_free_cpus(request, cluster), 0.0) / (len(groups) * request.runs))
    cpus = request.client_cpus if request.client_cpus is not None else min(1.0, max(share, SMALLEST_SHARE))
    gpus = _gpu_share(request, cluster, per_actor)
    remedy = "use placement=inline, another clients_per_actor or a smaller client_gpus"
    _require(request, cluster, len(groups) * request.runs, cpus, gpus, remedy)
    return PlacementPlan(
        "packed", groups, cpus, gpus, _reason("packed", request, groups, cpus, gpus, cluster)
    )


def _auto(request: PlacementRequest, cluster: Cluster) -> PlacementPlan:
    cpus = 1.0 if request.client_cpus is None else request.client_cpus
    gpus = _gpu_share(request, cluster, 1)
    wanted = request.clients * request.runs
    if _holds(request, cluster, wanted, cpus, gpus):
        groups = contiguous_groups(request.clients, 1)
        reason = _reason("actors", request, groups, cpus, gpus, cluster)
        return PlacementPlan("actors", groups, cpus, gpus, reason)
    for count in range(1, request.clients):
        per_actor = math.ceil(request.clients / count)
        share = _gpu_share(request, cluster, per_actor)
        if _spans_gpus(request, cluster, per_actor):
            continue
        groups = contiguous_groups(request.clients, per_actor)
        if _holds(request, cluster, len(groups) * request.runs, cpus, share):
            short = _short(request, cluster, wanted, cpus, gpus)
            if len(groups) == 1 and share == 0:
                return _inline(request, f"{short}, the cluster has {cluster.describe()}")
            reason = _reason("packed", request, groups, cpus, share, cluster)
            return PlacementPlan("packed", groups, cpus, share, f"{reason} ({short})")
    if gpus == 0 or request.client_gpus is None:
        short = _short(request, cluster, request.runs, cpus, gpus)
        return _inline(request, f"no actor fits: {short}, the cluster has {cluster.describe()}")
    raise PlacementError(
        f"{wanted} clients at client_gpus={request.client_gpus:g} need {wanted * request.client_gpus:g} "
        f"GPUs, and an actor {cpus:g} CPUs beside {COORDINATOR_CPUS * request.runs:g} for coordination; "
        f"the cluster has {cluster.describe()}: lower client_gpus"
    )


def _require(
    request: PlacementRequest, cluster: Cluster, actors: int, cpus: float, gpus: float, remedy: str
) -> None:
    room = cluster.fits(cpus, gpus, ACTOR_BYTES)
    coordinators = COORDINATOR_CPUS * request.runs
    if not _holds(request, cluster, actors, cpus, gpus):
        raise PlacementError(
            f"{actors} actors at {cpus:g} CPUs, {gpus:g} GPUs and {ACTOR_BYTES / 1e9:g} GB need "
            f"{actors * cpus:g} CPUs (and {coordinators:g} for the coordinator), {actors * gpus:g} GPUs and "
            f"{actors * ACTOR_BYTES / 1e9:.1f} GB; the cluster has {cluster.describe()}, "
            f"which holds {room}: {remedy}"
        )


def _holds(request: PlacementRequest, cluster: Cluster, actors: int, cpus: float, gpus: float) -> bool:
    """Whether the cluster has room for so many actors and the coordinators beside them."""
    return (
        actors <= cluster.fits(cpus, gpus, ACTOR_BYTES)
        and actors * cpus <= _free_cpus(request, cluster) + 1e-6
    )


def _short(request: PlacementRequest, cluster: Cluster, actors: int, cpus: float, gpus: float) -> str:
    """What the cluster has too little of for so many actors, in words."""
    short = []
    if actors > cluster.fits(cpus, 0, 0) or actors * cpus > _free_cpus(request, cluster) + 1e-6:
        short.append(f"{actors * cpus:g} CPUs beside the coordinator's")
    if actors > cluster.fits(0, gpus, 0) and gpus > 0:
        short.append(f"{actors * gpus:g} GPUs")
    if actors > cluster.fits(0, 0, ACTOR_BYTES):
        short.append(f"{actors * ACTOR_BYTES / 1e9:.1f} GB")
    need = " and ".join(short) or "CPUs, GPUs and memory on the same node"
    return f"{actors} actor{'s' if actors != 1 else ''} need{'s' if actors == 1 else ''} {need}"


def _spans_gpus(request: PlacementRequest, cluster: Cluster, per_actor: int) -> bool:
    """Whether an actor would hold GPUs idle: a process computes on one, and a client may ask for more."""
    return _gpu_share(request, cluster, per_actor) > max(_gpu_share(request, cluster, 1), 1.0)


def _gpu_share(request: PlacementRequest, cluster: Cluster, per_actor: int) -> float:
    """GPU share of an actor: the sum of its clients' shares, in whole GPUs above one as Ray demands."""
    if request.client_gpus is None:
        return min(1.0, DEFAULT_CLIENT_GPUS * per_actor) if cluster.gpus > 0 else 0.0
    share = request.client_gpus * per_actor
    return share if share <= 1 else float(math.ceil(share - 1e-9))


def _floor_share(value: float) -> float:
    return math.floor(value * 100) / 100


def _reason(
    kind: str,
    request: PlacementRequest,
    groups: tuple[tuple[int, ...], ...],
    cpus: float,
    gpus: float,
    cluster: Cluster,
) -> str:
    sizes = f"{len(groups[0])} client{'s' if len(groups[0]) > 1 else ''} each"
    runs = f" for each of {request.runs} runs" if request.runs > 1 else ""
    return (
        f"{kind}: {len(groups)} actors with {sizes}{runs}, {cpus:g} CPUs and {gpus:g} GPUs per actor "
        f"= {len(groups) * request.runs * cpus:g} CPUs and {len(groups) * request.runs * gpus:g} GPUs "
        f"beside {COORDINATOR_CPUS * request.runs:g} for coordination, of {cluster.describe()}"
    )
