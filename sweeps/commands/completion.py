"""Names that a shell completes: nothing here imports torch, so that a key press stays quick."""

from __future__ import annotations

import re
from importlib.resources import files

PARTITIONS = (
    *("metis", "metis-overlap", "random", "louvain", "label-skew"),
    *("iid", "dirichlet", "cross-dataset", "own"),
)
PLACEMENTS = ("auto", "inline", "actors", "packed")


def datasets(incomplete: str) -> list[str]:
    """Data sets of the catalog."""
    from fedatlas.platform.graphs.catalog import names, standin_names

    return _matching((*names(), *standin_names()), incomplete)


def algorithms(incomplete: str) -> list[str]:
    """Methods, read from the text of the registry; those of entry points are left out."""
    return _matching(_keys("fedatlas.algorithms", "registry.py"), incomplete)


def backbones(incomplete: str) -> list[str]:
    """Backbones, likewise."""
    return _matching(_keys("fedatlas.algorithms.backbones", "__init__.py"), incomplete)


def studies(incomplete: str) -> list[str]:
    """Studies that come with the package."""
    found = (item.name for item in files("fedatlas.sweeps").iterdir())
    return _matching(sorted(name[:-5] for name in found if name.endswith(".yaml")), incomplete)


def partitions(incomplete: str) -> list[str]:
    """Modes of partitions."""
    return _matching(PARTITIONS, incomplete)


def placements(incomplete: str) -> list[str]:
    """Placements."""
    return _matching(PLACEMENTS, incomplete)


def _keys(package: str, file: str) -> list[str]:
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    return re.findall(r'^    "(\w+)": \w+,$', text, re.MULTILINE)


def _matching(names: tuple[str, ...] | list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
