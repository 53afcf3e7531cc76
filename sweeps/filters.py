"""Filters of a study: which of its trials are wanted.

A condition is text, `key=value|value` or a plain data set or method name, or a mapping whose keys must all
hold: `{dataset: ogbn-arxiv, clients: [30, 50]}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedatlas.platform.errors import unknown_name
from fedatlas.platform.graphs.federated import data_name, partition_name
from fedatlas.platform.graphs.own import title
from fedatlas.sweeps.axes import shown
from fedatlas.sweeps.experiment import Experiment, Resolved

KEYS = ("dataset", "partition", "clients", "algorithm", "backbone", "label", "seed")
"""What every study can be filtered by, besides what its axes vary."""
NAME = ""
"""Key of a plain name: a data set or a method."""


@dataclass(frozen=True)
class Condition:
    """Values that are allowed for each key."""

    allowed: Mapping[str, frozenset[str]]

    def holds(self, given: Experiment) -> bool:
        """Whether an experiment has one of the values of every key."""
        return all(not values.isdisjoint(_values(given, key)) for key, values in self.allowed.items())


def condition(entry: str | Mapping[str, Any], varied: Iterable[str] = ()) -> Condition:
    """Read a condition.

    Args:
        entry: text or mapping.
        varied: keys that the study's axes vary.

    Raises:
        ConfigurationError: a key is not one to filter by.
    """
    if isinstance(entry, str):
        key, found, values = entry.partition("=")
        pairs: Mapping[str, Any] = {key: values.split("|")} if found else {NAME: key.split("|")}
    else:
        pairs = entry
    known = (*KEYS, *varied)
    for key in pairs:
        if key != NAME and key not in known:
            raise unknown_name("filter", str(key), known)
    return Condition({key: frozenset(map(_text, _listed(values))) for key, values in pairs.items()})


def select(
    whole: Sequence[Resolved], only: Sequence[Condition], without: Sequence[Condition]
) -> list[Resolved]:
    """Trials for which every condition of `only` and none of `without` holds."""
    return [
        resolved
        for resolved in whole
        if all(each.holds(resolved.experiment) for each in only)
        and not any(each.holds(resolved.experiment) for each in without)
    ]


def check(conditions: Iterable[Condition], whole: Sequence[Resolved]) -> None:
    """Refuse conditions that can never hold.

    Raises:
        ConfigurationError: a value is that of no trial.
    """
    for each in conditions:
        for key, values in each.allowed.items():
            there = set().union(*(_values(resolved.experiment, key) for resolved in whole))
            for value in sorted(values - there):
                raise unknown_name(f"{key or 'data set or method'} of this study", value, there)


def _values(given: Experiment, key: str) -> set[str]:
    """What a filter with this key compares with."""
    if key == NAME:
        return {given.dataset, data_name(given.dataset), title(given.dataset), given.algorithm}
    if key == "dataset":
        return {given.dataset, data_name(given.dataset), title(given.dataset)}
    if key == "partition":
        return {given.partition, partition_name(given.partition), title(given.partition)}
    found = getattr(given, key) if key in Experiment.model_fields else given.options.get(key)
    return {shown(found)}


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else [values]


def _text(value: Any) -> str:
    """The value as `shown` writes it, also where a command line gives a number as text."""
    if isinstance(value, str):
        try:
            return shown(float(value))
        except ValueError:
            return value
    return shown(value)
