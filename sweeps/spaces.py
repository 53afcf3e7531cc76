"""Search spaces: which values of a method's options a search tries.

A method declares them beside the defaults, in the field of its configuration:

    mu: float = Field(0.001, ge=0, json_schema_extra=log_between(1e-5, 1.0))
    templates: int = Field(64, ge=1, json_schema_extra=among(16, 32, 64, 128))

with the words of `fedatlas.algorithms.search_spaces`, or as the entry that they stand for:
`{"search": {"low": 1e-5, "high": 1.0, "log": True}}`, `{"search": [16, 32, 64, 128]}`.

An interval has `low` and `high`, both included, and `log` or `step` if it is not to be uniform; a list names
the values. Options that every method has are declared here; a method's own declaration goes before, and
`{"search": None}` takes an option out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedatlas.algorithms.registry import algorithm_type, validate
from fedatlas.platform.errors import ConfigurationError, invalid_values, unknown_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

COMMON: Mapping[str, Any] = {
    "lr": {"low": 1e-3, "high": 0.1, "log": True},
    "weight_decay": {"low": 1e-7, "high": 1e-2, "log": True},
    "dropout": {"low": 0.0, "high": 0.8, "step": 0.1},
    "hidden": [32, 64, 128, 256],
}
"""Spaces of the options that all weight-sharing methods have."""


class Interval(BaseModel):
    """Numbers between two bounds, whole ones if both bounds are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: int | float
    high: int | float
    log: bool = False
    """Uniform in the logarithm."""
    step: int | float | None = None
    """Distance of the values, counted from `low`."""

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low above 0, and no step")
        return self

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log, step=int(self.step or 1))
        return FloatDistribution(float(self.low), float(self.high), log=self.log, step=self.step)

    def nearest(self, value: Any) -> Any:
        """The value of the space that is closest."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.low
        inside = min(max(value, self.low), self.high)
        if self.step is not None:
            inside = min(self.low + round((inside - self.low) / self.step) * self.step, self.high)
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return round(inside) if whole else float(inside)

    def edges(self) -> Sequence[Any]:
        """Values that the option must allow for all to be allowed."""
        return (self.low, self.high)


class Choice(BaseModel):
    """Some values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[Any, ...]

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def nearest(self, value: Any) -> Any:
        """The value itself, else the number that is closest, else the first value."""
        if value in self.values:
            return value
        numbers = [
            each for each in self.values if isinstance(each, int | float) and not isinstance(each, bool)
        ]
        if numbers and isinstance(value, int | float):
            return min(numbers, key=lambda each: abs(each - value))
        return self.values[0]

    def edges(self) -> Sequence[Any]:
        """All values."""
        return self.values


Space = Interval | Choice


def space_of(algorithm: str, chosen: Sequence[str] = ()) -> dict[str, Space]:
    """Search space of a method.

    Args:
        algorithm: name of the method.
        chosen: options to search; all that have a space if none is named.

    Raises:
        ConfigurationError: unknown method, an option without a space, or a space that the option does not
            allow.
    """
    fields = algorithm_type(algorithm).configuration_type.model_fields
    found = {
        name: _space(algorithm, name, declared)
        for name, field in fields.items()
        if (declared := _declared(name, field)) is not None
    }
    for name in chosen:
        if name not in fields:
            raise unknown_name(f"option of {algorithm}", name, fields)
        if name not in found:
            raise ConfigurationError(
                f"option {name} of {algorithm} has no search space: choose from {', '.join(sorted(found))}, "
                f"or declare one in its field (fedatlas.algorithms.search_spaces)"
            )
    return {name: space for name, space in found.items() if not chosen or name in chosen}


def _declared(name: str, field: FieldInfo) -> Any:
    extra = field.json_schema_extra
    common = COMMON.get(name)
    return extra.get("search", common) if isinstance(extra, dict) else common


def _space(algorithm: str, name: str, declared: Any) -> Space:
    where = f"search space of {algorithm} {name}"
    try:
        space: Space = (
            Choice(values=tuple(declared)) if isinstance(declared, list | tuple) else Interval(**declared)
        )
    except ValidationError as error:
        raise invalid_values(error, where) from error
    except TypeError as error:
        raise ConfigurationError(f"{where} must be a list or an interval, not {declared!r}") from error
    for value in space.edges():
        validate(algorithm, {name: value})
    return space
