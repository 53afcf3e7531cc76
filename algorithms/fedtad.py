"""FedTAD: topology-aware, data-free distillation of reliable local knowledge (Zhu et al., IJCAI 2024).

Before round 0 every client sends how reliable its knowledge of each class is, phi_m [C] (`reliability`). In
each round the server averages the local models and then, `pseudo_graphs` times:

1. draws noise z [N, d] and lets a generator make features X_g for nodes with given labels; the graph joins
   each node to its most similar ones (`pseudo_graphs`);
2. improves the generator: lambda_1 L_sem - L_dis + lambda_2 M L_div, that is, pseudo nodes that reliable
   local models recognise, on which the global model disagrees with them, and which differ from each other;
3. makes the graph anew from the same noise and moves the global model towards the local ones on it:
   L_dis, `distillation_steps` times.

Choices where paper and public code differ or are silent:

- q_v are exact return probabilities of the random walk (paper); the code appends ids of visited nodes.
- Reliability is normalised over clients (paper, first author's code).
- A node is among its own `pseudo_neighbours` nearest (code), so it has that many less one, and those to which
  it is near itself.
- Models are evaluated without dropout on pseudo graphs; the published code leaves it on by mistake.
- Both of the server's Adam states last over the rounds, with the clients' weight decay (code).
- Only inputs are generated ("raw"); the variant that generates hidden features is left out.
- The published score is that of the distilled global model. Here, as for every method, clients are scored
  after local training unless the evaluation point is moved after aggregation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms import pseudo_graphs
from fedatlas.algorithms.aggregation import ClientWeights
from fedatlas.algorithms.backbones import Backbone
from fedatlas.algorithms.optimizer import AdamState, adam_step
from fedatlas.algorithms.reliability import class_reliability, normalised_reliability
from fedatlas.algorithms.search_spaces import log_between
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, unprefixed
from fedatlas.platform.graphs.graph import Metric
from fedatlas.platform.randomness import SERVER, stream


class FedTADConfiguration(WeightSharingConfiguration):
    """Published defaults of the server's part."""

    aggregation: Literal["fedavg"] = Field("fedavg", description="how shared weights travel")
    shared: Literal["all"] = Field("all", description="the server evaluates whole local models")
    client_weights: ClientWeights = Field("nodes", description="weights of clients in the aggregation")
    walk_lengths: int = Field(5, ge=1, le=16, description="lengths of walks in the reliability L")
    pseudo_graphs: int = Field(5, ge=0, description="pseudo graphs per round I_g")
    pseudo_nodes: int = Field(100, ge=1, description="nodes of a pseudo graph N_g")
    pseudo_neighbours: int = Field(5, ge=1, description="nearest nodes that a pseudo node is joined to")
    noise: int = Field(32, ge=1, description="noise entries per pseudo node")
    generator_steps: int = Field(1, ge=0, description="steps of the generator per pseudo graph it_g")
    distillation_steps: int = Field(5, ge=0, description="steps of the global model per pseudo graph it_d")
    generator_lr: float = Field(1e-3, gt=0, description="learning rate of the generator")
    distillation_lr: float = Field(1e-3, gt=0, description="learning rate of the distillation")
    semantic_weight: float = Field(
        1.0, ge=0, description="lambda_1", json_schema_extra=log_between(0.01, 10.0)
    )
    diversity_weight: float = Field(
        1.0, ge=0, description="lambda_2", json_schema_extra=log_between(0.01, 10.0)
    )


@dataclass
class FedTADServer(SharedServer):
    """Adds the generator, reliability Phi [M, C], both optimizers and the task, which no server hook sees.

    Attributes:
        generator: weights of the generator.
        generator_optimizer, distiller: Adam moments of the generator and of the global model.
        reliability: normalised over clients; [0, 0] before preparation.
        semantic, disagreement, diversity: the losses in the last round, means over its pseudo graphs; the
            disagreement is that after the last distillation step.
    """

    generator: Tensors = field(default_factory=dict)
    generator_optimizer: AdamState = field(default_factory=AdamState)
    distiller: AdamState = field(default_factory=AdamState)
    reliability: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    clients: int = 0
    features: int = 0
    classes: int = 0
    metric: Metric = "accuracy"
    seed: int = 0
    semantic: float = 0.0
    disagreement: float = 0.0
    diversity: float = 0.0

    @property
    def task(self) -> Task:
        return Task(self.clients, self.features, self.classes, self.metric, self.seed)


