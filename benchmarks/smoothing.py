"""Time and peak memory of kernel smoothing, exact against series, as paired and interleaved runs.

    python benchmarks/smoothing.py [--nodes 1000 5000 30000] [--width 128] [--sigma 1] [--repeats 3]

Forward and backward pass of one client in float32 on one thread, with scores uniform in [-1, 1]. Every
measurement is a process of its own; in each repeat all forms run once, in turn, and ratios are taken within a
repeat. Medians are printed.

- dense: the whole kernel matrix, up to 5000 nodes.
- exact: by blocks of rows, recomputed in backward.
- series: the expansion with as many terms as its error bound asks for.
- CPU s: processor time of one forward and backward pass, the least of those that fit into two seconds.
- peak MB: largest resident size minus that with the inputs and their gradients.
- error: largest difference to float64 of z, relative to its largest entry, and of the gradient to the scores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

FORMS = ("dense", "exact", "series")
MOST_NODES = {"dense": 5000}

MEASURE = """
import json, resource, sys, time
import torch
from fedatlas.algorithms.smoothing import chunked, dense, series_terms, smooth
torch.set_num_threads(1)
given = json.loads(sys.argv[1])
form, n, width, sigma = (given[key] for key in ("form", "nodes", "width", "sigma"))
source = torch.Generator().manual_seed(0)
scores = (2 * torch.rand(1, n, generator=source) - 1).requires_grad_()
values = torch.randn(1, n, width, generator=source).requires_grad_()
c = torch.randn(1, n, width, generator=source)
nodes = torch.ones(1, n, dtype=torch.bool)
forms = {
    "dense": lambda s, h: dense(s, h, nodes, sigma),
    "exact": lambda s, h: chunked(s, h, nodes, sigma),
    "series": lambda s, h: smooth(s, h, nodes, sigma, "series"),
}

def passes(form, scores, values):
    z = forms[form](scores, values)
    return z.detach(), *torch.autograd.grad((c.to(z.dtype) * z).sum(), (scores, values))

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

held = [torch.ones_like(values) for _ in range(3)]
before = resident()
del held
found = passes(form, scores, values)
peak = resident() - before
seconds, spent = [], 0.0
while not seconds or spent < 2:
    begin = time.process_time()
    passes(form, scores, values)
    seconds.append(time.process_time() - begin)
    spent += seconds[-1]
out = {"seconds": min(seconds), "memory": peak, "terms": series_terms(sigma, 1.0, n, torch.float32)}
if n <= 5000:
    wide = [tensor.detach().double().requires_grad_() for tensor in (scores, values)]
    expected = passes("exact", *wide)
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected)]
    out.update(error=errors[0], error_scores=errors[1])
print(json.dumps(out))
"""


def measure(values: dict[str, object]) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Run all forms in turn and print medians and ratios to `exact`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 30000])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    print(f"p = {arguments.width}, sigma = {arguments.sigma:g}, {arguments.repeats} repeats")
    headings = ("CPU s", "exact / it", "peak MB", "error z", "error ds")
    print(f"{'nodes':>7} {'form':10}" + "".join(f"{heading:>11}" for heading in headings))
    every: dict[str, list[dict[str, float]]] = {}
    for nodes in arguments.nodes:
        forms = [form for form in FORMS if nodes <= MOST_NODES.get(form, nodes)]
        runs: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
        for _ in range(arguments.repeats):
            for form in forms:
                given = {"form": form, "nodes": nodes, "width": arguments.width, "sigma": arguments.sigma}
                runs[form].append(measure(given))
        for form in forms:
            pairs = zip(runs["exact"], runs[form], strict=True)
            ratio = statistics.median(exact["seconds"] / own["seconds"] for exact, own in pairs)
            median = {key: statistics.median(run[key] for run in runs[form]) for key in runs[form][0]}
            errors = [f"{median[key]:.1e}" if key in median else "-" for key in ("error", "error_scores")]
            name = f"{form} {median['terms']:.0f}" if form == "series" else form
            cells = (f"{median['seconds']:.4f}", f"{ratio:.1f}", f"{median['memory']:.0f}", *errors)
            print(f"{nodes:7d} {name:10}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
            every[f"{form}/{nodes}"] = runs[form]
    if arguments.json:
        arguments.json.write_text(json.dumps(every, indent=2))


if __name__ == "__main__":
    main()
