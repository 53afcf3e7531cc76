"""Which trials repeat each other: the row and the column of a table that a trial belongs to.

Two trials share a cell only if nothing but the seed distinguishes them. What would make the scores of a
column incomparable (metric, data, partition, evaluation) splits columns; any other setting splits rows. The
names say what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.protocol import is_plain, printed, protocol, settings
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.catalog import STANDIN_PREFIX, entry, group_names, names
from fedatlas.platform.graphs.dealing import GRAPH_CONCENTRATION, GRAPH_MODES
from fedatlas.platform.graphs.own import OWN_PREFIX
from fedatlas.platform.graphs.partition import MODES

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "(unknown)"
"""Stands for what a trial has not tracked."""
CONVENTIONS = (
    "component",
    "train_fraction",
    "test_fraction",
    "evaluation",
    "weighting",
    "client_features",
    "concentration",
    "participation",
    "uncut",
)
"""Settings that a column shares; a published figure needs the values of the papers' protocol."""
_COLUMN_PARAMS = (*CONVENTIONS, "partition_seed")
_PLACED_BY = ("dataset", "partition", "clients", "algorithm", "label", "seed")
_IDENTITIES = ("metric", "data_sha256", "partition_sha256")
_NOT_OF_THE_ROW = {"seed", "label", "dataset", "partition", "clients", "allow_untrained", *_COLUMN_PARAMS}
_REPEATED = {"method.epochs", "method.aggregation"}
_HASH_LENGTH = 8


@dataclass(frozen=True)
class Column:
    """A scenario under one set of conventions.

    Attributes:
        dataset, partition, clients: the scenario.
        metric: ``accuracy`` or ``auc``.
        detail: conventions that are not the protocol's or that distinguish it from another column.
        stand_in: the graph is synthetic.
        comparable: all conventions are those of the papers.
        uncut: the centralised reference on the whole graph.
    """

    dataset: str
    partition: str
    clients: int
    metric: str
    detail: str = ""
    stand_in: bool = False
    comparable: bool = True
    uncut: bool = False

    @property
    def title(self) -> str:
        """Name in tables and figures."""
        return scenario_title(self.dataset, self.partition, self.clients, self.detail)


@dataclass(frozen=True)
class Row:
    """A method with its settings.

    Attributes:
        name: the label, with the settings that distinguish it from another row of the same label.
        label: the label that the study gives.
        algorithm: key of the algorithm.
    """

    name: str
    label: str
    algorithm: str


@dataclass(frozen=True)
class Repetition:
    """A finished trial in its cell.

    Attributes:
        row, column, seed: where it belongs.
        trial: the trial's record, with the columns of `fedatlas.platform.tracking.reading.trials`.
        settings: its parameters, from `fedatlas.dashboards.protocol.settings`.
        plain: the method as published, and no other row of the column has its label.
        printed: name under which papers print its figure, from `fedatlas.dashboards.protocol.printed`.
    """

    row: Row
    column: Column
    seed: int
    trial: Mapping[str, Any]
    settings: Mapping[str, str]
    plain: bool
    printed: str | None = None

    @property
    def run_id(self) -> str:
        """MLflow id."""
        return str(self.trial["run_id"])


def scenario_title(dataset: str, partition: str, clients: int, detail: str = "") -> str:
    """Name of a scenario for people, for example ``Cora · metis · 10 clients``."""
    place = "own clients" if partition == "own" else partition.removeprefix(OWN_PREFIX)
    parts = (dataset_title(dataset), place, f"{clients} clients", detail)
    return " · ".join(part for part in parts if part)


def dataset_title(dataset: str) -> str:
    """Name of a data set for people; its key if the catalog does not have it."""
    if dataset.startswith(OWN_PREFIX):
        return dataset.removeprefix(OWN_PREFIX)
    try:
        return entry(dataset).title
    except ConfigurationError:
        return dataset


