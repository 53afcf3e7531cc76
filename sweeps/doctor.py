"""What would go wrong on this machine, and how to mend it: `fedatlas doctor`."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from fedatlas.platform.errors import FedatlasError

Level = Literal["ok", "warning", "problem"]
MEGABYTE, GIGABYTE = 1e6, 1e9
LITTLE_DISK = 5 * GIGABYTE
LITTLE_MEMORY = 2 * GIGABYTE
FEW_FILES = 4096
"""Open files; every actor of Ray needs dozens."""
SECONDS = 3.0
"""How long a server may take to answer."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what it is about.
        level: ``problem``: something will fail; ``warning``: something may.
        found: what is there.
        remedy: what to do; empty if nothing.
    """

    subject: str
    level: Level
    found: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything, one after another; what a look raises is a problem of its own."""
    looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("versions", _versions),
        ("devices", _devices),
        ("memory", _memory),
        ("threads", _threads),
        ("open files", _files),
        ("shared memory", _shared_memory),
        ("data folder", _data),
        ("results folder", _results),
        ("tracking store", _store),
        ("Ray", _ray),
        ("METIS", _metis),
    )
    for subject, look in looks:
        try:
            yield from look()
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            yield Finding(subject, "problem", text, "report this with the output of `fedatlas doctor`")


