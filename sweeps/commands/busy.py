"""What a command is at, on the terminal: imports little, so that commands start quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """A line that says what takes its time; on stderr, and nowhere if that is no terminal.

    Yields:
        what replaces the text.
    """
    from rich.console import Console

    with Console(stderr=True).status(text) as line:
        yield lambda other: line.update(other)
