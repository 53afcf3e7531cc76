"""A measured program in a process of its own, with the memory of its whole process tree."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

LIMIT = 1800.0
"""Seconds after which a program counts as stuck."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def tree_memory(pid: int) -> int:
    """Sum of proportional set sizes of a process and its descendants, bytes."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue
    return total


def end_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    root = psutil.Process(pid)
    for process in [*root.children(recursive=True), root]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run a program and read the JSON object in the last line that it prints.

    Returns:
        What the program printed, and ``memory``: the largest memory of its process tree in MB. Where it
        prints ``began``, the time of day at which its first round began, also ``start``: the seconds from
        the start of the process until then.

    Raises:
        SystemExit: the program failed, or did not end within `LIMIT`.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.time()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            text=True,
            env={**os.environ, **ONE_THREAD, **(environment or {})},
        )
        peak = 0
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.5):
                peak = max(peak, tree_memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            process.wait()
            errors.write(f"\nhas not ended in {LIMIT:.0f} s")
        done.set()
        watcher.join()
        output.seek(0)
        errors.seek(0)
        lines = output.read().strip().splitlines()
        if process.returncode or not lines:
            raise SystemExit(f"{' '.join(command)}\n{errors.read()[-3000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    if "began" in found:
        found["start"] = found.pop("began") - begin
    return {**found, "memory": peak / 1e6}
