"""Classes that do not come with the package: by reference, `package.module:Class`, or by entry point.

A reference is looked up in the installed packages and in the working folder; `path/to/file.py:Class` in the
folder of that file. An installed distribution offers its classes under the entry-point groups
`fedatlas.algorithms` and `fedatlas.backbones`:

    [project.entry-points."fedatlas.algorithms"]
    mine = "package.module:Class"
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from fedatlas.platform.errors import ConfigurationError

ALGORITHM_GROUP = "fedatlas.algorithms"
BACKBONE_GROUP = "fedatlas.backbones"
OWN_METHODS_VARIABLE = "FEDATLAS_OWN_METHODS"

T = TypeVar("T")


def is_reference(name: str) -> bool:
    """Whether a name is `package.module:Class` or `file.py:Class`."""
    return ":" in name


def absolute(name: str) -> str:
    """The same reference with an absolute path, so that it means the same in every process."""
    place, mark, kind = name.rpartition(":")
    if mark and place.isidentifier() and Path(f"{place}.py").is_file():
        place = f"{place}.py"
    if mark and place.endswith(".py"):
        return f"{Path(place).expanduser().absolute()}:{kind}"
    return name


def short(name: str) -> str:
    """The same reference without folders, for tables."""
    place, mark, kind = name.rpartition(":")
    return f"{Path(place).stem}:{kind}" if mark and place.endswith(".py") else name


def discovered(group: str) -> dict[str, EntryPoint]:
    """Entry points of installed distributions by name, not loaded."""
    return {point.name: point for point in entry_points(group=group)}


def load(reference: str, base: type[T]) -> type[T]:
    """The class behind a reference.

    Args:
        reference: `package.module:Class` or `file.py:Class`.
        base: what it must be a subclass of.

    Raises:
        ConfigurationError: there is no such module or class, its module fails, or it is something else.
    """
    place, _, name = reference.rpartition(":")
    folder = Path(place).expanduser().absolute().parent if place.endswith(".py") else Path.cwd()
    module_name = Path(place).stem if place.endswith(".py") else place
    if place.endswith(".py") and not Path(place).expanduser().is_file():
        raise ConfigurationError(
            f"{reference}: there is no file {place}; `fedatlas new-method NAME` writes one to start from"
        )
    _reach(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"{reference}: there is no module {missing} in {folder} or among what is installed; give "
                "package.module:Class or path/to/file.py:Class"
            ) from error
        raise ConfigurationError(
            f"{reference} needs the module {missing}, which is not installed: install it into {sys.prefix}"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{reference} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if place.endswith(".py") and Path(str(module.__file__)).resolve() != Path(place).expanduser().resolve():
        raise ConfigurationError(
            f"{reference}: there is a module {module_name} already ({module.__file__}): rename the file"
        )
    return checked(getattr(module, name, None), base, reference)


def checked(found: Any, base: type[T], reference: str) -> type[T]:
    """What was found, if it is a complete subclass.

    Raises:
        ConfigurationError: it is not.
    """
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "there is no such class" if found is None else f"it is no subclass of {base.__name__}"
        raise ConfigurationError(f"{reference}: {what}; `fedatlas new-method NAME` writes one to start from")
    absent = sorted(getattr(found, "__abstractmethods__", ()))
    if absent:
        raise ConfigurationError(f"{reference} lacks {', '.join(absent)}: see docs/adding-a-method.md")
    for attribute in ("name", "title"):
        if attribute in base.__annotations__ and not getattr(found, attribute, None):
            raise ConfigurationError(f"{reference} needs the class attribute `{attribute}`")
    return found


def code_sha256(*kinds: type) -> str | None:
    """Hash of the source of classes that do not come with the package; None if all do.

    The source is that of the whole module, and of the class alone where it was typed into a notebook.
    """
    own = [kind for kind in kinds if not kind.__module__.startswith("fedatlas.")]
    if not own:
        return None
    digest = hashlib.sha256()
    for kind in own:
        digest.update(_source(kind).encode())
    return digest.hexdigest()[:20]


def _source(kind: type) -> str:
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if path is not None and kind.__module__ != "__main__":
        return Path(path).read_text(encoding="utf-8")
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return kind.__qualname__


def _reach(folder: Path) -> None:
    """Let this process, and those that it starts, import from a folder."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(folder) not in parts:
        os.environ["PYTHONPATH"] = os.pathsep.join([*parts, str(folder)])
    # Tells whoever connects to a cluster that its workers need this path too.
    os.environ[OWN_METHODS_VARIABLE] = "1"
