"""`fedatlas sync`: push what was tracked while the store could not be reached."""

from __future__ import annotations

import typer


def sync() -> None:
    """Push the local journal to the tracking store.

    Example: MLFLOW_TRACKING_URI=http://127.0.0.1:5000 fedatlas sync
    """
    from fedatlas.platform.tracking import journal
    from fedatlas.platform.tracking.destination import redacted
    from fedatlas.platform.tracking.store import Store

    waiting = len(journal.pending())
    if not waiting:
        typer.echo("nothing to push")
        return
    store = Store()
    result = journal.sync(store, progress=lambda run: typer.echo(f"pushed {run}"))
    typer.echo(f"pushed {result.pushed} of {waiting} runs to {redacted(store.uri)}")
    for error in result.failed:
        typer.echo(f"not pushed: {error}", err=True)
    if result.failed:
        raise typer.Exit(1)
