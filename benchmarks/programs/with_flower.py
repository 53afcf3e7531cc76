"""FedAvg of Flower in its Ray simulation.

    python with_flower.py FILE [--rounds 40] [--fresh]

One client app call a round trains and scores, so that each round is one exchange. A client's Adam moments
live in its context, which is where Flower keeps a client's state; with ``--fresh`` a client starts each round
with new moments, as Flower's tutorials do, which is less work and another algorithm.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from federation import network, read
from flower_client import app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from meter import Meter


class Timed(FedAvg):
    """FedAvg with a clock."""

    meter: Meter
    score: float

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(failed[0])
        found = [reply.content["metrics"]["test"] for reply in replies]
        self.score = float(np.nanmean(found))
        result = super().aggregate_train(server_round, replies)
        self.meter.tick()
        return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--cpus", type=float, default=1.0, help="of each worker process")
    parser.add_argument("--fresh", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PEERS_FILE"] = str(arguments.file.absolute())
    os.environ["PEERS_DROPOUT"] = str(arguments.dropout)
    os.environ["PEERS_FRESH"] = str(int(arguments.fresh))
    held = read(arguments.file)
    clients = len(held.clients)
    meter = Meter(arguments.warm, arguments.rounds)
    server = ServerApp()
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.meter = meter

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        meter.start()
        strategy.start(grid, ArrayRecord(network(held, 0.0, cached=False).state_dict()), meter.rounds)

    run_simulation(
        server,
        app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": arguments.cpus, "num_gpus": 0.0}},
    )
    meter.show(strategy.score)


if __name__ == "__main__":
    main()