class FedTAD(WeightSharing[FedTADConfiguration, FedTADServer, SharedClient]):
    """FedAvg, whose average is distilled on pseudo graphs; `distillation_steps=0` equals FedAvg.

    Uploads per client: phi_m [C] once; weights and two counts per round. The broadcast is the distilled
    model.
    """

    name: ClassVar[str] = "fedtad"
    title: ClassVar[str] = "FedTAD"
    note: ClassVar[str] = "scored after local training, reliability from exact return probabilities"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"reliability"}
    meanings: ClassVar[Mapping[str, str]] = {
        "reliability": "reliability of every class, before round 0",
    }
    configuration_type: ClassVar[type[MethodConfiguration]] = FedTADConfiguration
    # Gradients must reach the features; UniFilter computes its bases from them beforehand.
    backbones: ClassVar[tuple[str, ...] | None] = ("gcn", "h2gcn", "sage", "gamlp", "disengcn")

    # Server side

    def init(self, task: Task) -> FedTADServer:
        nodes = self.configuration.pseudo_nodes
        if nodes < task.classes:
            raise ConfigurationError(
                f"pseudo_nodes={nodes} cannot show {task.classes} classes: use pseudo_nodes={task.classes} "
                "or more"
            )
        return super().init(task)

    @property
    def preparation_steps(self) -> int:
        return 1

    def prepare_aggregate(self, server: FedTADServer, upload: Upload, step: int) -> FedTADServer:
        return dataclasses.replace(
            server, reliability=normalised_reliability(upload.fields["reliability/classes"])
        )

    def aggregate(self, server: FedTADServer, upload: Upload, round_number: int) -> FedTADServer:
        server = super().aggregate(server, upload, round_number)
        given = self.configuration
        if given.distillation_steps == 0 or given.pseudo_graphs == 0:
            return server
        return self._distilled(server, unprefixed("weights", upload.fields), round_number)

    def diagnostics(self, server: FedTADServer) -> dict[str, float]:
        return {
            "distillation/semantic": server.semantic,
            "distillation/disagreement": server.disagreement,
            "distillation/diversity": server.diversity,
        }

    def server_snapshot(self, server: FedTADServer) -> dict[str, Tensor]:
        """`reliability` [M, C]."""
        return {"reliability": server.reliability}

    # Client side

    def prepare(self, client: SharedClient, cohort: Cohort, broadcast: Broadcast, step: int) -> Upload:
        return Upload({"reliability/classes": class_reliability(cohort, self.configuration.walk_lengths)})

    def _server(self, weights: Tensors, task: Task) -> FedTADServer:
        return FedTADServer(
            weights,
            generator=pseudo_graphs.initial_generator(task, self.configuration.noise),
            clients=task.clients,
            features=task.features,
            classes=task.classes,
            metric=task.metric,
            seed=task.seed,
        )

    # Distillation

    def _distilled(self, server: FedTADServer, local: Tensors, round_number: int) -> FedTADServer:
        """The server after a round's pseudo graphs.

        Args:
            server: with the average of this round.
            local: uploaded weights [M, ...]; never changed.
        """
        given = self.configuration
        sample = next(iter(local.values()))
        round_ = _Round(self.backbone, server.task, given, local, server.reliability.to(sample))
        weights = {name: weight.clone() for name, weight in server.weights.items()}
        generator = {name: weight.to(sample).clone() for name, weight in server.generator.items()}
        distiller = server.distiller if server.distiller.first else AdamState.zeros(weights)
        improver = server.generator_optimizer
        improver = improver if improver.first else AdamState.zeros(generator)
        seen = []
        for number in range(given.pseudo_graphs):
            draw = stream(server.seed, SERVER, round_number, f"pseudo/{number}")
            noise = torch.from_numpy(draw.standard_normal((given.pseudo_nodes, given.noise))).to(sample)
            losses = round_.improve(generator, improver, weights, noise)
            seen.append((*losses, round_.distil(weights, distiller, generator, noise)))
        semantic, diversity, left = np.mean(seen, axis=0).tolist()
        return dataclasses.replace(
            server,
            weights=weights,
            generator=generator,
            generator_optimizer=improver,
            distiller=distiller,
            semantic=semantic,
            diversity=diversity,
            disagreement=left,
        )


