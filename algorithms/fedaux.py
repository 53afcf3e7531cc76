"""FedAux: averages by auxiliary projection vectors (Zhuo, Zhan, Yu: NeurIPS 2025).

Every client learns, with its network, one vector a (the APV). It puts the client's nodes on a line, along
which embeddings are smoothed, and the server compares clients by it.

Client, with h_i what the encoder hands to the classifier (after non-linearity and dropout):

    s_i = cos(h_i, a),   kappa_ij = exp(-(s_i - s_j)^2 / sigma^2)
    z_i = sum_j kappa_ij h_j / sum_j kappa_ij                        over all nodes of the client
    logits_i = Phi^T [h_i | z_i] + b,   loss = mean cross-entropy over training nodes

Server, for every uploaded tensor x (theta, Phi, b and a):

    w_kl = softmax_l( alpha cos(a_k, a_l) ),   x_k <- sum_l w_kl x_l

Choices where the paper is silent or its released code differs:

- The program that the code's README runs, and whose log scores what the paper prints, has personal masks:
  factors of all weight matrices that start at 1, are learned and never sent (see FED-PUB). The paper's text
  has none. They are the default, `masks=false` is the text. Without them all w_kl stay nearly equal, and on
  Cora, CiteSeer and PubMed the method scores as FedAvg does (docs/fedaux.md).
- The APV is mixed like everything else, as in the code. The text's equation names theta only:
  `keep_local_apv`. The APVs then drift apart, and clients take little from each other.
- The APV has norm 1: it is normalised when it is drawn, received and stepped, and has no weight decay. The
  score is a cosine, so the loss does not see the length; a step of Adam turns a short vector more. If a mean
  of APVs vanishes, the client keeps its own. `released_code` does none of this; the code draws from U(0, 1)
  (`apv_init`) and has p = 256.
- The code's proximal term is computed from detached tensors, so it changes the printed loss only: left out.
- GCN (or GraphSAGE), ReLU and dropout before the kernel, N(0, 1) for the APV, p = 128 as for other methods.
- `smoothing=sort` is what the kernel replaces: a one-dimensional convolution with `window` learned taps, the
  same for all features, over the nodes in the order of their scores. The loss then has no gradient to the
  APV, which stays as it was drawn: all w_kl are equal unless `similarity=weights`.
- The paper reads the APV as Oja's rule: for kappa near 1 the mean of kappa_ij has the gradient -(4 / sigma^2)
  Cov a. Cross-entropy need not follow it, so it is measured: `geometry/apv_alignment` is |cos(a, v)| with v
  the first eigenvector of the covariance of h_i / ||h_i|| over the client's nodes, `geometry/apv_variance` is
  a^T Cov a / v^T Cov v, and `geometry/score_spread` the standard deviation of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from fedatlas.algorithms import smoothing
from fedatlas.algorithms.backbones import Representation
from fedatlas.algorithms.backbones.backbone import linear
from fedatlas.algorithms.fedpub import MASK, masked
from fedatlas.algorithms.mixing import (
    PersonalisedAveraging,
    PersonalisedConfiguration,
    PersonalisedServer,
    cosine_similarity,
)
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import log_between
from fedatlas.algorithms.smoothing import Kernel
from fedatlas.algorithms.weight_sharing import SharedClient
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.randomness import SERVER, stream

APV = "encoder.apv"
TAPS = "encoder.taps"
SHORTEST = 1e-8
"""Length under which a vector has no direction."""
PRUNED = 0.001
"""Masks below it are 0 in evaluation, as in FED-PUB."""
POWER_STEPS = 64


class FedAuxConfiguration(PersonalisedConfiguration):
    """Defaults of FedAux."""

    sigma: float = Field(
        1.0, gt=0, description="bandwidth of the kernel", json_schema_extra=log_between(0.1, 20.0)
    )
    alpha: float = Field(
        10.0,
        ge=0,
        description="sharpness of the similarity weights",
        json_schema_extra=log_between(0.1, 20.0),
    )
    smoothing: Literal["kernel", "sort", "none"] = Field("kernel", description="how z is made; none: z = 0")
    kernel: Kernel = Field("auto", description="form of the kernel: exact, by its series, or what is faster")
    window: int = Field(5, ge=1, description="taps of the convolution of smoothing=sort")
    similarity: Literal["apv", "weights", "uniform"] = Field(
        "apv", description="what clients are compared by"
    )
    keep_local_apv: bool = Field(False, description="clients keep their APV instead of the mixed one")
    apv_init: Literal["normal", "uniform"] = Field("normal", description="APV drawn from N(0, 1) or U(0, 1)")
    masks: bool = Field(True, description="personal masks of the weight matrices, as in the released code")
    released_code: bool = Field(False, description="APV as in the released code: any length, with decay")

    @field_validator("window")
    @classmethod
    def _odd(cls, window: int) -> int:
        if window % 2 == 0:
            raise ValueError("must be odd")
        return window

    @model_validator(mode="after")
    def _sends_what_is_compared(self) -> FedAuxConfiguration:
        if self.similarity == "apv" and self.travelling == "classifier":
            raise ValueError("shared=classifier sends no APV to compare clients by: use similarity=weights")
        return self


@dataclass
class FedAuxClient(SharedClient):
    """Adds figures of the last round."""

    geometry: Mapping[str, Tensor] | None = transient()


class FedAux(PersonalisedAveraging[FedAuxConfiguration, PersonalisedServer, FedAuxClient]):
    """Kernel smoothing along a learned vector, and averaging by the similarity of these vectors.

    `alpha=0` gives every client the plain mean; with `smoothing=none` and `masks=false` it equals FedAvg.

    Shapes: encoder.apv [p], classifier.weight [2p, C], encoder.taps [window] (`smoothing=sort`), w [M, M].
    """

    name: ClassVar[str] = "fedaux"
    title: ClassVar[str] = "FedAux"
    note: ClassVar[str] = "with the personal masks of the released code; unit projection vectors"
    backbones: ClassVar[tuple[str, ...] | None] = ("gcn", "sage")
    configuration_type: ClassVar[type[MethodConfiguration]] = FedAuxConfiguration

    # Server side

    def mixing(self, server: PersonalisedServer, upload: Upload, round_number: int) -> Tensor:
        given = self.configuration
        sent = unprefixed("weights", upload.fields)
        if given.similarity == "apv":
            similarity = cosine_similarity(sent[APV])
        elif given.similarity == "weights":
            flat = [weight.flatten(1) for name, weight in sent.items() if name != APV]
            similarity = cosine_similarity(torch.cat(flat, dim=1))
        else:
            clients = len(upload.fields["size/train_nodes"])
            similarity = torch.zeros(clients, clients, dtype=torch.float64)
        return torch.softmax(given.alpha * similarity, dim=1)

    # Client side

    def initialise(self, task: Task) -> Tensors:
        given = self.configuration
        weights = {
            **super().initialise(task),
            **linear(task, "classifier", 2 * given.hidden, task.classes),
            APV: self._drawn(task),
        }
        if given.smoothing == "sort":
            weights[TAPS] = torch.full((given.window,), 1 / given.window)
        if given.masks:
            ones = {
                MASK + name: torch.ones_like(weight) for name, weight in weights.items() if weight.dim() >= 2
            }
            weights.update(ones)
        return weights

    def rates(self, name: str) -> tuple[float, float]:
        lr, weight_decay = super().rates(name)
        return (lr, 0.0) if name == APV and not self.configuration.released_code else (lr, weight_decay)

    def receive(self, client: FedAuxClient, cohort: Cohort, broadcast: Broadcast) -> None:
        own = client.weights[APV].clone()
        super().receive(client, cohort, broadcast)
        apv = client.weights[APV]
        if self.configuration.keep_local_apv:
            apv.copy_(own)
        elif not self.configuration.released_code:
            length = apv.norm(dim=1, keepdim=True)
            apv.copy_(torch.where(length < SHORTEST, own, apv / length.clamp(min=SHORTEST)))

    def stepped(self, client: FedAuxClient, cohort: Cohort) -> None:
        if not self.configuration.released_code:
            apv = client.weights[APV]
            apv.div_(apv.norm(dim=1, keepdim=True).clamp(min=SHORTEST))

    def represent(
        self, client: FedAuxClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        effective = masked(weights, PRUNED if dropout is None else 0.0)
        p, weight = self.configuration.hidden, effective["classifier.weight"]
        reads_h = {**effective, "classifier.weight": weight[:, :p]}
        representation = self.backbone.forward(reads_h, cohort, dropout)
        if self.configuration.smoothing == "none":
            return representation
        hidden = self._hidden(representation, dropout)
        logits = representation.logits + torch.bmm(self._smoothed(cohort, hidden, effective), weight[:, p:])
        return Representation(logits, representation.embedding)

    def own_upload(self, client: FedAuxClient, cohort: Cohort, round_number: int) -> Tensors:
        """Evaluate once: the logits serve `predict`, the embeddings the figures."""
        with torch.no_grad():
            representation = self.represent(client, cohort, client.weights, None)
            hidden = self._hidden(representation, None)
            client.geometry = alignment(unit(hidden), client.weights[APV], cohort.nodes)
        client.logits = representation.logits
        return {}

    def own_metrics(self, client: FedAuxClient) -> Tensors:
        return dict(client.geometry or {})

    def snapshot(self, client: FedAuxClient, cohort: Cohort) -> dict[str, Tensor]:
        """`apv` [k, p], `scores` [k, n] and `predicted` [k, n]."""
        representation = self.represent(client, cohort, client.weights, None)
        hidden = self._hidden(representation, None)
        return {
            "apv": client.weights[APV],
            "scores": cosines(hidden, client.weights[APV]),
            "predicted": representation.logits.argmax(dim=2),
        }

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedAuxClient:
        return FedAuxClient(weights, optimizer)

    def _drawn(self, task: Task) -> Tensor:
        source = stream(task.seed, SERVER, -1, f"init/{APV}")
        size = self.configuration.hidden
        draw = (
            source.random(size) if self.configuration.apv_init == "uniform" else source.standard_normal(size)
        )
        apv = torch.from_numpy(draw.astype(np.float32))
        return apv if self.configuration.released_code else apv / apv.norm().clamp(min=SHORTEST)

    def _hidden(self, representation: Representation, dropout: Dropout | None) -> Tensor:
        """What the classifier reads; the mask is that of the backbone, so h is the same in both places."""
        hidden = self.backbone.act(representation.embedding)
        return hidden if dropout is None else dropout.apply("hidden.1", hidden, self.configuration.dropout)

    def _smoothed(self, cohort: Cohort, hidden: Tensor, weights: Tensors) -> Tensor:
        given = self.configuration
        scores = cosines(hidden, weights[APV])
        if given.smoothing == "sort":
            return smoothing.window(scores, hidden, cohort.nodes, weights[TAPS])
        return smoothing.smooth(scores, hidden, cohort.nodes, given.sigma, given.kernel)


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis; zero, with zero gradient, where there is no direction."""
    length = vectors.norm(dim=-1, keepdim=True)
    directions: Tensor = vectors / length.masked_fill(length < SHORTEST, torch.inf)
    return directions


