"""FedICI: common low frequencies in a low-rank space, individual high frequencies orthogonal to it.

Source: Yu et al., "Integrating Commonality and Individuality for Graph Federated Learning: A Graph Spectrum
Perspective" (2025). **A reconstruction**: neither the paper's text nor its code was available. Known are four
statements: UniFilter extracts representations and a perceptron classifies; low-frequency components are
aggregated in a low-rank space; high-frequency components are projected onto a space orthogonal to it; a round
costs about as much as one of FedAvg.

Client m has coefficients for both bases of UniFilter instead of one mixed basis,

    Z = sum_{j=0..K} l_j * m_j + sum_{j=1..K} g_j * u_j,   l [K+1, f], g [K, f]

with m_j and u_j at the same column norm, and a perceptron theta. D = (K + 1) f. The server, after round 0:

    1. L = rows l_m - l_0 [M, D] = U S V^T; V keeps the r leading right singular vectors
    2. l   <- l_0 + V V^T (sum_m p_m l_m - l_0)                     the same for all clients
    3. g_m <- g_0 + (I - Q Q^T) (g_m - g_0)                         each client's own
    4. theta <- sum_m p_m theta_m

with l_0, g_0 the initial values and r the least rank with a share `energy` of the squared singular values, at
most `rank` and M - 1. Round 0 and an empty V leave out 1 to 3: l is then averaged and g stays.

All clients start a round at the same l, so L is nearly of rank one: on Minesweeper and Tolokers with 10
clients the first singular value keeps more than 97 % of the energy from round 5 on. Then r = 1, V is the
direction of the mean change, and the low side is close to FedAvg's.

Choices:

- g has no member of hop 0, so that x is counted once. Projecting with V itself would fill that row; Q is an
  orthonormal basis of V without the rows of hop 0, which makes (0, g_m - g_0) orthogonal to V exactly.
- The common norm of m_j and u_j is that of the feature column (`scale=input`), so that a feature means the
  same on all clients; `unit` makes it 1.
- Clients without training nodes do not enter V.
- Other readings: `split=frequency` takes ((I + P) / 2)^j x and ((I - P) / 2)^j x as the two sides;
  `orthogonality=loss` asks the clients for it, w ||Q^T (g_m - g_0)||^2, instead of projecting;
  `decorrelation` also turns the individual parts away from each other. Subspaces of the basis features
  instead of the coefficients, a further reading, are left out: they do not change during training, and every
  client would upload vectors of its raw features.
- `shared=encoder` keeps the classifier personal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import normalised_client_weights, weighted_mean
from fedatlas.algorithms.backbones import Backbone, Representation, UniFilter
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import among, log_between
from fedatlas.algorithms.spectral_bases import (
    build_bases,
    heterophily_basis,
    homophily_basis,
    unit_columns,
)
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, prefixed, unprefixed
from fedatlas.platform.federation.state import transient

LOW, HIGH = "encoder.filter.low", "encoder.filter.high"

Split = Literal["unifilter", "frequency"]
Scale = Literal["unit", "input"]


class FedICIConfiguration(WeightSharingConfiguration):
    """Defaults of FedICI; per data set they are in `presets.yaml`."""

    aggregation: Literal["fedavg", "none"] = Field("fedavg", description="how shared weights travel")
    rank: int = Field(
        5, ge=1, description="largest rank r of the common subspace", json_schema_extra=among(2, 5, 10)
    )
    energy: float = Field(0.9, gt=0, le=1, description="share of the squared singular values to keep")
    orthogonality: Literal["projection", "loss"] = Field(
        "projection", description="who makes high frequencies orthogonal: the server, or the clients' loss"
    )
    orthogonality_weight: float = Field(
        0.1, ge=0, description="weight of that loss", json_schema_extra=log_between(0.001, 1.0)
    )
    decorrelation: float = Field(
        0.0, ge=0, le=1, description="rho: how far individual parts are turned apart"
    )
    split: Split = Field("unifilter", description="what low and high frequencies are")
    scale: Scale = Field("input", description="column norms of all members: those of x, or 1")


@dataclass(frozen=True)
class DualFilter(UniFilter):
    """UniFilter with coefficients for both bases: l [K+1, f] and g [K, f]."""

    split: Split = "unifilter"
    scale: Scale = "input"

    def __post_init__(self) -> None:
        if self.hops < 1:
            raise ConfigurationError("hops=0 leaves fedici without high frequencies: use 1 or more")

    @property
    def start(self) -> tuple[float, float]:
        """Initial values l_0 and g_0 of all entries."""
        return self.homophily_mix / (self.hops + 1), (1 - self.homophily_mix) / (self.hops + 1)

    def initial_filter(self, task: Task) -> Tensors:
        low, high = self.start
        return {
            LOW: torch.full((self.hops + 1, task.features), low),
            HIGH: torch.full((self.hops, task.features), high),
        }

    def coefficients(self, weights: Tensors) -> Tensor:
        return torch.cat([weights[LOW], weights[HIGH]], dim=1)

    def bases(self, cohort: Cohort) -> Tensor:
        """m_0, ..., m_K, u_1, ..., u_K, [2K+1, k, n, f]."""
        return cohort.keep(self._key, lambda: build_bases(cohort, 2 * self.hops + 1, self._members))

    @property
    def _key(self) -> str:
        return f"unifilter/dual/{self.hops}/{self.split}/{self.scale}"

    def _members(
        self, propagate: Callable[[Tensor], Tensor], columns: Tensor, cosine: Tensor
    ) -> Iterator[Tensor]:
        if self.split == "unifilter":
            low = homophily_basis(propagate, columns, self.hops)
            high = heterophily_basis(propagate, columns, cosine, self.hops)
        else:
            low = homophily_basis(lambda v: (v + propagate(v)) / 2, columns, self.hops)
            high = homophily_basis(lambda v: (v - propagate(v)) / 2, columns, self.hops)
        next(high)
        norms = columns.norm(dim=1, keepdim=True) if self.scale == "input" else 1.0
        for side in (low, high):
            for member in side:
                yield unit_columns(member) * norms


@dataclass
class FedICIServer(SharedServer):
    """Adds what was personal in the last aggregation.

    Attributes:
        high: g_m of every client, [M, K, f]; empty before the first aggregation.
        subspace: Q, [K f, r].
        rank, captured: r, and the share of the squared singular values that V keeps.
    """

    high: Tensor = field(default_factory=lambda: torch.empty(0))
    subspace: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    rank: int = 0
    captured: float = 1.0


@dataclass
class FedICIClient(SharedClient):
    """Adds the received Q (the same for all clients) where the clients' loss needs it."""

    subspace: Tensor | None = transient()


