"""Tracking that neither blocks nor loses: the store while it answers, the journal when it does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking import journal
from fedatlas.platform.tracking.clock import Clock
from fedatlas.platform.tracking.destination import tracking_uri
from fedatlas.platform.tracking.operations import (
    CloseRun,
    LogFile,
    LogPoints,
    OpenRun,
    Operation,
    RunStatus,
)
from fedatlas.platform.tracking.store import Store

_CLOCK = Clock()


def new_run_name() -> str:
    """A local run name that is unique for ever."""
    return f"run-{uuid.uuid4().hex}"


class Tracker:
    """Writes runs. One process writes; trials hand their records to it.

    Once the store has failed, everything goes to the journal for the rest of the process, so that the
    operations of a run stay in order.

    Args:
        warn: told once, in words, when the store cannot be used.
        uri: tracking URI; None for the configured one.

    Attributes:
        uri: tracking URI.
        store: None once results go to the journal.
    """

    def __init__(self, warn: Callable[[str], None], uri: str | None = None) -> None:
        self._warn = warn
        self.uri = uri or tracking_uri()
        self.store: Store | None = None
        self._lost: Store | None = None
        try:
            self.store = Store(self.uri)
        except TrackingError as error:
            self._give_up(error)

    def open(
        self,
        experiment: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        parent: str | None = None,
        run: str | None = None,
    ) -> str:
        """Start a run and return its local name: `run`, by default a new one."""
        run = run or new_run_name()
        self._emit(OpenRun(run, experiment, name, parent, _texts(params), dict(tags), _CLOCK.now()))
        return run

    def resume(self, run_id: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Continue an existing run of the store, with parameters it lacks and new tags; its local name."""
        if self.store is None:
            return run_id
        run = new_run_name()
        try:
            self.store.resume(run, run_id, _texts(params), tags)
        except TrackingError as error:
            self._lose(error)
        return run

    def last_step(self, run_id: str, key: str) -> int:
        """Last step at which a run of the store has a metric; -1 if it has none or cannot be read."""
        if self.store is not None:
            try:
                return self.store.last_step(run_id, key)
            except TrackingError as error:
                self._lose(error)
        return -1

    def points(self, run: str, points: Sequence[tuple[str, float, int]], again: bool = False) -> None:
        """Log metric values (key, value, step); `again` leaves out those that the run has already."""
        if points:
            self._emit(LogPoints(run, list(points), _CLOCK.now()), again)

    def file(self, run: str, path: Path) -> None:
        """Log a file as an artifact."""
        self._emit(LogFile(run, str(path)))

    def describe(self, experiment: str, text: str) -> None:
        """Say what an experiment is, where MLflow shows it; nothing while the store does not answer."""
        if self.store is not None:
            try:
                self.store.describe(experiment, text)
            except TrackingError as error:
                self._lose(error)

    def close(self, run: str, status: RunStatus, tags: Mapping[str, str] | None = None) -> None:
        """End a run."""
        self._emit(CloseRun(run, status, dict(tags or {}), _CLOCK.now()))

    def run_id(self, run: str) -> str:
        """MLflow id of a run, or its local name while it is in the journal only."""
        store = self.store or self._lost
        return store.run_id(run) if store is not None else run

    def _emit(self, operation: Operation, again: bool = False) -> None:
        if self.store is not None:
            try:
                self.store.apply(operation, again)
                return
            except TrackingError as error:
                self._lose(error)
        journal.append(self._with_store_ids(operation))

    def _with_store_ids(self, operation: Operation) -> Operation:
        """Name runs that the store already knows by their MLflow ids, which outlive this process."""
        if isinstance(operation, OpenRun):
            parent = operation.parent
            return replace(operation, parent=None if parent is None else self.run_id(parent))
        return replace(operation, run=self.run_id(operation.run))

    def _lose(self, error: TrackingError) -> None:
        """Give a store up that has runs of this process."""
        self._lost = self.store
        self._give_up(error)

    def _give_up(self, error: TrackingError) -> None:
        self.store = None
        self._warn(
            f"{error}\nResults go to the journal {journal.journal_folder()}; push them later with "
            "`fedatlas sync`."
        )


def _texts(params: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in params.items()}
