"""Studies: grids of experiments described in YAML files."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type
from fedatlas.platform.documents import read_yaml
from fedatlas.platform.errors import ConfigurationError, invalid_values, unknown_name
from fedatlas.platform.federation import privacy
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.graphs.federated import is_brought
from fedatlas.platform.graphs.own import is_path
from fedatlas.sweeps import casestudy, filters
from fedatlas.sweeps.axes import Axis, Combination, combine, keys_of, shown
from fedatlas.sweeps.experiment import Experiment, Resolved, experiment, resolve
from fedatlas.sweeps.tuned import Tuned, applied, check_used

GRID_KEYS = (
    *("dataset", "partition", "clients", "algorithm", "backbone"),
    *("label", "options", "seed", "rounds", "epochs"),
)
"""Keys of an experiment that the other keys of a study set."""
ALL = "all"
"""Among the methods: every one that fits the data sets and has no row of its own, with its defaults."""
ROW_KEYS = ("backbone", "rounds", "epochs", "precision", "uncut", *privacy.SETTINGS)
"""Keys of an experiment that distinguish rows of a table, as options do; other keys distinguish columns."""
_NEVER_VARIED = ("algorithm", "label", "options", "seed")

Count = Annotated[int, Field(ge=1)]
Named = TypeVar("Named")


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
    axes: tuple[Axis, ...] = ()
    """What varies in this row alone."""


class StudyFile(BaseModel):
    """Content of a study file.

    The trials are the product of data sets, partitions, variants, axes, methods and seeds, less what `only`
    and `without` leave out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    answers: tuple[str, ...] = ()
    """What the study is compared with, for example `FedGMC table 2` or `FedGMC figure sensitivity`."""
    datasets: tuple[str, ...] = ()
    """Names in the catalog or paths of graphs; may be left out if the axes have `dataset`."""
    partitions: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Client counts of each partition mode or membership file, none where the file says it; may be left out
    if the axes have `partition` and `clients`."""
    methods: tuple[str | MethodRow, ...] = Field(min_length=1)
    seeds: int | tuple[int, ...] = 3
    """A number of seeds 0, 1, .., or the seeds themselves."""
    rounds: Count | dict[str, Count] | None = None
    """Rounds of every trial, or of those on the named data sets."""
    epochs: Count | dict[str, Count] | None = None
    """Local epochs, likewise."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the experiments: placement, evaluation, precision, ..."""
    variants: tuple[dict[str, Any], ...] = Field(default=({},), min_length=1)
    """Scenario settings that form an axis, for example `[{}, {train_fraction: 0.02}]`."""
    axes: tuple[Axis, ...] = ()
    """What varies besides, see `fedatlas.sweeps.axes`."""
    only: tuple[str | dict[str, Any], ...] = ()
    """Conditions that all hold for the trials wanted, see `fedatlas.sweeps.filters`."""
    without: tuple[str | dict[str, Any], ...] = ()
    """Conditions of which one is enough to leave a trial out."""
    concurrent: Count | None = None
    """Upper bound of trials at the same time; 1 where the study measures time."""
    export: bool = False
    """Keep the case-study tables of the first and the last round of every trial."""


class Overrides(BaseModel):
    """What a command line changes in a study."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithms: tuple[str, ...] = ()
    """Methods to run instead of the study's; rows of the study with this method are kept as they are."""
    seeds: int | None = Field(default=None, ge=1)
    rounds: int | None = Field(default=None, ge=1)
    only: tuple[str, ...] = ()
    """Filters: `key=value|value`, or a plain data set or method name. All must hold."""
    without: tuple[str, ...] = ()
    """Filters of the same form; trials for which one holds are left out."""
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
            raise ConfigurationError(
                f"study file {name} does not exist in {Path.cwd()}; those of the package are named "
                f"without ending: {', '.join(available_studies())}"
            )
        try:
            title, text = path.stem, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"study file {name} cannot be read: {error}") from error
    else:
        if name not in available_studies():
            raise unknown_name("study", name, available_studies())
        title = name
        text = files("fedatlas.sweeps").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    require_name(title)
    content = read_yaml(text, f"study {name}")
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"study {name} must be a mapping with keys {', '.join(StudyFile.model_fields)}"
        )
    if name.endswith((".yaml", ".yml")):
        content = _anchored(content, Path(name).absolute().parent)
    return title, study_from(name, content)


def require_name(name: str) -> None:
    """Refuse a name under which results would leave their folder.

    Raises:
        ConfigurationError: says what a name may hold.
    """
    if not re.fullmatch(r"\w[\w. +-]{0,99}", name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a study, which names folders: use letters, digits, spaces and "
            "._+-, 100 at most, and begin with a letter or digit"
        )


