"""What a method says about the values that a search may try for one of its options.

    mu: float = Field(0.001, ge=0, json_schema_extra=log_between(1e-5, 1.0))

The result is the field's JSON schema entry ``search``; `fedatlas tune` reads it.
"""

from __future__ import annotations

from pydantic.types import JsonValue

Declared = dict[str, JsonValue]


def between(low: float, high: float) -> Declared:
    """All numbers from `low` to `high`, uniformly; whole ones if both bounds are."""
    return {"search": {"low": low, "high": high}}


def log_between(low: float, high: float) -> Declared:
    """The same, uniformly in the logarithm; `low` is above 0."""
    return {"search": {"low": low, "high": high, "log": True}}


def among(*values: float) -> Declared:
    """One of the values."""
    return {"search": list(values)}
