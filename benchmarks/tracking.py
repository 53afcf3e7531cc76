"""Share of a trial's time that tracking takes, with the default store (sqlite in a results folder).

    python benchmarks/tracking.py [--dataset minesweeper] [--clients 10] [--algorithm fedgmc] [--rounds 100]

One run in this process. Everything that writes is timed: opening the run, batches of figures, files, closing.
In a study the driver does this while the trials' own processes go on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fedatlas.platform.tracking.destination import RESULTS_VARIABLE, URI_VARIABLE
from fedatlas.platform.tracking.tracker import Tracker
from fedatlas.sweeps import run


def timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The same call, whose duration is noted."""

    def measure(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - begin)

    return measure


def main() -> None:
    """Run, and print the share."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", default="minesweeper")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--algorithm", default="fedgmc")
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    spent: list[float] = []
    os.environ.pop(URI_VARIABLE, None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[RESULTS_VARIABLE] = folder
        # A study makes its store and imports MLflow once, for all its trials.
        Tracker(print)
        for name in ("open", "points", "file", "close"):
            setattr(Tracker, name, timed(getattr(Tracker, name), spent))
        begin = time.perf_counter()
        run(
            chosen.dataset,
            chosen.clients,
            chosen.algorithm,
            rounds=chosen.rounds,
            placement="inline",
            progress=False,
        )
        whole = time.perf_counter() - begin
    print(
        f"{chosen.algorithm} on {chosen.dataset}, {chosen.clients} clients, {chosen.rounds} rounds: "
        f"{whole:.2f} s, of which tracking {sum(spent):.2f} s in {len(spent)} calls: "
        f"{100 * sum(spent) / whole:.1f} %"
    )


if __name__ == "__main__":
    main()
