"""FedIIH: factor-wise averages by similarity of inferred latent distributions (Yu et al., AAAI 2025)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms import gaussians
from fedatlas.algorithms.aggregation import PRIVATE, normalised_client_weights, weighted_mean
from fedatlas.algorithms.backbones import Backbone, Representation
from fedatlas.algorithms.backbones.disengcn import DisenGCN, Disentangled
from fedatlas.algorithms.mixing import (
    PersonalisedAveraging,
    PersonalisedConfiguration,
    PersonalisedServer,
    mixed,
    row_stochastic,
)
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.reconstruction import reconstruction_loss
from fedatlas.algorithms.search_spaces import log_between
from fedatlas.algorithms.weight_sharing import SharedClient
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.randomness import SERVER, stream

MEANS = f"{PRIVATE}means"
"""Parameter alphahat, [K, p] per client."""
VARIANCE = 0.25
"""sigma^2 of p(H_k | alpha_k) and of the posterior of alpha_k; that of the prior of alpha_k is 1."""

Reduce = Literal["sum", "mean"]


class FedIIHConfiguration(PersonalisedConfiguration):
    """Defaults of FedIIH."""

    dropout: float = Field(0.35, ge=0, lt=1, description="dropout of hidden representations")
    latent_layers: int = Field(1, ge=1, le=4, description="routing layers of each variational branch")
    elbo_weight: float = Field(
        0.1, ge=0, description="weight lambda of the negative ELBO", json_schema_extra=log_between(0.001, 1.0)
    )
    elbo_trains_encoder: bool = Field(
        True, description="gradients of the ELBO reach the encoder; false: as in the released code"
    )
    all_pairs_limit: int = Field(
        5000, ge=1, description="more nodes than this: the decoder is estimated from sampled pairs"
    )
    sharpness: float = Field(10.0, ge=0, description="factor of the similarities in the softmax")
    js_reduce: Reduce = Field("sum", description="divergence summed or averaged over dimensions")


@dataclass(frozen=True)
class Inferred(Disentangled):
    """Adds the variational posterior q(H) = N(mean, e^log_variance), [k, n, K p] each."""

    mean: Tensor | None = None
    log_variance: Tensor | None = None


@dataclass
class FedIIHServer(PersonalisedServer):
    """Adds latent means alphatilde [K, p] and the weights of every factor.

    `mixing` [M, M] is the mean of `factor_mixing` over the factors.
    """

    means: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    factor_mixing: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))


@dataclass
class FedIIHClient(SharedClient):
    """Adds the received alphatilde [K, p], the same for all clients."""

    received: Tensor | None = transient()


class FedIIH(PersonalisedAveraging[FedIIHConfiguration, FedIIHServer, FedIIHClient]):
    """Client m minimises CE_m - lambda ELBO_m over its network and its own latent means alphahat (K of them),

        ELBO = E_q[log p(A | H)] - sum_k KL(q(H_k) || N(alphahat_k, 1/4))
               + sum_k (log N(alphahat_k; 0, 1) - KL(N(alphahat_k, 1/4) || N(alphatilde_k, 1/4))),
        p(A_uv = 1 | H) = sigmoid(h_u . h_v),   H = [H_1 | ... | H_K] ~ q,

    where the parts are means over pairs, nodes and dimensions. Branches of parameter-free routing layers on
    the output of the network's own layers give mean and log-variance of q. A client sends its weights and,
    per factor, mean and log-variance averaged over its nodes, mu_mk and lv_mk; alphahat never leaves it. The
    server answers with

        alphatilde_k = sum_m mu_mk / (M + 1/4)
        S_k(m, j) = 1 - JS(N(mu_mk, e^lv_mk), N(mu_jk, e^lv_jk)) / ln 2
        beta_k(m, j) = softmax_j(10 S_k(m, j))
        (W_k, b_k, W_c,k) of m <- sum_j beta_k(m, j) (W_k, b_k, W_c,k) of j,   b_c <- mean over clients

    with W_k, b_k the projection into factor k and W_c,k the rows of the classifier that read it.

    The published depth L is `layers` = max(1, L - 2) and `latent_layers` = 1 if L <= 2 else 2.

    Where paper, released code and this differ:

    - In the paper the encoder learns through the ELBO. In the code nothing but alphahat does: gradients of
      the ELBO are cleared before the encoder's step, and nothing that is sent depends on alphahat.
      `elbo_trains_encoder=False` is the code: then alphatilde and the decoder do not influence the network.
    - With lambda = 1 the routed factors of all nodes become alike (Cora, 10 clients: mean cosine 1.00 after
      25 rounds, without ELBO 0.81), because only negative coordinates make a log-variance small. The default
      is 0.1.
    - The code minimises +log N(alphahat; 0, 1); the sign here is that of the ELBO.
    - The two branches have no parameters and read the same input, so without dropout they are equal: the
      log-variance *is* the mean. Their first layer is computed once. What is sent is taken in evaluation
      mode after the local steps (the code: in training mode), and so has mu = lv.
    - Pairs u = u are left out of the decoder. The code sums over them too, which only matters if the encoder
      learns from it.
    - alphahat starts at a draw from its prior, the same for all clients, as in the code; alphatilde starts
      at 0, which is what its formula gives without any client (the code: another draw).
    - JS, summed over dimensions, is not bounded by ln 2. `js_reduce=mean` divides it by p.
    - Clients without training nodes are left out of alphatilde and give no weights.

    Shapes: alphahat, alphatilde [K, p]; mu, lv uploaded [k, K, p]; beta [K, M, M].
    """

    name: ClassVar[str] = "fediih"
    title: ClassVar[str] = "FedIIH"
    note: ClassVar[str] = "the ELBO also trains the encoder; in the released code it does not"
    uploads: ClassVar[frozenset[str]] = PersonalisedAveraging.uploads | {"latent"}
    meanings: ClassVar[Mapping[str, str]] = {
        "latent": "mean and log-variance of the client's latent factors",
    }
    downloads: ClassVar[frozenset[str]] = PersonalisedAveraging.downloads | {"latent"}
    default_backbone: ClassVar[str | None] = "disengcn"
    backbones: ClassVar[tuple[str, ...] | None] = ("disengcn",)
    configuration_type: ClassVar[type[MethodConfiguration]] = FedIIHConfiguration

    network: DisenGCN

    def __init__(self, configuration: FedIIHConfiguration, backbone: Backbone) -> None:
        super().__init__(configuration, backbone)
        self.network = cast(DisenGCN, backbone)

    # Server side

    def broadcast(self, server: FedIIHServer, round_number: int) -> Broadcast:
        sent = super().broadcast(server, round_number)
        if self.configuration.travelling == "none":
            return sent
        return Broadcast({**sent.common, "latent/means": server.means}, sent.personal)

    def mixing(self, server: FedIIHServer, upload: Upload, round_number: int) -> Tensor:
        """Weights of every factor, [K, M, M] (not [M, M]); rows have sum 1."""
        mean = upload.fields["latent/mean"].double().transpose(0, 1)
        log_variance = upload.fields["latent/log_variance"].double().transpose(0, 1)
        similarity = latent_similarity(mean, log_variance, self.configuration.js_reduce)
        gives = upload.fields["size/train_nodes"] > 0
        scores = (self.configuration.sharpness * similarity).masked_fill(~gives, -math.inf)
        # Relative to the best giver, or all weights of a row can be too small for a float.
        best = scores.amax(dim=2, keepdim=True)
        weights = torch.exp(scores - best.masked_fill(best.isinf(), 0.0))
        return torch.stack([row_stochastic(each, gives) for each in weights])

    def aggregate(self, server: FedIIHServer, upload: Upload, round_number: int) -> FedIIHServer:
        sent = unprefixed("weights", upload.fields)
        if not sent:
            return server
        rows = self.mixing(server, upload, round_number)
        gives = (upload.fields["size/train_nodes"] > 0).to(upload.fields["latent/mean"].dtype)
        total = torch.tensordot(gives, upload.fields["latent/mean"], dims=1)
        return dataclasses.replace(
            server,
            personal=mixed_by_factor(sent, rows, normalised_client_weights("uniform", upload.fields)),
            mixing=rows.mean(dim=0),
            factor_mixing=rows,
            means=total / (gives.sum() + VARIANCE),
        )

    def diagnostics(self, server: FedIIHServer) -> dict[str, float]:
        figures = super().diagnostics(server)
        if figures:
            rows = server.factor_mixing
            figures["mixing/entropy"] = float(-torch.special.xlogy(rows, rows).sum(dim=2).mean())
        return figures

    def server_snapshot(self, server: FedIIHServer) -> dict[str, Tensor]:
        """`mixing` [M, M], `factor_mixing` [K, M, M] and `latent_means` [K, p]."""
        return {
            **super().server_snapshot(server),
            "factor_mixing": server.factor_mixing,
            "latent_means": server.means,
        }

    def _server(self, weights: Tensors, task: Task) -> FedIIHServer:
        return FedIIHServer(weights, means=torch.zeros(self.network.factors, self.network.hidden))

    # Client side

    def initialise(self, task: Task) -> Tensors:
        shape = (self.network.factors, self.network.hidden)
        draw = stream(task.seed, SERVER, -1, f"init/{MEANS}").standard_normal(shape)
        return {**super().initialise(task), MEANS: torch.from_numpy(draw).float()}

    def receive(self, client: FedIIHClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        means = broadcast.common.get("latent/means")
        client.received = None if means is None else means.to(cohort.dtype)

    def represent(
        self, client: FedIIHClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        found = self.network.forward(weights, cohort, dropout)
        if dropout is None or self.configuration.elbo_weight == 0:
            return found
        assert found.factors is not None
        with contextlib.nullcontext() if self.configuration.elbo_trains_encoder else torch.no_grad():
            mean, log_variance = self._infer(cohort, found.factors, dropout)
        return Inferred(found.logits, found.embedding, None, None, found.factors, mean, log_variance)

    def losses(
        self,
        client: FedIIHClient,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        given = self.configuration
        if given.elbo_weight == 0:
            return {}
        assert isinstance(representation, Inferred)
        mean, log_variance = representation.mean, representation.log_variance
        assert mean is not None
        assert log_variance is not None
        own = weights[MEANS]
        k, _, width = mean.shape
        prior_log_variance = torch.full_like(own[:1, :1, :1], math.log(VARIANCE)).flatten()
        received = torch.zeros_like(own) if client.received is None else client.received
        divergence = gaussians.kl(mean, log_variance, own.reshape(k, 1, width), prior_log_variance)
        prior = standard_normal_loss(own) + gaussians.kl(
            own, prior_log_variance, received, prior_log_variance
        )
        # Means over the dimensions of a factor, sums over the factors.
        terms = {
            "latent": cohort.masked_mean(divergence.sum(dim=2) / self.network.hidden, cohort.nodes),
            "prior": prior.sum(dim=(1, 2)) / self.network.hidden,
        }
        if given.elbo_trains_encoder:
            latent = gaussians.reparameterise(
                mean, log_variance, self._noise(client, cohort, round_number, mean)
            )
            streams = cohort.generators(round_number, f"absent edges/{client.optimizer.step}")
            terms["reconstruction"] = reconstruction_loss(cohort, latent, given.all_pairs_limit, streams)
        return {name: given.elbo_weight * term for name, term in terms.items()}

    @torch.no_grad()
    def own_upload(self, client: FedIIHClient, cohort: Cohort, round_number: int) -> Tensors:
        """Evaluate once: the logits serve `predict`, the factors the latent distribution."""
        found = self.network.forward(client.weights, cohort, None)
        client.logits = found.logits
        if self.configuration.travelling == "none":
            return {}
        assert found.factors is not None
        mean, log_variance = self._infer(cohort, found.factors, None)
        return {
            "latent/mean": self._node_mean(cohort, mean),
            "latent/log_variance": self._node_mean(cohort, log_variance),
        }

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedIIHClient:
        return FedIIHClient(weights, optimizer)

    def _infer(self, cohort: Cohort, factors: Tensor, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(H), [k, n, K p]."""
        first = self.network.route(cohort, factors)
        if dropout is None:
            for _ in range(1, self.configuration.latent_layers):
                first = self.network.route(cohort, first)
            return first, first
        branches: list[Tensor] = []
        for branch in ("mean", "log_variance"):
            values = self.network.drop(f"{branch}.0", first, dropout)
            for layer in range(1, self.configuration.latent_layers):
                routed = self.network.route(cohort, values)
                values = self.network.drop(f"{branch}.{layer}", routed, dropout)
            branches.append(values)
        return branches[0], branches[1]

    def _noise(self, client: FedIIHClient, cohort: Cohort, round_number: int, like: Tensor) -> Tensor:
        """Standard normal draws for every real node, [k, n, K p]; 0 on padding."""
        noise = torch.zeros(like.shape, dtype=torch.float32)
        streams = cohort.generators(round_number, f"reparameterisation/{client.optimizer.step}")
        for row, (generator, size) in enumerate(zip(streams, cohort.sizes, strict=True)):
            draw = generator.standard_normal((size, like.shape[2]), dtype="float32")
            noise[row, :size] = torch.from_numpy(draw)
        return noise.to(like)

    def _node_mean(self, cohort: Cohort, values: Tensor) -> Tensor:
        weights = cohort.nodes.to(values.dtype)
        mean = torch.bmm(weights[:, None], values)[:, 0] / weights.sum(dim=1, keepdim=True)
        return mean.view(-1, self.network.factors, self.network.hidden)


