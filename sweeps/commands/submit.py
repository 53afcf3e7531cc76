"""`fedatlas submit`: a study on a cluster, through Ray's job submission."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedatlas.sweeps.commands import completion


def submit(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.studies, help="Study that comes with the package, or a YAML file."
        ),
    ],
    algorithms: Annotated[str | None, typer.Option(help="Methods to run, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every trial.")] = None,
    only: Annotated[str | None, typer.Option(help="Filters as in `fedatlas sweep`.")] = None,
    without: Annotated[str | None, typer.Option(help="Filters of what to leave out.")] = None,
    tuned: Annotated[
        list[Path] | None, typer.Option(help="Configuration that `fedatlas tune` wrote; may be repeated.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(autocompletion=completion.placements, help="auto, inline, actors or packed.")
    ] = None,
    available_only: Annotated[bool, typer.Option(help="Leave out data sets that are missing.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run everything anew.")] = False,
    wait: Annotated[bool, typer.Option(help="Show the output until the study ends.")] = False,
) -> None:
    """Run `fedatlas sweep` as a job on the cluster whose dashboard RAY_ADDRESS names.

    The study is checked here first. FEDATLAS_DATA, FEDATLAS_RESULTS and MLFLOW_TRACKING_URI are passed on if
    they are set; they must be paths and addresses of the cluster. A study that is submitted again goes on.

    Example: RAY_ADDRESS=http://head:8265 fedatlas submit heterophilic --seeds 10
    """
    from rich.console import Console

    from fedatlas.sweeps import submission
    from fedatlas.sweeps.commands.sweep import split
    from fedatlas.sweeps.interface import Study

    console = Console()
    study = Study(
        name,
        tuned=tuned or (),
        algorithms=split(algorithms),
        seeds=seeds,
        rounds=rounds,
        only=split(only),
        without=split(without),
        placement=placement,
    )
    address = submission.submission_address(os.environ.get("RAY_ADDRESS"))
    values = {
        "algorithms": algorithms,
        "seeds": seeds,
        "rounds": rounds,
        "only": only,
        "without": without,
        "placement": placement,
    }
    words = [word for key, value in values.items() if value is not None for word in (f"--{key}", str(value))]
    words += [word for path in tuned or () for word in ("--tuned", str(path))]
    flags = {"available-only": available_only, "retry-failed": retry_failed, "force": force}
    words += [f"--{flag}" for flag, wanted in flags.items() if wanted]
    done = submission.submit(address, name, words, tuned or ())
    console.print(
        f"submitted {study.name} ({len(study.experiments)} trials) as {done.job}: {done.entrypoint}\n"
        f"output: ray job logs --address {address} --follow {done.job}\n"
        f"stop: ray job stop --address {address} {done.job}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if wait and not submission.follow(done, lambda text: typer.echo(text, nl=False)):
        raise typer.Exit(1)
