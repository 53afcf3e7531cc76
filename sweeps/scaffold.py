"""A method to start from: two files written from the templates beside this module."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.errors import ConfigurationError


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        method, test: the two files.
        module, kind: name of the module and of the class.
    """

    method: Path
    test: Path
    module: str
    kind: str


def write_method(name: str, folder: Path) -> Written:
    """Write a method and its test.

    Args:
        name: its name in commands.
        folder: where; made if it is not there.

    Raises:
        ConfigurationError: the name cannot be used, or a file is there already.
    """
    module = name.lower().replace("-", "_")
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", module):
        raise ConfigurationError(f"{name} is no name for a module: use letters, digits and underscores")
    if module in ALGORITHMS:
        raise ConfigurationError(f"{name} is a method of fedatlas already: choose another name")
    method, test = folder / f"{module}.py", folder / f"test_{module}.py"
    for path in (method, test):
        if path.exists():
            raise ConfigurationError(f"{path} is there already: choose another name or folder")
    if importlib.util.find_spec(module) is not None:
        raise ConfigurationError(f"there is an installed module called {module}: choose another name")
    words = [word for word in module.split("_") if word]
    kind = "".join(word.capitalize() for word in words)
    values = {"NAME": module, "MODULE": module, "CLASS": kind, "TITLE": " ".join(words).capitalize()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in ((method, "method.template"), (test, "method_test.template")):
            text = files("fedatlas.sweeps").joinpath(template).read_text(encoding="utf-8")
            for key, value in values.items():
                text = text.replace(f"@{key}@", value)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error.strerror}") from error
    return Written(method, test, module, kind)
