"""FedAvg as a plain loop over the clients, one after the other, with PyG's layers.

    python loop.py FILE [--rounds 40] [--dropout 0.5]

Every client has its network and its Adam. A round copies the mean weights into each client, trains it for one
epoch on its full graph and scores it on its validation and test nodes, then takes the mean of the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from federation import LR, WEIGHT_DECAY, Federation, network, read, scores, step
from meter import Meter


def rounds(held: Federation, dropout: float) -> Iterator[list[tuple[float, float]]]:
    """Validation and test score of every client, round after round."""
    models = [network(held, dropout, cached=True) for _ in held.clients]
    optimizers = [torch.optim.Adam(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY) for model in models]
    shared = {name: value.clone() for name, value in models[0].state_dict().items()}
    while True:
        found = []
        for model, optimizer, data in zip(models, optimizers, held.clients, strict=True):
            model.load_state_dict(shared)
            step(model, optimizer, data)
            found.append(scores(model, data, held.metric))
        states = [model.state_dict() for model in models]
        shared = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in shared}
        yield found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--dropout", type=float, default=0.5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loop = rounds(read(arguments.file), arguments.dropout)
    meter = Meter(arguments.warm, arguments.rounds)
    meter.start()
    for _ in range(meter.rounds):
        found = next(loop)
        meter.tick()
    meter.show(float(np.nanmean([test for _, test in found])))


if __name__ == "__main__":
    main()
