"""FedAvg with a GCN: this project against a plain PyG loop, OpenFGL and Flower's Ray simulation.

    benchmarks/programs/setup-peers.sh                       # once: virtual environments of the peers
    python benchmarks/peers.py [--datasets cora] [--clients 10] [--rounds 40] [--repeats 5] [--write]

All train the same network from the same initial weights on the same clients with the same roles, one
full-batch epoch of Adam a round, and score validation and test nodes of every client every round; one thread
per process. Each program runs in a process of its own. In every repeat all programs run once, in turn, so
that they meet the same state of a shared machine; ratios are taken within a repeat. Medians are printed.

- CPU s/round: user and system time of the program and of Ray's workers; Ray's daemons are left out.
- wall s/round: median time of a round.
- start s: from the start of the process to its first round: imports, data, Ray and actors where there are
  any.
- peak MB: largest sum of proportional set sizes of the whole process tree, Ray's daemons included.
- test: mean test score over clients in the last round; the programs draw dropout differently.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import document
import numpy as np
import scipy.sparse as sp
from processes import run

from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import execution
from fedatlas.sweeps.experiment import experiment, resolve

PROGRAMS = Path(__file__).resolve().parent / "programs"
PEERS = Path(os.environ.get("FEDATLAS_PEERS", Path.home() / ".cache" / "fedatlas" / "peers"))
ALL = "cora"
"""The data set on which everything runs; on others, what is in one process."""
COLUMNS = {
    "CPU s/round": ("cpu", "{:.4f}"),
    "wall s/round": ("wall", "{:.4f}"),
    "start s": ("start", "{:.1f}"),
    "peak MB": ("memory", "{:.0f}"),
    "test": ("score", "{:.3f}"),
}


@dataclass(frozen=True)
class Program:
    """One row.

    Attributes:
        name: of the row.
        command: from the experiment's values and the exported file.
        everywhere: whether it runs on all data sets.
    """

    name: str
    command: Callable[[dict[str, object], Path], list[str]]
    everywhere: bool = False


def ours(**placement: object) -> Callable[[dict[str, object], Path], list[str]]:
    """Command of this project with some placement."""

    def command(values: dict[str, object], file: Path) -> list[str]:
        given = json.dumps({**values, **placement})
        return [sys.executable, "-W", "ignore", str(PROGRAMS / "ours.py"), given]

    return command


def peer(environment: str, program: str, *words: str) -> Callable[[dict[str, object], Path], list[str]]:
    """Command of a program in an environment of `setup-peers.sh`."""

    def command(values: dict[str, object], file: Path) -> list[str]:
        python = str(PEERS / environment / "bin" / "python")
        rounds = str(values["rounds"])
        return [python, "-W", "ignore", str(PROGRAMS / program), str(file), "--rounds", rounds, *words]

    return command


PROGRAMS_COMPARED = (
    Program("fedatlas, inline", ours(placement="inline"), everywhere=True),
    Program("fedatlas, 5 clients per actor", ours(placement="packed", clients_per_actor=5)),
    Program("fedatlas, one actor per client", ours(placement="actors")),
    Program("plain PyG loop", peer("pyg", "loop.py"), everywhere=True),
    Program("OpenFGL", peer("pyg", "with_openfgl.py"), everywhere=True),
    Program("Flower simulation", peer("flower", "with_flower.py")),
    Program("Flower simulation, new Adam each round", peer("flower", "with_flower.py", "--fresh")),
)


def export(values: dict[str, object], file: Path) -> None:
    """Write the clients and the initial weights of an experiment for `federation.read`."""
    resolved = resolve(experiment(values))
    federated = build(resolved.scenario())
    work = execution.job(resolved, federated)
    held: dict[str, object] = {
        "clients": len(federated.clients),
        "classes": federated.classes,
        "metric": federated.metric,
    }
    for client in federated.clients:
        features = sp.coo_array(client.features)
        parts = {
            "shape": np.array(features.shape),
            "rows": features.row.astype(np.int64),
            "columns": features.col.astype(np.int64),
            "values": features.data.astype(np.float32),
            "edges": client.edges,
            "labels": client.labels,
            **{name: getattr(client, name) for name in ("train", "validation", "test")},
        }
        held |= {f"{client.client}/{name}": value for name, value in parts.items()}
    weights = {name: value.numpy() for name, value in work.algorithm.initialise(work.task).items()}
    for own, theirs in {"encoder.0": "first", "encoder.1": "second", "classifier": "classifier"}.items():
        matrix = "weight" if own == "classifier" else "lin.weight"
        held[f"initial/{theirs}.{matrix}"] = weights[f"{own}.weight"].T
        held[f"initial/{theirs}.bias"] = weights[f"{own}.bias"]
    np.savez(file, **held)


def compare(
    values: dict[str, object], programs: list[Program], repeats: int
) -> dict[str, list[dict[str, float]]]:
    """Run all programs in turn, `repeats` times. A program that fails has no figures in that repeat."""
    results: dict[str, list[dict[str, float]]] = {program.name: [] for program in programs}
    with tempfile.TemporaryDirectory(prefix="fedatlas-peers-") as folder:
        file = Path(folder) / "federation.npz"
        export(values, file)
        environment = {"PYTHONPATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])}
        environment |= {"FLWR_TELEMETRY_ENABLED": "0"}
        for repeat in range(repeats):
            for program in programs:
                begin = time.perf_counter()
                try:
                    found = run(program.command(values, file), environment)
                except SystemExit as error:
                    print(error, file=sys.stderr)
                    found = {}
                results[program.name].append(found)
                spent = time.perf_counter() - begin
                state = "" if found else ", failed"
                print(f"# {repeat + 1}/{repeats} {program.name}: {spent:.1f} s{state}", file=sys.stderr)
    return results


def rows(results: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Medians, and ratios to the first program within each repeat."""
    first = next(iter(results.values()))
    made = []
    for name, runs in results.items():
        pairs = [(found, base) for found, base in zip(runs, first, strict=True) if found and base]
        if not pairs:
            made.append([f"{name} (failed)", *["" for _ in COLUMNS], "", ""])
            continue
        cells = [
            form.format(statistics.median(found[key] for found, _ in pairs)) for key, form in COLUMNS.values()
        ]
        ratios = [
            statistics.median(found[key] / base[key] for found, base in pairs) for key in ("cpu", "wall")
        ]
        made.append([name, *cells, *(f"{ratio:.2f}" for ratio in ratios)])
    return made


