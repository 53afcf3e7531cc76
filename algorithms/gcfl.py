"""GCFL and GCFL+: clusters of clients with similar updates (Xie et al., NeurIPS 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import normalised_client_weights, shared_names
from fedatlas.algorithms.clustering import cosines, minimum_cut, standardised, warping_distances
from fedatlas.algorithms.mixing import PersonalisedAveraging, PersonalisedConfiguration, PersonalisedServer
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import between
from fedatlas.algorithms.weight_sharing import SharedClient, Step
from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Tensors, Upload, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.graphs.graph import Level

Criterion = Literal["relative", "absolute"]
Similarity = Literal["updates", "gradient_norms"]

INDIVISIBLE = 2
"""A cluster of this size or less is never split."""


class GCFLConfiguration(PersonalisedConfiguration):
    """Defaults of GCFL: the relative criterion for node tasks; eps1, eps2 and d are the released code's."""

    similarity: Similarity = Field(
        "updates", description="what clients are compared by when a cluster splits"
    )
    criterion: Criterion = Field("relative", description="scale of the thresholds that decide on a split")
    r1: float = Field(
        0.4,
        ge=0,
        le=1,
        description="relative: split if the mean is below r1 times the maximum",
        json_schema_extra=between(0.1, 0.9),
    )
    eps1: float = Field(0.05, ge=0, description="absolute: split if the norm of the mean update is below it")
    eps2: float = Field(0.1, ge=0, description="absolute: and the largest norm of an update is above it")
    warm_up: int = Field(20, ge=0, description="rounds before the first split")
    split_interval: int | None = Field(
        None, ge=1, description="rounds between splits; default 5 if relative, 1 if absolute"
    )
    sequence_length: int = Field(5, ge=1, description="gradient norms compared, d (gradient_norms)")
    standardise: bool = Field(False, description="divide sequences by their deviation (gradient_norms)")

    @property
    def interval(self) -> int:
        """Rounds that pass between two splits."""
        return self.split_interval or (5 if self.criterion == "relative" else 1)


class GCFLPlusConfiguration(GCFLConfiguration):
    """Defaults of GCFL+."""

    similarity: Similarity = Field(
        "gradient_norms", description="what clients are compared by when a cluster splits"
    )


@dataclass
class GCFLServer(PersonalisedServer):
    """Adds the clusters.

    Attributes:
        clusters: number of each client's cluster, int64 [M].
        last_split: round of the last split, None before the first.
        norms: the last d gradient norms of each client, oldest first, float64 [M, d].
        recorded: how many of them are younger than the last split, at most d.
    """

    clusters: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    last_split: int | None = None
    norms: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    recorded: int = 0


@dataclass
class GCFLClient(SharedClient):
    """Adds the norm of the gradient of the last local step, [k]."""

    gradient_norm: Tensor | None = transient()


