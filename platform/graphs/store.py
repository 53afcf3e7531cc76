"""The data folder: where raw files lie, whether they are the right ones, and how they get there.

The folder is `FEDATLAS_DATA`, by default `fedatlas` in the user's cache folder. Below it lies what PyG's and
OGB's classes expect (`Cora/raw/ind.cora.x`, `ogbn_arxiv/raw/edge.csv.gz`): a folder that they filled works.

Some raw files are pickles, which run code when they are read. Nothing here reads a file other than to hash
it, and `staged` hands out private copies whose bytes were hashed while they were copied, so that a file
cannot change between the check and the reading.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedatlas.platform.errors import DataError
from fedatlas.platform.graphs import catalog
from fedatlas.platform.graphs.catalog import Entry, RawFile

State = Literal["embedded", "present", "unverified", "missing", "corrupt"]
"""`embedded` needs no file; `unverified`: the right hash is not known, and the format carries no code."""

_WORST_LAST: tuple[State, ...] = ("embedded", "present", "unverified", "missing", "corrupt")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileStatus:
    """A raw file of the data folder: where it belongs, its state and the sha256 found (None if missing)."""

    raw: RawFile
    path: Path
    state: State
    sha256: str | None


@dataclass(frozen=True)
class SetStatus:
    """State of a data set: the worst state of its files."""

    name: str
    state: State
    files: tuple[FileStatus, ...]

    def select(self, state: State) -> tuple[FileStatus, ...]:
        """The files in a given state."""
        return tuple(file for file in self.files if file.state == state)


@dataclass(frozen=True)
class ImportReport:
    """What `import_folder` did.

    Attributes:
        imported: files copied into the data folder, in their state there.
        kept: files that were already in the data folder.
        refused: files of the source folder with a catalog name and the wrong contents, with their sha256.
        sets: state of every data set that one of these files belongs to.
    """

    imported: tuple[FileStatus, ...]
    kept: tuple[FileStatus, ...]
    refused: tuple[FileStatus, ...]
    sets: tuple[SetStatus, ...]


def data_folder() -> Path:
    """The data folder: `FEDATLAS_DATA`, else `$XDG_CACHE_HOME/fedatlas`, else `~/.cache/fedatlas`."""
    chosen = os.environ.get("FEDATLAS_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache").absolute() / "fedatlas"


def status(name: str) -> SetStatus:
    """State of one data set or group; every file present is hashed.

    Raises:
        ConfigurationError: there is no such data set.
    """
    entry = catalog.entry(name)
    if entry.members:
        return _group_status(name, tuple(status(member) for member in entry.members))
    folder = data_folder() / entry.raw_folder
    files = tuple(_file_status(raw, folder / raw.name) for raw in entry.files)
    states = {file.state for file in files}
    if "corrupt" in states:
        return SetStatus(name, "corrupt", files)
    if entry.kind != "real":
        return SetStatus(name, "embedded", files)
    if "missing" in states:
        return SetStatus(name, "missing", files)
    return SetStatus(name, "unverified" if "unverified" in states else "present", files)


def _group_status(name: str, members: tuple[SetStatus, ...]) -> SetStatus:
    worst = max((member.state for member in members), key=_WORST_LAST.index)
    return SetStatus(name, worst, tuple(file for member in members for file in member.files))


def list_status() -> tuple[SetStatus, ...]:
    """State of every data set and group of the catalog, stand-ins excepted."""
    sets = verify(catalog.names())
    return sets + groups_of(sets)


def groups_of(sets: Iterable[SetStatus]) -> tuple[SetStatus, ...]:
    """State of the groups whose sets are all among the given ones; no file is hashed again."""
    known = {found.name: found for found in sets}
    groups = {name: catalog.entry(name).members for name in catalog.group_names()}
    return tuple(
        _group_status(name, tuple(known[member] for member in members))
        for name, members in groups.items()
        if known.keys() >= set(members)
    )


def verify(names: Iterable[str]) -> tuple[SetStatus, ...]:
    """State of the data sets named, in that order.

    Raises:
        ConfigurationError: there is no such data set.
    """
    return tuple(status(name) for name in names)


def import_folder(source: Path, progress: Callable[[str], None] = lambda name: None) -> ImportReport:
    """Copy every raw file of the catalog found anywhere below a folder into the data folder.

    Files are found by name and taken by sha256. Of several files with one name, one with a known hash is
    preferred. Where no hash is known, the name decides, together with the name of a folder above the file
    if the catalog asks for one (OGB calls the files of all its sets alike). A file that is already there
    and right is left alone, so importing twice changes nothing. Copies appear whole or not at all.

    Args:
        source: folder with raw files at any depth.
        progress: told the name of each data set before its files are read.

    Raises:
        DataError: `source` is no folder, or the data folder cannot be written.
    """
    if not source.is_dir():
        raise DataError(
            f"cannot import from '{source}': there is no such folder; give the one that holds raw "
            "files (`fedatlas data list` says which sets are missing)"
        )
    found: dict[str, list[Path]] = {}
    for folder, folders, files in os.walk(source):
        folders.sort()
        for file in sorted(files):
            found.setdefault(file, []).append(Path(folder) / file)

    imported: list[FileStatus] = []
    kept: list[FileStatus] = []
    refused: list[FileStatus] = []
    touched: list[str] = []
    for name in catalog.names():
        entry = catalog.entry(name)
        progress(name)
        for raw in entry.files:
            target = data_folder() / entry.raw_folder / raw.name
            candidates = [_file_status(raw, path) for path in found.get(raw.name, ())]
            candidates = [file for file in candidates if _belongs(entry, file)]
            if not candidates:
                continue
            touched.append(name)
            refused += [file for file in candidates if file.state == "corrupt"]
            good = sorted(
                (file for file in candidates if file.state != "corrupt"),
                key=lambda file: file.state != "present",
            )
            present = _file_status(raw, target)
            if present.state == "present" or (good and present.sha256 == good[0].sha256):
                kept.append(present)
            elif good:
                _copy(good[0].path, target, good[0].sha256)
                imported.append(_file_status(raw, target))
    return ImportReport(tuple(imported), tuple(kept), tuple(refused), verify(dict.fromkeys(touched)))


@contextmanager
def staged(entry: Entry) -> Iterator[Path]:
    """A private temporary folder in the layout of the data folder, with checked copies of one set's files.

    Raises:
        DataError: a file is missing or corrupt.
    """
    with tempfile.TemporaryDirectory(prefix="fedatlas-") as root:
        target = Path(root) / entry.raw_folder
        target.mkdir(parents=True)
        for raw in entry.files:
            source = data_folder() / entry.raw_folder / raw.name
            try:
                digest = _copy_bytes(source, target / raw.name)
            except FileNotFoundError:
                raise missing(status(entry.name)) from None
            if _state(raw, digest) == "corrupt":
                raise corrupt(status(entry.name))
        yield Path(root)


def missing(found: SetStatus, why: str = "") -> DataError:
    """Error for a data set that is not there: the files, their sha256, their place and the remedies.

    Args:
        found: state of the set.
        why: what was tried before, for example a failed download.
    """
    entry = catalog.entry(found.name)
    files = found.select("missing")
    lines = [f"data set '{found.name}' is missing{f' ({why})' if why else ''}: put into {_place(entry)}"]
    lines += [f"  {file.raw.name}  sha256 {_accepted(file.raw)}" for file in files]
    lines.append(
        "or run `fedatlas data import FOLDER` on a folder that holds them "
        "(FEDATLAS_DATA names another data folder)"
    )
    standin = catalog.STANDIN_PREFIX + found.name
    if standin in catalog.standin_names():
        lines.append(f"for timing only, `{standin}` is a synthetic graph of the same size")
    return DataError("\n".join(lines))


def corrupt(found: SetStatus) -> DataError:
    """Error for a data set with wrong files: expected and found sha256, and what to do."""
    lines = [f"data set '{found.name}' has corrupt raw files, which were not read:"]
    for file in found.select("corrupt"):
        lines.append(
            f"  {file.path}\n    expected sha256 {_accepted(file.raw)}\n    found    sha256 {file.sha256}"
        )
    lines.append("delete them, then run `fedatlas data import FOLDER` on a folder with the right files")
    return DataError("\n".join(lines))


def _place(entry: Entry) -> str:
    return f"{data_folder() / entry.raw_folder}{os.sep}"


def _accepted(raw: RawFile) -> str:
    known = " or ".join(raw.sha256)
    if raw.closed:
        return known
    return f"{known} (other copies are accepted)" if known else "not known (any copy is accepted)"


def _state(raw: RawFile, digest: str) -> State:
    if digest in raw.sha256:
        return "present"
    return "corrupt" if raw.closed else "unverified"


def _file_status(raw: RawFile, path: Path) -> FileStatus:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return FileStatus(raw, path, "missing", None)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    return FileStatus(raw, path, _state(raw, digest), digest)


def _belongs(entry: Entry, file: FileStatus) -> bool:
    if file.state == "present" or not entry.folder_names:
        return True
    return any(folder.name.lower() in entry.folder_names for folder in file.path.absolute().parents)


def _copy(source: Path, target: Path, expected: str | None) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        try:
            if _copy_bytes(source, Path(temporary)) != expected:
                raise DataError(f"{source} changed while it was copied: import again")
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write {target}: {error.strerror}; set FEDATLAS_DATA to a folder you can write"
        ) from error


def _copy_bytes(source: Path, target: Path) -> str:
    """Copy a file and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(_BLOCK):
            digest.update(block)
            writer.write(block)
    return digest.hexdigest()
