"""Tuned configurations: what a search has found for a method on a data set, as a file that runs take.

    algorithm: fedgmc
    backbone: h2gcn
    dataset: cora
    options: {lr: 0.013, hidden: 128}

`fedatlas run --tuned FILE` runs it. `fedatlas sweep STUDY --tuned FILE` gives its options to the study's rows
with this method and backbone on this data set. What a command or a study sets itself goes first, then the
tuned options, then the presets of the method.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedatlas.algorithms.registry import algorithm_type
from fedatlas.platform.documents import read_yaml
from fedatlas.platform.errors import ConfigurationError, invalid_values
from fedatlas.platform.graphs.catalog import STANDIN_PREFIX, entry


class Tuned(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: str
    backbone: str | None = None
    """The method's own if not given."""
    dataset: str
    options: dict[str, Any] = Field(min_length=1)
    found: dict[str, Any] = Field(default_factory=dict)
    """How it was found; for the reader."""

    def __hash__(self) -> int:
        return hash((self.algorithm, self.backbone, self.dataset))

    def network(self) -> str | None:
        """The backbone, with the default filled in."""
        return self.backbone or algorithm_type(self.algorithm).default_backbone

    def is_for(self, algorithm: str, backbone: str | None, dataset: str) -> bool:
        """Whether it is for these; a stand-in takes what its original has."""
        given = backbone or algorithm_type(algorithm).default_backbone
        return (algorithm, given, dataset.removeprefix(STANDIN_PREFIX)) == (
            self.algorithm,
            self.network(),
            self.dataset.removeprefix(STANDIN_PREFIX),
        )


def read_tuned(path: Path) -> Tuned:
    """Read a tuned configuration.

    Raises:
        ConfigurationError: the file cannot be read, or names what does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"tuned configuration {path} cannot be read: {error}") from error
    content = read_yaml(text, f"tuned configuration {path}")
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"tuned configuration {path} must be a mapping with keys {', '.join(Tuned.model_fields)}"
        )
    try:
        found = Tuned(**content)
    except ValidationError as error:
        raise invalid_values(error, f"tuned configuration {path}", show_values=False) from error
    algorithm_type(found.algorithm)
    entry(found.dataset)
    return found


def filled(values: Mapping[str, Any], tuned: Tuned) -> dict[str, Any]:
    """Values of an experiment that are not given (None or absent) taken from a tuned configuration.

    Raises:
        ConfigurationError: it is for another method, backbone or data set.
    """
    out = dict(values)
    for key, theirs in (
        ("algorithm", tuned.algorithm),
        ("dataset", tuned.dataset),
        ("backbone", tuned.network()),
    ):
        if out.get(key) is None:
            out[key] = theirs
        elif out[key] != theirs and (key, str(out[key]).removeprefix(STANDIN_PREFIX)) != (key, theirs):
            raise ConfigurationError(
                f"{key}={out[key]}: the tuned configuration is for {tuned.algorithm} ({tuned.network()}) on "
                f"{tuned.dataset}: leave {key} out, or the configuration"
            )
    out["options"] = {**tuned.options, **(values.get("options") or {})}
    return out


def applied(tuned: Sequence[Tuned], values: Mapping[str, Any]) -> Tuned | None:
    """The last configuration that is for an experiment with these values."""
    matching = [
        each
        for each in tuned
        if each.is_for(values["algorithm"], values.get("backbone"), str(values["dataset"]))
    ]
    return matching[-1] if matching else None


def check_used(tuned: Sequence[Tuned], used: Collection[Tuned]) -> None:
    """Refuse configurations that nothing takes.

    Raises:
        ConfigurationError: names the first of them.
    """
    for each in tuned:
        if each not in used:
            raise ConfigurationError(
                f"the tuned configuration of {each.algorithm} ({each.network()}) on {each.dataset} is for no "
                "trial of the study: leave it out, or add the row"
            )
