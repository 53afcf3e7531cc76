"""FedSSA: clients share semantics and structure within two kinds of groups.

Source: Yu, Wan, Chen, Han, Gong, "Heterogeneity-Aware Knowledge Sharing for Graph Federated Learning",
arXiv 2601.21589 (ICML 2026). **A reconstruction**: of the paper only the abstract and summaries were
available. Known are: a variational model infers class-wise node distributions q(Z_m^c) = N(mu_m^c, Sigma_m^c)
from features and labels by the bound E_q[log p(X|Y,Z)] + log p(Y) - KL(q(Z|X,Y) || p(Z)); clients are
clustered by these, and the divergence to cluster-level distributions is minimised; the network is a spectral
one (UniFilter); clients are clustered by spectral energy, and local spectral characteristics are aligned with
those of the cluster's network.

Client m: UniFilter with embedding e_v, heads mu_v, lv_v on it, z_v = mu_v + e^(lv_v / 2) noise, a decoder
from [z_v | one-hot y_v] to x_v, and the loss over training nodes

    L = CE + a (MSE + b KL(q(z_v) || N(0, I)))
           + s mean over c in S_m of KL(N(mu_m^c, var_m^c) || N(mu_g^c, var_g^c))                  semantic
           + t ||w_m - w_g||^2 / (K + 1)                                                         structural

with class-wise moments of the mixtures of the nodes' Gaussians, S_m the classes that m and its group have, KL
as mean over dimensions, and w the filter coefficients; g is the client's group. Uploads: weights, moments and
the spectral energies eps_j = ||w_j * b_j||^2 / sum_i ||w_i * b_i||^2, which sum to 1.

Server, each round from `warmup` until `freeze` (before, all clients are one group and nothing is aligned;
after, groups stay):

    semantic groups    average linkage on the mean symmetric KL over shared classes
    structural groups  k-means on eps
    theta_m <- mean over the structural group, heads <- mean over the semantic group
    (mu_g^c, var_g^c)  moments of the mixture of the group's class-wise Gaussians, weighted by counts

Choices:

- The decoder stays with its client (`private.*`): it is not among the messages.
- eps is that of features whose columns have norm 1, so that it does not depend on their scale.
- Log-variances are clamped to [-8, 8]; heads and decoder have their own learning rate, since that of the
  perceptron is too high for them on some data sets.
- No shared class: the largest distance that two clients with a shared class have.
- With one local epoch the structural term has no gradient: the only step starts at w_g.
- `energy=subspace` groups by the principal angles between the leading right singular vectors of the bases
  instead, with average linkage. Matching response curves instead of coefficients is left out: the members u_j
  have no response curve that all feature columns share. So are mixtures as representatives: their divergence
  has no closed form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import ClientWeights, normalised_client_weights
from fedatlas.algorithms.backbones import Backbone, Representation, UniFilter
from fedatlas.algorithms.backbones.backbone import affine, linear
from fedatlas.algorithms.gaussians import kl, match_moments, reparameterise
from fedatlas.algorithms.grouping import average_linkage, k_means, same_group
from fedatlas.algorithms.mixing import (
    PersonalisedAveraging,
    PersonalisedConfiguration,
    PersonalisedServer,
    mixed,
    row_stochastic,
)
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import among, log_between
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.algorithms.weight_sharing import SharedClient
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, unprefixed
from fedatlas.platform.federation.state import transient

FILTER = "encoder.filter.coefficients"
HEADS = "posterior."
DECODER = "private.decoder."

VARIANCE_FLOOR = 1e-4
LARGEST_LOG_VARIANCE = 8.0


class FedSSAConfiguration(PersonalisedConfiguration):
    """Defaults of FedSSA; per data set they are in `presets.yaml`."""

    client_weights: ClientWeights = Field("nodes", description="weights of clients within a group")
    shared_filter: bool = Field(False, description="one filter coefficient per hop for all features")
    semantic_groups: int = Field(
        3, ge=1, description="number of semantic groups", json_schema_extra=among(2, 3, 5)
    )
    structural_groups: int = Field(
        3, ge=1, description="number of structural groups", json_schema_extra=among(2, 3, 5)
    )
    latent: int = Field(32, ge=1, description="dimensions of the latent variable")
    label_input: bool = Field(False, description="heads also read the one-hot label in training")
    variational_weight: float = Field(0.1, ge=0, description="a, weight of the variational bound")
    prior_weight: float = Field(0.01, ge=0, description="b, weight of the divergence to the prior in it")
    semantic_weight: float = Field(
        0.1, ge=0, description="s, weight of semantic alignment", json_schema_extra=log_between(0.001, 1.0)
    )
    structural_weight: float = Field(
        0.1, ge=0, description="t, weight of structural alignment", json_schema_extra=log_between(0.001, 1.0)
    )
    variational_lr: float = Field(0.01, gt=0, description="learning rate of heads and decoder")
    energy: Literal["channels", "subspace"] = Field("channels", description="what is compared structurally")
    subspace: int = Field(3, ge=1, description="singular vectors of energy=subspace")
    warmup: int = Field(5, ge=0, description="rounds of one group of all clients")
    freeze: int = Field(50, ge=0, description="round from which groups stay")


@dataclass
class FedSSAServer(PersonalisedServer):
    """Adds the groups and what they stand for.

    Attributes:
        semantic, structural: group of each client, [M]; empty during the warm-up.
        mean, log_variance, counts: class-wise Gaussians of each client's semantic group, [M, C, d], and the
            number of nodes behind them, [M, C].
    """

    semantic: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    structural: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    log_variance: Tensor = field(default_factory=lambda: torch.empty(0))
    counts: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class FedSSAClient(SharedClient):
    """Adds what the last broadcast said about the group, and the number of local steps since."""

    group: Mapping[str, Tensor] | None = transient()
    steps: int | None = transient()


@dataclass(frozen=True)
class Moments:
    """Class-wise Gaussians, [k, C, d], and the number of nodes behind them, [k, C]."""

    mean: Tensor
    log_variance: Tensor
    counts: Tensor


class FedSSA(PersonalisedAveraging[FedSSAConfiguration, FedSSAServer, FedSSAClient]):
    """Semantic and structural groups of clients around UniFilter.

    With one group of each kind and all additional weights 0 it equals FedAvg on UniFilter.
    """

    name: ClassVar[str] = "fedssa"
    title: ClassVar[str] = "FedSSA"
    note: ClassVar[str] = "reconstruction from the abstract and summaries; no code was available"
    uploads: ClassVar[frozenset[str]] = PersonalisedAveraging.uploads | {"moments", "energy"}
    meanings: ClassVar[Mapping[str, str]] = {
        "moments": "mean, log-variance and count of every class",
        "energy": "spectral energy, or leading directions of the graph",
    }
    downloads: ClassVar[frozenset[str]] = PersonalisedAveraging.downloads | {"moments"}
    default_backbone: ClassVar[str | None] = "unifilter"
    backbones: ClassVar[tuple[str, ...] | None] = ("unifilter",)
    configuration_type: ClassVar[type[MethodConfiguration]] = FedSSAConfiguration

    backbone: UniFilter

    def __init__(self, configuration: FedSSAConfiguration, backbone: Backbone) -> None:
        assert isinstance(backbone, UniFilter)
        super().__init__(
            configuration, dataclasses.replace(backbone, shared_filter=configuration.shared_filter)
        )

    # Server side

    def broadcast(self, server: FedSSAServer, round_number: int) -> Broadcast:
        found = super().broadcast(server, round_number)
        if not server.counts.numel():
            return found
        moments = {
            "moments/mean": server.mean,
            "moments/log_variance": server.log_variance,
            "moments/counts": server.counts,
        }
        return Broadcast(found.common, {**found.personal, **moments})

    def mixing(self, server: FedSSAServer, upload: Upload, round_number: int) -> Tensor:
        """Weights of clients within each client's structural group."""
        return self._within(server.structural, upload)

    def aggregate(self, server: FedSSAServer, upload: Upload, round_number: int) -> FedSSAServer:
        sent = unprefixed("weights", upload.fields)
        if not sent:
            return server
        if self.configuration.warmup <= round_number + 1:
            if not server.semantic.numel() or round_number < self.configuration.freeze:
                server = self._regrouped(server, upload.fields)
            server = self._represented(server, upload.fields)
        server = self.averaged(server, upload, self.mixing(server, upload, round_number))
        heads = {name: values for name, values in sent.items() if name.startswith(HEADS)}
        gives = upload.fields["size/train_nodes"] > 0
        rows = row_stochastic(self._within(server.semantic, upload), gives)
        return dataclasses.replace(server, personal={**server.personal, **mixed(heads, rows)})

    def diagnostics(self, server: FedSSAServer) -> dict[str, float]:
        figures = super().diagnostics(server)
        if server.semantic.numel():
            figures["groups/semantic"] = float(server.semantic.max() + 1)
            figures["groups/structural"] = float(server.structural.max() + 1)
        return figures

    def server_snapshot(self, server: FedSSAServer) -> dict[str, Tensor]:
        """The mixing matrix and each client's groups, [M]."""
        return {
            **super().server_snapshot(server),
            "semantic": server.semantic,
            "structural": server.structural,
        }

    def _within(self, labels: Tensor, upload: Upload) -> Tensor:
        shares = normalised_client_weights(self.configuration.client_weights, upload.fields)
        groups = labels if labels.numel() else torch.zeros(len(shares), dtype=torch.int64)
        return same_group(groups) * shares

    def _regrouped(self, server: FedSSAServer, fields: Mapping[str, Tensor]) -> FedSSAServer:
        given = self.configuration
        distances = semantic_distances(_moments(fields))
        if given.energy == "channels":
            structural = k_means(fields["energy/channels"], given.structural_groups)
        else:
            structural = average_linkage(
                subspace_distances(fields["energy/subspace"]), given.structural_groups
            )
        semantic = average_linkage(distances, given.semantic_groups)
        return dataclasses.replace(server, semantic=semantic, structural=structural)

    def _represented(self, server: FedSSAServer, fields: Mapping[str, Tensor]) -> FedSSAServer:
        found = representatives(_moments(fields), same_group(server.semantic))
        precision = fields["moments/mean"].dtype
        return dataclasses.replace(
            server,
            mean=found.mean.to(precision),
            log_variance=found.log_variance.to(precision),
            counts=found.counts.to(torch.int32),
        )

    def _server(self, weights: Tensors, task: Task) -> FedSSAServer:
        return FedSSAServer(weights)

    # Client side

    def initialise(self, task: Task) -> Tensors:
        given = self.configuration
        weights = super().initialise(task)
        width = weights["classifier.weight"].shape[0]
        read = width + task.classes if given.label_input else width
        for head in ("mean", "log_variance"):
            weights.update(linear(task, f"{HEADS}{head}", read, given.latent))
        weights.update(linear(task, f"{DECODER}0", given.latent + task.classes, given.hidden))
        weights.update(linear(task, f"{DECODER}1", given.hidden, task.features))
        return weights

    def rates(self, name: str) -> tuple[float, float]:
        lr, decay = super().rates(name)
        return (
            (self.configuration.variational_lr, decay) if name.startswith((HEADS, DECODER)) else (lr, decay)
        )

    def receive(self, client: FedSSAClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        client.steps = 0
        client.group = unprefixed("moments", broadcast.personal) or None
        if client.group is not None:
            client.group = {**client.group, "filter": client.weights[FILTER].clone()}

    def stepped(self, client: FedSSAClient, cohort: Cohort) -> None:
        client.steps = (client.steps or 0) + 1

    def represent(
        self, client: FedSSAClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        if dropout is None:
            return self.backbone.forward(weights, cohort, None)
        return self.backbone.forward_training(weights, cohort, dropout)

    def losses(
        self,
        client: FedSSAClient,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        given = self.configuration
        terms: dict[str, Tensor] = {}
        aligned = client.group is not None and given.semantic_weight > 0
        if given.variational_weight > 0 or aligned:
            mean, log_variance = self._posterior(cohort, weights, representation)
            if given.variational_weight > 0:
                bound = self._bound(client, cohort, weights, mean, log_variance, round_number)
                terms["variational"] = given.variational_weight * bound
            if aligned:
                assert client.group is not None
                gaps = alignment(class_moments(cohort, mean, log_variance), _group_moments(client.group))
                terms["semantic"] = given.semantic_weight * gaps
        if client.group is not None and given.structural_weight > 0:
            pull = (weights[FILTER] - client.group["filter"]).square().flatten(1).sum(dim=1)
            terms["structural"] = given.structural_weight * pull / (self.backbone.hops + 1)
        return terms

    @torch.no_grad()
    def own_upload(self, client: FedSSAClient, cohort: Cohort, round_number: int) -> Tensors:
        representation = self.backbone.forward(client.weights, cohort, None)
        client.logits = representation.logits
        if self.configuration.travelling == "none":
            return {}
        moments = class_moments(cohort, *self._posterior(cohort, client.weights, representation))
        fields: Tensors = {
            "moments/mean": moments.mean,
            "moments/log_variance": moments.log_variance,
            "moments/counts": moments.counts.to(torch.int32),
        }
        if self.configuration.energy == "channels":
            fields["energy/channels"] = self._energy(cohort, client.weights)
        else:
            fields["energy/subspace"] = leading_directions(
                cohort, self.backbone.bases(cohort), self.configuration.subspace
            )
        return fields

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedSSAClient:
        return FedSSAClient(weights, optimizer)

    def _posterior(
        self, cohort: Cohort, weights: Tensors, representation: Representation
    ) -> tuple[Tensor, Tensor]:
        """mu_v and lv_v of the training nodes, [k, t, d]; rows beyond a client's last have no meaning."""
        rows = training_rows(cohort)
        read = rows.take(representation.embedding)
        if self.configuration.label_input:
            read = torch.cat([read, rows.take(cohort.class_indicator())], dim=2)
        mean = affine(read, weights, f"{HEADS}mean")
        log_variance = affine(read, weights, f"{HEADS}log_variance")
        return mean, log_variance.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)

    def _bound(
        self,
        client: FedSSAClient,
        cohort: Cohort,
        weights: Tensors,
        mean: Tensor,
        log_variance: Tensor,
        round_number: int,
    ) -> Tensor:
        """Negative variational bound without constants, mean over training nodes, [k]."""
        rows = training_rows(cohort)
        noise = torch.zeros_like(mean)
        streams = cohort.generators(round_number, f"posterior/{client.steps}")
        for row, (generator, count) in enumerate(zip(streams, rows.counts, strict=True)):
            draw = generator.standard_normal((count, mean.shape[2]))
            noise[row, :count] = torch.from_numpy(draw).to(mean)
        latent = reparameterise(mean, log_variance, noise)
        read = torch.cat([latent, rows.take(cohort.class_indicator())], dim=2)
        hidden = self.backbone.act(affine(read, weights, f"{DECODER}0"))
        # Member 0 of the bases is x itself.
        error = affine(hidden, weights, f"{DECODER}1") - self.backbone.training_bases(cohort)[0]
        zero = torch.zeros_like(mean)
        prior = kl(mean, log_variance, zero, zero).mean(dim=2)
        return cohort.masked_mean(
            error.square().mean(dim=2) + self.configuration.prior_weight * prior, rows.present
        )

    def _energy(self, cohort: Cohort, weights: Tensors) -> Tensor:
        """eps, [k, K+1]; equal shares where the bases or coefficients are zero."""
        coefficients = self.backbone.coefficients(weights)
        energy = (coefficients.square() * self.backbone.energies(cohort)).sum(dim=2)
        total = energy.sum(dim=1, keepdim=True)
        even = torch.full_like(energy, 1 / energy.shape[1])
        return torch.where(total > 0, energy / total.clamp(min=1e-30), even)


def class_moments(cohort: Cohort, mean: Tensor, log_variance: Tensor) -> Moments:
    """Moments of each class's mixture of node Gaussians: mu^c = mean mu_v, var^c = mean e^lv_v + Var(mu_v).

    Args:
        mean, log_variance: of the training nodes, [k, t, d].
    """
    indicator = training_rows(cohort).take(cohort.class_indicator())
    matched = match_moments(mean, log_variance, indicator.transpose(1, 2), VARIANCE_FLOOR)
    return Moments(*matched, cohort.class_counts())


def alignment(own: Moments, group: Moments) -> Tensor:
    """Mean over the classes that both have of KL(own || group), itself a mean over dimensions, [k].

    0 where they share no class.
    """
    shared = ((own.counts > 0) & (group.counts > 0)).to(own.mean.dtype)
    gaps = kl(own.mean, own.log_variance, group.mean, group.log_variance).mean(dim=2)
    return (gaps * shared).sum(dim=1) / shared.sum(dim=1).clamp(min=1)


def semantic_distances(moments: Moments) -> Tensor:
    """Mean over shared classes of KL(i || j) + KL(j || i), float64 [M, M]; see the module's text for none."""
    mean, log_variance = moments.mean.double(), moments.log_variance.double()
    one_way = kl(mean[:, None], log_variance[:, None], mean[None], log_variance[None]).mean(dim=3)
    present = (moments.counts > 0).double()
    shared = present[:, None] * present[None]
    number = shared.sum(dim=2)
    distances = ((one_way + one_way.transpose(0, 1)) * shared).sum(dim=2) / number.clamp(min=1)
    farthest = distances.max() if distances.max() > 0 else torch.ones_like(distances[0, 0])
    distances = torch.where(number > 0, distances, farthest)
    return distances.fill_diagonal_(0.0)


def representatives(moments: Moments, together: Tensor) -> Moments:
    """For each client the moments of its group's mixture, weighted by counts.

    Args:
        together: indicator of pairs in one group, [M, M].
    """
    counts = moments.counts.double()
    weights = together[None] * counts.T[:, None]
    mean, log_variance = match_moments(
        moments.mean.double().transpose(0, 1),
        moments.log_variance.double().transpose(0, 1),
        weights,
        VARIANCE_FLOOR,
    )
    return Moments(mean.transpose(0, 1), log_variance.transpose(0, 1), together @ counts)


def leading_directions(cohort: Cohort, bases: Tensor, count: int) -> Tensor:
    """Leading right singular vectors of each client's stacked bases, [k, q, f]; zero rows beyond the rank.

    Args:
        bases: [J, k, n, f], stacked to [J n, f] per client.
        count: q.
    """

    def build() -> Tensor:
        found = torch.zeros(bases.shape[1], count, bases.shape[3], dtype=bases.dtype, device=bases.device)
        for row, size in enumerate(cohort.sizes):
            stack = bases[:, row, :size].reshape(-1, bases.shape[3]).double()
            _, values, right = torch.linalg.svd(stack, full_matrices=False)
            rank = min(count, int((values > values.max() * 1e-6).sum()))
            found[row, :rank] = right[:rank].to(bases.dtype)
        return found

    return cohort.keep(f"fedssa/directions/{count}", build)


def subspace_distances(directions: Tensor) -> Tensor:
    """Norm of the sines of the principal angles between row spaces [M, q, f], float64 [M, M]."""
    rows = directions.double()
    cosines = torch.einsum("iqf,jpf->ijqp", rows, rows).square().sum(dim=(2, 3))
    dimensions = rows.square().sum(dim=(1, 2))
    larger = torch.maximum(dimensions[:, None], dimensions[None])
    return (larger - cosines).clamp(min=0).sqrt().fill_diagonal_(0.0)


def _moments(fields: Mapping[str, Tensor]) -> Moments:
    return Moments(fields["moments/mean"], fields["moments/log_variance"], fields["moments/counts"])


def _group_moments(group: Mapping[str, Tensor]) -> Moments:
    return Moments(group["mean"], group["log_variance"], group["counts"])
