"""The local journal: operations that the tracking store did not take, kept until `sync`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedatlas.platform.errors import FedatlasError, TrackingError
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.platform.tracking.operations import OpenRun, Operation, from_plain, to_plain
from fedatlas.platform.tracking.store import Store


def journal_folder() -> Path:
    """Folder of the journals; each run has one file."""
    return results_folder() / "journal"


def _path(run: str) -> Path:
    return journal_folder() / f"{run}.jsonl"


def append(operation: Operation) -> None:
    """Add an operation to its run's journal and flush it to disk, in place of a last line cut off."""
    path = _path(operation.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        written = file.read()
        if not written.endswith(b"\n"):
            file.truncate(written.rfind(b"\n") + 1)
        file.write(json.dumps(to_plain(operation)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def pending() -> list[Path]:
    """Journals that have not been pushed, oldest first."""
    folder = journal_folder()
    return sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime) if folder.exists() else []


def read(path: Path) -> list[Operation]:
    """Operations of a journal; a last line cut off by a crash is left out."""
    operations: list[Operation] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        try:
            operations.append(from_plain(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if number + 1 == len(lines):
                break
            raise FedatlasError(f"journal {path} line {number + 1} cannot be read: {error}") from error
    return operations


@dataclass(frozen=True)
class SyncReport:
    """How many runs were pushed, and the errors of those that were not."""

    pushed: int
    failed: tuple[str, ...]


def sync(store: Store, progress: Callable[[str], None] = lambda text: None) -> SyncReport:
    """Push all journals to the store; a journal that was pushed is removed.

    Args:
        store: where to.
        progress: told the name of each run pushed.
    """
    pushed = 0
    failed: list[str] = []
    known = _known_ids()
    for run, run_id in known.items():
        store.adopt(run, run_id)
    contents: list[tuple[Path, list[Operation]]] = []
    for path in pending():
        try:
            contents.append((path, read(path)))
        except FedatlasError as error:
            failed.append(str(error))
    # Runs that were opened in the journal come before those that name them as their parent.
    contents.sort(key=lambda item: any(isinstance(op, OpenRun) and op.parent is not None for op in item[1]))
    for path, operations in contents:
        if not operations:
            path.unlink()
            continue
        done = path.with_suffix(".progress")
        try:
            _push(store, operations, done)
        except TrackingError as error:
            failed.append(f"{path.stem}: {error}")
            continue
        known[operations[0].run] = store.run_id(operations[0].run)
        _write(_ids_path(), known)
        path.unlink()
        done.unlink(missing_ok=True)
        pushed += 1
        progress(path.stem)
    return SyncReport(pushed, tuple(failed))


def _push(store: Store, operations: list[Operation], done: Path) -> None:
    """Apply operations, noting how far it got so that an interrupted push goes on from there."""
    start = 0
    if done.exists():
        state = json.loads(done.read_text())
        start = int(state["applied"])
        if state.get("run_id"):
            store.adopt(operations[0].run, state["run_id"])
    for number, operation in enumerate(operations[start:], start=start):
        store.apply(operation)
        run_id = store.run_id(operation.run)
        _write(done, {"applied": number + 1, "run_id": run_id})


def _ids_path() -> Path:
    return journal_folder() / "pushed.json"


def _known_ids() -> dict[str, str]:
    """MLflow ids of runs pushed before: their children may still be in the journal."""
    path = _ids_path()
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
