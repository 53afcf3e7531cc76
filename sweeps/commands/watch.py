"""`fedatlas watch`: how a study stands, while it runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group

    from fedatlas.dashboards.health import Health
    from fedatlas.platform.tracking.store import Store

MOST_LINES = 20
"""Of unfinished trials; more are counted."""


def watch(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between looks.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and stop.")] = False,
) -> None:
    """Show what is done, running and failed of a study, and what the cluster does; Ctrl-C ends it.

    A study of which nothing is tracked yet is waited for. The cluster is that of RAY_ADDRESS, or the one of
    the running sweep if it can be reached from here. The study goes on whether it is watched or not.

    Example: fedatlas watch heterophilic
    """
    from rich.console import Console
    from rich.live import Live

    from fedatlas.platform.tracking.store import Store

    console, store = Console(), Store()
    if once:
        console.print(_look(store, study))
        return
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(
                    _look(store, study) if _known(store, study) else _waiting(store, study), refresh=True
                )
                time.sleep(every)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _known(store: Store, study: str) -> bool:
    return store.client.get_experiment_by_name(study) is not None


def _waiting(store: Store, study: str) -> Group:
    """Before a study's first run there is nothing to show, and a name may be wrong."""
    from rich.console import Group
    from rich.text import Text

    names = sorted(each.name for each in store.client.search_experiments() if each.name != "Default")
    tracked = f"; tracked are {', '.join(names)}" if names else ""
    return Group(Text(f"{study}: nothing tracked yet{tracked}. Waits for it; Ctrl-C ends this."))


def _look(store: Store, study: str) -> Group:
    from fedatlas.dashboards.health import health
    from fedatlas.dashboards.report import tracked_trials

    found = health(store, study, tracked_trials(store, study))
    return health_table(study, found, _cluster(os.environ.get("RAY_ADDRESS") or found.ray))


def _cluster(address: str) -> str:
    """What the cluster does, in words; empty if none answers at the address."""
    if not address:
        return ""
    import ray

    from fedatlas.platform.federation.cluster import observe, usage

    try:
        return usage() if ray.is_initialized() or observe(address) else ""
    except Exception:
        # The cluster ends with its sweep, at any moment.
        ray.shutdown()
        return ""


def health_table(study: str, found: Health, cluster: str) -> Group:
    """The health of a study as the terminal shows it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from fedatlas.dashboards.health import FAILED, duration

    counts = [f"{found.finished} finished", f"{found.running} running", f"{found.failed} failed"]
    counts += [f"{found.retried} started again"] if found.retried else []
    counts += [f"{found.stale} stale"] if found.stale else []
    lines = [Text(f"{study}: {', '.join(counts)}", style="bold")]
    if found.wanted is not None:
        left = found.remaining_seconds
        rest = "" if left is None else f", about {duration(left)} left"
        lines.append(Text(f"the running sweep: {found.done} of {found.wanted} trials have ended{rest}"))
    if cluster:
        lines.append(Text(cluster))
    if not found.unfinished:
        return Group(*lines)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("method", "scenario", "seed", "status", "rounds", "started", "error"):
        table.add_column(name, overflow="fold", justify="right" if name in ("seed", "rounds") else "left")
    for each in found.unfinished[:MOST_LINES]:
        status = Text(each.status.lower(), style="red" if each.status in FAILED else "")
        first = each.error.splitlines()[0] if each.error else ""
        cells = (each.label, each.scenario, each.seed)
        table.add_row(*map(Text, cells), status, Text(each.progress), Text(f"{each.attempts} ×"), Text(first))
    more = len(found.unfinished) - MOST_LINES
    return Group(*lines, table, *([Text(f"and {more} more")] if more > 0 else []))
