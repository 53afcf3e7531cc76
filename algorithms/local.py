"""Local training: every client alone, the lower reference."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.graphs.graph import Level


class LocalConfiguration(WeightSharingConfiguration):
    """Defaults of local training."""

    aggregation: Literal["none"] = Field("none", description="nothing travels")


class Local(WeightSharing[LocalConfiguration, SharedServer, SharedClient]):
    """min CE_m(theta_m) on each client, from common initial weights; no message.

    Equals any weight-sharing method with `aggregation=none`.
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph")
    configuration_type: ClassVar[type[MethodConfiguration]] = LocalConfiguration
