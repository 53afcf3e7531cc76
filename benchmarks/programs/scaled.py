"""Rounds on a stand-in of ogbn-arxiv of any size, in this process, measured. The argument is a JSON object.

Keys: `nodes`, `clients`, `method`, `options`, `warm` and `rounds`.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from meter import Meter

from fedatlas.algorithms.presets import preset
from fedatlas.algorithms.registry import algorithm_type, create
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.runtime import InlineRuntime, Job
from fedatlas.platform.graphs.federated import divide
from fedatlas.platform.graphs.partition import partition
from fedatlas.platform.graphs.splits import random_split
from fedatlas.platform.graphs.standins import generate

NAME = "standin:ogbn-arxiv"


def main() -> None:
    """Run and print."""
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    graph = generate(NAME, nodes=given["nodes"])
    parts = partition(graph, "metis", given["clients"])
    split = random_split(graph.nodes, 0.2, 0.4, 0)
    federated = divide(graph, parts, split, sha256="", allow_untrained=True)
    del graph
    task = Task(given["clients"], federated.features, federated.classes, federated.metric, seed=0)
    known = algorithm_type(given["method"]).configuration_type.model_fields
    tuned = {key: value for key, value in preset(given["method"], NAME).items() if key in known}
    method = create(given["method"], None, {**tuned, "epochs": 1, **given["options"]})
    coordinator = Coordinator(
        Job(method, federated.clients, task), InlineRuntime(), Schedule(1_000_000, checkpoint_every=0)
    )
    prepared = time.process_time()
    coordinator.start()
    meter = Meter(given["warm"], given["rounds"])
    meter.start()
    for number in range(meter.rounds):
        record = coordinator.advance()
        if number == 0:
            # Operators are built in the first round that uses them.
            setup = time.process_time() - prepared
        meter.tick()
    edges = sum(client.edges.shape[1] for client in federated.clients)
    largest = max(client.size for client in federated.clients)
    padded = largest * given["clients"] / sum(client.size for client in federated.clients)
    meter.show(float(np.nan_to_num(record.test)), setup=setup, edges=edges, padded=padded)


if __name__ == "__main__":
    main()
