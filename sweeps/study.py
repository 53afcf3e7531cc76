"""Studies: grids of experiments described in YAML files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedatlas.platform.errors import ConfigurationError, invalid_values, unknown_name
from fedatlas.sweeps.experiment import Experiment, Resolved, experiment, resolve

GRID_KEYS = (
    *("dataset", "partition", "clients", "algorithm", "backbone"),
    *("label", "options", "seed", "rounds", "epochs"),
)
"""Keys of an experiment that the other keys of a study set."""


class MethodRow(BaseModel):
    """One row of the comparison: a method with its settings.

    In YAML a plain name stands for a row with the method's defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: str
    backbone: str | None = None
    label: str | None = None
    """Name in tables; needed where two rows have the same method."""
    options: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further keys of this row's experiments, for example `uncut`."""


class StudyFile(BaseModel):
    """Content of a study file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    datasets: tuple[str, ...] = Field(min_length=1)
    """Names in the catalog."""
    partitions: dict[str, tuple[int, ...]] = Field(min_length=1)
    """Client counts of each partition mode."""
    methods: tuple[str | MethodRow, ...] = Field(min_length=1)
    seeds: int | tuple[int, ...] = 3
    """A number of seeds 0, 1, .., or the seeds themselves."""
    rounds: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the experiments: placement, evaluation, precision, ..."""
    variants: tuple[dict[str, Any], ...] = Field(default=({},), min_length=1)
    """Scenario settings that form an axis, for example `[{}, {train_fraction: 0.02}]`."""


class Overrides(BaseModel):
    """What a command line changes in a study."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithms: tuple[str, ...] = ()
    """Methods to run instead of the study's; rows of the study with this method are kept as they are."""
    seeds: int | None = Field(default=None, ge=1)
    rounds: int | None = Field(default=None, ge=1)
    only: tuple[str, ...] = ()
    """Filters: `key=value|value`, or a plain data set or method name. All must hold."""
    placement: str | None = None


def overrides_from(values: Mapping[str, Any]) -> Overrides:
    """Check overrides.

    Raises:
        ConfigurationError: names the key and what is allowed.
    """
    for key in values:
        if key not in Overrides.model_fields:
            raise unknown_name("override", key, Overrides.model_fields)
    try:
        return Overrides(**values)
    except ValidationError as error:
        raise invalid_values(error) from error


