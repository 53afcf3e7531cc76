"""`fedatlas doctor`: what would go wrong here, and how to mend it."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
) -> None:
    """Look at versions, devices, memory, threads, folders, tracking store, Ray and METIS; say what to mend.

    Starts nothing and writes nothing. Exit code 1 if something would fail.

    Example: fedatlas doctor
    """
    from rich.console import Console

    from fedatlas.sweeps.doctor import examine

    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    console = Console()
    levels = []
    for each in examine():
        levels.append(each.level)
        console.print(f"[{colours[each.level]}]{each.level:<8}[/] [bold]{each.subject}[/]: ", end="")
        console.print(each.found, highlight=False, markup=False, soft_wrap=True)
        if each.remedy:
            console.print(f"         -> {each.remedy}", highlight=False, markup=False, soft_wrap=True)
    problems, warnings = levels.count("problem"), levels.count("warning")
    console.print(f"{problems} problems, {warnings} warnings", highlight=False)
    if not problems:
        console.print(
            "next: fedatlas run --dataset minesweeper --clients 5 --algorithm fedavg --rounds 10",
            highlight=False,
            soft_wrap=True,
        )
    if problems or (strict and warnings):
        raise typer.Exit(1)
