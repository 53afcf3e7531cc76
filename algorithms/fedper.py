"""FedPer: shared representation, personal classifier (Arivazhagan et al., arXiv 2019)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedatlas.algorithms.aggregation import Shared
from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.contract import MethodConfiguration


class FedPerConfiguration(WeightSharingConfiguration):
    """Defaults of FedPer."""

    shared: Shared = Field("encoder", description="which parameters travel")


class FedPer(WeightSharing[FedPerConfiguration, SharedServer, SharedClient]):
    """FedAvg over the encoder phi only; the classifier psi_m starts equal and never leaves its client.

    `shared=all` equals FedAvg, `shared=none` equals Local.
    """

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    partial_participation: ClassVar[bool] = True
    configuration_type: ClassVar[type[MethodConfiguration]] = FedPerConfiguration
