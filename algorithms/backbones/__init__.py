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
from fedatlas.algorithms.references import BACKBONE_GROUP, checked, discovered, is_reference, load
from fedatlas.platform.errors import unknown_name

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


_BASE: type[Backbone] = Backbone  # type: ignore[type-abstract]


def backbone_type(name: str) -> type[Backbone]:
    """The class of a backbone.

    Args:
        name: a key of `BACKBONES`, the name of an entry point of the group `fedatlas.backbones`, or a
            reference, see `fedatlas.algorithms.references`.

    Raises:
        ConfigurationError: unknown name, with the closest valid ones.
    """
    if name in BACKBONES:
        return BACKBONES[name]
    if is_reference(name):
        return load(name, _BASE)
    installed = discovered(BACKBONE_GROUP)
    if name in installed:
        return checked(installed[name].load(), _BASE, f"{name} ({installed[name].value})")
    raise unknown_name("backbone", name, {*BACKBONES, *installed})


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
    "backbone_type",
]