def finished(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials that count: status FINISHED, with a test score and the parameters that place them."""
    placed = trials[list(_PLACED_BY)].notna().all(axis=1)
    return trials[(trials["status"] == "FINISHED") & trials["test_score"].notna() & placed]


def unfinished(trials: pd.DataFrame) -> pd.DataFrame:
    """The other trials: failed, killed, running, or finished without a test score or parameters."""
    return trials.drop(finished(trials).index)


def arrange(trials: pd.DataFrame) -> list[Repetition]:
    """Place the finished trials, sorted by column, row and seed.

    Args:
        trials: as `fedatlas.platform.tracking.reading.trials` returns them, newest first; of two trials that
            nothing distinguishes the newer one counts.
    """
    records = [{str(key): value for key, value in row.items()} for row in finished(trials).to_dict("records")]
    params = [settings(record) for record in records]
    columns = _columns(records, params)
    rows = _rows(records, params, columns)
    placed: dict[tuple[Row, Column, int], Repetition] = {}
    for record, given, row, column in zip(records, params, rows, columns, strict=True):
        seed, alone = int(record["seed"]), row.name == row.label
        plain, name = alone and is_plain(record, given), printed(record, given) if alone else None
        placed.setdefault((row, column, seed), Repetition(row, column, seed, record, given, plain, name))
    return sorted(placed.values(), key=_order)


def _order(each: Repetition) -> tuple[object, ...]:
    return (column_order(each.column), row_order(each.row), each.seed)


def column_order(column: Column) -> tuple[object, ...]:
    """Sort key: the papers' order of data sets, then partition, clients and detail."""
    dataset = column.dataset.removeprefix(STANDIN_PREFIX)
    return (
        *_place(dataset, names() + group_names()),
        *_place(column.partition, MODES + GRAPH_MODES),
        column.clients,
        column.detail,
        column.metric,
    )


def row_order(row: Row) -> tuple[object, ...]:
    """Sort key: the registry's order of methods, the method under its own title first."""
    method = ALGORITHMS.get(row.algorithm)
    return (*_place(row.algorithm, tuple(ALGORITHMS)), method is None or row.label != method.title, row.name)


def _place(name: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _scenario(record: Mapping[str, Any]) -> tuple[str, str, int]:
    return str(record["dataset"]), str(record["partition"]), int(record["clients"])


def _columns(records: list[dict[str, Any]], params: list[dict[str, str]]) -> list[Column]:
    shared: list[dict[str, str]] = []
    for record, given in zip(records, params, strict=True):
        conventions = {key: given[key] for key in _COLUMN_PARAMS}
        identities = {key: str(record[key])[:_HASH_LENGTH] for key in _IDENTITIES}
        shared.append({**conventions, **identities})
    scenarios = [_scenario(record) for record in records]
    varying = _varying(scenarios, shared)
    return [
        Column(
            *scenario,
            metric=str(record["metric"]),
            detail=_detail(setting, varying[scenario] | _unusual(scenario, setting)),
            stand_in=_is_stand_in(record),
            comparable=not _unusual(scenario, setting) & {*CONVENTIONS},
            uncut=setting["uncut"] == "True",
        )
        for record, scenario, setting in zip(records, scenarios, shared, strict=True)
    ]


def _rows(records: list[dict[str, Any]], params: list[dict[str, str]], columns: list[Column]) -> list[Row]:
    own = [
        {
            **{key: value for key, value in given.items() if key not in _NOT_OF_THE_ROW | _REPEATED},
            "method_version": str(record["method_version"]),
        }
        for record, given in zip(records, params, strict=True)
    ]
    cells = [(str(record["label"]), column) for record, column in zip(records, columns, strict=True)]
    varying = _varying(cells, own)
    rows = []
    for record, cell, setting in zip(records, cells, own, strict=True):
        label, detail = cell[0], _detail(setting, varying[cell])
        rows.append(Row(f"{label} ({detail})" if detail else label, label, str(record["algorithm"])))
    return rows


def _varying(groups: Sequence[Any], members: Sequence[Mapping[str, str]]) -> dict[Any, set[str]]:
    """For each group, the settings in which its members differ."""
    first: dict[Any, Mapping[str, str]] = {}
    varying: dict[Any, set[str]] = {}
    for group, setting in zip(groups, members, strict=True):
        other = first.setdefault(group, setting)
        different = {key for key in {*setting, *other} if setting.get(key) != other.get(key)}
        varying.setdefault(group, set()).update(different)
    return varying


def _unusual(scenario: tuple[str, str, int], setting: Mapping[str, str]) -> set[str]:
    usual = dict(protocol(scenario[0]))
    if scenario[1] == "dirichlet":
        usual["concentration"] = str(GRAPH_CONCENTRATION)
    return {key for key in _COLUMN_PARAMS if setting[key] != usual[key]}


def _detail(setting: Mapping[str, str], keys: set[str]) -> str:
    return ", ".join(f"{key.removeprefix('method.')}={setting.get(key, 'unset')}" for key in sorted(keys))


def _is_stand_in(record: Mapping[str, Any]) -> bool:
    return record["data_kind"] == "stand-in" or str(record["dataset"]).startswith(STANDIN_PREFIX)
