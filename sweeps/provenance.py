"""What a reviewer needs to rerun a number: code, data and library versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.graphs.federated import Scenario, metric_of
from fedatlas.platform.graphs.partition import metis_binding

LIBRARIES = ("torch", "torch-geometric", "pymetis", "ray", "mlflow", "numpy", "scipy")


def package_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("fedatlas")
    except PackageNotFoundError:
        return "unknown"


@cache
def commit() -> str:
    """Git commit of the code, with `-dirty` if tracked files differ; `unknown` outside a checkout."""
    folder = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if git("ls-files", "--error-unmatch", Path(__file__).name) == "":
            return "unknown"
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return f"{head}-dirty" if changed else head or "unknown"


@cache
def hardware() -> str:
    """Processor, cores, memory and GPUs of this machine, where the driver runs."""
    parts = [f"{_processor()}, {os.cpu_count()} CPUs"]
    with suppress(OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{memory / 2**30:.0f} GiB")
    # Importing torch only to ask would cost a second where nothing trains in this process.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts += [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ", ".join(parts)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def tags(scenario: Scenario, data_sha256: str) -> dict[str, str]:
    """Tags of a run: identity of code and data."""
    versions = {f"fedatlas.{name}": _installed(name) for name in LIBRARIES}
    return {
        "fedatlas.version": package_version(),
        "fedatlas.commit": commit(),
        "fedatlas.python": platform.python_version(),
        "fedatlas.data_kind": entry(scenario.dataset).kind,
        "fedatlas.data_sha256": data_sha256,
        "fedatlas.metric": metric_of(scenario),
        "fedatlas.metis": metis_binding(),
        "fedatlas.hardware": hardware(),
        **versions,
    }


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
