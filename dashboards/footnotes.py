"""What a reader must know beside the numbers: what each method is, and departures from the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.algorithms.weight_sharing import WeightSharing
from fedatlas.dashboards.cells import Column, Repetition, dataset_title
from fedatlas.dashboards.protocol import (
    OPTION,
    TRAINING,
    changed_options,
    protection,
    protocol,
    tuned_training,
)

_COMPARED = ("rounds", "epochs", "features", "precision")
_RULES = {
    "fedavg": "weights averaged after each client's Adam",
    "fedopt": "gradients averaged, one Adam step on the server",
    "personalised": "every client receives an average of its own",
}
_TRAVELLING = {
    "all": "all weights travel",
    "all_but_bias": "all weights but the classifier bias travel",
    "encoder": "only the encoder travels",
    "classifier": "only the classifier weight travels",
}


def row_notes(repetitions: Sequence[Repetition]) -> list[tuple[str, str]]:
    """Per row: its name, and what travels and how, its backbone, changed options and the method's own note.

    Where a setting depends on the data set, the sets are named. A note speaks of the method's own options.
    """
    rows: dict[str, list[Repetition]] = {}
    for each in repetitions:
        rows.setdefault(each.row.name, []).append(each)
    return [(name, "; ".join(part for part in _row_parts(group) if part)) for name, group in rows.items()]


def _row_parts(group: Sequence[Repetition]) -> tuple[str, ...]:
    method = ALGORITHMS.get(group[0].row.algorithm)
    changed: dict[str, set[str]] = {}
    for each in group:
        options = changed_options(each.row.algorithm, each.column.dataset, each.settings)
        for key, value in options.items():
            changed.setdefault(key, set()).add(value)
    listed = [
        f"{key}={' or '.join(sorted(values))}"
        for key, values in sorted(changed.items())
        if key not in ("aggregation", "shared")
    ]
    note = method.note if method is not None else ""
    return (
        _per_dataset((each, _rule(each)) for each in group),
        _per_dataset((each, _travelling(each)) for each in group),
        _per_dataset((each, f"backbone {each.settings.get('backbone', 'unknown')}") for each in group),
        f"options {', '.join(listed)}" if listed else "",
        _per_dataset((each, _protection(each)) for each in group),
        f"by default: {note}" if note and changed else note,
    )


def _per_dataset(texts: Iterable[tuple[Repetition, str]]) -> str:
    """The text that all share; several with the data sets that they hold for."""
    datasets: dict[str, dict[str, None]] = {}
    for each, text in texts:
        datasets.setdefault(text, {})[dataset_title(each.column.dataset)] = None
    if len(datasets) == 1:
        return next(iter(datasets))
    return ", ".join(f"{text} ({', '.join(titles)})" for text, titles in datasets.items() if text)


def _aggregation(each: Repetition) -> str:
    return each.settings.get("aggregation", "unknown")


def _shares_nothing(each: Repetition) -> bool:
    return "none" in (_aggregation(each), each.settings.get(f"{OPTION}shared"))


def _rule(each: Repetition) -> str:
    aggregation = _aggregation(each)
    if not _shares_nothing(each):
        rule = _RULES.get(aggregation)
        return f"aggregation {aggregation}: {rule}" if rule else f"aggregation {aggregation}"
    method = ALGORITHMS.get(each.row.algorithm)
    only_weights = method is not None and method.uploads <= WeightSharing.uploads
    return f"aggregation {aggregation}: {'nothing travels' if only_weights else 'no weights travel'}"


def _travelling(each: Repetition) -> str:
    if _shares_nothing(each):
        return ""
    return _TRAVELLING.get(each.settings.get(f"{OPTION}shared", ""), "")


def _protection(each: Repetition) -> str:
    given = protection(each.settings)
    if not given:
        return ""
    settings = ", ".join(f"{key}={value}" for key, value in given.items())
    spent = each.trial.get("epsilon")
    known = isinstance(spent, float) and spent == spent
    return f"uploads with {settings}" + (f": epsilon {spent:.3g} after the last round" if known else "")


def scenario_notes(repetitions: Sequence[Repetition]) -> list[tuple[str, str]]:
    """Per scenario: settings in which its methods differ, and what is not the protocol's.

    Scenarios with the same note share a line.
    """
    columns: dict[Column, dict[str, Mapping[str, str]]] = {}
    for each in repetitions:
        columns.setdefault(each.column, {})[each.row.name] = each.settings
    titles: dict[str, list[str]] = {}
    for column, rows in columns.items():
        notes = [_compared(column, key, rows) for key in _COMPARED]
        for note in [*notes, _training(rows)]:
            if note:
                titles.setdefault(note, []).append(column.title)
    return [(", ".join(names), note) for note, names in titles.items()]


def _compared(column: Column, key: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    names: dict[str, list[str]] = {}
    for name, given in rows.items():
        names.setdefault(given.get(key, "unknown"), []).append(name)
    usual = protocol(column.dataset).get(key)
    if len(names) > 1:
        text = "; ".join(f"{value} for {', '.join(group)}" for value, group in names.items())
        return f"{key} differ between methods: {text}"
    (value,) = names
    return f"{value} {key}; the papers' protocol has {usual}" if usual not in (None, value) else ""


def _training(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Which methods are tuned, if the methods of a scenario train with different settings."""
    if len({tuple(given.get(OPTION + key) for key in TRAINING) for given in rows.values()}) < 2:
        return ""
    names: dict[str, list[str]] = {}
    for name, given in rows.items():
        tuned = ", ".join(f"{key} {value}" for key, value in tuned_training(given).items())
        names.setdefault(tuned, []).append(name)
    text = "; ".join(
        f"{', '.join(group)} tuned ({tuned})" if tuned else f"{', '.join(group)} with the protocol's defaults"
        for tuned, group in names.items()
    )
    return f"training settings differ between methods: {text}"
