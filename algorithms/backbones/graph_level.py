"""What the backbones of graph classification share: private ends around a shared encoder, and a readout."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import Backbone, Representation, affine, linear, uniform
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.unions import Union
from fedatlas.platform.graphs.graph import Features, Level

Readout = Literal["mean", "sum"]
INPUT = "private.input"
CLASSIFIER = "private.classifier"


@dataclass(frozen=True)
class GraphBackbone(Backbone):
    """x = X W_in + b, encoder, readout over the nodes of each graph, linear(p -> C).

    The input projection and the classifier are private (``private.*``): clients may have features of other
    widths and other classes. Both are padded to the task's; `fitted` gives each client's part the initial
    weights that its own width asks for, and what a client does not have stays at zero.

    Attributes:
        layers: layers of the encoder.
        readout: mean or sum over the nodes of a graph.
    """

    levels: ClassVar[tuple[Level, ...]] = ("graph",)

    layers: int = 3
    readout: Readout = "mean"

    def initialise(self, task: Task) -> Tensors:
        return {
            **projection(task, self.hidden),
            **self._initial_encoder(task),
            **linear(task, CLASSIFIER, self.hidden, task.classes),
        }

    def fitted(self, weights: Tensors, cohort: Cohort) -> Tensors:
        """Initial weights [k, ...] of clients with f_m features and C_m classes.

        The projection is divided by the root mean square length of the client's feature rows, so that
        projected entries have variance 1 whether features are one-hot or not.
        """
        lengths = torch.tensor([_row_length(own.features) for own in cohort.unions], device=cohort.device)
        widths = torch.tensor([own.features.shape[1] for own in cohort.unions], device=cohort.device)
        held = torch.arange(cohort.task.features, device=cohort.device) < widths[:, None]
        weight = weights[f"{INPUT}.weight"] / lengths.to(cohort.dtype)[:, None, None] * held[..., None]
        out = {**weights, f"{INPUT}.weight": weight}
        if cohort.own_classes is not None:
            own = cohort.own_classes
            out[f"{CLASSIFIER}.weight"] = weights[f"{CLASSIFIER}.weight"] * own[:, None, :]
            out[f"{CLASSIFIER}.bias"] = weights[f"{CLASSIFIER}.bias"] * own
        return out

    def forward(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Representation:
        projected = cohort.project(weights[f"{INPUT}.weight"], dropout, self.input_dropout)
        nodes = self._encode(projected + weights[f"{INPUT}.bias"][:, None, :], weights, cohort, dropout)
        embedding = self._read(self.pool(nodes, cohort), weights)
        return classified(embedding, weights, cohort, self._drop_items("readout", embedding, cohort, dropout))

    def pool(self, nodes: Tensor, cohort: Cohort) -> Tensor:
        """Readout of each graph: [k, n, p] -> [k, g, p]."""
        graphs = union_of(cohort)
        return graphs.averaged(nodes) if self.readout == "mean" else graphs.summed(nodes)

    @abstractmethod
    def _initial_encoder(self, task: Task) -> Tensors:
        """Initial weights between the input projection and the classifier."""

    @abstractmethod
    def _encode(self, nodes: Tensor, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Tensor:
        """Nodes [k, n, p] after the layers of the encoder."""

    def _read(self, pooled: Tensor, weights: Tensors) -> Tensor:
        """What the classifier reads, from the readout [k, g, p]."""
        return pooled

    def _drop_items(self, purpose: str, values: Tensor, cohort: Cohort, dropout: Dropout | None) -> Tensor:
        if dropout is None:
            return values
        sizes = [len(ids) for ids in union_of(cohort).chosen]
        return dropout.apply(purpose, values, self.dropout, sizes)


def projection(task: Task, hidden: int) -> Tensors:
    """Initial input projection for rows of length 1: U(-sqrt(3), sqrt(3)), of variance 1, and zero bias.

    With the usual U(-1/sqrt(f), 1/sqrt(f)), one-hot features leave all nodes close to each other and the
    published rate of SGD moves little; docs/graph-classification.md has figures.
    """
    weight = uniform(task, f"{INPUT}.weight", (task.features, hidden), math.sqrt(3.0))
    return {f"{INPUT}.weight": weight, f"{INPUT}.bias": torch.zeros(hidden)}


def _row_length(features: Features) -> float:
    """Root mean square length of the rows; 1 if all are zero."""
    values = features if isinstance(features, np.ndarray) else features.data
    mean = float(np.square(values, dtype=np.float64).sum()) / features.shape[0]
    return math.sqrt(mean) if mean > 0 else 1.0


def union_of(cohort: Cohort) -> Union:
    """The stacked graphs of a batch.

    Raises:
        ValueError: the cohort is no batch of graphs.
    """
    if cohort.union is None:
        raise ValueError(
            "a backbone of graph classification needs a batch: see fedatlas.platform.federation.batching"
        )
    return cohort.union


def classified(
    embedding: Tensor, weights: Tensors, cohort: Cohort, read: Tensor | None = None
) -> Representation:
    """Representation of graphs [k, g, p] with the logits of the private classifier.

    Args:
        embedding: representation of each graph.
        weights: stacked weights.
        cohort: a batch.
        read: what the classifier reads, `embedding` with dropout.
    """
    logits = affine(embedding if read is None else read, weights, CLASSIFIER)
    return Representation(cohort.own_logits(logits), embedding)
