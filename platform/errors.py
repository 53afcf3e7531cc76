"""Errors that name the value, the limit and the remedy.

Every error a user can cause derives from `FedatlasError`; the command line prints its message without a
traceback and exits with code 2, anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class FedatlasError(Exception):
    """Base of all errors that a user can cause and mend."""


class ConfigurationError(FedatlasError):
    """A configuration key or value is unknown or out of range."""


class DataError(FedatlasError):
    """A raw file is missing, corrupt or does not describe a usable graph."""


class PartitionError(FedatlasError):
    """A graph cannot be divided among the clients as asked."""


class PlacementError(FedatlasError):
    """The resources that a placement needs can never be given."""


class NonFiniteError(FedatlasError):
    """A loss or an uploaded tensor holds NaN or infinity.

    Attributes:
        client: id of the first client concerned.
        when: the round or preparation step in which it happened, in words.
    """

    def __init__(self, what: str, client: int, when: str) -> None:
        super().__init__(
            f"non-finite {what} at client {client} in {when}: "
            "lower the learning rate (lr) or the loss weights"
        )
        self.what = what
        self.client = client
        self.when = when

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str, int, str]]:
        return NonFiniteError, (self.what, self.client, self.when)


class TrackingError(FedatlasError):
    """The tracking store refused or could not be reached."""


def unknown_name(kind: str, value: str, valid: Iterable[str], command: str = "") -> ConfigurationError:
    """Error for a name that does not exist, with the closest valid names.

    Args:
        kind: what the name denotes, for example ``"data set"``.
        value: the name given.
        valid: all names that exist.
        command: what lists them with their meaning, if there is such a command.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(value.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"valid: {', '.join(names)}"
    more = f" (`{command}` shows all)" if command else ""
    return ConfigurationError(f"unknown {kind} '{value}': {hint}{more}")


def invalid_values(error: ValidationError, where: str = "", show_values: bool = True) -> ConfigurationError:
    """Error for values that a configuration model refused: each with its key and what is allowed.

    Args:
        error: of the model.
        where: what was configured, put in front; also stands for a key where the whole is wrong.
        show_values: whether to repeat the values given; a nested one may be long.
    """
    parts = []
    for detail in error.errors():
        key = ".".join(str(place) for place in detail["loc"]) or where
        value = f"={detail['input']!r}" if show_values else ""
        parts.append(f"{key}{value}: {detail['msg']}")
    return ConfigurationError((f"{where}: " if where else "") + "; ".join(parts))