class GCFL(PersonalisedAveraging[GCFLConfiguration, GCFLServer, GCFLClient]):
    """Averages within clusters, and splits a cluster whose clients pull apart.

    All clients start in one cluster. With Delta_m = theta_m - (what m received), for each cluster K:

        delta_mean = ||sum_{m in K} p_m Delta_m||,   delta_max = max_{m in K} ||Delta_m||
        relative:  split if delta_mean < r1 delta_max
        absolute:  split if delta_mean < eps1 and delta_max > eps2

    with p_m the normalised `client_weights`, if |K| > 2, after `warm_up` rounds. A split is the global
    minimum cut of the complete graph over K with weights

        updates:         s_ij = cos(Delta_i, Delta_j) + 1
        gradient_norms:  s_ij = max DTW - DTW_ij of the last d gradient norms (GCFL+)

    and then theta_K <- sum_{m in K} p_m theta_m. GCFL+ waits until d norms have been seen since the last
    split and splits one cluster at a time. The gradient norm is that of the last local step over the shared
    parameters.

    Choices where the paper says nothing about node classification:

    - All parameters travel and are compared; `shared=encoder` keeps the classifier personal, as the released
      code for graph classification does.
    - The published thresholds are absolute. One Adam step of rate 0.01 moves all 2e5 parameters of the
      network by about as much, and no update is ever as short as eps1: the default is the relative criterion.
      Splits are at least `split_interval` rounds apart, over all clusters; several may split in one round.
    - delta_mean has equal weights by default, as in the released code; `client_weights=train_nodes` gives
      the paper's.
    - Clients without training nodes have no say in a split and stay in its larger part.
    - Sequences that are all equal have no cut of meaning: the cluster stays.

    The released code picks each client's best test score over all clusters; here scores are the protocol's.
    A run that never splits equals FedAvg; with one client to a cluster it equals Local. Every round tracks
    the cluster of each client (`cluster/client_0`, ...), so that a run's rounds hold the clusters over time.
    """

    name: ClassVar[str] = "gcfl"
    title: ClassVar[str] = "GCFL"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    note: ClassVar[str] = "splits by a relative criterion; the published thresholds never split here"
    uploads: ClassVar[frozenset[str]] = PersonalisedAveraging.uploads | {"gradient_norm"}
    meanings: ClassVar[Mapping[str, str]] = {
        "gradient_norm": "norm of the last local gradient (similarity=gradient_norms)",
    }
    configuration_type: ClassVar[type[MethodConfiguration]] = GCFLConfiguration

    # Server side

    def mixing(self, server: GCFLServer, upload: Upload, round_number: int) -> Tensor:
        weights = normalised_client_weights(self.configuration.client_weights, upload.fields)
        together = server.clusters[:, None] == server.clusters[None, :]
        return together.to(weights.dtype) * weights

    def aggregate(self, server: GCFLServer, upload: Upload, round_number: int) -> GCFLServer:
        if not unprefixed("weights", upload.fields):
            return server
        server = self._recorded(server, upload)
        if self._may_split(server, round_number):
            server = self._divided(server, upload, round_number)
        return super().aggregate(server, upload, round_number)

    def diagnostics(self, server: GCFLServer) -> dict[str, float]:
        sizes = torch.bincount(server.clusters)
        of_client = {f"cluster/client_{m}": float(c) for m, c in enumerate(server.clusters.tolist())}
        return {
            **super().diagnostics(server),
            **of_client,
            "cluster/count": float((sizes > 0).sum()),
            "cluster/largest": float(sizes.max()),
        }

    def server_snapshot(self, server: GCFLServer) -> dict[str, Tensor]:
        return {**super().server_snapshot(server), "clusters": server.clusters}

    # Client side

    def own_upload(self, client: GCFLClient, cohort: Cohort, round_number: int) -> Tensors:
        if self.configuration.similarity == "updates" or self.configuration.travelling == "none":
            return {}
        assert client.gradient_norm is not None
        return {"gradient_norm/last": client.gradient_norm}

    def _gradients(
        self, client: GCFLClient, step: Step, round_number: int
    ) -> tuple[dict[str, Tensor], Tensors]:
        losses, found = super()._gradients(client, step, round_number)
        if self.configuration.similarity == "gradient_norms":
            squared = torch.zeros(
                len(step.cohort.clients), dtype=step.cohort.dtype, device=step.cohort.device
            )
            for name in shared_names(found, self.configuration.travelling):
                squared += found[name].square().flatten(1).sum(dim=1)
            if step.rows is None:
                client.gradient_norm = squared.sqrt()
            elif client.gradient_norm is not None:
                client.gradient_norm.index_copy_(0, step.rows, squared.sqrt())
            else:
                assert client.taken is not None
                client.gradient_norm = step.spread(squared.sqrt(), len(client.taken))
        return losses, found

    def _server(self, weights: Tensors, task: Task) -> GCFLServer:
        return GCFLServer(
            weights,
            clusters=torch.zeros(task.clients, dtype=torch.int64),
            norms=torch.zeros(task.clients, self.configuration.sequence_length, dtype=torch.float64),
        )

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> GCFLClient:
        return GCFLClient(weights, optimizer)

    # Splits

    def _recorded(self, server: GCFLServer, upload: Upload) -> GCFLServer:
        last = upload.fields.get("gradient_norm/last")
        if last is None:
            return server
        norms = torch.cat([server.norms[:, 1:], last[:, None].to(server.norms.dtype)], dim=1)
        recorded = min(server.recorded + 1, self.configuration.sequence_length)
        return dataclasses.replace(server, norms=norms, recorded=recorded)

    def _may_split(self, server: GCFLServer, round_number: int) -> bool:
        given = self.configuration
        if given.similarity == "gradient_norms" and server.recorded < given.sequence_length:
            return False
        rested = server.last_split is None or round_number - server.last_split >= given.interval
        return rested and round_number >= given.warm_up

    def _divided(self, server: GCFLServer, upload: Upload, round_number: int) -> GCFLServer:
        gram = update_gram(server, upload)
        weights = normalised_client_weights(self.configuration.client_weights, upload.fields)
        trained = upload.fields["size/train_nodes"] > 0
        clusters = server.clusters.clone()
        for number in sorted(set(server.clusters.tolist())):
            members = ((server.clusters == number) & trained).nonzero()[:, 0]
            if not self._apart(gram[members][:, members], weights[members]):
                continue
            similarities = self._similarities(server, gram, members)
            if not bool(similarities.triu(1).any()):
                continue
            clusters[members[minimum_cut(similarities)]] = int(clusters.max()) + 1
            server = dataclasses.replace(server, last_split=round_number, recorded=0)
            if self.configuration.similarity == "gradient_norms":
                break
        return dataclasses.replace(server, clusters=clusters)

    def _apart(self, gram: Tensor, weights: Tensor) -> bool:
        """Whether a cluster splits, from its inner products [K, K] and its clients' weights [K]."""
        if len(weights) <= INDIVISIBLE:
            return False
        given = self.configuration
        weights = weights / weights.sum()
        mean = float((weights @ gram @ weights).clamp(min=0.0).sqrt())
        largest = float(gram.diagonal().max().clamp(min=0.0).sqrt())
        if given.criterion == "relative":
            return mean < given.r1 * largest
        return mean < given.eps1 and largest > given.eps2

    def _similarities(self, server: GCFLServer, gram: Tensor, members: Tensor) -> Tensor:
        if self.configuration.similarity == "updates":
            # Rounding may take a cosine below -1, and a cut needs weights that are not negative.
            return (cosines(gram[members][:, members]) + 1.0).clamp(min=0.0)
        sequences = server.norms[members]
        distances = warping_distances(
            standardised(sequences) if self.configuration.standardise else sequences
        )
        return distances.max() - distances


class GCFLPlus(GCFL):
    """GCFL that compares clients by their sequences of gradient norms, under dynamic time warping."""

    name: ClassVar[str] = "gcflplus"
    title: ClassVar[str] = "GCFL+"
    configuration_type: ClassVar[type[MethodConfiguration]] = GCFLPlusConfiguration


def update_gram(server: PersonalisedServer, upload: Upload) -> Tensor:
    """Inner products of the clients' updates, <Delta_i, Delta_j>, float64 [M, M]."""
    sent = unprefixed("weights", upload.fields)
    received = server.personal or server.weights
    clients = next(iter(sent.values())).shape[0]
    gram = torch.zeros(clients, clients, dtype=torch.float64)
    for name, weight in sent.items():
        delta = (weight - received[name]).flatten(1).double()
        gram += delta @ delta.T
    return gram
