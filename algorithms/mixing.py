"""Personalised averaging: every client receives an average of its own, theta_i <- sum_j w_ij theta_j."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.weight_sharing import (
    ClientT,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Task
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, prefixed, unprefixed


class PersonalisedConfiguration(WeightSharingConfiguration):
    """Settings of personalised averaging; the rows of the mixing matrix replace the client weights."""

    aggregation: Literal["fedavg", "none"] = Field("fedavg", description="how shared weights travel")


@dataclass
class PersonalisedServer(SharedServer):
    """Adds every client's own average.

    Attributes:
        personal: shared weights [M, ...] of the last aggregation; empty before the first, when all clients
            receive `weights`.
        mixing: weights w_ij of the last aggregation, [M, M].
    """

    personal: Tensors = field(default_factory=dict)
    mixing: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


ConfigurationT = TypeVar("ConfigurationT", bound=PersonalisedConfiguration)
ServerT = TypeVar("ServerT", bound=PersonalisedServer)


class PersonalisedAveraging(
    WeightSharing[ConfigurationT, ServerT, ClientT], Generic[ConfigurationT, ServerT, ClientT]
):
    """Weight sharing in which the server keeps one average per client.

    A method says how much client i takes from client j (`mixing`). Clients without training nodes give
    nothing. The identity matrix is Local, equal entries are FedAvg.
    """

    @abstractmethod
    def mixing(self, server: ServerT, upload: Upload, round_number: int) -> Tensor:
        """Weights w_ij >= 0, [M, M]; rows are normalised by the caller."""

    def describe(self) -> dict[str, object]:
        about = super().describe()
        return about if about["aggregation"] == "none" else {**about, "aggregation": "personalised"}

    def broadcast(self, server: ServerT, round_number: int) -> Broadcast:
        if not server.personal:
            return super().broadcast(server, round_number)
        return Broadcast(personal=prefixed("weights", server.personal))

    def aggregate(self, server: ServerT, upload: Upload, round_number: int) -> ServerT:
        if not unprefixed("weights", upload.fields):
            return server
        return self.averaged(server, upload, self.mixing(server, upload, round_number))

    def averaged(self, server: ServerT, upload: Upload, weights: Tensor) -> ServerT:
        """The server state after mixing the uploaded weights.

        Args:
            weights: w_ij before normalisation, [M, M].
        """
        rows = row_stochastic(weights, upload.fields["size/train_nodes"] > 0)
        sent = unprefixed("weights", upload.fields)
        return dataclasses.replace(server, personal=mixed(sent, rows), mixing=rows)

    def diagnostics(self, server: ServerT) -> dict[str, float]:
        if not server.mixing.numel():
            return {}
        rows = server.mixing.double()
        return {
            "mixing/entropy": float(-torch.special.xlogy(rows, rows).sum(dim=1).mean()),
            "mixing/self": float(rows.diagonal().mean()),
        }

    def server_snapshot(self, server: ServerT) -> dict[str, Tensor]:
        return {"mixing": server.mixing}

    def mixing_matrix(self, server: ServerT) -> Tensor | None:
        return server.mixing if server.mixing.numel() else None

    def _server(self, weights: Tensors, task: Task) -> ServerT:
        return PersonalisedServer(weights)  # type: ignore[return-value]


def row_stochastic(weights: Tensor, gives: Tensor) -> Tensor:
    """Rows normalised to sum 1 over the clients that give; a row without any keeps its own client.

    Args:
        weights: w_ij >= 0, [M, M].
        gives: bool [M].
    """
    kept = weights.double() * gives
    total = kept.sum(dim=1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp(min=1e-300), torch.eye(len(kept)).double())


def mixed(stacked: Mapping[str, Tensor], mixing: Tensor) -> Tensors:
    """sum_j w_ij x_j over the client axis: [M, ...] -> [M, ...] for each named tensor."""
    return {
        name: torch.tensordot(mixing.to(tensor.dtype), tensor, dims=1) for name, tensor in stacked.items()
    }


def cosine_similarity(rows: Tensor) -> Tensor:
    """Cosines of all pairs of rows, [M, d] -> [M, M] in float64; 0 where a row is zero."""
    wide = rows.double()
    unit = torch.nn.functional.normalize(wide, dim=1, eps=1e-12)
    return unit @ unit.T
