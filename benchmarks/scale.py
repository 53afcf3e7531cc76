"""Seconds per round and memory as graphs and federations grow, in one process on one thread.

    python benchmarks/scale.py [--methods fedavg,fedaux] [--part full] [--rounds 3] [--write]

The graph is the stand-in of ogbn-arxiv, at its full size (169,343 nodes) and at smaller ones of the same
mean degree, divided by METIS; options are those of each method's preset, with one local epoch. FedGMC keeps
at most 32 two-hop neighbours of a node (`second_hop_limit`), `fedgmc:exact` all. Each run has a process
of its own. `--part full,nodes,clients` chooses:

- full: 5 and 20 clients on the whole stand-in;
- nodes: 10 clients, 1,000 nodes and up;
- clients: 5 to 1,000 clients on 16,000 nodes.

CPU s/round is the mean over `--rounds` rounds (more on small graphs) after one that is not counted; peak MB
is the largest proportional set size of the process, data included. The slope is that of log CPU seconds over
log nodes or log clients, over the last two points: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import document
from processes import run

PROGRAM = Path(__file__).resolve().parent / "programs" / "scaled.py"
PICTURE = document.ROOT / "docs" / "pictures" / "scale.svg"
FULL = 169_343
MIDDLE = 16_000
NODES = (1_000, 4_000, MIDDLE, 50_000, FULL)
EXACT = 50_000
"""Largest graph on which all two-hop neighbours are kept: of the whole stand-in they need tens of GB."""
CLIENTS = (5, 20, 100, 400, 1_000)
OPTIONS: dict[str, dict[str, object]] = {"fedgmc": {"second_hop_limit": 32}, "fedgmc:exact": {}}
TITLES = {"fedavg": "FedAvg", "fedgmc": "FedGMC", "fedaux": "FedAux", "fedpub": "FED-PUB"}


def title(method: str) -> str:
    """Name in tables."""
    name, _, kind = method.partition(":")
    return TITLES.get(name, name) + (f" ({kind} rings)" if kind else "")


def measure(method: str, nodes: int, clients: int, rounds: int, known: dict[str, dict[str, float]]) -> None:
    """One run in a process of its own, unless it has been measured."""
    key = f"{method}/{nodes}/{clients}"
    if key in known:
        return
    values = {
        "method": method.partition(":")[0],
        "nodes": nodes,
        "clients": clients,
        "options": OPTIONS.get(method, {}),
        "warm": 1,
        # CPU time comes in steps of 10 ms.
        "rounds": max(rounds, min(50, 200_000 // nodes)),
    }
    try:
        known[key] = run([sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(values)])
    except SystemExit as error:
        print(f"# {key}: {error}", file=sys.stderr)
        return
    found = known[key]
    print(f"# {key}: {found['cpu']:.3f} CPU s/round, {found['memory']:.0f} MB", file=sys.stderr, flush=True)


def slope(points: list[tuple[int, float]]) -> str:
    """Slope between the last two points in log-log."""
    if len(points) < 2:
        return ""
    (x0, y0), (x1, y1) = points[-2:]
    return f"{math.log(y1 / y0) / math.log(x1 / x0):.2f}"


def growth(
    methods: list[str], sizes: tuple[int, ...], key: str, known: dict[str, dict[str, float]], figure: str
) -> list[list[str]]:
    """Rows of one figure over the sizes; `key` has `{}` for the size."""
    rows = []
    for method in methods:
        found = {size: known.get(f"{method}/{key.format(size)}") for size in sizes}
        points = [(size, values[figure]) for size, values in found.items() if values]
        cells = [_cell(values and values[figure], figure) for values in found.values()]
        if points:
            rows.append([title(method), *cells, slope(points)])
    return rows


def _cell(value: float | None, figure: str) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if figure == "memory" else f"{value:.3f}"


def draw(methods: list[str], known: dict[str, dict[str, float]]) -> None:
    """Plot CPU seconds per round over nodes and over clients."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scale", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    parts = ((NODES, "{}/10", "nodes, 10 clients"), (CLIENTS, f"{MIDDLE}/{{}}", f"clients, {MIDDLE:,} nodes"))
    for axis, (sizes, key, label) in zip(axes, parts, strict=True):
        for method in methods:
            found = [(size, known.get(f"{method}/{key.format(size)}")) for size in sizes]
            points = [(size, values["cpu"]) for size, values in found if values]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=title(method))
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="CPU s per round")
        axis.grid(which="major", alpha=0.3)
    low, high = axes[0].get_ylim()
    axes[0].plot([NODES[1], NODES[-1]], [low * 2, low * 2 * NODES[-1] / NODES[1]], "k:", label="linear")
    axes[0].set_ylim(low, high)
    axes[0].legend(fontsize=8)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None, "Creator": None})
    text = PICTURE.read_text(encoding="utf-8")
    what = "CPU seconds per round over nodes and over clients, both axes logarithmic"
    PICTURE.write_text(text.replace("<svg ", f'<svg role="img" aria-label="{what}" ', 1), encoding="utf-8")


def tables(methods: list[str], known: dict[str, dict[str, float]]) -> list[str]:
    """Markdown of everything that has been measured."""
    full = []
    for method in methods:
        cells = [title(method)]
        for clients in (5, 20):
            found = known.get(f"{method}/{FULL}/{clients}")
            for figure in ("cpu", "wall", "memory"):
                cells.append(_cell(found and found[figure], figure))
        if any(cells[1:]):
            full.append(cells)
    headings = [f"{what}, {count} clients" for count in (5, 20) for what in ("CPU s", "wall s", "peak MB")]
    made = [f"{FULL:,} nodes, per round:", document.table(["", *headings], full)]
    for sizes, key, what in (
        (NODES, "{}/10", "10 clients, by nodes"),
        (CLIENTS, f"{MIDDLE}/{{}}", f"{MIDDLE:,} nodes, by clients"),
    ):
        for figure, name in (("cpu", "CPU s/round"), ("memory", "peak MB")):
            headings = [name, *(f"{size:,}" for size in sizes), "slope"]
            made += [f"{what}:", document.table(headings, growth(methods, sizes, key, known, figure))]
    return made


def main() -> None:
    """Measure, print, and write the section and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="fedavg,fedgmc,fedaux,fedpub,fedgmc:exact")
    parser.add_argument("--part", default="full,nodes,clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="keep figures in this file, and take those that it has")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and the picture")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    known: dict[str, dict[str, float]] = {}
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
    wanted = {
        "nodes": [(nodes, 10) for nodes in NODES],
        "clients": [(MIDDLE, clients) for clients in CLIENTS],
        "full": [(FULL, 5), (FULL, 20)],
    }
    for part, places in wanted.items():
        if part not in arguments.part.split(","):
            continue
        for nodes, clients in places:
            for method in methods:
                if not (method == "fedgmc:exact" and nodes > EXACT):
                    measure(method, nodes, clients, arguments.rounds, known)
                    if arguments.json:
                        arguments.json.write_text(json.dumps(known, indent=1))
    made = tables(methods, known)
    print("\n".join(made))
    if arguments.write:
        draw(methods, known)
        words = [word for word in sys.argv[1:] if not word.endswith(".json") and word != "--json"]
        top = [f"```\npython {' '.join(['benchmarks/scale.py', *words])}\n```"]
        top.append(document.stamp(f"torch {version('torch')}"))
        picture = "![CPU seconds per round over nodes and over clients](pictures/scale.svg)"
        document.replace("scale", "\n\n".join([*top, *made, picture]))


if __name__ == "__main__":
    main()
