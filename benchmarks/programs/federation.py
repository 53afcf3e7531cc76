"""The clients, the network and the scores that all peers share; needs torch and PyG only.

`peers.py` writes the federation that this project has made to a file, and the peers train on exactly these
clients, from the same initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

LR, WEIGHT_DECAY = 0.01, 1e-6


@dataclass(frozen=True)
class Federation:
    """What a file of `peers.py` holds.

    Attributes:
        clients: graphs with dense `x`, `edge_index`, `y` and the masks `train`, `validation` and `test`.
        classes: number of classes C.
        metric: accuracy or auc.
        initial: weights of `GCN`, by name.
    """

    clients: tuple[Data, ...]
    classes: int
    metric: str
    initial: dict[str, Tensor]


def read(path: Path, only: int | None = None) -> Federation:
    """Read a file.

    Args:
        path: file of `peers.py`.
        only: the one client to read; None: all.
    """
    held = np.load(path, allow_pickle=False)
    chosen = range(int(held["clients"])) if only is None else [only]
    return Federation(
        clients=tuple(_client(held, client) for client in chosen),
        classes=int(held["classes"]),
        metric=str(held["metric"]),
        initial={
            name.removeprefix("initial/"): torch.from_numpy(held[name])
            for name in held.files
            if name.startswith("initial/")
        },
    )


def _client(held: np.lib.npyio.NpzFile, client: int) -> Data:
    def part(name: str) -> Tensor:
        return torch.from_numpy(held[f"{client}/{name}"])

    x = torch.zeros(*held[f"{client}/shape"].tolist())
    x[part("rows"), part("columns")] = part("values")
    return Data(
        x=x,
        edge_index=part("edges"),
        y=part("labels"),
        train=part("train"),
        validation=part("validation"),
        test=part("test"),
    )


class GCN(torch.nn.Module):
    """conv(f -> p), relu, dropout, conv(p -> p), relu, dropout, linear(p -> C), as this project's `gcn`.

    Args:
        features, hidden, classes: f, p and C.
        dropout: probability of dropping a hidden entry.
        cached: keep the normalised adjacency between calls.
    """

    def __init__(
        self, features: int, hidden: int, classes: int, dropout: float = 0.5, cached: bool = True
    ) -> None:
        super().__init__()
        self.first = GCNConv(features, hidden, cached=cached)
        self.second = GCNConv(hidden, hidden, cached=cached)
        self.classifier = torch.nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Embedding [n, p] and logits [n, C]."""
        hidden = self.first(data.x, data.edge_index).relu()
        hidden = torch.nn.functional.dropout(hidden, self.dropout, self.training)
        embedding = self.second(hidden, data.edge_index)
        hidden = torch.nn.functional.dropout(embedding.relu(), self.dropout, self.training)
        return embedding, self.classifier(hidden)


def network(held: Federation, dropout: float, cached: bool) -> GCN:
    """A network with the initial weights."""
    features, hidden = held.initial["first.lin.weight"].shape[::-1]
    model = GCN(int(features), int(hidden), held.classes, dropout, cached)
    model.load_state_dict(held.initial)
    return model


def step(model: GCN, optimizer: torch.optim.Optimizer, data: Data) -> None:
    """One local epoch on the full graph."""
    model.train()
    optimizer.zero_grad()
    _, logits = model(data)
    torch.nn.functional.cross_entropy(logits[data.train], data.y[data.train]).backward()
    optimizer.step()


@torch.no_grad()
def scores(model: GCN, data: Data, metric: str) -> tuple[float, float]:
    """Validation and test score of one client after one forward pass; NaN where undefined."""
    model.eval()
    _, logits = model(data)
    return _score(logits, data.y, data.validation, metric), _score(logits, data.y, data.test, metric)


def _score(logits: Tensor, labels: Tensor, mask: Tensor, metric: str) -> float:
    truth = labels[mask]
    if metric == "accuracy":
        return float((logits[mask].argmax(dim=1) == truth).float().mean())
    if len(truth.unique()) < 2:
        return float("nan")
    margin = logits[mask, 1] - logits[mask, 0]
    return float(roc_auc_score(truth.numpy(), margin.numpy()))
