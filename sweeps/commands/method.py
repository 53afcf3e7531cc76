"""`fedatlas new-method` and `fedatlas check`: methods of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new_method(
    name: Annotated[str, typer.Argument(help="Name in commands: letters, digits and underscores.")],
    folder: Annotated[Path, typer.Option(help="Where the two files go.")] = Path(),
) -> None:
    """Write a method with its hooks and its test, ready to run and to change.

    Example: fedatlas new-method mymethod
    """
    from fedatlas.sweeps.scaffold import write_method

    written = write_method(name, folder)
    where = "" if folder == Path() else f"cd {folder} && "
    reference = f"{written.module}:{written.kind}"
    typer.echo(f"wrote {written.method} and {written.test}")
    typer.echo(f"check: {where}fedatlas check {reference}")
    typer.echo(
        f"run:   {where}fedatlas run --dataset minesweeper --clients 5 --rounds 10 --algorithm {reference}"
    )
    typer.echo(
        f"table: {where}fedatlas sweep quickstart --algorithms local,fedavg,{reference} --seeds 1 --rounds 10"
    )
    typer.echo(f"test:  {where}python -m pytest {written.test.name}")


def check(
    method: Annotated[
        str, typer.Argument(help="package.module:Class, path/to/file.py:Class, or the name of a method.")
    ],
    backbone: Annotated[
        str | None, typer.Option(help="Network; the method's own by default. A reference is allowed too.")
    ] = None,
) -> None:
    """Run the invariance checks on a method: placement, resumption, repetition, edge cases, hidden labels.

    Takes some seconds and needs no data. Exit code 1 if a check fails.

    Example: fedatlas check fedatlas.algorithms.fedprox:FedProx
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fedatlas.algorithms.registry import algorithm_type
    from fedatlas.sweeps.checks import CHECKS, Subject, examine

    console = Console()
    subject = Subject(algorithm_type(method), backbone)
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(CHECKS[0].name, total=len(CHECKS))
        for number, verdict in enumerate(examine(subject), start=1):
            mark = "[red]failed[/]" if verdict.error else "[green]passed[/]"
            bar.console.print(
                f"{mark}  {verdict.check.name}: {verdict.check.promise}", highlight=False, soft_wrap=True
            )
            if verdict.error:
                failed += 1
                bar.console.print(f"        {verdict.error}", highlight=False, markup=False, soft_wrap=True)
            following = CHECKS[number].name if number < len(CHECKS) else ""
            bar.update(task, completed=number, description=following)
    if failed:
        console.print(
            f"{failed} of {len(CHECKS)} checks failed; docs/adding-a-method.md says what hooks must keep",
            highlight=False,
        )
        raise typer.Exit(1)
    console.print(f"all {len(CHECKS)} checks passed", highlight=False)
