"""Backbones, listed in one dictionary."""

from __future__ import annotations

from fedatlas.algorithms.backbones.backbone import Activation, Backbone, Representation
from fedatlas.algorithms.backbones.disengcn import DisenGCN
from fedatlas.algorithms.backbones.gamlp import GAMLP
from fedatlas.algorithms.backbones.gat import GAT
from fedatlas.algorithms.backbones.gcn import GCN
from fedatlas.algorithms.backbones.gin import GIN
from fedatlas.algorithms.backbones.h2gcn import H2GCN
from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.algorithms.backbones.unifilter import UniFilter

BACKBONES: dict[str, type[Backbone]] = {
    "gcn": GCN,
    "h2gcn": H2GCN,
    "gamlp": GAMLP,
    "sage": GraphSAGE,
    "unifilter": UniFilter,
    "disengcn": DisenGCN,
    "gat": GAT,
    "gin": GIN,
}

__all__ = [
    "BACKBONES",
    "GAMLP",
    "GAT",
    "GCN",
    "GIN",
    "H2GCN",
    "Activation",
    "Backbone",
    "DisenGCN",
    "GraphSAGE",
    "Representation",
    "UniFilter",
]
