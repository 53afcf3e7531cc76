"""Backbones, listed in one dictionary."""

from __future__ import annotations

from fedatlas.algorithms.backbones.backbone import Activation, Backbone, Representation
from fedatlas.algorithms.backbones.gcn import GCN
from fedatlas.algorithms.backbones.h2gcn import H2GCN

BACKBONES: dict[str, type[Backbone]] = {"gcn": GCN, "h2gcn": H2GCN}

__all__ = ["BACKBONES", "GCN", "H2GCN", "Activation", "Backbone", "Representation"]
