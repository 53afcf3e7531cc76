"""`fedatlas algorithms`: the methods and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.sweeps.commands import completion

if TYPE_CHECKING:
    from rich.console import Console


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=completion.algorithms, help="Show the options of this method."),
    ] = None,
    uploads: Annotated[bool, typer.Option("--uploads", help="Show what clients send to the server.")] = False,
) -> None:
    """List the methods, or the options of one with their defaults.

    Example: fedatlas algorithms fedgmc

    With --uploads, what a method declares to send, and of one method every field that it is seen to send.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedatlas.algorithms.references import ALGORITHM_GROUP, discovered
    from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type

    if uploads:
        show_uploads(Console(), name)
        return
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


def show_uploads(console: Console, name: str | None) -> None:
    """Tables of declared groups and, for one method, of the fields that two small rounds send."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from fedatlas.algorithms.references import ALGORITHM_GROUP, discovered
    from fedatlas.algorithms.registry import ALGORITHMS, algorithm_type, create
    from fedatlas.sweeps.uploads import HIDDEN, fields, groups

    declared = Table(box=SIMPLE_HEAD)
    for heading in ("method", "group", "what it holds", "clip and noise", "masked sum"):
        declared.add_column(heading)
    for key in (*ALGORITHMS, *discovered(ALGORITHM_GROUP)) if name is None else (name,):
        method = create(key)
        if method.describe()["aggregation"] == "none":
            declared.add_row(key, "nothing", "", "", "")
            continue
        for number, group in enumerate(groups(method)):
            marks = ("yes" if holds else "no" for holds in (group.clipped, group.summed))
            declared.add_row("" if number else key, group.name, group.meaning, *marks)
    console.print(declared)
    if name is not None:
        options = (
            {"hidden": HIDDEN} if "hidden" in algorithm_type(name).configuration_type.model_fields else {}
        )
        sent = Table(box=SIMPLE_HEAD)
        for heading in ("field", "when", "shape", "type"):
            sent.add_column(heading)
        for field in fields(create(name, options=options)):
            sent.add_row(field.name, field.when, escape(field.shape), field.kind)
        console.print(sent)
    console.print(
        "clip and noise: covered by clip_norm and noise_multiplier. masked sum: the server needs the sum "
        "only; secure_aggregation works where all groups say yes. A field of any other group is refused.",
        highlight=False,
    )
