"""AdaFGL: a federated knowledge extractor, then personalised propagation (Li et al., ICDE 2024).

Phase 1 is FedAvg. Its result, the extractor, gives every client probabilities P^ [n, C]. Phase 2 runs on the
clients alone (`personal_propagation`): label propagation tells how homophilous the client looks (HCS), nodes
with nearly the same prediction are joined to the graph, and a homophilous and a heterophilous module are
trained together,

    L_ho = CE(H_k) + mean (H_k - P^)^2,   L_he = CE(H_f) + CE(H_s) + CE(M_p),
    Y    = HCS Y_ho + (1 - HCS) Y_he.

Choices where paper and public codes differ or are silent:

- The extractor is the aggregate with the best validation score (official code: node-weighted, here in the
  task's metric); ``last`` is the last aggregate (paper). Clients score what they receive and send the score;
  the server says with the next broadcast whether it was the best so far, and the clients keep their
  probabilities. The initial weights are no candidate, and the last aggregate is one only if nothing else is.
- Modules are combined softly (paper); ``hard`` uses one of them, by HCS >= `switch` (official code).
- The most repelled nodes are the least similar ones; ``official`` inverts that order.
- The signed matrix has its diagonal set to 1; S_b is bounded per node (`similar_most`), since in two classes
  with undecided predictions it would join everyone.
- Every perceptron has one slope of its own; the official heterophilous module shares some.
- A client without training nodes keeps the predictions of the extractor.

No n x n matrix is held: S_b is sparse, and similarities are formed in blocks of rows, twice per epoch. Time
is still quadratic in a client's nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import ClientWeights
from fedatlas.algorithms.features import dense_features
from fedatlas.algorithms.optimizer import AdamState, adam_step
from fedatlas.algorithms.personal_propagation import (
    Evidence,
    NegativeScale,
    PropagationModules,
    SimilarPairs,
    combined,
    homophily_confidence,
    optimised_operator,
    similar_predictions,
    smoothed_features,
)
from fedatlas.algorithms.search_spaces import between, log_between
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
    cross_entropy,
)
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import LocalUpdate, MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Ragged, Tensors, Upload
from fedatlas.platform.federation.scores import client_mean, evaluate
from fedatlas.platform.federation.state import transient


class AdaFGLConfiguration(WeightSharingConfiguration):
    """Published defaults of the personal phase."""

    client_weights: ClientWeights = Field("nodes", description="weights of clients in the aggregation")
    extractor: Literal["best", "last"] = Field("best", description="which aggregate phase 2 builds on")
    personal_epochs: int = Field(200, ge=1, description="epochs of phase 2")
    personal_epochs_per_round: int = Field(1, ge=1, description="of these between two evaluations")
    personal_hidden: int = Field(64, ge=1, description="hidden width of the modules")
    personal_dropout: float = Field(0.5, ge=0, lt=1, description="dropout in the modules")
    personal_lr: float = Field(
        0.01, gt=0, description="learning rate of phase 2", json_schema_extra=log_between(0.001, 0.1)
    )
    personal_weight_decay: float = Field(5e-4, ge=0, description="weight decay of phase 2")
    smoothing_steps: int = Field(3, ge=0, le=16, description="propagation steps of smoothed features")
    label_steps: int = Field(10, ge=1, description="steps of label propagation")
    kappa: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the neighbours in label propagation",
        json_schema_extra=between(0.1, 0.9),
    )
    alpha: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the given graph in the optimised one",
        json_schema_extra=between(0.05, 0.95),
    )
    beta: float = Field(
        0.2, ge=0, le=1, description="share of S_b in signed propagation", json_schema_extra=between(0.1, 0.9)
    )
    similar_threshold: float = Field(0.999, ge=0, lt=1, description="cosine above which nodes are joined")
    similar_most: int | None = Field(50, ge=1, description="bound on nodes joined to a node; none: no bound")
    negative_scale: NegativeScale = Field("ours", description="scale of negative similarities")
    combine: Literal["soft", "hard"] = Field("soft", description="how HCS combines the modules")
    switch: float = Field(0.9, ge=0, le=1, description="HCS from which on a client counts as homophilous")


@dataclass
class AdaFGLServer(SharedServer):
    """Adds the best validation score of an aggregate, and whether the one sent last had it."""

    best: float = -1.0
    improved: bool = False


@dataclass
class AdaFGLClient(SharedClient):
    """Adds both phases' results of each client.

    Attributes:
        candidate: probabilities of the aggregate received last, [n_m, C] of each client.
        extractor: probabilities P^ of the extractor, [n_m, C]; empty tensors while there is none.
        modules: weights of phase 2, [k, ...]; empty before it.
        personal_optimizer: their Adam moments.
        received: validation score of the aggregate received last and number of nodes that it counts, [k].
        evidence: what phase 2 computes once from P^.
    """

    candidate: Ragged = ()
    extractor: Ragged = ()
    modules: Tensors = field(default_factory=dict)
    personal_optimizer: AdamState = field(default_factory=AdamState)
    received: tuple[Tensor, Tensor] | None = transient()
    evidence: Evidence | None = transient()
    products: Tensors | None = transient()


class AdaFGL(WeightSharing[AdaFGLConfiguration, AdaFGLServer, AdaFGLClient]):
    """FedAvg, then `personal_epochs` epochs on each client, without messages.

    Uploads per client and round: weights, two counts and, if the extractor is the best aggregate, its score
    and the number of nodes that it counts. Personal rounds follow the federated ones as rounds of their own.
    """

    name: ClassVar[str] = "adafgl"
    title: ClassVar[str] = "AdaFGL"
    note: ClassVar[str] = "best-validation extractor, modules combined softly"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"selection"}
    meanings: ClassVar[Mapping[str, str]] = {
        "selection": "validation score of the received average and number of nodes",
    }
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"selection"}
    configuration_type: ClassVar[type[MethodConfiguration]] = AdaFGLConfiguration

    @property
    def personal_rounds(self) -> int:
        given = self.configuration
        return -(-given.personal_epochs // given.personal_epochs_per_round)

    # Phase 1

    def broadcast(self, server: AdaFGLServer, round_number: int) -> Broadcast:
        sent = super().broadcast(server, round_number)
        if self.configuration.extractor == "last":
            return sent
        improved = torch.tensor(server.improved, dtype=torch.uint8)
        return dataclasses.replace(sent, common={**sent.common, "selection/improved": improved})

    def aggregate(self, server: AdaFGLServer, upload: Upload, round_number: int) -> AdaFGLServer:
        server = super().aggregate(server, upload, round_number)
        if self.configuration.extractor == "last":
            return server
        counted = upload.fields["selection/nodes"].double().numpy()
        scores = np.where(counted > 0, upload.fields["selection/score"].double().numpy(), np.nan)
        score = client_mean(scores, counted)
        improved = round_number > 0 and bool(score > server.best)
        return dataclasses.replace(server, best=score if improved else server.best, improved=improved)

    def additive(self) -> frozenset[str]:
        return frozenset({"weights", "size", "selection"})

    def addends(self, upload: Upload) -> Upload:
        fields = dict(super().addends(upload).fields)
        if "selection/score" in fields:
            counted = fields["selection/nodes"].double()
            score = torch.where(counted > 0, fields["selection/score"].double(), 0.0)
            fields["selection/score"] = score * counted
        return Upload(fields)

    def combined(self, server: AdaFGLServer, sums: Upload) -> Upload:
        fields = dict(super().combined(server, sums).fields)
        if "selection/score" in fields:
            fields["selection/score"] = fields["selection/score"] / fields["selection/nodes"].clamp(min=1.0)
        return Upload(fields)

    def receive(self, client: AdaFGLClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        if bool(broadcast.common.get("selection/improved", False)):
            client.extractor = client.candidate

    def update(self, client: AdaFGLClient, cohort: Cohort, round_number: int) -> LocalUpdate:
        if self.configuration.extractor == "best":
            logits = self.predict(client, cohort)
            client.candidate = _rows(torch.softmax(logits, dim=2), cohort)
            client.received = _validation(cohort, logits)
        return super().update(client, cohort, round_number)

    def own_upload(self, client: AdaFGLClient, cohort: Cohort, round_number: int) -> Tensors:
        if client.received is None:
            return {}
        score, nodes = client.received
        return {"selection/score": score, "selection/nodes": nodes}

    # Phase 2

    def personalise(self, client: AdaFGLClient, cohort: Cohort, step: int) -> Mapping[str, Tensor]:
        evidence = self._evidence(client, cohort)
        if not client.modules:
            client.modules = self._modules.initialise(cohort, evidence.smoothed.shape[2])
            client.personal_optimizer = AdamState.zeros(client.modules)
        terms: dict[str, Tensor] = {}
        for epoch in range(self._epochs(step)):
            terms = self._epoch(client, cohort, evidence, Dropout(cohort, step, epoch))
        client.logits = None
        return {"personal/confidence": evidence.confidence, **terms}

    def predict(self, client: AdaFGLClient, cohort: Cohort) -> Tensor:
        """Logits of phase 1, or logarithms of the probabilities Y of phase 2."""
        if not client.modules or client.logits is not None:
            return super().predict(client, cohort)
        evidence = self._evidence(client, cohort)
        with torch.no_grad():
            client.products = self._modules.products(client.modules, evidence)
            outputs = self._modules.forward(client.modules, cohort, evidence, client.products, None)
            mixed = combined(outputs, evidence.probabilities, self._share(evidence))
            chosen = torch.where(cohort.trained[:, None, None], mixed, evidence.probabilities)
            client.logits = chosen.clamp(min=torch.finfo(cohort.dtype).tiny).log()
        return client.logits

    def _epochs(self, step: int) -> int:
        """Epochs of a personal round; the last one may have fewer."""
        given = self.configuration
        return min(
            given.personal_epochs_per_round, given.personal_epochs - step * given.personal_epochs_per_round
        )

    def _epoch(
        self, client: AdaFGLClient, cohort: Cohort, evidence: Evidence, dropout: Dropout
    ) -> dict[str, Tensor]:
        """One full-batch step of both modules; the losses [k] before it."""
        given = self.configuration
        live = {name: weight.detach().requires_grad_() for name, weight in client.modules.items()}
        products = client.products or self._modules.products(client.modules, evidence)
        client.products = None
        outputs = self._modules.forward(live, cohort, evidence, products, dropout)
        distances = (outputs.homophilous - evidence.probabilities).square().mean(dim=2)
        homophilous = cross_entropy(cohort, outputs.homophilous) + cohort.masked_mean(distances, cohort.nodes)
        heterophilous = torch.zeros_like(homophilous)
        for logits in (outputs.features, outputs.smoothed, outputs.propagated):
            heterophilous = heterophilous + cross_entropy(cohort, logits)
        if given.combine == "hard":
            share = self._share(evidence)
            homophilous, heterophilous = share * homophilous, (1 - share) * heterophilous
        found = torch.autograd.grad((homophilous + heterophilous).sum(), list(live.values()))
        adam_step(
            client.modules,
            dict(zip(live, found, strict=True)),
            client.personal_optimizer,
            given.personal_lr,
            given.personal_weight_decay,
            cohort.trained,
        )
        return {"loss/homophilous": homophilous.detach(), "loss/heterophilous": heterophilous.detach()}

    @property
    def _modules(self) -> PropagationModules:
        given = self.configuration
        return PropagationModules(
            given.personal_hidden, given.personal_dropout, given.beta, given.negative_scale
        )

    def _share(self, evidence: Evidence) -> Tensor:
        """Weight of the homophilous module, [k]."""
        if self.configuration.combine == "soft":
            return evidence.confidence
        return (evidence.confidence >= self.configuration.switch).to(evidence.confidence.dtype)

    def _evidence(self, client: AdaFGLClient, cohort: Cohort) -> Evidence:
        if client.evidence is not None:
            return client.evidence
        given = self.configuration
        if not any(len(rows) for rows in client.extractor):
            with torch.no_grad():
                logits = super().predict(client, cohort)
            client.extractor = _rows(torch.softmax(logits, dim=2), cohort)
        similar = tuple(
            similar_predictions(rows, given.similar_threshold, given.similar_most)
            for rows in client.extractor
        )
        operator = optimised_operator(cohort, similar, given.alpha)
        features = dense_features(cohort)
        smoothed = smoothed_features(cohort, operator, given.smoothing_steps)
        rows = training_rows(cohort)
        evidence = Evidence(
            probabilities=torch.nn.utils.rnn.pad_sequence(list(client.extractor), batch_first=True),
            confidence=homophily_confidence(cohort, given.kappa, given.label_steps),
            features=features,
            smoothed=smoothed,
            pairs=SimilarPairs.of(cohort, similar),
            rows={"features": rows.take(features), "smoothed": rows.take(smoothed)},
        )
        client.evidence = evidence
        return evidence

    def snapshot(self, client: AdaFGLClient, cohort: Cohort) -> dict[str, Tensor]:
        """`confidence` [k] of the personal phase."""
        return {} if client.evidence is None else {"confidence": client.evidence.confidence}

    def _server(self, weights: Tensors, task: Task) -> AdaFGLServer:
        return AdaFGLServer(weights)

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> AdaFGLClient:
        classes = cohort.task.classes
        nothing = tuple(
            torch.zeros(0, classes, dtype=cohort.dtype, device=cohort.device) for _ in cohort.clients
        )
        return AdaFGLClient(weights, optimizer, candidate=nothing, extractor=nothing)


def _rows(values: Tensor, cohort: Cohort) -> Ragged:
    """Stacked node values [k, n, C] as one tensor [n_m, C] per client."""
    return tuple(row[:size].clone() for row, size in zip(values, cohort.sizes, strict=True))


def _validation(cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's validation score and its validation nodes, [k]; both 0 where the score is undefined."""
    found = evaluate(cohort, logits).validation
    if cohort.groups is not None:
        found = np.array([client_mean(found)])
    score = torch.from_numpy(np.nan_to_num(found)).to(cohort.device, cohort.dtype)
    defined = torch.from_numpy(np.isfinite(found)).to(cohort.device)
    return score, (cohort.validation.sum(dim=1) * defined).to(torch.int32)
