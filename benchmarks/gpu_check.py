"""A GPU's numbers against the CPU's, and rounds per second of both: `make gpu-check PYTHON=python3`.

    python benchmarks/gpu_check.py [--methods fedavg] [--rounds 5] [--timed 20] [--compile] [--large]

Runs the in-process runtime. Needed are torch, numpy, scipy, pandas, pydantic and PyYAML; Ray and MLflow are
not, and the package need not be installed. Graphs are generated; `seal` classifies graphs and runs where the
data folder has MUTAG. Clients are divided by METIS, or by Louvain communities where pymetis is missing.

Each method runs a few rounds from the same start on both devices. Compared are every client's validation and
test score, the tracked figures (losses) and all client states (weights, moments). On a machine without a GPU
the same comparison is made of float64 and float32 on the CPU, which only tests this program. Ends with 1 if
something is further apart than its tolerance.

``--compile`` also times a step through `torch.compile`, and ``--large`` adds the ogbn-arxiv stand-in.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("fedavg", "fedopt", "fedgmc", "fedaux", "fedpub", "seal")
TOLERANCES = {"float64": (1e-6, 1e-6, 1e-4), "float32": (1e-2, 1e-2, None)}
"""Largest differences of scores (absolute), of figures and of states (of the tensor's largest entry).

The states of a float32 run are shown but not held to anything: Adam's first steps have the size of the
learning rate whatever the gradient's, so an entry whose gradient is rounding noise goes either way.
"""
NEEDED = ("numpy", "scipy", "pandas", "pydantic", "yaml")
WARM = 3


def find_package() -> None:
    """Make `fedatlas` importable from this checkout if it is not installed.

    Raises:
        SystemExit: a library is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        words = " ".join("pyyaml" if name == "yaml" else name for name in missing)
        raise SystemExit(f"missing here: {sys.executable} -m pip install {words}")
    if importlib.util.find_spec("fedatlas") is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-")) / "fedatlas"
    folder.mkdir()
    for layer in ("platform", "algorithms", "dashboards", "sweeps"):
        (folder / layer).symlink_to(ROOT / layer, target_is_directory=True)
    sys.path.insert(0, str(folder.parent))
    # METIS runs in a process of its own.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])


def job(method: str, dataset: str, clients: int, precision: str) -> Any:
    """A method on a divided graph.

    Raises:
        DataError: the data set is not here.
    """
    from fedatlas.algorithms.registry import create
    from fedatlas.platform.federation.cohort import Task
    from fedatlas.platform.federation.runtime import Job
    from fedatlas.platform.graphs.catalog import entry
    from fedatlas.platform.graphs.federated import Scenario, build

    partition = "metis" if importlib.util.find_spec("pymetis") else "louvain"
    if entry(dataset).level == "graph":
        partition = "iid"
    federated = build(Scenario(dataset=dataset, clients=clients, partition=partition))
    task = Task(
        clients=clients,
        features=federated.features,
        classes=federated.classes,
        metric=federated.metric,
        seed=0,
        level=federated.level,
    )
    return Job(create(method), federated.clients, task, precision)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcome:
    """What a run left: scores [rounds, 2, M], figures [rounds, names] and the clients' packed states."""

    scores: np.ndarray
    figures: np.ndarray
    states: dict[str, torch.Tensor]


def coordinator(work: Any, device: str, rounds: int) -> Any:
    """A coordinator with the in-process runtime on a device."""
    from fedatlas.platform.federation.coordinator import Coordinator, Schedule
    from fedatlas.platform.federation.runtime import InlineRuntime

    runtime = InlineRuntime(device=device)
    made = Coordinator(work, runtime, Schedule(rounds, checkpoint_every=0))
    made.start()
    return made, runtime


def outcome(work: Any, device: str, rounds: int) -> Outcome:
    """Run some rounds."""
    driver, runtime = coordinator(work, device, rounds)
    records = [driver.advance() for _ in range(rounds)]
    names = sorted(records[0].metrics)
    return Outcome(
        np.array([(record.client_validation, record.client_test) for record in records]),
        np.array([[record.metrics[name] for name in names] for record in records]),
        dict(tensors(runtime.state())),
    )


def tensors(packed: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a packed state by name."""
    for name, value in packed.items():
        if isinstance(value, torch.Tensor):
            yield prefix + name, value
        elif isinstance(value, tuple):
            yield from ((f"{prefix}{name}.{number}", part) for number, part in enumerate(value))
        elif isinstance(value, dict):
            yield from tensors(value, f"{prefix}{name}.")


def differences(one: Outcome, other: Outcome) -> tuple[float, float, float]:
    """Largest differences of scores, of figures and of states."""
    scores = float(np.nanmax(np.abs(one.scores - other.scores), initial=0.0))
    size = np.maximum(np.abs(one.figures), 1e-3)
    figures = float(np.nanmax(np.abs(one.figures - other.figures) / size, initial=0.0))
    apart = 0.0
    for name, tensor in one.states.items():
        if tensor.is_floating_point() and tensor.numel():
            gap = (tensor.double() - other.states[name].double()).abs().max()
            apart = max(apart, float(gap / tensor.double().abs().max().clamp(min=1e-12)))
    return scores, figures, apart


def seconds_per_round(work: Any, device: str, rounds: int) -> float:
    """Median over rounds, of which each has ended on the device."""
    driver, _ = coordinator(work, device, WARM + rounds)
    spent = []
    for number in range(WARM + rounds):
        begin = time.perf_counter()
        driver.advance()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= WARM:
            spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


def compiled(work: Any) -> Any:
    """The same job with a network that goes through `torch.compile`; shapes are static.

    Graphs are broken at what it cannot trace: dropout masks, which are drawn in main memory, sparse products,
    and operators that are looked up by name.
    """
    from fedatlas.platform.federation.cohort import Cohort, Dropout
    from fedatlas.platform.federation.sparse import SparseMatrix

    for owner, name in (
        *((Dropout, name) for name in ("apply", "flat")),
        *((Cohort, "keep"), (SparseMatrix, "__matmul__")),
    ):
        setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    forward = work.algorithm.backbone.forward
    object.__setattr__(work.algorithm.backbone, "forward", torch.compile(forward, dynamic=False))
    return work


def show_device() -> str:
    """Say what there is; returns the device."""
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")
    if not torch.cuda.is_available():
        print("torch sees no GPU: float64 and float32 on the CPU are compared, as a test of this program")
        return "cpu"
    free, total = torch.cuda.mem_get_info()
    print(f"{torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    return "cuda"


def main() -> int:
    """Compare and time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--dataset", default="minesweeper", help="of node classification")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5, help="that are compared")
    parser.add_argument("--timed", type=int, default=20, help="rounds that are timed; 0: none")
    parser.add_argument("--compile", action="store_true", help="time the network through torch.compile too")
    parser.add_argument("--large", action="store_true", help="time the ogbn-arxiv stand-in too")
    arguments = parser.parse_args()
    find_package()
    from fedatlas.algorithms.registry import algorithm_type
    from fedatlas.platform.errors import DataError

    device = show_device()
    failed = False
    heading = f"{'method':10}{'data':22}{'compared':18}{'scores':>10}{'figures':>10}{'states':>10}"
    print(f"\n{heading}")
    for method in arguments.methods.split(","):
        on_nodes = "node" in algorithm_type(method).levels
        dataset = arguments.dataset if on_nodes else "mutag"
        for precision in ("float64", "float32"):
            if device == "cpu" and precision == "float64":
                continue
            try:
                exact = job(method, dataset, arguments.clients, "float64" if device == "cpu" else precision)
                other = job(method, dataset, arguments.clients, precision)
            except DataError as error:
                print(f"{method:10}{dataset:22}skipped: {str(error).splitlines()[0]}")
                break
            found = differences(
                outcome(exact, "cpu", arguments.rounds), outcome(other, device, arguments.rounds)
            )
            limits = TOLERANCES[precision]
            good = all(limit is None or value <= limit for value, limit in zip(found, limits, strict=True))
            failed |= not good
            what = f"{device} {precision}"
            row = "".join(f"{value:10.1e}" for value in found)
            verdict = "ok" if good else "TOO FAR APART"
            print(f"{method:10}{dataset:22}{what:18}{row}  {verdict}", flush=True)
    matmul = torch.backends.cuda.matmul.allow_tf32
    print(
        f"\nTF32 of matrix products: {'ON' if matmul else 'off'}; of cuDNN: {torch.backends.cudnn.allow_tf32}"
    )
    if device == "cuda" and matmul:
        failed = True
    if arguments.timed:
        time_rounds(arguments, device)
    print("\nfailed" if failed else "\nall within tolerance")
    return int(failed)


def time_rounds(arguments: argparse.Namespace, device: str) -> None:
    """Print rounds per second by method and device, float32."""
    from fedatlas.algorithms.registry import algorithm_type

    places = ["cpu"] if device == "cpu" else ["cpu", "cuda"]
    datasets = [arguments.dataset, *(["standin:ogbn-arxiv"] if arguments.large else [])]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"\nrounds per second, float32, {torch.get_num_threads()} thread(s) on the CPU")
    columns = [*places, *(f"{place} compiled" for place in places if arguments.compile)]
    print(f"{'method':10}{'data':22}" + "".join(f"{column:>16}" for column in columns))
    for dataset in datasets:
        for method in arguments.methods.split(","):
            if "node" not in algorithm_type(method).levels:
                continue
            row = ""
            for column in columns:
                work = job(method, dataset, arguments.clients, "float32")
                place = column.split()[0]
                if "compiled" in column:
                    work = compiled(work)
                row += f"{1 / seconds_per_round(work, place, arguments.timed):16.2f}"
            print(f"{method:10}{dataset:22}{row}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
