"""`fedatlas algorithms`: the methods and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from fedatlas.sweeps.commands import completion


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=completion.algorithms, help="Show the options of this method."),
    ] = None,
) -> None:
    """List the methods, or the options of one with their defaults.

    Example: fedatlas algorithms fedgmc
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedatlas.algorithms.references import ALGORITHM_GROUP, discovered
    from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type

    table = Table(box=SIMPLE_HEAD)
    if name is None:
        for heading in ("name", "title", "backbone", "uploads", "note"):
            table.add_column(heading)
        installed = {key: algorithm_type(key) for key in discovered(ALGORITHM_GROUP)}
        for key, kind in {**ALGORITHMS, **installed}.items():
            table.add_row(key, kind.title, kind.default_backbone, ", ".join(sorted(kind.uploads)), kind.note)
    else:
        for heading in ("option", "default", "meaning"):
            table.add_column(heading)
        for option, details in algorithm_type(name).configuration_type.model_fields.items():
            table.add_row(option, str(details.default), details.description or "")
    Console().print(table)
    if name is None:
        Console().print(
            "a method of your own: --algorithm package.module:Class; `fedatlas new-method NAME` writes one",
            highlight=False,
        )
