"""The papers' printed figures, read from `published/`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from fedatlas.platform.errors import unknown_name

if TYPE_CHECKING:
    import pandas as pd

PAPERS = {"fedgmc": "FedGMC", "fedaux": "FedAux"}
"""Papers whose main tables are here: key and name."""


class Published(NamedTuple):
    """A printed figure: mean and standard deviation in %; `std` is None where the paper prints none."""

    value: float
    std: float | None


def published_table(paper: str = "fedgmc") -> pd.DataFrame:
    """Main tables of a paper.

    Columns: `paper`, `table` (its number), `dataset`, `partition` and `clients` as in a scenario, `method`
    (the algorithm's key), `metric`, `value` and `std` (%), `lower_bound`: the paper's text only says that the
    method reaches more than `value`.

    Raises:
        ConfigurationError: no such paper.
    """
    import pandas as pd

    if paper not in PAPERS:
        raise unknown_name("paper", paper, PAPERS)
    source = files("fedatlas.dashboards.published").joinpath(f"{paper}-main.csv")
    with source.open("r", encoding="utf-8") as file:
        table = pd.read_csv(file, dtype={"std": str})
    bound = table["std"] == "lower-bound"
    deviation = pd.to_numeric(table["std"].mask(bound))
    return table.assign(std=deviation, lower_bound=bound)


@cache
def _figures(paper: str) -> dict[tuple[str, str, int, str], Published]:
    table = published_table(paper)
    return {
        (str(row["dataset"]), str(row["partition"]), int(row["clients"]), str(row["method"])): Published(
            float(row["value"]), None if row["std"] != row["std"] else float(row["std"])
        )
        for row in table[~table["lower_bound"]].to_dict("records")
    }


def published(
    dataset: str, partition: str, clients: int, method: str, paper: str = "fedgmc"
) -> Published | None:
    """The figure that a paper's main tables print for a method, or None; a lower bound is not a figure.

    Args:
        dataset, partition, clients: the scenario; a stand-in has no published figure.
        method: key of the algorithm, for example ``"fedavg"``. The figure is that of the plain method: it
            says nothing about a variant with another backbone or other options.
        paper: key of `PAPERS`.

    Raises:
        ConfigurationError: no such paper.
    """
    return _figures(paper).get((dataset, partition, clients, method))