def cosines(hidden: Tensor, apv: Tensor) -> Tensor:
    """Scores s_i = cos(h_i, a), [k, n] from [k, n, p] and [k, p]; 0 for a zero row."""
    return torch.bmm(unit(hidden), unit(apv)[..., None])[..., 0]


def alignment(directions: Tensor, apv: Tensor, nodes: Tensor) -> Tensors:
    """How close the APV is to the first principal axis of each client's directions.

    The axis comes from `POWER_STEPS` power iterations. Both figures are 0 where all directions are equal.

    Shapes:
        directions: h / ||h||, [k, n, p]; apv: [k, p]; nodes: bool [k, n]; figures: [k].
    """
    present = nodes[..., None].to(directions.dtype)
    count = present.sum(dim=1, keepdim=True)
    mean = (directions * present).sum(dim=1, keepdim=True) / count
    centred = (directions - mean) * present
    covariance = torch.bmm(centred.transpose(1, 2), centred) / count
    highest, start = covariance.diagonal(dim1=1, dim2=2).max(dim=1)
    scaled = covariance / highest.masked_fill(highest < SHORTEST**2, torch.inf)[:, None, None]
    axis = scaled[torch.arange(len(start), device=start.device), start][..., None]
    for _ in range(POWER_STEPS):
        axis = unit(torch.bmm(scaled, axis)[..., 0])[..., None]
    vector = unit(apv)[..., None]
    largest = (axis * torch.bmm(covariance, axis)).sum(dim=(1, 2))
    along = (vector * torch.bmm(covariance, vector)).sum(dim=(1, 2))
    return {
        "geometry/apv_alignment": (axis * vector).sum(dim=(1, 2)).abs(),
        "geometry/apv_variance": along / largest.masked_fill(largest <= 0, torch.inf),
        "geometry/score_spread": along.clamp(min=0).sqrt(),
    }
