"""Rounds of one experiment of this project, measured. The argument is a JSON object.

Keys are those of an experiment; `rounds` of them are counted after `warm` (five). With `personal`, so many
rounds that the clients train by themselves are counted after the first of those.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from meter import Meter, cpu_seconds

from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import execution
from fedatlas.sweeps.experiment import experiment, resolve


def main() -> None:
    """Run and print."""
    torch.set_num_threads(1)
    values = json.loads(sys.argv[1])
    personal = values.pop("personal", 0)
    meter = Meter(values.pop("warm", 5), values["rounds"])
    resolved = resolve(experiment({**values, "rounds": meter.rounds}))
    work = execution.planned(resolved)
    federated = build(resolved.scenario())
    prepared = time.perf_counter()
    schedule = work.schedule(None, every=0)
    job = execution.job(resolved, federated)
    with execution.driver(job, resolved.experiment, schedule, lambda plan: None) as driver:
        driver.start()
        startup = time.perf_counter() - prepared
        meter.start()
        for _ in range(meter.rounds):
            record = driver.advance()
            meter.tick()
        more = {"startup": startup}
        if personal:
            driver.advance()
            before = cpu_seconds()
            for _ in range(personal):
                driver.advance()
            more["personal"] = (cpu_seconds() - before) / personal
    meter.show(record.test, **more)


if __name__ == "__main__":
    main()
