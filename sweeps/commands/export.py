"""`fedatlas export`: what a study leaves for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder; exports/STUDY in the results folder if not given.")
    ] = None,
) -> None:
    """Write LaTeX tables, CSV and Parquet, and PDF and SVG figures of a study, and print their paths.

    Vectors of a case study are among them where the study keeps them (`export: true`).

    Example: fedatlas export ablation --output paper/ablation
    """
    from fedatlas.dashboards.export import export_path, export_study
    from fedatlas.platform.tracking.store import Store
    from fedatlas.sweeps.commands.busy import busy

    with busy(f"writing tables and figures of {study}"):
        written = export_study(Store(), study, output or export_path(study))
    for path in written:
        typer.echo(path)
