"""The printed figures of the papers' tables, read from `published/`.

`fedgmc-printed.csv` holds what a paper computes from its own cells (row averages, drops of the ablation); a
test compares them with the cells and names those that do not follow.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

MAIN_TABLES = {"FedGMC": "fedgmc-main.csv", "FedAux": "fedaux-main.csv"}
"""Papers and their files. What two papers print is taken from the first."""
ABLATION_TABLE = "fedgmc-ablation.csv"
ROUND_TIME_TABLE = "fedgmc-round-time.csv"

LOWER_BOUND = "lower-bound"
"""Stands for the deviation where a paper says only that a figure was exceeded: nothing to compare with."""


class Published(NamedTuple):
    """A printed figure: mean and standard deviation in %; `std` is None where the paper prints none."""

    value: float
    std: float | None
    paper: str


def published_table(name: str) -> pd.DataFrame:
    """A file of `published/`."""
    import pandas as pd

    with files("fedatlas.dashboards.published").joinpath(name).open("r", encoding="utf-8") as file:
        return pd.read_csv(file)


Key = tuple[str, str, int, str]


def _read(paper: str, name: str, figures: dict[Key, Published]) -> dict[Key, Published]:
    import pandas as pd

    for row in published_table(name).to_dict("records"):
        if row["std"] == LOWER_BOUND:
            continue
        key = (str(row["dataset"]), str(row["partition"]), int(row["clients"]), str(row["method"]))
        std = None if pd.isna(row["std"]) else float(row["std"])
        figures.setdefault(key, Published(float(row["value"]), std, paper))
    return figures


@cache
def _figures() -> dict[Key, Published]:
    figures: dict[Key, Published] = {}
    for paper, name in MAIN_TABLES.items():
        _read(paper, name, figures)
    return figures


@cache
def _ablation() -> dict[Key, Published]:
    return _read("FedGMC", ABLATION_TABLE, {})


@cache
def _round_time() -> dict[Key, Published]:
    return _read("FedGMC", ROUND_TIME_TABLE, {})


def published(dataset: str, partition: str, clients: int, method: str) -> Published | None:
    """The figure that the papers' main tables print for a method, or None.

    Args:
        dataset, partition, clients: the scenario; a stand-in has no published figure.
        method: key of the algorithm, for example ``"fedavg"``. The figure is that of the plain method: it
            says nothing about a variant with another backbone or other options.
    """
    return _figures().get((dataset, partition, clients, method))


def published_ablation(dataset: str, partition: str, clients: int, label: str) -> Published | None:
    """The figure of table 6 of the FedGMC paper for a variant, for example ``w/o Semantic``, or None."""
    return _ablation().get((dataset, partition, clients, f"fedgmc {label}"))


def published_seconds(dataset: str, partition: str, clients: int, method: str) -> float | None:
    """Seconds per round of table 7 of the FedGMC paper for an algorithm, or None."""
    found = _round_time().get((dataset, partition, clients, method))
    return None if found is None else found.value
