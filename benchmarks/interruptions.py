"""A study that is killed at random moments and started again equals an undisturbed one, bit for bit.

    python benchmarks/interruptions.py heterophilic [--kills 2] -- --available-only --only minesweeper

What follows `--` goes to `fedatlas sweep`. The study runs once undisturbed and once killed (SIGKILL to the
process that drives it), each into a results folder of its own, which is kept. All results but wall times and
run ids are compared: summaries, the figures of every round, the scores of every client. Prints duration,
trials per minute and the use of the CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

FEDATLAS = Path(sys.executable).with_name("fedatlas")
OWN = (
    *("run_id", "tracking_uri", "startup_seconds", "seconds_per_round", "preparation_seconds"),
    *("logging_seconds_per_round", "peak_memory_bytes"),
)
"""What two runs of the same trial need not share."""


def sweep(study: str, words: list[str], results: Path) -> subprocess.Popen[bytes]:
    """Start the study in a session of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [str(FEDATLAS), "sweep", study, "--no-report", *words],
        env={**environment, "FEDATLAS_RESULTS": str(results)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def tree_cpu(process: psutil.Process) -> float:
    """CPU seconds of a process and its living descendants."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def undisturbed(study: str, words: list[str], results: Path) -> tuple[float, float]:
    """Wall seconds and CPU seconds of the study."""
    begin, spent = time.monotonic(), 0.0
    process = sweep(study, words, results)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            spent = max(spent, tree_cpu(watched))
        except psutil.Error:
            break
        time.sleep(0.5)
    if process.wait():
        raise SystemExit(f"the study ended with exit code {process.returncode}")
    return time.monotonic() - begin, spent


def killed(study: str, words: list[str], results: Path, kills: int, seconds: float) -> None:
    """Run the study with kills at random moments, spread over its expected duration."""
    for number in range(kills):
        process = sweep(study, words, results)
        begin = time.monotonic()
        # Ray takes a while to start; what is of interest comes after it.
        until = begin + seconds * (0.2 + random.uniform(0.0, 0.8) / (kills + 1))
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if process.poll() is not None:
            print(f"start {number + 1} had ended before it could be killed")
            continue
        process.kill()
        process.wait()
        done = len(list(results.glob(f"studies/{Path(study).stem}/*/summary.json")))
        begun = len(list(results.glob(f"checkpoints/{Path(study).stem}/*.pt")))
        print(
            f"killed start {number + 1} after {time.monotonic() - begin:.0f} s: {done} trials done, "
            f"{begun} with a checkpoint"
        )
    if sweep(study, words, results).wait():
        raise SystemExit("the last start failed")


def content(folder: Path) -> dict[str, Any]:
    """What a trial has left, without its own."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rounds = pd.read_parquet(folder / "rounds.parquet")
    return {
        "summary": {key: value for key, value in summary.items() if key not in OWN},
        "rounds": rounds[[name for name in rounds if not name.startswith(("time/", "memory/"))]].to_json(
            double_precision=15
        ),
        "clients": pd.read_parquet(folder / "clients.parquet").to_json(double_precision=15),
    }


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("study")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("words", nargs="*", help="options of `fedatlas sweep`, after --")
    chosen = parser.parse_args()
    random.seed(chosen.seed)
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-interruptions-"))
    whole, other = folder / "undisturbed", folder / "killed"
    seconds, cpu = undisturbed(chosen.study, chosen.words, whole)
    killed(chosen.study, chosen.words, other, chosen.kills, seconds)
    name = Path(chosen.study).stem
    trials = sorted(path.parent.name for path in whole.glob(f"studies/{name}/*/summary.json"))
    again = sorted(path.parent.name for path in other.glob(f"studies/{name}/*/summary.json"))
    assert trials == again, "the two have other trials"
    different = [
        trial
        for trial in trials
        if content(whole / "studies" / name / trial) != content(other / "studies" / name / trial)
    ]
    print(
        f"{len(trials)} trials in {seconds:.0f} s: {60 * len(trials) / seconds:.1f} per minute, "
        f"{cpu / seconds:.2f} CPUs in use\n"
        f"after {chosen.kills} kills {len(trials) - len(different)} of {len(trials)} are equal bit for bit\n"
        f"results: {folder}"
    )
    if different:
        raise SystemExit(f"different: {', '.join(different)}")


if __name__ == "__main__":
    main()