def study_from(name: str, content: Mapping[str, Any]) -> StudyFile:
    """Check the content of a study.

    Raises:
        ConfigurationError: it is not valid.
    """
    for key in content:
        if key not in StudyFile.model_fields:
            raise unknown_name(f"key of study {name}", str(key), StudyFile.model_fields)
    try:
        return StudyFile(**content)
    except ValidationError as error:
        raise invalid_values(error, f"study {name}", show_values=False) from error


def _anchored(content: Any, folder: Path) -> Any:
    """The content with relative paths of files beside the study made absolute."""
    if isinstance(content, dict):
        return {_anchored(key, folder): _anchored(value, folder) for key, value in content.items()}
    if isinstance(content, list):
        return [_anchored(each, folder) for each in content]
    if isinstance(content, str) and is_path(content) and "\n" not in content:
        beside = folder / content.partition(":")[0]
        if not Path(content).is_absolute() and beside.exists():
            return str(folder / content)
    return content


def expand(
    study: StudyFile, overrides: Overrides | None = None, tuned: Sequence[Tuned] = ()
) -> list[Resolved]:
    """All experiments of a study, checked and with every default filled in.

    Args:
        study: content of the file.
        overrides: what the command line changes.
        tuned: configurations that a search has found, for the rows and data sets that they are for.

    Raises:
        ConfigurationError: a name or value is not valid, two rows share a label, two trials are the same, a
            tuned configuration is for none of them, or nothing is left.
    """
    change = overrides or Overrides()
    _check_settings(study)
    _check_answers(study.answers)
    rows = _rows(study, change.algorithms)
    seeds = _seeds(study, change.seeds)
    whole: list[Resolved] = []
    used: set[Tuned] = set()
    for base in _scenarios(study):
        for row in rows:
            for varied in combine(row.axes):
                values = _values(study, change, base, row, varied)
                found = applied(tuned, values)
                if found is not None:
                    used.add(found)
                    values["options"] = {**found.options, **values["options"]}
                first = resolve(experiment({**values, "seed": seeds[0]}))
                if study.export:
                    casestudy.require_export(first.method(), entry(first.experiment.dataset).level)
                whole += [_with_seed(first, seed) for seed in seeds]
    check_used(tuned, used)
    keys = _varied(study, rows)
    out = whole
    for given in (study, change):
        only = [filters.condition(entry, keys) for entry in given.only]
        without = [filters.condition(entry, keys) for entry in given.without]
        # With other methods than the study's, its own filters may name some that are not there.
        if given is change or not change.algorithms:
            filters.check((*only, *without), whole)
        out = filters.select(out, only, without)
    if not out:
        raise ConfigurationError(f"nothing is left of the study with {_shown_filters(study, change)}")
    _check_labels(out)
    return out


def _scenarios(study: StudyFile) -> Iterator[dict[str, Any]]:
    """Keys of experiments that do not depend on the method; options of an axis are among them."""
    sets: Sequence[Combination] = [{"dataset": name} for name in study.datasets] or [{}]
    places: Sequence[Combination] = [
        {"partition": mode, "clients": count}
        for mode, counts in study.partitions.items()
        for count in counts or (None,)
    ] or [{}]
    for parts in itertools.product(sets, places, study.variants, combine(study.axes)):
        yield {key: value for part in parts for key, value in part.items()}


def _values(
    study: StudyFile, change: Overrides, base: Combination, row: MethodRow, varied: Combination
) -> dict[str, Any]:
    """Values of an experiment but for its seed."""
    given = {**base, **varied}
    keys = {key: value for key, value in given.items() if key in Experiment.model_fields}
    options = {key: value for key, value in given.items() if key not in keys}
    dataset = str(keys.get("dataset"))
    values = {
        **study.settings,
        "rounds": _per_set(study.rounds, dataset),
        "epochs": _per_set(study.epochs, dataset),
        "backbone": row.backbone,
        **row.settings,
        **keys,
        "algorithm": row.algorithm,
        "options": {**row.options, **options},
    }
    values["label"] = _label(row, {**{key: keys[key] for key in ROW_KEYS if key in keys}, **options})
    if change.rounds is not None:
        values["rounds"] = change.rounds
    if change.placement is not None:
        values["placement"] = change.placement
    return values


def _label(row: MethodRow, varied: Combination) -> str | None:
    """The row's name with what an axis varies; None for the method's title."""
    if not varied:
        return row.label
    detail = ", ".join(f"{key}={shown(value)}" for key, value in varied.items())
    return f"{row.label or algorithm_type(row.algorithm).title} ({detail})"


def _per_set(given: int | Mapping[str, int] | None, dataset: str) -> int | None:
    return given.get(dataset) if isinstance(given, Mapping) else given


