"""The local journal: operations that the tracking store did not take, kept until `sync`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.platform.tracking.operations import LogPoints, OpenRun, Operation, from_plain, to_plain
from fedatlas.platform.tracking.store import Store


def journal_folder() -> Path:
    """Folder of the journals; each run has one file."""
    return results_folder() / "journal"


def _path(run: str) -> Path:
    return journal_folder() / f"{run}.jsonl"


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """An open file, made if needed, that no other process writes or removes meanwhile."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                current = False
            # `sync` may have removed the file while this waited: a line written to it would be lost.
            if current:
                yield file
                return


def append(operation: Operation) -> None:
    """Add an operation to its run's journal and flush it to disk, in place of a last line cut off."""
    path = _path(operation.run)
    with _locked(path) as file:
        file.seek(0)
        written = file.read()
        if not written:
            # Left by a push that was interrupted after it had removed the journal.
            _progress(path).unlink(missing_ok=True)
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
    """Operations of a journal; a last line without its end, cut off by a crash, is left out."""
    operations: list[Operation] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1]):
        try:
            operations.append(from_plain(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise FedatlasError(
                f"journal {path} line {number + 1} cannot be read ({error}): move the file away, and "
                "`fedatlas sync` pushes the others"
            ) from error
    return operations


@dataclass(frozen=True)
class SyncReport:
    """How many runs were pushed, and the errors of those that were not."""

    pushed: int
    failed: tuple[str, ...]


def sync(store: Store, progress: Callable[[str], None] = lambda text: None) -> SyncReport:
    """Push all journals to the store; a journal that was pushed is removed.

    Runs may go on writing meanwhile. A second `sync` waits for the first.

    Args:
        store: where to.
        progress: told the name of each run pushed.
    """
    with _locked(journal_folder() / "sync.lock"):
        return _sync(store, progress)


def _sync(store: Store, progress: Callable[[str], None]) -> SyncReport:
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
        try:
            _push(store, operations, _progress(path))
            with _locked(path):
                # Usually nothing is left: the run that writes here waits for these few lines only.
                operations = read(path)
                _push(store, operations, _progress(path))
                if operations:
                    known[operations[0].run] = store.run_id(operations[0].run)
                    _write(_ids_path(), known)
                path.unlink()
                _progress(path).unlink(missing_ok=True)
        except FedatlasError as error:
            failed.append(f"{path.stem}: {error}")
            continue
        if operations:
            pushed += 1
            progress(path.stem)
    return SyncReport(pushed, tuple(failed))


def _progress(path: Path) -> Path:
    """Where it is noted how much of a journal has been pushed."""
    return path.with_suffix(".progress")


def _push(store: Store, operations: list[Operation], done: Path) -> None:
    """Apply operations, noting how far it got so that an interrupted push goes on from there."""
    start = 0
    if done.exists():
        state = json.loads(done.read_text())
        start = int(state["applied"])
        if state.get("run_id"):
            store.adopt(operations[0].run, state["run_id"])
    # The store may have taken some of the first values before it went away or a push was interrupted.
    again = True
    for number, operation in enumerate(operations[start:], start=start):
        store.apply(operation, again)
        again = again and not isinstance(operation, LogPoints)
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
