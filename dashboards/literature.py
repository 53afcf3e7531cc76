"""The printed figures of the FedGMC paper's main tables, read from `published/`.

The folder holds further tables of this and other papers, which no report shows yet.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

PAPER = "FedGMC"
"""The paper whose figures stand beside results."""
MAIN_TABLES = "fedgmc-main.csv"


class Published(NamedTuple):
    """A printed figure: mean and standard deviation in %; `std` is None where the paper prints none."""

    value: float
    std: float | None


@cache
def _figures() -> dict[tuple[str, str, int, str], Published]:
    import pandas as pd

    source = files("fedatlas.dashboards.published").joinpath(MAIN_TABLES)
    with source.open("r", encoding="utf-8") as file:
        table = pd.read_csv(file)
    return {
        (str(row["dataset"]), str(row["partition"]), int(row["clients"]), str(row["method"])): Published(
            float(row["value"]), None if pd.isna(row["std"]) else float(row["std"])
        )
        for row in table.to_dict("records")
    }


def published(dataset: str, partition: str, clients: int, method: str) -> Published | None:
    """The figure that the paper's main tables print for a method, or None.

    Args:
        dataset, partition, clients: the scenario; a stand-in has no published figure.
        method: key of the algorithm, for example ``"fedavg"``. The figure is that of the plain method: it
            says nothing about a variant with another backbone or other options.
    """
    return _figures().get((dataset, partition, clients, method))
