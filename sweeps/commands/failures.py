"""What the machine refuses, in words."""

from __future__ import annotations

import errno

REFUSALS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EIO,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
    }
)
"""Errors of files that are the machine's or the user's doing: a full disk, a folder that was removed, ..."""


def refusal(error: OSError) -> str | None:
    """One line that says what could not be read or written and what to do; None for other errors."""
    if error.errno not in REFUSALS:
        return None
    from fedatlas.platform.tracking.destination import RESULTS_VARIABLE, results_folder

    place = error.filename if error.filename is not None else f"results folder {results_folder()}"
    return (
        f"{place}: {error.strerror}. What has finished is kept: mend this, or name another folder in "
        f"{RESULTS_VARIABLE}, and run the same command again"
    )