class _Round:
    """The pseudo graphs of one round: what stays the same for all of them, and the two kinds of steps.

    Args:
        local: weights [M, ...] of the local models.
        reliability: Phi, [M, C].
    """

    def __init__(
        self,
        backbone: Backbone,
        task: Task,
        given: FedTADConfiguration,
        local: Tensors,
        reliability: Tensor,
    ) -> None:
        self._backbone = backbone
        self._task = task
        self._given = given
        self._reliability = reliability
        self._labels = pseudo_graphs.pseudo_labels(given.pseudo_nodes, task.classes).to(reliability.device)
        self._average = pseudo_graphs.class_average(self._labels, task.classes, reliability.dtype)
        # Local models and, in the last place, the global one: one batched pass evaluates them all.
        self._models = {name: torch.cat([weight, weight[:1]]) for name, weight in local.items()}
        self._teachers = {name: weight[:-1] for name, weight in self._models.items()}

    def improve(
        self, generator: Tensors, optimizer: AdamState, weights: Tensors, noise: Tensor
    ) -> tuple[float, float]:
        """Generator steps, in place; L_sem and L_div before the last one."""
        given = self._given
        for name, weight in weights.items():
            self._models[name][-1] = weight
        semantic = diversity = noise.new_zeros(())
        for _ in range(given.generator_steps):
            live = {name: weight.detach().requires_grad_() for name, weight in generator.items()}
            features = pseudo_graphs.generate(live, self._labels, noise)
            logits = self._logits(self._models, features)
            semantic = pseudo_graphs.semantic_loss(
                logits[:-1], self._labels, self._average, self._reliability
            )
            apart = pseudo_graphs.disagreement(logits[-1], logits[:-1], self._average, self._reliability)
            diversity = len(self._reliability) * pseudo_graphs.diversity_loss(features, noise)
            total = given.semantic_weight * semantic - apart + given.diversity_weight * diversity
            _descend(total, live, generator, optimizer, given.generator_lr, given.weight_decay)
        return float(semantic.detach()), float(diversity.detach())

    def distil(self, weights: Tensors, optimizer: AdamState, generator: Tensors, noise: Tensor) -> float:
        """Distillation steps of the global model, in place; L_dis before the last one."""
        given = self._given
        with torch.no_grad():
            features = pseudo_graphs.generate(generator, self._labels, noise)
            adjacency = pseudo_graphs.nearest_neighbours(features, given.pseudo_neighbours)
            local = self._logits(self._teachers, features, adjacency)
        graph = pseudo_graphs.replicated_graph(self._task, features, adjacency, self._labels, 1)
        apart = noise.new_zeros(())
        for _ in range(given.distillation_steps):
            live = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
            stacked = {name: weight[None] for name, weight in live.items()}
            shared = self._backbone.forward(stacked, graph, None).logits[0]
            apart = pseudo_graphs.disagreement(shared, local, self._average, self._reliability)
            _descend(apart, live, weights, optimizer, given.distillation_lr, given.weight_decay)
        return float(apart.detach())

    def _logits(self, models: Tensors, features: Tensor, adjacency: sp.csr_array | None = None) -> Tensor:
        """Logits of stacked models [M, ...] on one pseudo graph, [M, N, C]."""
        if adjacency is None:
            adjacency = pseudo_graphs.nearest_neighbours(features, self._given.pseudo_neighbours)
        copies = len(next(iter(models.values())))
        graph = pseudo_graphs.replicated_graph(self._task, features, adjacency, self._labels, copies)
        return self._backbone.forward(models, graph, None).logits


def _descend(
    loss: Tensor, live: Tensors, weights: Tensors, optimizer: AdamState, lr: float, weight_decay: float
) -> None:
    """One Adam step of `weights`, whose differentiable copies `live` the loss was computed from."""
    found = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
    gradients = {name: gradient for name, gradient in zip(live, found, strict=True) if gradient is not None}
    adam_step(weights, gradients, optimizer, lr, weight_decay)
