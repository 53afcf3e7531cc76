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

from fedatlas.platform.graphs.catalog import entry

MAIN_TABLES = {"FedGMC": "fedgmc-main.csv", "FedAux": "fedaux-main.csv"}
"""Papers on nodes and their files. What two papers print is taken from the first."""
ABLATION_TABLE = "fedgmc-ablation.csv"
ROUND_TIME_TABLE = "fedgmc-round-time.csv"
GRAPH_TABLES = {"SEAL": "seal.csv"}
"""Papers on graphs and their files, which hold variants of each method and several figures of a cell."""
_GRAPH_NAMES = {"local-train": "local", "gcfl+": "gcflplus", "seal-b": "sealb"}
_CLIENTS_OF_ONE_SET = 10
PLUS_REPDEC, NO_REPDEC = "+repdec", "-no-repdec"
"""Endings of a method's key for its variants with and without decorrelated representations."""

LOWER_BOUND = "lower-bound"
"""Stands for the deviation where a paper says only that a figure was exceeded: nothing to compare with."""


class Published(NamedTuple):
    """A printed figure: mean and standard deviation in %; `std` is None where the paper prints none."""

    value: float
    std: float | None
    paper: str


class PublishedGain(NamedTuple):
    """A printed average gain over local training in points, and the number of improved clients."""

    gain: float
    improved: float


@cache
def _graph_figures() -> dict[tuple[str, str, int, str], dict[str, tuple[float, float | None, str]]]:
    """Accuracy, average gain and improved clients of the main tables, by scenario and method."""
    import pandas as pd

    figures: dict[tuple[str, str, int, str], dict[str, tuple[float, float | None, str]]] = {}
    for paper, name in GRAPH_TABLES.items():
        table = published_table(name)
        for row in table[table["table"].isin([1, 2, 3])].to_dict("records"):
            dataset = str(row["dataset"])
            members = entry(dataset).members
            # Dir(0.01) is what the paper's second table has throughout, and the default here.
            partition = (
                "dirichlet" if str(row["partition"]).startswith("dirichlet") else str(row["partition"])
            )
            method, variant = str(row["method"]), ""
            for ending in (PLUS_REPDEC, NO_REPDEC):
                if method.endswith(ending):
                    method, variant = method.removesuffix(ending), ending
            method = _GRAPH_NAMES.get(method, method) + variant
            key = (dataset, partition, len(members) or _CLIENTS_OF_ONE_SET, method)
            std = None if pd.isna(row["std"]) else float(row["std"])
            value = row["value"]
            figures.setdefault(key, {})[str(row["metric"])] = (_number(value), std, paper)
    return figures


def _number(value: object) -> float:
    """A printed figure; a ratio such as 6/10 is its numerator."""
    return float(str(value).partition("/")[0])


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
            says nothing about a variant with another backbone or other options. On graphs ``"fedavg+repdec"``
            and ``"seal-no-repdec"`` are variants with figures of their own.
    """
    key = (dataset, partition, clients, method)
    if (found := _graph_figures().get(key, {}).get("accuracy")) is not None:
        return Published(*found)
    return _figures().get(key)


def published_ablation(dataset: str, partition: str, clients: int, label: str) -> Published | None:
    """The figure of table 6 of the FedGMC paper for a variant, for example ``w/o Semantic``, or None."""
    return _ablation().get((dataset, partition, clients, f"fedgmc {label}"))


def published_seconds(dataset: str, partition: str, clients: int, method: str) -> float | None:
    """Seconds per round of table 7 of the FedGMC paper for an algorithm, or None."""
    found = _round_time().get((dataset, partition, clients, method))
    return None if found is None else found.value


def published_gain(dataset: str, partition: str, clients: int, method: str) -> PublishedGain | None:
    """The average gain and number of improved clients that a paper on graphs prints, or None.

    Args:
        dataset, partition, clients: the scenario.
        method: key of the algorithm, with ``+repdec`` or ``-no-repdec`` for its variant.
    """
    found = _graph_figures().get((dataset, partition, clients, method), {})
    if "average_gain" not in found or "improved_ratio" not in found:
        return None
    return PublishedGain(found["average_gain"][0], found["improved_ratio"][0])
