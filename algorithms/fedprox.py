"""FedProx: FedAvg with a proximal pull to the received weights (Li et al., MLSys 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.backbones import Representation
from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.search_spaces import log_between
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.graphs.graph import Level


class FedProxConfiguration(WeightSharingConfiguration):
    """Defaults of FedProx."""

    mu: float = Field(
        0.001, ge=0, description="strength of the proximal pull", json_schema_extra=log_between(1e-05, 1.0)
    )


@dataclass
class FedProxClient(SharedClient):
    """Adds the shared weights of this round's broadcast, without client axis."""

    received: Tensors | None = transient()


class FedProx(WeightSharing[FedProxConfiguration, SharedServer, FedProxClient]):
    """min CE_m(theta) + (mu / 2) ||theta - theta^t||^2 over the shared parameters.

    `mu=0` equals FedAvg. With one full-batch epoch per round (E = 1) the only step starts at theta^t, where
    the pull has no gradient: FedProx then equals FedAvg for every mu, so E >= 2 exercises the method.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    partial_participation: ClassVar[bool] = True
    note: ClassVar[str] = "with one local epoch identical to FedAvg"
    configuration_type: ClassVar[type[MethodConfiguration]] = FedProxConfiguration

    def receive(self, client: FedProxClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        client.received = unprefixed("weights", broadcast.common)

    def losses(
        self,
        client: FedProxClient,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        pull = torch.zeros(len(cohort.clients), dtype=cohort.dtype, device=cohort.device)
        for name, received in (client.received or {}).items():
            pull = pull + (weights[name] - received).square().flatten(1).sum(dim=1)
        return {"proximal": self.configuration.mu / 2 * pull}

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> FedProxClient:
        return FedProxClient(weights, optimizer)
