"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.optimizer import AdamState
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    Step,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, prefixed, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.graphs.graph import Level


class SCAFFOLDConfiguration(WeightSharingConfiguration):
    """Defaults of SCAFFOLD; the server's step eta_g is 1."""

    aggregation: Literal["fedavg"] = Field("fedavg", description="how shared weights travel")


@dataclass
class SCAFFOLDServer(SharedServer):
    """Adds the server's control variate c, and the number of clients M."""

    control: Tensors = field(default_factory=dict)
    clients: int = 1


@dataclass
class SCAFFOLDClient(SharedClient):
    """Adds the clients' control variates c_m [k, ...].

    Attributes:
        control: c_m of the shared weights.
        correction: c - c_m in this round.
        summed: sum of this round's gradients.
    """

    control: Tensors = field(default_factory=dict)
    correction: Tensors | None = transient()
    summed: Tensors | None = transient()


class SCAFFOLD(WeightSharing[SCAFFOLDConfiguration, SCAFFOLDServer, SCAFFOLDClient]):
    """Local steps along g_m(theta) - c_m + c, for the shared weights.

        c_m+ = mean of the gradients g_m of the round's K local steps
        theta <- mean_m theta_m,   c <- c + (1/M) sum_m (c_m+ - c_m)

    With plain SGD, c_m+ is exactly the paper's option II, c_m - c + (theta^t - theta_m) / (K eta); it stays
    on the scale of gradients with momentum and with Adam, where the option does not. The corrected gradient
    is what the local optimizer sees; weight decay is no part of c_m. Clients that take no step keep c_m.

    In the first round it equals FedAvg (all c are 0), with one client it equals Local. Weights of clients are
    uniform in the paper (`client_weights`). Twice the traffic of FedAvg each way.
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    partial_participation: ClassVar[bool] = True
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"control"}
    meanings: ClassVar[Mapping[str, str]] = {
        "control": "change of the control variates, means of gradients",
    }
    downloads: ClassVar[frozenset[str]] = WeightSharing.downloads | {"control"}
    configuration_type: ClassVar[type[MethodConfiguration]] = SCAFFOLDConfiguration

    def broadcast(self, server: SCAFFOLDServer, round_number: int) -> Broadcast:
        sent = super().broadcast(server, round_number)
        return Broadcast({**sent.common, **prefixed("control", server.control)})

    def receive(self, client: SCAFFOLDClient, cohort: Cohort, broadcast: Broadcast) -> None:
        super().receive(client, cohort, broadcast)
        common = unprefixed("control", broadcast.common)
        client.correction = {
            name: common[name].to(control.dtype) - control for name, control in client.control.items()
        }
        client.summed = {name: torch.zeros_like(control) for name, control in client.control.items()}

    def aggregate(self, server: SCAFFOLDServer, upload: Upload, round_number: int) -> SCAFFOLDServer:
        server = super().aggregate(server, upload, round_number)
        control = {
            name: server.control[name].to(change.dtype) + change.sum(dim=0) / server.clients
            for name, change in unprefixed("control", upload.fields).items()
        }
        return dataclasses.replace(server, control=control or server.control)

    def clipped(self) -> frozenset[str]:
        return super().clipped() | {"control"}

    def additive(self) -> frozenset[str]:
        return frozenset({"weights", "size", "control"})

    def own_upload(self, client: SCAFFOLDClient, cohort: Cohort, round_number: int) -> Tensors:
        assert client.summed is not None
        assert client.taken is not None
        changes: Tensors = {}
        for name, total in client.summed.items():
            taken = client.taken.view(-1, *[1] * (total.dim() - 1))
            change = total / taken.clamp(min=1).to(total.dtype) - client.control[name]
            changes[name] = torch.where(taken > 0, change, torch.zeros_like(change))
            client.control[name] = client.control[name] + changes[name]
        return prefixed("control", changes)

    def _gradients(
        self, client: SCAFFOLDClient, step: Step, round_number: int
    ) -> tuple[dict[str, Tensor], Tensors]:
        losses, found = super()._gradients(client, step, round_number)
        assert client.correction is not None
        assert client.summed is not None
        corrections = step.of(client.correction)
        corrected = dict(found)
        for name in corrections:
            if name in found:
                client.summed[name] += step.spread(found[name], len(client.summed[name]))
                corrected[name] = found[name] + corrections[name]
        return losses, corrected

    def _server(self, weights: Tensors, task: Task) -> SCAFFOLDServer:
        control = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        return SCAFFOLDServer(weights, control=control, clients=task.clients)

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> SCAFFOLDClient:
        control = {name: torch.zeros_like(weight) for name, weight in self._shared(weights).items()}
        return SCAFFOLDClient(weights, optimizer, control=control)
