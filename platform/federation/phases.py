"""Names parts of a round's work, so that its seconds can be told apart.

A method marks a part with `phase`; whoever times the work around it collects the marks with `collected`.
Outside of `collected` a mark costs nothing and is not kept. Parts of one name add up; a part inside another
counts in both. On a GPU, work that has been queued and not awaited is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CALIBRATION = "calibration"
"""Forward part of calibration losses and uploads on clients; their gradient is part of training."""
REFINEMENT = "refinement"
"""The server's update of what calibrates, part of aggregation."""
SERIALISATION = "serialisation"
"""Turning tensors into what travels, and back."""

_seconds: ContextVar[dict[str, float] | None] = ContextVar("seconds", default=None)


@contextmanager
def collected() -> Iterator[dict[str, float]]:
    """Seconds by name of the phases marked inside the block."""
    found: dict[str, float] = {}
    token = _seconds.set(found)
    try:
        yield found
    finally:
        _seconds.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark a part of the work."""
    found = _seconds.get()
    if found is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        found[name] = found.get(name, 0.0) + time.perf_counter() - begin
