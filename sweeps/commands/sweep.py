"""`fedatlas sweep`: a study through Ray Tune."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.sweeps.commands import completion

if TYPE_CHECKING:
    from rich.console import Console

    from fedatlas.sweeps.interface import Study

STOPPED = "stopped; finished trials are kept. Run the same command to go on."


def sweep(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.studies, help="Study that comes with the package, or a YAML file."
        ),
    ],
    algorithms: Annotated[str | None, typer.Option(help="Methods to run, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every trial.")] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Filters separated by commas: cora, clients=5|10, partition=metis, ..."),
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="Filters of what to leave out; one that holds is enough.")
    ] = None,
    tuned: Annotated[
        list[Path] | None, typer.Option(help="Configuration that `fedatlas tune` wrote; may be repeated.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(autocompletion=completion.placements, help="auto, inline, actors or packed.")
    ] = None,
    available_only: Annotated[bool, typer.Option(help="Leave out data sets that are missing.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Show what would run, and stop.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed for its own reasons.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run everything anew, also what has finished.")
    ] = False,
    tracking: Annotated[bool, typer.Option(help="Write to the MLflow store.")] = True,
    report: Annotated[bool, typer.Option(help="Write the HTML report at the end.")] = True,
) -> None:
    """Run a study; start it again to go on where it stopped.

    Exit code 1 if a trial failed, now or before.

    Example: fedatlas sweep heterophilic --available-only --only "minesweeper,clients=5|10" --seeds 1
    """
    from rich.console import Console

    from fedatlas.platform.tracking.destination import redacted, tracking_uri
    from fedatlas.sweeps.commands.output import print_failures, print_preflight, study_progress
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
    try:
        with study_progress(console) as show:
            outcome = study.run(
                available_only=available_only,
                dry_run=dry_run,
                tracking=tracking,
                force=force,
                retry_failed=retry_failed,
                report=report,
                before=lambda found: print_preflight(console, study.name, found),
                show=show,
                announce=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
            )
    except KeyboardInterrupt:
        console.print(STOPPED, highlight=False)
        raise typer.Exit(130) from None
    if dry_run:
        return
    if tracking:
        _print_results(console, study)
        if outcome.report is not None:
            console.print(f"report: {outcome.report}", highlight=False, soft_wrap=True)
        uri = redacted(tracking_uri())
        where = uri if uri.startswith("http") else f"{_mlflow()} ui --backend-store-uri {shlex.quote(uri)}"
        console.print(f"MLflow UI: {where}", highlight=False, soft_wrap=True)
    if outcome.interrupted:
        console.print(STOPPED, highlight=False)
        raise typer.Exit(130)
    print_failures(console, outcome)
    if outcome.failed or outcome.held_back:
        raise typer.Exit(1)


def _mlflow() -> str:
    """The `mlflow` command as this shell finds it: by its path where the environment is not activated."""
    beside = Path(sys.executable).with_name("mlflow")
    return "mlflow" if shutil.which("mlflow") or not beside.exists() else os.path.relpath(beside)


def split(text: str | None) -> tuple[str, ...]:
    """Parts of a list separated by commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _print_results(console: Console, study: Study) -> None:
    """Table of this study's finished trials."""
    from fedatlas.dashboards.tables import summary_as_rich, summary_table
    from fedatlas.platform.errors import FedatlasError

    try:
        console.print(summary_as_rich(summary_table(study.results())))
    except FedatlasError as error:
        console.print(f"no table: {error}", highlight=False, markup=False, soft_wrap=True)
