"""FedAvg of OpenFGL (`openfgl-lib` on PyPI), driven by its own trainer.

    python with_openfgl.py FILE [--rounds 40]

Its data set is replaced by the clients of the file, and its files of splits by theirs; its clients, its
server, its task and its trainer are untouched, but for the clock. The network is given through
`load_custom_model`; its layers do not keep the normalised adjacency, as OpenFGL's own do not. OpenFGL also
scores the training nodes, computes three losses and weights the means by nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from federation import LR, WEIGHT_DECAY, network, read
from meter import Meter
from openfgl import config
from openfgl.flcore import trainer as openfgl
from torch_geometric.data import Data

SPLIT = "0.2-0.4-0.4"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--dropout", type=float, default=0.5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    held = read(arguments.file)
    given = config.args
    given.use_cuda = False
    given.dataset, given.model, given.metrics = ["Cora"], ["gcn"], ["accuracy"]
    given.fl_algorithm, given.num_clients = "fedavg", len(held.clients)
    given.num_epochs, given.lr, given.weight_decay = 1, LR, WEIGHT_DECAY
    given.hid_dim, given.dropout = held.initial["first.bias"].numel(), arguments.dropout
    given.train_val_test = SPLIT
    meter = Meter(arguments.warm, arguments.rounds)
    given.num_rounds = meter.rounds
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        write_split(held.clients, Path(folder))
        local = [whole([data], held.classes) for data in held.clients]
        openfgl.FGLDataset = lambda _: SimpleNamespace(
            local_data=local, global_data=whole(held.clients, held.classes), processed_dir=folder
        )
        with contextlib.redirect_stdout(nowhere):
            trained = openfgl.FGLTrainer(given)
            for party in (*trained.clients, trained.server):
                party.task.load_custom_model(network(held, arguments.dropout, cached=False))
            evaluate = trained.evaluate

            def timed() -> None:
                evaluate()
                meter.tick()

            trained.evaluate = timed
            meter.start()
            trained.train()
            last = [client.task.evaluate(mute=True)["accuracy_test"] for client in trained.clients]
    meter.show(float(np.nanmean(last)))


def whole(clients: tuple[Data, ...] | list[Data], classes: int) -> Data:
    """The clients side by side, as OpenFGL's data objects are."""
    offsets = np.cumsum([0, *(data.num_nodes for data in clients)])
    return Data(
        x=torch.cat([data.x for data in clients]),
        y=torch.cat([data.y for data in clients]),
        edge_index=torch.cat(
            [data.edge_index + int(offset) for data, offset in zip(clients, offsets, strict=False)], dim=1
        ),
        num_global_classes=classes,
    )


def write_split(clients: tuple[Data, ...], folder: Path) -> None:
    """Files of roles that OpenFGL reads instead of drawing a split."""
    place = folder / "node_cls" / f"split_{SPLIT}"
    place.mkdir(parents=True)
    offset = 0
    for number, data in enumerate(clients):
        for short, name in {"train": "train", "val": "validation", "test": "test"}.items():
            torch.save(data[name], place / f"{short}_{number}.pt")
            ids = (offset + data[name].nonzero()[:, 0]).tolist()
            (place / f"glb_{short}_{number}.pkl").write_bytes(pickle.dumps(ids))
        offset += data.num_nodes


if __name__ == "__main__":
    main()
