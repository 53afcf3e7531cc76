"""`fedatlas data`: which data sets there are, and their raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedatlas.platform.graphs import catalog, store
from fedatlas.sweeps.commands import completion
from fedatlas.sweeps.commands.busy import busy

_TABLE_WIDTH = 150
"""Below this width the table would cut numbers and names, so it lets the terminal wrap instead."""

app = typer.Typer(
    help="Data sets: what there is, what is here, and how to get the rest.", no_args_is_help=True
)

_CLASSES = 12
"""Classes that `data describe` lists."""

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
    with busy("reading the files"):
        states = store.list_status()
    for found in states:
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


@app.command("describe")
def describe_set(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.datasets, help="Name of a data set, or path of a graph of your own."
        ),
    ],
) -> None:
    """Show heterophily, degrees, classes and features of a graph; of your own also what was repaired and why.

    Example: fedatlas data describe minesweeper
    """
    from fedatlas.platform.graphs import own
    from fedatlas.platform.graphs.description import describe, statistics
    from fedatlas.platform.graphs.loading import load

    console = Console()
    with busy(f"reading {dataset}"):
        graph = load(dataset)
        summary, found = describe(graph), statistics(graph)
    classes = [f"{label}: {count}" for label, count in enumerate(summary.histogram[:_CLASSES])]
    if len(summary.histogram) > _CLASSES:
        classes.append(f"{len(summary.histogram) - _CLASSES} more")
    least, median, mean, most = found.degrees
    rows = {
        "graph": f"{graph.name} ({graph.kind}), sha256 {graph.sha256()[:16]}",
        "size": f"{summary.nodes:,} nodes, {summary.edges:,} undirected edges, {summary.features:,} features",
        "classes": f"{summary.classes} ({', '.join(classes)})",
        "homophily": f"edge {found.edge_homophily:.3f}, node {found.node_homophily:.3f}, "
        f"adjusted {found.adjusted_homophily:.3f}",
        "label informativeness": f"{found.label_informativeness:.3f}",
        "degree": f"{least} to {most}, median {median:g}, mean {mean:.2f}, {summary.isolated} isolated nodes",
        "components": f"{found.components}, the largest of {found.largest_component:,} nodes",
        "features": f"{100 * found.density:.2f} % non-zero, from {found.feature_range[0]:.3g} to "
        f"{found.feature_range[1]:.3g}, norm per node {found.row_norms[0]:.3g} ± {found.row_norms[1]:.3g}, "
        f"{found.zero_rows} nodes without any, {found.constant_columns} constant",
    }
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)
    if not own.is_path(dataset):
        return
    brought = own.load(dataset)
    for remark in brought.remarks:
        colour = "dim" if remark.kind == "noted" else "yellow"
        console.print(f"[{colour}]{remark.kind}[/]: ", end="")
        console.print(str(remark), highlight=False, markup=False, soft_wrap=True)
    clients = " --partition own" if brought.clients is not None else ""
    scaled = " --set features=standard" if any(each.kind == "advised" for each in brought.remarks) else ""
    console.print(
        f"next: fedatlas run --dataset {dataset}{clients} --algorithm fedavg{scaled}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("import")
def import_files(
    folder: Annotated[Path, typer.Argument(help="Folder that holds raw files, at any depth.")],
) -> None:
    """Copy raw files found below FOLDER into the data folder, after checking their sha256.

    Example: fedatlas data import ~/Downloads/graphs
    """
    with busy(f"looking through {folder}") as say:
        report = store.import_folder(folder, lambda name: say(f"looking for files of {name}"))
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
    names: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=completion.datasets, help="Data sets; all if none is named."),
    ] = None,
) -> None:
    """Check raw files against their sha256; exit with code 1 if one is corrupt.

    Example: fedatlas data verify cora pubmed
    """
    with busy("reading the files"):
        found = store.verify(names) if names else store.list_status()
    _print_states(Console(), found)
    if any(each.state == "corrupt" for each in found):
        raise typer.Exit(1)


def _print_states(console: Console, found: tuple[store.SetStatus, ...]) -> None:
    width = max((len(each.name) for each in found), default=0) + 2
    for each in found:
        console.print(f"{each.name:<{width}}{_coloured(each.state)}")
        for file in each.select("corrupt"):
            console.print(f"  {file.path}: found sha256 {file.sha256}", style="red", soft_wrap=True)
        if each.state == "missing" and len(each.select("missing")) < len(each.files):
            for file in each.select("missing"):
                console.print(f"  missing: {file.raw.name}", soft_wrap=True)