def standard_normal_loss(values: Tensor) -> Tensor:
    """-log N(x; 0, 1) of every entry."""
    return 0.5 * (values.square() + math.log(2 * math.pi))


def latent_similarity(mean: Tensor, log_variance: Tensor, reduce: Reduce) -> Tensor:
    """S = 1 - JS / ln 2 between all pairs of clients, per factor.

    Args:
        mean, log_variance: diagonal Gaussians, [K, M, p].
        reduce: JS summed or averaged over the p dimensions.

    Returns:
        [K, M, M], symmetric with diagonal 1.
    """
    divergence = gaussians.jensen_shannon(
        mean[:, :, None], log_variance[:, :, None], mean[:, None], log_variance[:, None]
    )
    return 1 - (divergence.sum(dim=3) if reduce == "sum" else divergence.mean(dim=3)) / math.log(2)


def mixed_by_factor(stacked: Mapping[str, Tensor], mixing: Tensor, shares: Tensor) -> Tensors:
    """Every factor's part of the weights mixed by its own weights.

    Args:
        stacked: uploaded weights, [M, ...] by name.
        mixing: beta, [K, M, M]; rows have sum 1.
        shares: weights of the clients in the mean of the classifier's bias, [M].
    """
    found: Tensors = {}
    for name, tensor in stacked.items():
        if name == "classifier.bias":
            mean = weighted_mean({name: tensor}, shares)[name]
            found[name] = mean.expand_as(tensor).clone()
            continue
        axis = 1 if name == "classifier.weight" else tensor.dim() - 1
        blocks = tensor.chunk(len(mixing), dim=axis)
        parts = [mixed({name: block}, rows)[name] for block, rows in zip(blocks, mixing, strict=True)]
        found[name] = torch.cat(parts, dim=axis)
    return found
