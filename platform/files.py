"""Files that a reader sees whole or not at all, however the process that writes them ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""Ending of a file that is being written, or that a process left when it was killed."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; flushed to disk and renamed at the end of the block.

    If the block fails, the old file stays and the temporary one goes. Its folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, which would keep the file from everybody else.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_whole(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_partial(folder: Path, start: str = "") -> None:
    """Remove what killed processes have left half written, of files whose name starts so.

    Nobody may be writing there.
    """
    for pattern in (f".{start}*{PARTIAL}", f"{start}*{PARTIAL}"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
