"""Connecting to Ray: an existing cluster, or a small one of our own."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.placement import Cluster, NodeResources
from fedatlas.platform.graphs.store import data_folder

WORKER_ENVIRONMENT = {
    # One thread per process: client processes already use every core, and more threads make each slower.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
CONNECT_SECONDS = 10.0


def worker_environment() -> dict[str, str]:
    """Environment of every worker: `WORKER_ENVIRONMENT`, and where this process says that data are.

    A worker of a cluster that others started would read other data otherwise, or download them. Its working
    directory is another, so the folder is made absolute.
    """
    out = dict(WORKER_ENVIRONMENT)
    if os.environ.get("FEDATLAS_DATA"):
        out["FEDATLAS_DATA"] = str(data_folder())
    if os.environ.get("FEDATLAS_OWN_METHODS"):
        # A method of the user's own lies beside the command and not among the installed packages.
        out["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    if offline := os.environ.get("FEDATLAS_OFFLINE"):
        out["FEDATLAS_OFFLINE"] = offline
    return out


@contextmanager
def connected(cpus: float | None = None, gpus: float | None = None) -> Iterator[Cluster]:
    """A connection to Ray for the length of a block.

    Joins `RAY_ADDRESS` if it is set, uses a connection that this process already has, or starts a cluster on
    this machine and ends it afterwards.

    Args:
        cpus, gpus: what a cluster started here declares; by default what the machine has.

    Raises:
        FedatlasError: no cluster answers at `RAY_ADDRESS`.
    """
    if ray.is_initialized():
        yield resources()
        return
    address = os.environ.get("RAY_ADDRESS")
    # Ray warns about settings that a library cannot choose for its user; they are chosen here.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _same_termination():
        if address:
            _join(address)
        else:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            _begin(cpus, gpus)
    try:
        yield resources()
    finally:
        ray.shutdown()


@contextmanager
def _same_termination() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which Ray replaces by one that ends it as a failure."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _begin(cpus: float | None, gpus: float | None) -> None:
    try:
        ray.init(
            address="local",
            num_cpus=None if cpus is None else int(cpus),
            num_gpus=None if gpus is None else int(gpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": worker_environment()},
        )
    except Exception as error:
        # Ray has no class of its own for this.
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        raise FedatlasError(
            "Ray did not start within its time, as on a machine that is busy: try again, look at `fedatlas "
            "doctor`, or run one experiment without Ray, by `fedatlas run --placement inline`"
        ) from error


def _join(address: str) -> None:
    try:
        # Ray itself would wait for minutes.
        if found := re.fullmatch(r"(?:ray://)?([^/\s]+):(\d+)", address):
            socket.create_connection((found[1].strip("[]"), int(found[2])), CONNECT_SECONDS).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": worker_environment()},
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise FedatlasError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}): start one with `ray start --head`, "
            "or unset RAY_ADDRESS to run on this machine alone"
        ) from error


def observe(address: str) -> bool:
    """Join a running cluster to look at it; whether it answered. `ray.shutdown` ends that."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        _join(address)
    except FedatlasError:
        return False
    return True


def usage() -> str:
    """What the cluster that this process has joined is doing, in words."""
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    parts = [
        f"{whole[key] - free.get(key, 0.0):g} of {whole[key]:g} {name} reserved"
        for key, name in (("CPU", "CPUs"), ("GPU", "GPUs"))
        if whole.get(key)
    ]
    groups = ray.util.placement_group_table().values()
    fleets = [each for each in groups if each["name"].startswith("fedatlas") and each["state"] == "CREATED"]
    actors = sum(len(each["bundles"]) for each in fleets)
    nodes = len([node for node in ray.nodes() if node["Alive"]])  # type: ignore[no-untyped-call]
    return f"Ray: {nodes} {'node' if nodes == 1 else 'nodes'}, {', '.join(parts)}, {actors} client actors"


def resources() -> Cluster:
    """What the nodes that are alive offer in all."""
    return Cluster(
        tuple(
            NodeResources(
                cpus=float(node["Resources"].get("CPU", 0.0)),
                gpus=float(node["Resources"].get("GPU", 0.0)),
                memory=float(node["Resources"].get("memory", 0.0)),
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        )
    )
