"""Axes of a study: blocks of settings that vary by product, together, or as an explicit list.

    axes:
      - product: {lr: [0.01, 0.03], hidden: [64, 128]}      # 4 combinations
      - zip: {templates: [16, 64], sampled_nodes: [32, 64]} # 2 combinations
      - list: [{}, {tau: 0.5}, {eta: 0.01, tau: 2}]         # 3 combinations

Blocks combine by product. A key is one of an experiment or, if it is none, an option of the method.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedatlas.platform.errors import ConfigurationError

Combination = Mapping[str, Any]


class Axis(BaseModel):
    """One block: exactly one of the three forms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    product: dict[str, tuple[Any, ...]] | None = Field(default=None, min_length=1)
    """Every value of each key with every value of the others."""
    together: dict[str, tuple[Any, ...]] | None = Field(default=None, alias="zip", min_length=1)
    """The first values of all keys, then the second ones, ..."""
    listed: tuple[dict[str, Any], ...] | None = Field(default=None, alias="list", min_length=1)
    """The combinations themselves."""

    @model_validator(mode="after")
    def _one_form(self) -> Axis:
        given = [form for form in (self.product, self.together, self.listed) if form is not None]
        if len(given) != 1:
            raise ValueError("an axis has one of the keys product, zip and list")
        for key, values in {**(self.product or {}), **(self.together or {})}.items():
            if not values:
                raise ValueError(f"{key} has no value")
        if self.together is not None and len({len(values) for values in self.together.values()}) > 1:
            lengths = ", ".join(f"{key} {len(values)}" for key, values in self.together.items())
            raise ValueError(f"zip needs as many values of each key: {lengths}")
        return self

    def combinations(self) -> list[Combination]:
        """The settings that this block stands for."""
        if self.listed is not None:
            return list(self.listed)
        keys, choose = (self.product, itertools.product) if self.product else (self.together or {}, zip)
        return [dict(zip(keys, values, strict=True)) for values in choose(*keys.values())]


def keys_of(axes: Iterable[Axis]) -> list[str]:
    """All keys that vary, in order."""
    return list(dict.fromkeys(key for axis in axes for each in axis.combinations() for key in each))


def combine(axes: Sequence[Axis]) -> list[Combination]:
    """Product of the blocks; one empty combination if there are none.

    Raises:
        ConfigurationError: two blocks have the same key.
    """
    for first, second in itertools.combinations(axes, 2):
        if both := set(keys_of([first])) & set(keys_of([second])):
            raise ConfigurationError(
                f"two axes vary {', '.join(sorted(both))}: put its values into one of them"
            )
    blocks = [axis.combinations() for axis in axes]
    return [
        {key: value for part in parts for key, value in part.items()} for parts in itertools.product(*blocks)
    ]


def shown(value: Any) -> str:
    """A value as it is written in a label and in a filter: 1.0 is 1, true and false are as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