def _versions() -> Iterator[Finding]:
    number = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding(
        "Python",
        "problem" if old else "ok",
        f"{number} in {sys.prefix}, {platform.system()} {platform.machine()}",
        "install Python 3.11 or newer" if old else "",
    )
    wrong, shown = [], []
    for text in requires("fedatlas") or ():
        if "extra ==" in text:
            continue
        found = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*>=\s*([\d.]+)", text)
        if found is None:
            continue
        name, least = found.groups()
        try:
            installed = version(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if _numbers(installed) < _numbers(least):
            wrong.append(f"{name} {installed} is older than {least}")
        if name in ("torch", "torch-geometric", "ray", "mlflow", "pymetis"):
            shown.append(f"{name} {installed}")
    try:
        own = version("fedatlas")
    except PackageNotFoundError:
        own = "not installed"
    yield Finding(
        "packages",
        "problem" if wrong else "ok",
        "; ".join(wrong) or f"fedatlas {own}; {', '.join(sorted(shown))}",
        "pip install -c constraints.txt fedatlas" if wrong else "",
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def _devices() -> Iterator[Finding]:
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
        yield Finding("devices", "ok", f"{cpus} CPUs, {torch.cuda.device_count()} GPUs ({names})")
    elif shutil.which("nvidia-smi"):
        build = torch.version.cuda or "no CUDA"
        yield Finding(
            "devices",
            "warning",
            f"{cpus} CPUs; there is an NVIDIA driver, but torch {torch.__version__} ({build}) sees no GPU",
            "install a torch build for this driver (pytorch.org), or look at CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Finding("devices", "ok", f"{cpus} CPUs, no GPU")


def _memory() -> Iterator[Finding]:
    from fedatlas.platform.federation.placement import ACTOR_BYTES
    from fedatlas.sweeps.preflight import TRIAL_BYTES

    free = _free_memory()
    if free is None:
        yield Finding("memory", "ok", "not known on this system")
        return
    little = free < LITTLE_MEMORY
    yield Finding(
        "memory",
        "warning" if little else "ok",
        f"{free / GIGABYTE:.1f} GB free: about {int(free / TRIAL_BYTES)} trials in one process each, or "
        f"{int(free / ACTOR_BYTES)} client actors",
        "close other programs, or run with --placement inline and concurrent: 1" if little else "",
    )


def _free_memory() -> float | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if found is None:
        return None
    free = float(found[1]) * 1024
    # In a container, the limit of its control group counts.
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        if limit != "max":
            free = min(free, float(limit) - float(used))
    except (OSError, ValueError):
        pass
    return free


def _threads() -> Iterator[Finding]:
    values = {name: os.environ.get(name) for name in THREADS}
    odd = [f"{name}={value or 'not set'}" for name, value in values.items() if value != "1"]
    yield Finding(
        "threads",
        "warning" if values["OMP_NUM_THREADS"] not in (None, "1") else "ok",
        f"{', '.join(odd) or 'one per process'}; client processes always use one",
        "export OMP_NUM_THREADS=1" if values["OMP_NUM_THREADS"] not in (None, "1") else "",
    )


def _files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 < soft < FEW_FILES
    yield Finding(
        "open files",
        "warning" if few else "ok",
        f"up to {'any number' if soft < 0 else soft} per process",
        f"ulimit -n {FEW_FILES if hard < 0 else min(hard, 65536)}, for many client actors" if few else "",
    )


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    little = free < GIGABYTE
    yield Finding(
        "shared memory",
        "warning" if little else "ok",
        f"{free / GIGABYTE:.1f} GB free in {folder}",
        "in a container, start it with --shm-size=4g; Ray is slow without" if little else "",
    )


def _data() -> Iterator[Finding]:
    from fedatlas.platform.graphs import store

    folder = store.data_folder()
    sets = store.list_status()
    corrupt = [each.name for each in sets if each.state == "corrupt"]
    here = [each.name for each in sets if each.state in ("present", "unverified", "embedded")]
    yield Finding(
        "data sets",
        "problem" if corrupt else "ok",
        f"corrupt: {', '.join(corrupt)}"
        if corrupt
        else f"{len(here)} of {len(sets)} here ({', '.join(here)})",
        "fedatlas data verify, then delete the files and import them again"
        if corrupt
        else "fedatlas data list says how to get the others",
    )
    yield from _folder("data folder", folder, "FEDATLAS_DATA")
    if os.environ.get("FEDATLAS_OFFLINE", "0") not in ("", "0"):
        yield Finding("downloads", "ok", "FEDATLAS_OFFLINE forbids them")


def _results() -> Iterator[Finding]:
    from fedatlas.platform.tracking import journal
    from fedatlas.platform.tracking.destination import results_folder

    yield from _folder("results folder", results_folder(), "FEDATLAS_RESULTS")
    waiting = len(journal.pending())
    if waiting:
        yield Finding("journal", "warning", f"{waiting} runs wait for the tracking store", "fedatlas sync")


def _folder(subject: str, folder: Path, variable: str) -> Iterator[Finding]:
    """Whether a folder can be written, and how much room there is. It is not made."""
    above = folder
    while not above.exists():
        above = above.parent
    free = shutil.disk_usage(above).free
    remedy = f"set {variable} to another folder"
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        yield Finding(subject, "problem", f"{folder} cannot be written ({error.strerror})", remedy)
        return
    little = free < LITTLE_DISK
    made = "" if folder.exists() else " (made when it is needed)"
    yield Finding(
        subject,
        "warning" if little else "ok",
        f"{folder}{made}, {free / GIGABYTE:.1f} GB free",
        f"make room, or {remedy}" if little else "",
    )


def _store() -> Iterator[Finding]:
    from fedatlas.platform.tracking.destination import is_local, redacted, store_exists, tracking_uri

    uri = tracking_uri()
    shown = redacted(uri)
    if uri.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=SECONDS) as answer:
                yield Finding("tracking store", "ok", f"{shown} answers ({answer.status})")
        except (OSError, ValueError) as error:
            yield Finding(
                "tracking store",
                "warning",
                f"{shown} does not answer ({error})",
                "start the server or unset MLFLOW_TRACKING_URI; until then runs go to a journal that "
                "`fedatlas sync` pushes",
            )
    elif is_local(uri) and not store_exists(uri):
        yield Finding("tracking store", "ok", f"{shown}, made by the first run")
    else:
        from fedatlas.platform.errors import TrackingError
        from fedatlas.platform.tracking.store import Store

        try:
            runs = len(Store(uri).client.search_experiments())
            yield Finding("tracking store", "ok", f"{shown}, {runs} experiments")
        except TrackingError as error:
            yield Finding("tracking store", "problem", str(error), "set MLFLOW_TRACKING_URI to another store")


def _ray() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        yield Finding("Ray", "ok", f"ray {version('ray')}; a study starts a cluster on this machine")
        return
    found = re.fullmatch(r"(?:\w+://)?([^/\s]+):(\d+)/?", address)
    if found is None:
        yield Finding("Ray", "ok", f"RAY_ADDRESS={address}")
        return
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), SECONDS).close()
        yield Finding("Ray", "ok", f"RAY_ADDRESS={address} accepts connections")
    except (OSError, OverflowError) as error:
        yield Finding(
            "Ray",
            "problem",
            f"nothing answers at RAY_ADDRESS={address} ({error})",
            "start one with `ray start --head`, or unset RAY_ADDRESS",
        )


def _metis() -> Iterator[Finding]:
    import numpy as np

    from fedatlas.platform.graphs.edges import undirected
    from fedatlas.platform.graphs.metis import k_way
    from fedatlas.platform.graphs.partition import metis_binding

    nodes = 12
    place = np.arange(nodes)
    edges = undirected(np.stack([place, (place + 1) % nodes]), nodes)
    try:
        parts = k_way(np.searchsorted(edges[0], np.arange(nodes + 1)), edges[1], 2, 0)
    except (RuntimeError, OSError, FedatlasError) as error:
        yield Finding(
            "METIS", "problem", str(error), "pip install pymetis, or partition with --partition random"
        )
        return
    yield Finding("METIS", "ok", f"{metis_binding()}: a ring of {nodes} gave {np.bincount(parts).tolist()}")
