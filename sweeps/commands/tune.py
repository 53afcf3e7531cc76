"""`fedatlas tune`: a method's options, searched on validation scores."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.sweeps.commands import completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from fedatlas.sweeps.search import Evaluated

SHOWN = 5
"""Configurations in the table: the best ones."""


def tune(
    dataset: Annotated[
        str,
        typer.Option(
            autocompletion=completion.datasets,
            help="Name of `fedatlas data list`, or path of a graph of your own.",
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            autocompletion=completion.algorithms,
            help="Method, see `fedatlas algorithms`; or package.module:Class.",
        ),
    ],
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 10, or what the partition's file says.")
    ] = None,
    partition: Annotated[
        str,
        typer.Option(autocompletion=completion.partitions, help="metis, metis-overlap, random, louvain, ..."),
    ] = "metis",
    backbone: Annotated[
        str | None,
        typer.Option(autocompletion=completion.backbones, help="Network; the method's own by default."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Options to search, separated by commas; by default all with a space.")
    ] = None,
    configurations: Annotated[int, typer.Option(min=1, help="Configurations to try.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that each is scored on.")] = 1,
    rounds: Annotated[int | None, typer.Option(help="Rounds; the protocol's by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs; the protocol's by default.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the experiment or the method; may be repeated."),
    ] = None,
    sampler_seed: Annotated[int, typer.Option(help="Seed of Optuna's sampler.")] = 0,
    concurrent: Annotated[
        int | None, typer.Option(min=1, help="Most configurations at once; 1 makes a search repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for the best configuration; in the results folder if not given.")
    ] = None,
    tracking: Annotated[bool, typer.Option(help="Write to the MLflow store.")] = True,
) -> None:
    """Search a method's options on the validation score, and write the best configuration as YAML.

    Optuna proposes configurations, ASHA stops the poor ones early. Test nodes are hidden from the search.
    Start it again to go on where it stopped, with more --configurations to try more. `fedatlas run` and
    `fedatlas sweep` take the file with --tuned.

    Example: fedatlas tune --dataset minesweeper --algorithm fedgmc --clients 5 --search lr,hidden
    """
    from rich.console import Console

    from fedatlas.platform.errors import FedatlasError
    from fedatlas.sweeps.commands.run import split_settings
    from fedatlas.sweeps.commands.sweep import split
    from fedatlas.sweeps.interface import tune as tune_method

    console = Console()
    try:
        with _progress(console) as show:
            found = tune_method(
                dataset,
                clients,
                algorithm,
                partition=partition,
                backbone=backbone,
                configurations=configurations,
                seeds=seeds,
                search=split(search),
                rounds=rounds,
                epochs=epochs,
                sampler_seed=sampler_seed,
                concurrent=concurrent,
                output=output,
                command=shlex.join(["fedatlas", *sys.argv[1:]]),
                tracking=tracking,
                show=show,
                announce=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
                **split_settings(settings or []),
            )
    except KeyboardInterrupt:
        console.print(_STOPPED, highlight=False)
        raise typer.Exit(130) from None
    if found.tried:
        console.print(_table(found.tried))
    failed = [each for each in found.tried if each.error]
    if failed:
        console.print(f"{len(failed)} configurations failed; the last: {failed[-1].error}", markup=False)
    if found.interrupted:
        console.print(_STOPPED, highlight=False)
        raise typer.Exit(130)
    if found.best is None:
        raise FedatlasError(
            "no configuration ran to the end: look at the errors above, or allow smaller learning rates "
            "with --set lr=... and --search without lr"
        )
    console.print(
        f"best validation score {100 * found.best.validation:.2f} % of {len(found.tried)} configurations\n"
        f"configuration: {found.path}",
        highlight=False,
        soft_wrap=True,
    )


_STOPPED = "stopped; what was tried is kept. Run the same command to go on."


def _table(tried: Sequence[Evaluated]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedatlas.sweeps.axes import shown

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("validation %", "rounds", *tried[0].options):
        table.add_column(heading, justify="right")
    for each in sorted(tried, key=lambda one: -one.validation)[:SHOWN]:
        values = (f"{v:.3g}" if isinstance(v, float) else shown(v) for v in each.options.values())
        table.add_row(f"{100 * each.validation:.2f}", str(each.rounds), *values)
    return table


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Sequence[Evaluated], int], None]]:
    """A live line with the configurations tried and the best score so far."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[best]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", best="starting", total=None)

        def show(tried: Sequence[Evaluated], total: int) -> None:
            best = max((each.validation for each in tried), default=0.0)
            text = f"best {100 * best:.2f} %" if tried else "running"
            bar.update(task, total=total, completed=len(tried), best=text)

        try:
            yield show
        finally:
            if bar.tasks[task].total is None:
                bar.remove_task(task)
