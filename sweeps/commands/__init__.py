"""The command line: `fedatlas run | sweep | plan | tune | submit | report | export | watch | ...`."""

from __future__ import annotations

import signal
import sys

import typer

from fedatlas.platform.errors import FedatlasError
from fedatlas.sweeps.commands import (
    algorithms,
    dashboard,
    data,
    doctor,
    export,
    method,
    partition,
    plan,
    report,
    run,
    submit,
    sweep,
    sync,
    tune,
    watch,
)
from fedatlas.sweeps.commands.failures import refusal

app = typer.Typer(
    name="fedatlas",
    help="Federated graph learning studies on Ray, Ray Tune and MLflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("sweep")(sweep.sweep)
app.command("plan")(plan.plan)
app.command("tune")(tune.tune)
app.command("submit")(submit.submit)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("watch")(watch.watch)
app.command("dashboard")(dashboard.dashboard)
app.command("sync")(sync.sync)
app.command("partition")(partition.partition)
app.command("algorithms")(algorithms.algorithms)
app.command("new-method")(method.new_method)
app.command("check")(method.check)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        from fedatlas.sweeps.provenance import package_version

        typer.echo(package_version())
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point. A user's error and a full disk are told in words, exit code 2.

    Ctrl-C exits with 130. SIGTERM, which schedulers send, stops in the same way and exits with 143.
    """
    terminated: list[int] = []

    def terminate(number: int, frame: object) -> None:
        terminated.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        _main()
    except SystemExit as ended:
        if terminated and ended.code == 130:
            sys.exit(128 + terminated[0])
        raise


def _main() -> None:
    try:
        app()
    except FedatlasError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2)
    except OSError as error:
        said = refusal(error)
        if said is None:
            raise
        typer.secho(f"error: {said}", err=True, fg=typer.colors.RED)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
