"""CPU and wall seconds of rounds, the same for every program that is compared."""

from __future__ import annotations

import json
import statistics
import time

import psutil


def cpu_seconds() -> float:
    """User and system time of this process and of Ray's worker processes below it, without Ray's daemons."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
            if process.pid == me.pid or "ray::" in " ".join(process.cmdline()):
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


class Meter:
    """Counts `counted` rounds after `warm` ones.

    `start` is called before the first round and `tick` after each.
    """

    def __init__(self, warm: int, counted: int) -> None:
        self.warm, self.counted = warm, counted
        self._walls: list[float] = []
        self._before = self._spent = 0.0
        self._began = self._last = 0.0

    @property
    def rounds(self) -> int:
        """All rounds to run."""
        return self.warm + self.counted

    def start(self) -> None:
        """The first round begins."""
        self._began, self._last = time.time(), time.perf_counter()

    def tick(self) -> None:
        """A round has ended."""
        now = time.perf_counter()
        self._walls.append(now - self._last)
        if len(self._walls) == self.warm:
            self._before = cpu_seconds()
        elif len(self._walls) == self.rounds:
            self._spent = cpu_seconds() - self._before
        self._last = time.perf_counter()

    def show(self, score: float, **more: float) -> None:
        """Print the figures for `processes.run`.

        Args:
            score: mean test score over clients of the last round; shows that programs train alike.
            more: further figures.
        """
        wall = statistics.median(self._walls[self.warm :])
        figures = {"cpu": self._spent / self.counted, "wall": wall, "began": self._began, "score": score}
        print(json.dumps({**figures, **more}), flush=True)
