"""`fedatlas partition`: what each client of a scenario holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedatlas.sweeps.commands import completion
from fedatlas.sweeps.commands.busy import busy

if TYPE_CHECKING:
    from fedatlas.platform.graphs.federated import Scenario
    from fedatlas.platform.graphs.graph import FederatedGraph

LISTED_CLASSES = 8
"""Classes with a count in the table: the largest ones."""


def partition(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.datasets, help="Name of a data set, or path of a graph of your own."
        ),
    ],
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients; 10, or what the file of the clients says.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            "--partition",
            autocompletion=completion.partitions,
            help="metis, metis-overlap, random, louvain, label-skew, own, or a membership file; of sets of "
            "graphs iid or dirichlet, of groups of sets cross-dataset.",
        ),
    ] = "metis",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    partition_seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Seed of the partition.")] = 0,
    features: Annotated[str, typer.Option(help="default, none, row, l2, binary or standard.")] = "default",
    component: Annotated[
        str | None, typer.Option(help="largest or all; of your own graphs all by default, else largest.")
    ] = None,
    train_fraction: Annotated[float | None, typer.Option(help="Share of nodes to train on.")] = None,
    allow_untrained: Annotated[bool, typer.Option(help="Accept clients without a training node.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write who holds which node to this CSV file, for --partition FILE.")
    ] = None,
    with_roles: Annotated[
        bool, typer.Option("--with-roles", help="Write this seed's training, validation and test nodes too.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write one PyG file per client to this folder, as FED-PUB's code does."),
    ] = None,
    concentration: Annotated[float | None, typer.Option(help="Beta of label-skew and dirichlet.")] = None,
) -> None:
    """Show what each client holds: nodes, edges, lost edges, classes, homophily; or graphs.

    A client's lost edges touch one of its nodes and are not held by it; the last line has the numbers of the
    whole graph and the edges that no client holds.

    Example: fedatlas partition minesweeper --clients 5 --save minesweeper-5.csv
    """
    from fedatlas.platform.graphs.catalog import entry
    from fedatlas.platform.graphs.description import describe, describe_clients
    from fedatlas.platform.graphs.federated import (
        Scenario,
        build,
        count_clients,
        is_brought,
        partition_name,
        preprocess,
    )

    if clients is None:
        clients = count_clients(dataset, mode) if is_brought(mode) else 10
    scenario = Scenario.model_validate(
        {
            "dataset": dataset,
            "partition": mode,
            "clients": clients,
            "seed": seed,
            "partition_seed": partition_seed,
            "features": features,
            "component": component,
            "train_fraction": train_fraction,
            "allow_untrained": allow_untrained,
            "concentration": concentration,
        }
    )
    with busy(f"dividing {dataset} among {clients} clients"):
        federated = build(scenario)
    if entry(dataset).level == "graph":
        Console().print(_graphs(federated, mode))
        return
    whole = preprocess(scenario)
    summary = describe(whole)

    title = f"{federated.name} ({federated.kind}): {clients} clients, {partition_name(mode)}"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("client", "nodes", "edges", "lost edges", "train", "homophily"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("class:nodes")
    for row in describe_clients(federated, whole).to_dict("records"):
        counts = (row["client"], row["nodes"], row["edges"], row["lost_edges"], row["train"])
        table.add_row(*map(str, counts), _share(row["homophily"]), _classes(row["histogram"]))
    table.add_section()
    counts = ("all", summary.nodes, summary.edges, federated.lost_edges, "")
    table.add_row(*map(str, counts), _share(summary.homophily), _classes(summary.histogram))
    console = Console()
    console.print(table)
    if save is not None:
        _save(scenario, save, with_roles)
        console.print(
            f"clients: {save}; run on them with --partition {save}", highlight=False, soft_wrap=True
        )
    if export is not None:
        from fedatlas.platform.graphs.formats import write_clients

        write_clients(federated, export)
        console.print(
            f"{clients} PyG files: {export}; run on them with --dataset {export}/ --partition own",
            highlight=False,
            soft_wrap=True,
        )


def _save(scenario: Scenario, path: Path, with_roles: bool) -> None:
    from fedatlas.platform.graphs import membership
    from fedatlas.platform.graphs.federated import data_name, data_sha256, partition_name, placed

    drawn = placed(scenario)
    about = (
        f"{data_name(scenario.dataset)}, {partition_name(scenario.partition)}, {scenario.clients} clients, "
        f"partition_seed={scenario.partition_seed}"
        + (f", roles of seed={scenario.seed}" if with_roles else "")
    )
    membership.save(
        path,
        about,
        data_sha256(scenario.dataset),
        drawn.members,
        drawn.names,
        drawn.split if with_roles else None,
        drawn.client_names,
    )


def _graphs(federated: FederatedGraph, mode: str) -> Table:
    """Clients that hold whole graphs."""
    from fedatlas.platform.graphs.description import describe_graph_clients

    title = f"{federated.name} ({federated.kind}): {len(federated.clients)} clients, {mode}"
    table = Table(title=title, box=SIMPLE_HEAD)
    headings = ("client", "graphs", "nodes", "edges", "features", "train", "validation", "test")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("class:train")
    for row in describe_graph_clients(federated).to_dict("records"):
        table.add_row(*(str(row[heading]) for heading in headings), _classes(row["histogram"]))
    return table


def _share(homophily: float) -> str:
    return "-" if math.isnan(homophily) else f"{homophily:.3f}"


def _classes(histogram: tuple[int, ...]) -> str:
    ranked = sorted((-count, label) for label, count in enumerate(histogram) if count)
    classes = [f"{label}:{-count}" for count, label in ranked[:LISTED_CLASSES]]
    if len(ranked) > LISTED_CLASSES:
        classes.append(f"+{len(ranked) - LISTED_CLASSES} classes")
    return " ".join(classes)
