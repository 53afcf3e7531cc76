"""SEAL and SEAL-B: sharpness-aware local training with decorrelated representations (arXiv 2512.16247)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.weight_sharing import (
    SharedClient,
    SharedServer,
    Step,
    WeightSharing,
    WeightSharingConfiguration,
)
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.graphs.graph import Level

FLAT = 1e-12
"""A scaled gradient shorter than this has no direction to climb in."""


class SEALConfiguration(WeightSharingConfiguration):
    """Defaults of SEAL; rho is that of the settings with one data set."""

    aggregation: Literal["fedavg", "none"] = Field("fedavg", description="how shared weights travel")
    rho: float = Field(0.005, ge=0, description="squared radius of the neighbourhood that is looked at")
    perturbation: Literal["adaptive", "plain"] = Field(
        "adaptive", description="scale of the neighbourhood: |w| + gamma, or 1 (SEAL-B)"
    )
    gamma: float = Field(0.1, ge=0, description="added to |w| (adaptive)")
    repdec: float | None = Field(
        0.005, ge=0, description="weight alpha of correlated representations, RepDec"
    )


class SEALBConfiguration(SEALConfiguration):
    """Defaults of SEAL-B."""

    perturbation: Literal["adaptive", "plain"] = Field(
        "plain", description="scale of the neighbourhood: |w| + gamma (SEAL), or 1"
    )


class SEAL(WeightSharing[SEALConfiguration, SharedServer, SharedClient]):
    """FedAvg whose clients look for flat minima of L = CE + (alpha / d^2) ||C||_F^2.

    On client i (the equations' numbers are the paper's):

        min_w max_{||A^-1 eps||^2 <= rho} L(w + eps) + (lambda / 2) ||w||^2                            (5)
        eps = sqrt(rho) A^2 grad L(w) / ||A grad L(w)||,   A = |w| + gamma                             (9)
        w <- w - eta (grad L(w + eps) + lambda w)                                                     (10)

    C is the correlation matrix of the mini-batch's graph representations (RepDec, see
    `fedatlas.algorithms.decorrelation`), and A is not differentiated. Every step takes two gradients on the
    same mini-batch, both of the full L. SEAL-B has A = 1. `rho=0` and `repdec=0` is FedAvg.

    Choices where the paper says nothing: the norm is over all weights that the client trains, private ones
    too; momentum stays with the client; if ||A grad L|| < 1e-12, eps = 0.
    """

    name: ClassVar[str] = "seal"
    title: ClassVar[str] = "SEAL"
    levels: ClassVar[tuple[Level, ...]] = ("graph",)
    partial_participation: ClassVar[bool] = True
    default_backbone: ClassVar[str | None] = "gat"
    configuration_type: ClassVar[type[MethodConfiguration]] = SEALConfiguration

    def _gradients(
        self, client: SharedClient, step: Step, round_number: int
    ) -> tuple[dict[str, Tensor], Tensors]:
        losses, first = super()._gradients(client, step, round_number)
        if self.configuration.rho == 0:
            return {**losses, "sharpness/rise": torch.zeros_like(losses["loss/total"])}, first
        weights = step.of(client.weights)
        shifts = self.shifts(weights, first)
        shifted = {name: weight + shifts.get(name, 0.0) for name, weight in weights.items()}
        there, second = self._differentiated(client, step, shifted, round_number)
        return {**losses, "sharpness/rise": there["loss/total"] - losses["loss/total"]}, second

    def shifts(self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensors:
        """eps of equation (9) for stacked weights and gradients [k, ...]."""
        given = self.configuration
        plain = given.perturbation == "plain"
        scales = {
            name: torch.ones_like(gradient) if plain else weights[name].abs() + given.gamma
            for name, gradient in gradients.items()
        }
        squared = torch.stack(
            [(scales[name] * each).square().flatten(1).sum(dim=1) for name, each in gradients.items()]
        )
        norm = squared.sum(dim=0).sqrt()
        factor = torch.where(norm < FLAT, 0.0, given.rho**0.5 / norm.clamp(min=FLAT))
        return {
            name: factor.view(-1, *[1] * (each.dim() - 1)) * scales[name].square() * each
            for name, each in gradients.items()
        }


class SEALB(SEAL):
    """SEAL with A = 1: the neighbourhood has the same radius in every direction (SAM)."""

    name: ClassVar[str] = "sealb"
    title: ClassVar[str] = "SEAL-B"
    configuration_type: ClassVar[type[MethodConfiguration]] = SEALBConfiguration
