"""Times that are tracked: those of the wall clock, but never earlier than before."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970 that do not go back while the process runs.

    A wall clock that is set back in mid-run would let runs end before they begin, and newer ones look older.
    From then on the time goes on as the monotonic clock does; a clock that is set forward is followed.
    """

    def __init__(self) -> None:
        self._wall, self._elapsed = time.time(), time.monotonic()

    def now(self) -> int:
        """The time, ms."""
        elapsed = time.monotonic()
        self._wall = max(time.time(), self._wall + elapsed - self._elapsed)
        self._elapsed = elapsed
        return int(self._wall * 1000)
