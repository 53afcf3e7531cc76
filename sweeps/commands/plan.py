"""`fedatlas plan`: what studies cost before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedatlas.sweeps.commands import completion


def plan(
    names: Annotated[
        list[str],
        typer.Argument(
            autocompletion=completion.studies, help="Studies that come with the package, or YAML files."
        ),
    ],
    algorithms: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every trial.")] = None,
    only: Annotated[str | None, typer.Option(help="Filters as in `fedatlas sweep`.")] = None,
    without: Annotated[str | None, typer.Option(help="Filters of what to leave out.")] = None,
    placement: Annotated[
        str | None, typer.Option(autocompletion=completion.placements, help="auto, inline, actors or packed.")
    ] = None,
    available_only: Annotated[bool, typer.Option(help="Leave out data sets that are missing.")] = False,
    tracking: Annotated[bool, typer.Option(help="Read finished trials of the MLflow store too.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.")] = None,
) -> None:
    """Show trials, bytes and expected hours of studies on the cluster of RAY_ADDRESS, or on this machine.

    Needs no data and starts nothing. Bytes come from a rehearsal of each method's own messages. Times come
    from finished trials of the results folder and the tracking store, as far as there are any.

    Example: fedatlas plan homophilic heterophilic --seeds 10
    """
    import torch
    from rich.console import Console

    from fedatlas.sweeps.commands.output import print_plans
    from fedatlas.sweeps.commands.sweep import split
    from fedatlas.sweeps.interface import Study, plan_on_cluster
    from fedatlas.sweeps.recording import write_json

    torch.set_num_threads(1)
    console = Console()
    studies = [
        Study(
            name,
            algorithms=split(algorithms),
            seeds=seeds,
            rounds=rounds,
            only=split(only),
            without=split(without),
            placement=placement,
        )
        for name in names
    ]
    with console.status("rehearsing the methods' messages"):
        found = plan_on_cluster(
            studies,
            tracking=tracking,
            available_only=available_only,
            announce=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
        )
    print_plans(console, found)
    if json is not None:
        write_json(json, found.to_plain())
        console.print(f"figures: {json}", highlight=False, soft_wrap=True)
