"""`fedatlas report`: the HTML report of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    sweep: Annotated[str, typer.Argument(help="Name of the sweep.")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file; reports/SWEEP.html in the results folder if not given.")
    ] = None,
    gains: Annotated[
        Path | None, typer.Option(help="CSV file for the gains over Local, for sweeps on sets of graphs.")
    ] = None,
) -> None:
    """Write one HTML page with the tables, curves and failures of a sweep, and print its path.

    Example: fedatlas report quickstart
    """
    from fedatlas.dashboards.report import report_path, write_gains, write_report
    from fedatlas.platform.tracking.store import Store

    typer.echo(write_report(Store(), sweep, output or report_path(sweep)))
    if gains is not None:
        typer.echo(write_gains(Store(), sweep, gains))