def versions() -> list[str]:
    """Versions of what is compared."""
    code = (
        "import importlib.metadata as m, sys\n"
        "print(', '.join(f'{n} {m.version(p)}' for n, p in [x.split('=') for x in sys.argv[1:]]))"
    )
    asked = {
        sys.executable: ["torch=torch", "Ray=ray"],
        str(PEERS / "pyg/bin/python"): ["PyG=torch-geometric", "OpenFGL=openfgl-lib"],
        str(PEERS / "flower/bin/python"): ["Flower=flwr", "its Ray=ray"],
    }
    found = []
    for python, names in asked.items():
        done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    return found


def main() -> None:
    """Compare, print and write the section of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default=ALL, help=f"comma-separated; all programs run on {ALL} only")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="parts of the names of programs to run besides the first")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    arguments = parser.parse_args()
    if not (PEERS / "flower").is_dir():
        raise SystemExit(f"{PEERS} has no peers: run benchmarks/programs/setup-peers.sh")
    command = f"python {' '.join(['benchmarks/peers.py', *sys.argv[1:]])}"
    text = [f"```\n{command}\n```", document.stamp(*versions())]
    words = arguments.only.split(",")
    for dataset in arguments.datasets.split(","):
        chosen = [
            program
            for number, program in enumerate(PROGRAMS_COMPARED)
            if number == 0
            or (any(word in program.name for word in words) and (program.everywhere or dataset == ALL))
        ]
        values: dict[str, object] = {
            "dataset": dataset,
            "clients": arguments.clients,
            "algorithm": "fedavg",
            "backbone": "gcn",
            "rounds": arguments.rounds,
            "epochs": 1,
        }
        made = rows(compare(values, chosen, arguments.repeats))
        headings = ["", *COLUMNS, "CPU ratio", "wall ratio"]
        what = (
            f"{dataset}, {arguments.clients} clients, {arguments.rounds} rounds, {arguments.repeats} repeats"
        )
        text += [f"{what}:", document.table([f"{dataset}", *headings[1:]], made)]
        print(f"{what}\n{document.table(headings, made)}", flush=True)
    if arguments.write:
        document.replace("peers", "\n\n".join(text))


if __name__ == "__main__":
    main()
