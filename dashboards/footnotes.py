"""What a reader must know beside the numbers: how each method is read, and departures from the protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.cells import Column, Repetition
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.catalog import entry

_COMPARED = ("rounds", "epochs", "features", "precision")


def row_notes(repetitions: Sequence[Repetition]) -> list[tuple[str, str]]:
    """Per row: its name, and aggregation rule, backbone and the method's note if it keeps to its own rule."""
    found: dict[str, tuple[str, set[str], set[str]]] = {}
    for each in repetitions:
        _, aggregations, backbones = found.setdefault(each.row.name, (each.row.algorithm, set(), set()))
        aggregations.add(str(each.trial["aggregation"]))
        backbones.add(str(each.trial["backbone"]))
    notes = []
    for name, (algorithm, aggregations, backbones) in found.items():
        method = ALGORITHMS.get(algorithm)
        parts = [
            f"aggregation {' or '.join(sorted(aggregations))}",
            f"backbone {' or '.join(sorted(backbones))}",
            method.note if method is not None and aggregations == {_usual_aggregation(algorithm)} else "",
        ]
        notes.append((name, "; ".join(part for part in parts if part)))
    return notes


def scenario_notes(repetitions: Sequence[Repetition]) -> list[tuple[str, str]]:
    """Per scenario: settings in which its methods differ; rounds or epochs that are not the protocol's."""
    settings: dict[Column, dict[str, dict[str, list[str]]]] = {}
    for each in repetitions:
        params = json.loads(each.trial["params"])
        for key in _COMPARED:
            methods = settings.setdefault(each.column, {}).setdefault(key, {})
            names = methods.setdefault(str(params.get(key, "unknown")), [])
            if each.row.name not in names:
                names.append(each.row.name)
    notes = []
    for column, by_key in settings.items():
        protocol = _protocol(column.dataset)
        for key, methods in by_key.items():
            usual = protocol.get(key)
            if len(methods) > 1:
                text = "; ".join(f"{value} for {', '.join(names)}" for value, names in methods.items())
                notes.append((column.title, f"{key} differ between methods: {text}"))
            elif usual is not None and usual not in methods:
                notes.append((column.title, f"{next(iter(methods))} {key}; the papers' protocol has {usual}"))
    return notes


def _usual_aggregation(algorithm: str) -> str:
    """The rule that a method's note speaks about."""
    return str(ALGORITHMS[algorithm].configuration_type.model_fields["aggregation"].default)


def _protocol(dataset: str) -> dict[str, str]:
    try:
        published = entry(dataset)
    except ConfigurationError:
        return {}
    return {"rounds": str(published.rounds), "epochs": str(published.epochs)}