def available_studies() -> list[str]:
    """Names of the study files that come with the package."""
    folder = files("fedatlas.sweeps")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_study(name: str) -> tuple[str, StudyFile]:
    """Name and content of a study.

    Args:
        name: name of a study that comes with the package, or path of a YAML file.

    Raises:
        ConfigurationError: there is no such study, or its content is not valid.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ConfigurationError(f"study file {name} does not exist")
        try:
            title, text = path.stem, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"study file {name} cannot be read: {error}") from error
    else:
        if name not in available_studies():
            raise unknown_name("study", name, available_studies())
        title = name
        text = files("fedatlas.sweeps").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise ConfigurationError(f"study {name} is not valid YAML: {where}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"study {name} must be a mapping with keys {', '.join(StudyFile.model_fields)}"
        )
    for key in content:
        if key not in StudyFile.model_fields:
            raise unknown_name(f"key of study {name}", str(key), StudyFile.model_fields)
    try:
        return title, StudyFile(**content)
    except ValidationError as error:
        raise invalid_values(error, f"study {name}", show_values=False) from error


def expand(study: StudyFile, overrides: Overrides | None = None) -> list[Resolved]:
    """All experiments of a study, checked and with every default filled in.

    Raises:
        ConfigurationError: a name or value is not valid, two rows share a label, or nothing is left.
    """
    change = overrides or Overrides()
    _check_settings(study)
    rows = _rows(study, change.algorithms)
    seeds = _seeds(study, change.seeds)
    cells = [
        (dataset, mode, count)
        for dataset in study.datasets
        for mode, counts in study.partitions.items()
        for count in counts
    ]
    wanted = [_filter(text) for text in change.only]
    whole: list[Resolved] = []
    for (dataset, mode, count), variant, row, seed in itertools.product(cells, study.variants, rows, seeds):
        values: dict[str, Any] = {
            **study.settings,
            **variant,
            **row.settings,
            "dataset": dataset,
            "partition": mode,
            "clients": count,
            "algorithm": row.algorithm,
            "backbone": row.backbone,
            "label": row.label,
            "options": row.options,
            "seed": seed,
            "rounds": change.rounds or study.rounds,
            "epochs": study.epochs,
        }
        if change.placement is not None:
            values["placement"] = change.placement
        whole.append(resolve(experiment(values)))
    _check_filters(wanted, whole)
    out = [each for each in whole if all(_matches(each.experiment, one) for one in wanted)]
    if not out:
        raise ConfigurationError(f"nothing is left of the study with only={', '.join(change.only)}")
    _check_labels(out)
    return out


def _check_settings(study: StudyFile) -> None:
    rows = [row for row in study.methods if isinstance(row, MethodRow)]
    places: list[tuple[str, Mapping[str, Any]]] = [("settings", study.settings)]
    places += [("variants", variant) for variant in study.variants]
    places += [("methods.settings", row.settings) for row in rows]
    for place, settings in places:
        for key in settings:
            if key in GRID_KEYS:
                raise ConfigurationError(
                    f"{place} cannot set {key}: the study has a key of its own for it "
                    f"({', '.join(StudyFile.model_fields)}; a row of methods has "
                    f"{', '.join(MethodRow.model_fields)})"
                )
    for mode, counts in study.partitions.items():
        if not counts:
            raise ConfigurationError(f"partitions.{mode} has no client count")


def _rows(study: StudyFile, algorithms: Sequence[str]) -> list[MethodRow]:
    rows = [MethodRow(algorithm=row) if isinstance(row, str) else row for row in study.methods]
    if not algorithms:
        return rows
    chosen: list[MethodRow] = []
    for name in algorithms:
        chosen += [row for row in rows if row.algorithm == name] or [MethodRow(algorithm=name)]
    return chosen


def _seeds(study: StudyFile, override: int | None) -> list[int]:
    if override is not None:
        return list(range(override))
    seeds = list(range(study.seeds)) if isinstance(study.seeds, int) else list(study.seeds)
    if not seeds:
        raise ConfigurationError(f"seeds={study.seeds}: the study needs at least one seed")
    return seeds


def _filter(text: str) -> tuple[str | None, frozenset[str]]:
    key, found, values = text.partition("=")
    if not found:
        return None, frozenset(key.split("|"))
    keys = ("dataset", "partition", "clients", "algorithm", "label", "seed")
    if key not in keys:
        raise unknown_name("filter", key, keys)
    return key, frozenset(values.split("|"))


def _names(given: Experiment, key: str | None) -> set[str]:
    """What a filter with this key compares with."""
    return {given.dataset, given.algorithm} if key is None else {str(getattr(given, key))}


def _check_filters(wanted: Sequence[tuple[str | None, frozenset[str]]], whole: Sequence[Resolved]) -> None:
    for key, values in wanted:
        there = set().union(*(_names(each.experiment, key) for each in whole))
        for value in sorted(values - there):
            raise unknown_name(f"{key or 'data set or method'} of this study", value, there)


def _matches(given: Experiment, wanted: tuple[str | None, frozenset[str]]) -> bool:
    key, values = wanted
    return not values.isdisjoint(_names(given, key))


def _check_labels(experiments: Sequence[Resolved]) -> None:
    """Within one scenario, a label must mean one row."""
    row_fields = {"algorithm", "backbone", "options", "rounds", "epochs", "uncut"}
    seen: set[str] = set()
    for resolved in experiments:
        key = resolved.experiment.model_dump_json(exclude=row_fields)
        if key in seen:
            raise ConfigurationError(
                f"two rows of the study are called '{resolved.experiment.label}' ({resolved.cell}): "
                "give one another label, or remove what is repeated"
            )
        seen.add(key)
