"""FedSage and FedSage+: a shared GraphSAGE, on graphs that are mended with generated neighbours
(Zhang et al., "Subgraph Federated Learning with Missing Neighbor Generation", NeurIPS 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.backbones import Representation
from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.algorithms.mending import mend
from fedatlas.algorithms.neighbour_generator import GeneratorConfiguration, GeneratorTraining
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Ragged, Tensors, Upload
from fedatlas.platform.federation.state import transient


class FedSage(WeightSharing[WeightSharingConfiguration, SharedServer, SharedClient]):
    """FedAvg with GraphSAGE: FedSage+ without generated neighbours."""

    name: ClassVar[str] = "fedsage"
    title: ClassVar[str] = "FedSage"
    default_backbone: ClassVar[str | None] = "sage"


class FedSagePlusConfiguration(WeightSharingConfiguration, GeneratorConfiguration):
    """Defaults of FedSage+."""

    cross_client: bool = Field(True, description="generate neighbours across clients; off it is FedSage")


@dataclass
class FedSagePlusServer(SharedServer):
    """Adds what is relayed between two steps of the preparation, one tensor per client; empty afterwards.

    Attributes:
        features: generated features of the training nodes, [L'_m, f].
        counts: number of rows of each of them, [|T_m|].
        gradients: summed gradients of the others, [L'_m, f].
    """

    features: Ragged = ()
    counts: Ragged = ()
    gradients: Ragged = ()


@dataclass
class FedSagePlusClient(SharedClient):
    """Adds the generated leaves, [L_m, f], and how many of them each node has, [n_m]."""

    leaves: Ragged = ()
    leaf_counts: Ragged = ()
    training: GeneratorTraining | None = transient()
    mended: Cohort | None = transient()


class FedSagePlus(WeightSharing[FedSagePlusConfiguration, FedSagePlusServer, FedSagePlusClient]):
    """Generate missing neighbours, mend every client's graph with them, then FedAvg with GraphSAGE on it.

    Preparation, 1 + 2 E_x steps for E_x = `exchange_epochs` (losses in `neighbour_generator`):

        step 0        train generators locally; send generated features of training nodes
        step 2e - 1   receive those of the others, return gradients
        step 2e       receive the sum of the returned gradients, step, send again (but for the last)

    After that a client keeps its leaves only. The model is trained and evaluated on the mended graph, with
    logits of the client's own nodes. `cross_client=False`, or no generated neighbour at all, equals FedSage,
    i.e. FedAvg with GraphSAGE; with input dropout the masks of sparse features differ.

    Uploads per client and exchange epoch: L'_m f generated values and |T_m| counts, and as many gradients as
    the others generated. The server adds up gradients for the same row before it relays them.
    """

    name: ClassVar[str] = "fedsageplus"
    title: ClassVar[str] = "FedSage+"
    note: ClassVar[str] = "generators exchange gradients through the server, evaluated on the mended graph"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"generated", "gradients"}
    meanings: ClassVar[Mapping[str, str]] = {
        "generated": "features of generated neighbours and their counts, before round 0",
        "gradients": "answers to the neighbours that others generated, before round 0",
    }
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"generated", "gradients"}
    default_backbone: ClassVar[str | None] = "sage"
    configuration_type: ClassVar[type[MethodConfiguration]] = FedSagePlusConfiguration

    # Preparation

    @property
    def preparation_steps(self) -> int:
        return 1 + 2 * self.configuration.exchange_epochs if self.configuration.cross_client else 0

    def prepare_broadcast(self, server: FedSagePlusServer, step: int) -> Broadcast:
        if step == 0:
            return Broadcast()
        if step % 2 == 0:
            return Broadcast(ragged={"gradients/features": server.gradients})
        return Broadcast(
            ragged={
                "generated/features": _of_the_others(server.features),
                "generated/counts": _of_the_others(server.counts),
            }
        )

    def prepare(self, client: FedSagePlusClient, cohort: Cohort, broadcast: Broadcast, step: int) -> Upload:
        epochs, received = self.configuration.exchange_epochs, broadcast.ragged
        if step == 0:
            client.training = self._trained_generators(cohort)
        training = client.training
        assert training is not None
        if step % 2:
            answer = training.respond(step // 2, received["generated/features"], received["generated/counts"])
            return Upload(ragged={"gradients/features": answer})
        if step:
            training.apply(received["gradients/features"])
        if step // 2 < epochs:
            features, counts = training.offer(step // 2)
            return Upload(ragged={"generated/features": features, "generated/counts": counts})
        client.leaves, client.leaf_counts = training.leaves()
        client.training = client.mended = None
        return Upload()

    def prepare_aggregate(self, server: FedSagePlusServer, upload: Upload, step: int) -> FedSagePlusServer:
        received = upload.ragged
        if step % 2:
            gradients = _summed_for_each(received["gradients/features"], server.features)
            return dataclasses.replace(server, features=(), counts=(), gradients=gradients)
        return dataclasses.replace(
            server,
            features=received.get("generated/features", ()),
            counts=received.get("generated/counts", ()),
            gradients=(),
        )

    # Rounds

    def represent(
        self, client: FedSagePlusClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        mended = self._mended(client, cohort)
        found = super().represent(client, mended, weights, dropout and dropout.of(mended))
        n = cohort.width
        return Representation(
            found.logits[:, :n],
            found.embedding[:, :n],
            None if found.ego is None else found.ego[:, :n],
            None if found.rings is None else (found.rings[0][:, :n], found.rings[1][:, :n]),
        )

    def own_metrics(self, client: FedSagePlusClient) -> Tensors:
        """`generator/leaves`, the number of generated nodes."""
        if not self.preparation_steps:
            return {}
        return {"generator/leaves": torch.tensor([float(part.shape[0]) for part in client.leaves])}

    def _server(self, weights: Tensors, task: Task) -> FedSagePlusServer:
        return FedSagePlusServer(weights)

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedSagePlusClient:
        sizes, place = cohort.sizes, cohort.device
        return FedSagePlusClient(
            weights,
            optimizer,
            leaves=tuple(
                torch.zeros((0, cohort.task.features), dtype=cohort.dtype, device=place) for _ in sizes
            ),
            leaf_counts=tuple(torch.zeros(size, dtype=torch.int64, device=place) for size in sizes),
        )

    def _trained_generators(self, cohort: Cohort) -> GeneratorTraining:
        given = self.configuration
        helper = GraphSAGE(hidden=given.hidden, dropout=given.dropout, activation=given.activation)
        training = GeneratorTraining(cohort, given, helper)
        for epoch in range(given.generator_epochs):
            training.local_epoch(epoch)
        training.freeze()
        return training

    def _mended(self, client: FedSagePlusClient, cohort: Cohort) -> Cohort:
        if client.mended is None:
            # Masks of input dropout must not depend on whether this cohort keeps its features sparse.
            dense = self.preparation_steps > 0 and self.configuration.input_dropout > 0
            nothing = not any(part.shape[0] for part in client.leaves)
            if nothing and not (dense and cohort.sparse_features is not None):
                client.mended = cohort
            else:
                client.mended = mend(cohort, client.leaves, client.leaf_counts, dense)
        return client.mended


def _of_the_others(parts: Ragged) -> Ragged:
    """For each client the rows of all others, in client order."""
    return tuple(
        torch.cat([parts[0][:0], *(part for other, part in enumerate(parts) if other != m)])
        for m in range(len(parts))
    )


def _summed_for_each(answers: Sequence[Tensor], offered: Ragged) -> Ragged:
    """Sum over the others' answers for the rows that each client offered; the inverse of `_of_the_others`."""
    sizes = [part.shape[0] for part in offered]
    total = [torch.zeros_like(part) for part in offered]
    for j, answer in enumerate(answers):
        others = [m for m in range(len(sizes)) if m != j]
        for m, part in zip(others, torch.split(answer, [sizes[m] for m in others]), strict=True):
            total[m] += part
    return tuple(total)
