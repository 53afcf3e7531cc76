"""What a reviewer needs to rerun a number: code, data and library versions."""

from __future__ import annotations

import platform
import subprocess
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
        **versions,
    }


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