class FedICI(WeightSharing[FedICIConfiguration, FedICIServer, FedICIClient]):
    """Low-rank common low frequencies, orthogonal individual high frequencies.

    With r = rank(L) the low side is FedAvg's. Uploads and downloads per client: 2K+1 coefficients per feature
    and the perceptron; with `orthogonality=loss` also Q [K f, r] down.
    """

    name: ClassVar[str] = "fedici"
    title: ClassVar[str] = "FedICI"
    note: ClassVar[str] = "reconstruction from published statements; no code or paper text was available"
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"subspace"}
    default_backbone: ClassVar[str | None] = "unifilter"
    backbones: ClassVar[tuple[str, ...] | None] = ("unifilter",)
    configuration_type: ClassVar[type[MethodConfiguration]] = FedICIConfiguration

    backbone: DualFilter

    def __init__(self, configuration: FedICIConfiguration, backbone: Backbone) -> None:
        given = {entry.name: getattr(backbone, entry.name) for entry in dataclasses.fields(backbone)}
        own = {"split": configuration.split, "scale": configuration.scale}
        super().__init__(configuration, DualFilter(**{**given, **own}))

    def describe(self) -> dict[str, object]:
        about = super().describe()
        return about if about["aggregation"] == "none" else {**about, "aggregation": "personalised"}

    # Server side

    def broadcast(self, server: FedICIServer, round_number: int) -> Broadcast:
        common = dict(server.weights)
        personal: Tensors = {}
        if server.high.numel():
            del common[HIGH]
            personal[HIGH] = server.high
        fields = prefixed("weights", common)
        if self.configuration.orthogonality == "loss" and server.subspace.numel():
            fields["subspace/high"] = server.subspace
        return Broadcast(fields, prefixed("weights", personal))

    def aggregate(self, server: FedICIServer, upload: Upload, round_number: int) -> FedICIServer:
        sent = unprefixed("weights", upload.fields)
        if not sent:
            return server
        shares = normalised_client_weights(self.configuration.client_weights, upload.fields)
        server = dataclasses.replace(server, weights=weighted_mean(sent, shares))
        if LOW not in sent:
            return server
        server = dataclasses.replace(server, high=sent[HIGH])
        return (
            server if round_number == 0 else self._separated(server, sent, upload.fields["size/train_nodes"])
        )

    def diagnostics(self, server: FedICIServer) -> dict[str, float]:
        if not server.high.numel():
            return {}
        rows = (server.high.double() - self.backbone.start[1]).flatten(1)
        return {
            "subspace/rank": float(server.rank),
            "subspace/captured": server.captured,
            "subspace/high_cosine": mean_absolute_cosine(rows),
        }

    def _separated(self, server: FedICIServer, sent: Tensors, train_nodes: Tensor) -> FedICIServer:
        """Steps 1 to 3; `server` holds plain means and the clients' own g_m."""
        configuration = self.configuration
        low_start, high_start = self.backbone.start
        trained = (train_nodes > 0)[:, None]
        rows = (sent[LOW].double() - low_start).flatten(1) * trained
        limit = min(configuration.rank, len(rows) - 1)
        common, captured = leading_subspace(rows, configuration.energy, limit)
        if common.shape[1] == 0:
            return dataclasses.replace(server, rank=0, captured=1.0, subspace=torch.empty(0, 0))
        mean = server.weights[LOW]
        change = (mean.double() - low_start).flatten()
        low = low_start + (common @ (common.T @ change)).view_as(mean)
        subspace = orthonormal_columns(common[mean.shape[1] :])
        high = (sent[HIGH].double() - high_start).flatten(1)
        if configuration.orthogonality == "projection":
            high = high - (high @ subspace) @ subspace.T
        if configuration.decorrelation > 0:
            high = decorrelated(high, configuration.decorrelation)
        weights = {**server.weights, LOW: low.to(mean.dtype)}
        return dataclasses.replace(
            server,
            weights=weights,
            high=(high_start + high).to(mean.dtype).view_as(sent[HIGH]),
            subspace=subspace.to(mean.dtype),
            rank=int(common.shape[1]),
            captured=captured,
        )

    def _server(self, weights: Tensors, task: Task) -> FedICIServer:
        return FedICIServer(weights)

    # Client side

    def represent(
        self, client: FedICIClient, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        if dropout is None:
            return self.backbone.forward(weights, cohort, None)
        return self.backbone.forward_training(weights, cohort, dropout)

    def receive(self, client: FedICIClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        client.subspace = broadcast.common.get("subspace/high")

    def losses(
        self,
        client: FedICIClient,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        if client.subspace is None:
            return {}
        inside = (weights[HIGH] - self.backbone.start[1]).flatten(1) @ client.subspace.to(cohort.dtype)
        return {"orthogonality": self.configuration.orthogonality_weight * inside.square().sum(dim=1)}

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedICIClient:
        return FedICIClient(weights, optimizer)


def leading_subspace(rows: Tensor, energy: float, limit: int) -> tuple[Tensor, float]:
    """Orthonormal V [D, r] of the leading right singular vectors, and the share of energy that it keeps.

    Args:
        rows: [M, D].
        energy: r is the least rank whose squared singular values sum to this share.
        limit: r is at most this, and at most the numerical rank.
    """
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    squares = values.square()
    if limit < 1 or not squares.numel() or squares[0] == 0:
        return rows.new_zeros(rows.shape[1], 0), 1.0
    shares = squares.cumsum(0) / squares.sum()
    # The last share is 1 up to rounding.
    needed = int((shares < energy - 1e-12).sum()) + 1
    rank = min(needed, limit, _numerical_rank(values, rows))
    return right[:rank].T, float(shares[rank - 1])


def orthonormal_columns(columns: Tensor) -> Tensor:
    """Orthonormal basis [d, r] of the span of columns [d, s], r <= s."""
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    basis: Tensor = left[:, : _numerical_rank(values, columns)]
    return basis


def decorrelated(rows: Tensor, rho: float) -> Tensor:
    """Rows turned towards the nearest mutually orthogonal ones, [M, d].

        B' = (1 - rho) B + rho diag(||b_m||) U W^T,   B = U S W^T

    U W^T is the polar factor of B, whose rows are orthonormal if B has full row rank; directions below the
    numerical rank are left out.
    """
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    rank = _numerical_rank(values, rows)
    polar = left[:, :rank] @ right[:rank]
    turned: Tensor = (1 - rho) * rows + rho * rows.norm(dim=1, keepdim=True) * polar
    return turned


def mean_absolute_cosine(rows: Tensor) -> float:
    """Mean |cos| over pairs of different rows; rows of zeros count as 0, and so does a single row."""
    unit = torch.nn.functional.normalize(rows, dim=1, eps=1e-12)
    cosines = (unit @ unit.T).abs()
    pairs = len(rows) * (len(rows) - 1)
    return float((cosines.sum() - cosines.diagonal().sum()) / pairs) if pairs else 0.0


def _numerical_rank(values: Tensor, matrix: Tensor) -> int:
    if not values.numel():
        return 0
    bound = values[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps
    return int((values > bound).sum())
