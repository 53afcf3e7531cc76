"""`fedatlas dashboard`: the MLflow UI and the study pages."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedatlas.platform.tracking.store import Store

HOST = "127.0.0.1"


def dashboard(
    port: Annotated[int, typer.Option(help="Port of the MLflow UI.")] = 5000,
    only_print: Annotated[bool, typer.Option("--print", help="Print the addresses and stop.")] = False,
) -> None:
    """Print the addresses of the MLflow UI and of every study's page, and start the UI on 127.0.0.1.

    With a tracking server in MLFLOW_TRACKING_URI its UI is there already, and nothing is started.

    Example: fedatlas dashboard
    """
    from fedatlas.dashboards.links import ui_address
    from fedatlas.platform.tracking.destination import is_local, tracking_uri
    from fedatlas.platform.tracking.store import Store

    store = Store()
    local = is_local(store.uri) or "://" not in store.uri
    address = ui_address(store.uri, f"http://{HOST}:{port}" if local else None)
    typer.echo(f"MLflow UI: {address}")
    for line in study_pages(store, address):
        typer.echo(line)
    if only_print or not local:
        return
    require_free(port)
    sys.stdout.flush()
    # The UI takes this process's place, so that Ctrl-C ends it.
    words = ("-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(), "--host", HOST, "--port", str(port))
    os.execv(sys.executable, [sys.executable, *words])


def study_pages(store: Store, address: str) -> list[str]:
    """One line for each study that has a page: where it lies, and where it opens inside the MLflow UI."""
    from fedatlas.dashboards.report import report_path
    from fedatlas.platform.tracking.operations import KIND_TAG

    lines = []
    for experiment in sorted(store.client.search_experiments(), key=lambda each: str(each.name)):
        name, page = str(experiment.name), report_path(str(experiment.name))
        places = [page.as_uri()] if page.is_file() else []
        for run in store.runs(name, f"tags.`{KIND_TAG}` = 'sweep'"):
            if any(item.path == page.name for item in store.client.list_artifacts(run.info.run_id)):
                path = (
                    f"/#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}/artifacts/{page.name}"
                )
                places.append(address + path)
                break
        if places:
            lines.append(f"{name}: {'  '.join(places)}")
    return lines


def require_free(port: int) -> None:
    """Refuse a port that something listens on.

    Raises:
        FedatlasError: naming another.
    """
    from fedatlas.platform.errors import FedatlasError

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise FedatlasError(
                f"port {port} of {HOST} is taken ({error.strerror}): a UI may be running there already; "
                f"choose another with --port {port + 1}"
            ) from error
