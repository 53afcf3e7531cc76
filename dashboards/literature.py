"""The printed figures of the papers' main tables, read from `published/`.

The folder holds further tables, which no report shows yet.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

MAIN_TABLES = {"FedGMC": "fedgmc-main.csv", "FedAux": "fedaux-main.csv"}
"""Papers and their files. What two papers print is taken from the first."""


LOWER_BOUND = "lower-bound"
"""Stands for the deviation where a paper says only that a figure was exceeded: nothing to compare with."""


class Published(NamedTuple):
    """A printed figure: mean and standard deviation in %; `std` is None where the paper prints none."""

    value: float
    std: float | None
    paper: str


@cache
def _figures() -> dict[tuple[str, str, int, str], Published]:
    import pandas as pd

    figures: dict[tuple[str, str, int, str], Published] = {}
    for paper, name in MAIN_TABLES.items():
        source = files("fedatlas.dashboards.published").joinpath(name)
        with source.open("r", encoding="utf-8") as file:
            table = pd.read_csv(file)
        for row in table.to_dict("records"):
            if row["std"] == LOWER_BOUND:
                continue
            key = (str(row["dataset"]), str(row["partition"]), int(row["clients"]), str(row["method"]))
            std = None if pd.isna(row["std"]) else float(row["std"])
            figures.setdefault(key, Published(float(row["value"]), std, paper))
    return figures


def published(dataset: str, partition: str, clients: int, method: str) -> Published | None:
    """The figure that the papers' main tables print for a method, or None.

    Args:
        dataset, partition, clients: the scenario; a stand-in has no published figure.
        method: key of the algorithm, for example ``"fedavg"``. The figure is that of the plain method: it
            says nothing about a variant with another backbone or other options.
    """
    return _figures().get((dataset, partition, clients, method))
