"""`fedatlas data`: which data sets there are, and their raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedatlas.platform.graphs import catalog, store

_TABLE_WIDTH = 150
"""Below this width the table would cut numbers and names, so it lets the terminal wrap instead."""

app = typer.Typer(
    help="Data sets: what there is, what is here, and how to get the rest.", no_args_is_help=True
)

_COLOURS: dict[store.State, str] = {
    "embedded": "green",
    "present": "green",
    "unverified": "yellow",
    "missing": "dim",
    "corrupt": "red",
}


def _coloured(state: store.State) -> str:
    return f"[{_COLOURS[state]}]{state}[/]"


@app.command("list")
def list_sets() -> None:
    """List the data sets with their sizes and whether they are here.

    Example: fedatlas data list
    """
    table = Table(
        title=f"Data sets in {store.data_folder()}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("name", "family"):
        table.add_column(column, no_wrap=True)
    for column in ("graphs", "nodes", "edges", "features", "classes"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("metric", "status"):
        table.add_column(column, no_wrap=True)
    table.add_column("licence")
    table.add_column("how to get it")
    for found in store.list_status():
        entry = catalog.entry(found.name)
        table.add_row(
            entry.name,
            entry.family,
            f"{entry.graphs:,}",
            f"{entry.nodes:,}",
            f"{entry.edges or entry.published_edges:,}",
            f"{entry.features:,}",
            str(entry.classes),
            entry.metric,
            _coloured(found.state),
            entry.licence,
            entry.how_to_get,
        )
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
    console.print(f"Stand-ins (synthetic, for timing only): {', '.join(catalog.standin_names())}")


@app.command("import")
def import_files(
    folder: Annotated[Path, typer.Argument(help="Folder that holds raw files, at any depth.")],
) -> None:
    """Copy raw files found below FOLDER into the data folder, after checking their sha256.

    Example: fedatlas data import ~/Downloads/graphs
    """
    report = store.import_folder(folder)
    console = Console()
    console.print(
        f"{len(report.imported)} files imported, {len(report.kept)} already there, "
        f"{len(report.refused)} refused, into {store.data_folder()}",
        soft_wrap=True,
    )
    for file in report.refused:
        console.print(f"refused: {file.path} (sha256 {file.sha256})", style="red", soft_wrap=True)
    _print_states(console, report.sets + store.groups_of(report.sets))


@app.command("verify")
def verify_files(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all if none is named.")] = None,
) -> None:
    """Check raw files against their sha256; exit with code 1 if one is corrupt.

    Example: fedatlas data verify cora pubmed
    """
    found = store.verify(names) if names else store.list_status()
    _print_states(Console(), found)
    if any(each.state == "corrupt" for each in found):
        raise typer.Exit(1)


def _print_states(console: Console, found: tuple[store.SetStatus, ...]) -> None:
    for each in found:
        console.print(f"{each.name:<18}{_coloured(each.state)}")
        for file in each.select("corrupt"):
            console.print(f"  {file.path}: found sha256 {file.sha256}", style="red", soft_wrap=True)
        if each.state == "missing" and len(each.select("missing")) < len(each.files):
            for file in each.select("missing"):
                console.print(f"  missing: {file.raw.name}", soft_wrap=True)
