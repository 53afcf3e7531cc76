"""`fedatlas report`: the page of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    sweep: Annotated[str, typer.Argument(help="Name of the study.")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file; reports/STUDY.html in the results folder if not given.")
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            help="Address of the MLflow UI that links to runs open; http://127.0.0.1:5000 or the server's."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option(help="Log the page as an artifact of the study's newest sweep too.")
    ] = True,
    gains: Annotated[
        Path | None, typer.Option(help="CSV file for the gains over Local, for sweeps on sets of graphs.")
    ] = None,
) -> None:
    """Write the page of a study with its tables, statistics, figures and failures, and print its path.

    Example: fedatlas report quickstart
    """
    from fedatlas.dashboards.report import keep_page, report_path, write_gains, write_report
    from fedatlas.platform.tracking.store import Store
    from fedatlas.sweeps.commands.busy import busy

    store = Store()
    with busy(f"writing the page of {sweep}"):
        path = write_report(store, sweep, output or report_path(sweep), mlflow)
        if keep:
            keep_page(store, sweep, path)
    typer.echo(path)
    if gains is not None:
        typer.echo(write_gains(store, sweep, gains))
