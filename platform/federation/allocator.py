"""Keeps freed memory with the process, so that the next round need not fetch it from the kernel again.

A round allocates and frees tensors of megabytes. By default glibc maps each of them anew, and the kernel
fills every page with zeros when it is first touched: up to 16,000 page faults and a third of the time of a
round.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_NEVER = 2**31 - 1
_LARGEST = 32 * 1024 * 1024
"""Bytes: glibc accepts no larger threshold. Larger tensors are still mapped and given back."""


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, from now on and in the whole process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:
        return False
    return bool(option(_MMAP_THRESHOLD, _LARGEST)) and bool(option(_TRIM_THRESHOLD, _NEVER))
