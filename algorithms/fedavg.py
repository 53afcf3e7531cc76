"""FedAvg: one model by averaging weights (McMahan et al., AISTATS 2017), and its server-optimised form."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedatlas.algorithms.aggregation import Aggregation, Shared
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.graphs.graph import Level


class FedAvg(WeightSharing[WeightSharingConfiguration, SharedServer, SharedClient]):
    """E local epochs of Adam from the received weights, then theta <- sum_m p_m theta_m.

    p_m is uniform by default, as the protocol's code family computes it; `client_weights=train_nodes` is
    the paper's. Each client's Adam moments stay with the client. With one client it equals Local.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    partial_participation: ClassVar[bool] = True


class FedOptConfiguration(WeightSharingConfiguration):
    """Defaults of the server-optimised form."""

    aggregation: Aggregation = Field("fedopt", description="how shared weights travel")
    shared: Shared = Field("all_but_bias", description="which parameters travel")


class FedOpt(WeightSharing[FedOptConfiguration, SharedServer, SharedClient]):
    """FedAdam (Reddi et al., ICLR 2021) with client gradients: the fair reference for `fedopt` methods.

    Every client sends the full-batch gradient g_m of its objective at the shared weights; the server takes
    one Adam step along sum_m p_m g_m. The classifier's bias stays personal and has the client's own Adam.
    With E = 1 and `shared=all` this is Adam on the mean of the clients' losses.

    With E > 1 a client moves by plain gradient steps of size `local_lr` between the epochs and sends the sum
    of its gradients; it is evaluated at the weights where it took the last one.
    """

    name: ClassVar[str] = "fedopt"
    title: ClassVar[str] = "FedOpt"
    partial_participation: ClassVar[bool] = True
    configuration_type: ClassVar[type[MethodConfiguration]] = FedOptConfiguration
