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
import sys
import time
from pathlib import Path

from processes import run

CONFIGURATIONS = {
    "fedavg-gcn inline": ("fedavg", "gcn", "inline", None),
    "fedavg-gcn packed k=5": ("fedavg", "gcn", "packed", 5),
    "fedavg-gcn actors k=1": ("fedavg", "gcn", "actors", None),
    "fedopt-h2gcn inline": ("fedopt", "h2gcn", "inline", None),
    "fedgmc inline": ("fedgmc", "h2gcn", "inline", None),
    "fedgmc packed k=5": ("fedgmc", "h2gcn", "packed", 5),
    "fedgmc actors k=1": ("fedgmc", "h2gcn", "actors", None),
}

PROGRAM = Path(__file__).resolve().parent / "programs" / "ours.py"


def measure(values: dict[str, object]) -> dict[str, float]:
    """One run in a process of its own."""
    return run([sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(values)])


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
