"""CPU seconds per round of every method, beside FedAvg on the same backbone with the same local epochs.

    python benchmarks/methods.py [--datasets cora,pubmed] [--rounds 20] [--repeats 3] [--write]

The rows are those of the study `comparison`, with its options and those of the presets. Each run has a
process of its own, on one thread, all clients in one cohort. In every repeat a method and its FedAvg run one
after the other; ratios are taken within a repeat. Medians are printed:

- CPU s/round: local training, aggregation, and scores of validation and test nodes, every round.
- before s: from the prepared data to the first round: operators, exchanges before round 0.
- personal: CPU seconds of a round that the clients train by themselves after the last one (AdaFGL).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

import document
from processes import run

from fedatlas.algorithms.registry import algorithm_type
from fedatlas.sweeps.study import Overrides, expand, read_study

PROGRAM = Path(__file__).resolve().parent / "programs" / "ours.py"
STUDY = "comparison"
PERSONAL = 10
"""Rounds after the last one that are measured."""


def measure(values: dict[str, object]) -> dict[str, float]:
    """One run in a process of its own."""
    return run([sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(values)])


def pairs(dataset: str, rounds: int) -> dict[str, tuple[dict[str, object], dict[str, object]]]:
    """Of every row of the study: its experiment, and FedAvg with all of its settings that FedAvg has."""
    _, study = read_study(STUDY)
    change = Overrides(seeds=1, rounds=rounds, only=(f"dataset={dataset}", "partition=metis"))
    found = {}
    for resolved in expand(study, change):
        given = resolved.experiment.model_dump(mode="json", exclude={"label"})
        given |= {"placement": "inline"}
        shared = algorithm_type("fedavg").configuration_type.model_fields
        options = {key: value for key, value in given["options"].items() if key in shared}
        base = {**given, "algorithm": "fedavg", "options": options}
        if resolved.method().personal_rounds:
            given["personal"] = PERSONAL
        found[resolved.experiment.label or given["algorithm"]] = (given, base)
    return found


def compare(dataset: str, rounds: int, repeats: int, only: list[str]) -> list[list[str]]:
    """Rows of the table of one data set."""
    made = []
    for label, (given, base) in pairs(dataset, rounds).items():
        if only and label not in only:
            continue
        runs = [(measure(given), measure(base)) for _ in range(repeats)]
        print(f"# {dataset} {label}", file=sys.stderr)
        ours = {key: statistics.median(run[key] for run, _ in runs) for key in runs[0][0]}
        ratio = statistics.median(run["cpu"] / other["cpu"] for run, other in runs)
        before = statistics.median(run["startup"] for run, _ in runs)
        personal = f"{ours['personal']:.4f}" if "personal" in ours else ""
        cells = [str(given["backbone"]), str(given["epochs"]), f"{ours['cpu']:.4f}", f"{ratio:.2f}"]
        made.append([label, *cells, f"{before:.2f}", personal])
    return made


def main() -> None:
    """Measure, print and write the section of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="cora,pubmed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="comma-separated labels of rows")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    arguments = parser.parse_args()
    command = f"python {' '.join(['benchmarks/methods.py', *sys.argv[1:]])}"
    text = [f"```\n{command}\n```", document.stamp(f"torch {version('torch')}")]
    only = [word for word in arguments.only.split(",") if word]
    for dataset in arguments.datasets.split(","):
        made = compare(dataset, arguments.rounds, arguments.repeats, only)
        headings = [
            "",
            "backbone",
            "epochs",
            "CPU s/round",
            "ratio to FedAvg",
            "before s",
            "personal s/round",
        ]
        what = f"{dataset}, 10 clients, {arguments.rounds} rounds, {arguments.repeats} repeats"
        text += [f"{what}:", document.table([dataset, *headings[1:]], made)]
        print(f"{what}\n{document.table(headings, made)}", flush=True)
    if arguments.write:
        document.replace("methods", "\n\n".join(text))


if __name__ == "__main__":
    main()
