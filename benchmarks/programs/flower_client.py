"""The client app of `with_flower.py`. Ray's workers import it, so that what it keeps stays with a worker."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from federation import GCN, LR, WEIGHT_DECAY, Federation, network, read, scores, step
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@cache
def client(path: str, number: int) -> tuple[Federation, GCN]:
    """A client's data and network, kept in the worker process that has seen it."""
    held = read(Path(path), number)
    return held, network(held, float(os.environ["PEERS_DROPOUT"]), cached=True)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Receive, train one epoch, score."""
    torch.set_num_threads(1)
    held, model = client(os.environ["PEERS_FILE"], int(context.node_config["partition-id"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    keep = os.environ["PEERS_FRESH"] == "0"
    if keep and "moments" in context.state:
        load(optimizer, context.state["moments"].to_torch_state_dict())
    step(model, optimizer, held.clients[0])
    validation, test = scores(model, held.clients[0], held.metric)
    if keep:
        context.state["moments"] = ArrayRecord(moments(optimizer))
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"validation": validation, "test": test, "num-examples": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def moments(optimizer: torch.optim.Adam) -> dict[str, torch.Tensor]:
    """State of Adam by name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, part in state.items() for name, value in part.items()}


def load(optimizer: torch.optim.Adam, held: dict[str, torch.Tensor]) -> None:
    """Inverse of `moments`."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in held.items():
        number, name = key.split("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
