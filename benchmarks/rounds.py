"""Seconds per round, start-up and memory by placement, as paired and interleaved runs.

    python benchmarks/rounds.py [--dataset minesweeper] [--clients 10] [--rounds 40] [--repeats 3]

Each configuration runs in a process of its own. In every repeat all configurations run once, in turn, so that
they meet the same state of a shared machine; ratios are taken within a repeat, and medians are printed.

- CPU s/round: user and system time of the driver, the coordinator and the client actors; Ray's own daemons
  are left out.
- wall s/round: median time of a round as the coordinator sees it.
- start-up s: from the prepared data to the first round, with Ray and the actors where there are any.
- peak MB: largest sum of proportional set sizes of the whole process tree, Ray's daemons included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

CONFIGURATIONS = {
    "fedavg-gcn inline": ("fedavg", "gcn", "inline", None),
    "fedavg-gcn packed k=5": ("fedavg", "gcn", "packed", 5),
    "fedavg-gcn actors k=1": ("fedavg", "gcn", "actors", None),
    "fedopt-h2gcn inline": ("fedopt", "h2gcn", "inline", None),
    "fedgmc inline": ("fedgmc", "h2gcn", "inline", None),
    "fedgmc packed k=5": ("fedgmc", "h2gcn", "packed", 5),
    "fedgmc actors k=1": ("fedgmc", "h2gcn", "actors", None),
}

MEASURE = """
import json, statistics, sys, time
import psutil, torch
torch.set_num_threads(1)
from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import execution
from fedatlas.sweeps.experiment import experiment, resolve

def cpu():
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        if process.pid == me.pid or "ray::" in " ".join(process.cmdline()):
            total += times.user + times.system
    return total

values = json.loads(sys.argv[1])
warm, counted = 5, values["rounds"]
values["rounds"] += warm
resolved = resolve(experiment(values))
work = execution.planned(resolved)
federated = build(resolved.scenario())
begin = time.perf_counter()
schedule = work.schedule(None, every=0)
job = execution.job(resolved, federated)
with execution.driver(job, resolved.experiment, schedule, lambda plan: None) as driver:
    driver.start()
    startup = time.perf_counter() - begin
    for _ in range(warm):
        driver.advance()
    before = cpu()
    walls = [driver.advance().seconds["round"] for _ in range(counted)]
    spent = cpu() - before
print(json.dumps({"cpu": spent / counted, "wall": statistics.median(walls), "startup": startup}))
"""


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


def measure(values: dict[str, object]) -> dict[str, float]:
    """One run in a process of its own."""
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-W", "ignore", "-c", MEASURE, json.dumps(values)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True)
        peak = 0
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.5):
                peak = max(peak, tree_memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, errors = process.communicate()
        done.set()
        watcher.join()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if process.returncode:
        raise SystemExit(errors[-2000:])
    return {**json.loads(lines[-1]), "memory": peak / 1e6}


def main() -> None:
    """Run all configurations in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", default="minesweeper")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="substring of the configurations to run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    chosen = {name: value for name, value in CONFIGURATIONS.items() if arguments.only in name}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for repeat in range(arguments.repeats):
        for name, (algorithm, backbone, placement, per_actor) in chosen.items():
            values = {
                "dataset": arguments.dataset,
                "clients": arguments.clients,
                "algorithm": algorithm,
                "backbone": backbone,
                "placement": placement,
                "clients_per_actor": per_actor,
                "rounds": arguments.rounds,
                "epochs": 1,
            }
            begin = time.perf_counter()
            results[name].append(measure(values))
            print(
                f"# {repeat + 1}/{arguments.repeats} {name}: {time.perf_counter() - begin:.1f} s",
                file=sys.stderr,
            )
    first = next(iter(chosen))
    print(
        f"{arguments.dataset}, {arguments.clients} clients, {arguments.rounds} rounds, "
        f"{arguments.repeats} repeats"
    )
    headings = ("CPU s/round", "wall s/round", "start-up s", "peak MB", "CPU ratio")
    print(f"{'configuration':24}" + "".join(f"{heading:>13}" for heading in headings))
    for name, runs in results.items():
        ratios = [run["cpu"] / base["cpu"] for run, base in zip(runs, results[first], strict=True)]
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:24}{median['cpu']:13.4f}{median['wall']:13.4f}{median['startup']:13.2f}"
            f"{median['memory']:13.0f}{statistics.median(ratios):13.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
