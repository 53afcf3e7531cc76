"""FedNova: averages of normalised updates, for clients that take different numbers of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import (
    ClientWeights,
    normalised_client_weights,
    raw_client_weights,
    scaled,
    weighted_mean,
)
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.contract import LocalUpdate, MethodConfiguration
from fedatlas.platform.federation.messages import Tensors, Upload, unprefixed
from fedatlas.platform.graphs.graph import Level


class FedNovaConfiguration(WeightSharingConfiguration):
    """Defaults of FedNova."""

    aggregation: Literal["fedavg"] = Field("fedavg", description="how shared weights travel")
    client_weights: ClientWeights = Field("train_nodes", description="weights of clients in the aggregation")


class FedNova(WeightSharing[FedNovaConfiguration, SharedServer, SharedClient]):
    """theta <- theta - tau_eff sum_m p_m (theta - theta_m) / a_m, with tau_eff = sum_m p_m a_m.

    a_m says how far tau_m local steps carry a constant gradient (Wang et al., NeurIPS 2020):

        SGD with momentum rho:  a_m = [tau_m - rho (1 - rho^tau_m) / (1 - rho)] / (1 - rho)
        Adam:                   a_m = tau_m (there is no theory; ours)

    Momentum starts from zero in every round, without which the formula does not hold. Clients that take the
    same number of steps give FedAvg with the same p_m. A client without a step has no part in the average.
    """

    name: ClassVar[str] = "fednova"
    title: ClassVar[str] = "FedNova"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    partial_participation: ClassVar[bool] = True
    note: ClassVar[str] = "with one step for all clients identical to FedAvg"
    uploads: ClassVar[frozenset[str]] = WeightSharing.uploads | {"normaliser"}
    meanings: ClassVar[Mapping[str, str]] = {
        "normaliser": "how far the local steps carry a constant gradient",
    }
    configuration_type: ClassVar[type[MethodConfiguration]] = FedNovaConfiguration

    def update(self, client: SharedClient, cohort: Cohort, round_number: int) -> LocalUpdate:
        if self.configuration.optimizer == "sgd":
            for velocity in client.optimizer.first.values():
                velocity.zero_()
        return super().update(client, cohort, round_number)

    def own_upload(self, client: SharedClient, cohort: Cohort, round_number: int) -> Tensors:
        assert client.taken is not None
        sgd = self.configuration.optimizer == "sgd"
        momentum = (self.configuration.momentum or 0.0) if sgd else 0.0
        return {"normaliser/reach": reach(client.taken, momentum).to(cohort.dtype)}

    def additive(self) -> frozenset[str]:
        return frozenset({"weights", "size", "normaliser"})

    def addends(self, upload: Upload) -> Upload:
        """q_m, q_m a_m, q_m / a_m and q_m theta_m / a_m; all are 0 for a client without a step."""
        reached = upload.fields["normaliser/reach"].double()
        raw = raw_client_weights(self.configuration.client_weights, upload.fields) * (reached > 0)
        each = raw / reached.clamp(min=1e-12)
        weights = {name: value for name, value in upload.fields.items() if name.startswith("weights/")}
        return Upload(
            {
                **upload.fields,
                **scaled(weights, each),
                "size/share": raw,
                "normaliser/reach": raw * reached,
                "normaliser/inverse": each,
            }
        )

    def combined(self, server: SharedServer, sums: Upload) -> Upload:
        """The next weights as those of one client that takes one step; none if no client has a say."""
        fields = dict(sums.fields)
        share, inverse = float(fields.pop("size/share")), float(fields.pop("normaliser/inverse"))
        effective = float(fields["normaliser/reach"]) / share if share > 0 else 0.0
        for name in [name for name in fields if name.startswith("weights/")]:
            total, before = fields.pop(name), server.weights[name.removeprefix("weights/")]
            kept = 1.0 - effective * inverse / share if share > 0 else 1.0
            fields[name] = effective * total / max(share, 1e-12) + kept * before.to(total.dtype)
        fields["normaliser/reach"] = torch.ones_like(fields["normaliser/reach"])
        return Upload({**fields, "size/train_nodes": torch.ones_like(fields["size/train_nodes"])})

    def aggregate(self, server: SharedServer, upload: Upload, round_number: int) -> SharedServer:
        reached = upload.fields["normaliser/reach"].double()
        weights = normalised_client_weights(self.configuration.client_weights, upload.fields)
        weights = weights * (reached > 0)
        if not bool(weights.sum() > 0):
            return server
        weights = weights / weights.sum()
        effective = (weights * reached).sum()
        factors = effective * weights / reached.clamp(min=1e-12) * (reached > 0)
        sent = unprefixed("weights", upload.fields)
        mixed = weighted_mean(sent, factors)
        kept = 1.0 - float(factors.sum())
        new = {name: mean + kept * server.weights[name].to(mean.dtype) for name, mean in mixed.items()}
        return dataclasses.replace(server, weights=new)


def reach(steps: Tensor, momentum: float) -> Tensor:
    """a = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) for tau steps [k] and momentum rho, float64."""
    taken = steps.double()
    if momentum == 0:
        return taken
    decayed = 1 - torch.full_like(taken, momentum) ** taken
    return (taken - momentum * decayed / (1 - momentum)) / (1 - momentum)