def _with_seed(resolved: Resolved, seed: int) -> Resolved:
    """The same experiment with another seed, which no default depends on."""
    return resolved.model_copy(update={"experiment": resolved.experiment.model_copy(update={"seed": seed})})


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
        if not counts and not is_brought(mode):
            raise ConfigurationError(f"partitions.{mode} has no client count: give one, as in {mode}: [10]")
    _check_axes(study, rows)
    names = _datasets(study)
    for key, given in (("rounds", study.rounds), ("epochs", study.epochs)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in names:
                raise unknown_name(f"data set under {key}", name, names)


def _check_axes(study: StudyFile, rows: Sequence[MethodRow]) -> None:
    """What varies must be set once, and a scenario must be whole."""
    taken = {
        "dataset": bool(study.datasets),
        "partition": bool(study.partitions),
        "clients": bool(study.partitions),
        "rounds": study.rounds is not None,
        "epochs": study.epochs is not None,
        **dict.fromkeys(_NEVER_VARIED, True),
        **dict.fromkeys(study.settings, True),
        **{key: True for variant in study.variants for key in variant},
    }
    shared = keys_of(study.axes)
    for row in rows:
        own = {**dict.fromkeys(row.settings, True), **dict.fromkeys(row.options, True)}
        own["backbone"] = row.backbone is not None
        for key in (*shared, *keys_of(row.axes)):
            if own.get(key):
                raise ConfigurationError(f"an axis cannot vary {key}: a row of methods sets it")
        for key in set(keys_of(row.axes)) & {*shared, "dataset", "partition", "clients"}:
            raise ConfigurationError(f"methods.axes cannot vary {key}: the axes of the study do")
    for key in (*shared, *(key for row in rows for key in keys_of(row.axes))):
        if taken.get(key):
            raise ConfigurationError(f"an axis cannot vary {key}: the study has a key of its own for it")
    for key, place in (("dataset", "datasets"), ("partition", "partitions"), ("clients", "partitions")):
        everywhere = any(all(key in each for each in axis.combinations()) for axis in study.axes)
        if not taken[key] and not everywhere:
            raise ConfigurationError(f"{place}: the study needs {place}, or an axis with {key}")


def _varied(study: StudyFile, rows: Sequence[MethodRow]) -> list[str]:
    keys = [*keys_of(study.axes), *(key for row in rows for key in keys_of(row.axes))]
    return [*keys, *(key for variant in study.variants for key in variant)]


@cache
def _published_tables() -> frozenset[str]:
    """Tables whose figures are in the package, as `paper table number`."""
    found = set()
    for item in files("fedatlas.dashboards.published").iterdir():
        if item.name.endswith(".csv"):
            with item.open("r", encoding="utf-8") as file:
                found |= {f"{row['paper']} table {row['table']}" for row in csv.DictReader(file)}
    return frozenset(found)


def _check_answers(answers: Sequence[str]) -> None:
    for text in answers:
        if not re.fullmatch(r"\S+ (table|figure) .+", text, re.IGNORECASE):
            raise ConfigurationError(f"answers: '{text}' must be 'PAPER table NUMBER' or 'PAPER figure NAME'")
        if " table " in text.lower() and text.lower() not in _published_tables():
            raise unknown_name("published table", text, _published_tables())


def _datasets(study: StudyFile) -> set[str]:
    """Data sets of a study, wherever it names them."""
    varied = {
        str(each["dataset"]) for axis in study.axes for each in axis.combinations() if "dataset" in each
    }
    return {*study.datasets, *varied}


def _fitting(study: StudyFile) -> list[str]:
    """Methods that classify what the study's data sets hold."""
    levels = {entry(name).level for name in _datasets(study)}
    return [name for name, kind in ALGORITHMS.items() if levels <= set(kind.levels)]


def _rows(study: StudyFile, algorithms: Sequence[str]) -> list[MethodRow]:
    rows: list[MethodRow] = []
    own = {row.algorithm if isinstance(row, MethodRow) else row for row in study.methods}
    for row in study.methods:
        names = [name for name in _fitting(study) if name not in own] if row == ALL else [row]
        rows += [MethodRow(algorithm=name) if isinstance(name, str) else name for name in names]
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


def _shown_filters(study: StudyFile, change: Overrides) -> str:
    given = {"only": (*study.only, *change.only), "without": (*study.without, *change.without)}
    parts = [f"{name}={', '.join(map(str, entries))}" for name, entries in given.items() if entries]
    return " and ".join(parts)


def _check_labels(experiments: Sequence[Resolved]) -> None:
    """Within one scenario, a label must mean one row, and a row must have one label."""
    row_fields = {"algorithm", "options", *ROW_KEYS} - {"precision"}
    labels: set[str] = set()
    trials: dict[str, str] = {}
    for resolved in experiments:
        label = str(resolved.experiment.label)
        key = resolved.experiment.model_dump_json(exclude=row_fields)
        if key in labels:
            raise ConfigurationError(
                f"two rows of the study are called '{label}' ({resolved.cell}): "
                "give one another label, or remove what is repeated"
            )
        labels.add(key)
        other = trials.setdefault(resolved.identity_hash(), label)
        if other != label:
            raise ConfigurationError(
                f"'{other}' and '{label}' are the same trial ({resolved.cell}): remove one of them"
            )
