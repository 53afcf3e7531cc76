"""`fedatlas run`: one experiment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.sweeps.commands import completion


def run(
    dataset: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.datasets,
            help="Name of `fedatlas data list`, or path of a graph of your own.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.algorithms,
            help="Method, see `fedatlas algorithms`; or package.module:Class.",
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 10, or what the partition's file says.")
    ] = None,
    partition: Annotated[
        str,
        typer.Option(
            autocompletion=completion.partitions,
            help="metis, metis-overlap, random, louvain, label-skew, own, or a membership file.",
        ),
    ] = "metis",
    backbone: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.backbones,
            help="Network, or package.module:Class; the method's own by default.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of split, initialisation and training.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="Rounds; the protocol's by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs; the protocol's by default.")] = None,
    placement: Annotated[
        str, typer.Option(autocompletion=completion.placements, help="auto, inline, actors or packed.")
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the experiment or the method; may be repeated."),
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="Configuration that `fedatlas tune` wrote: method, data set, options.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the summary to this file.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Folder for case-study tables: anchors, templates, embeddings.")
    ] = None,
    tracking: Annotated[bool, typer.Option(help="Write to the MLflow store.")] = True,
) -> None:
    """Run one experiment and print its summary.

    Example: fedatlas run --dataset minesweeper --clients 5 --algorithm fedgmc --rounds 30 --set lr=0.02
    """
    values: dict[str, Any] = {
        "dataset": dataset,
        "clients": clients,
        "algorithm": algorithm,
        "partition": partition,
        "seed": seed,
        "backbone": backbone,
        "rounds": rounds,
        "epochs": epochs,
        "placement": placement,
        **split_settings(settings or []),
    }
    if tuned is not None:
        from fedatlas.sweeps.tuned import filled, read_tuned

        values = filled(values, read_tuned(tuned))
    for key in ("dataset", "algorithm"):
        if values[key] is None:
            raise ConfigurationError(f"--{key} is missing: name one, or a file with --tuned")

    from rich.console import Console

    from fedatlas.sweeps.interface import run as run_experiment

    console = Console()
    try:
        result = run_experiment(
            tracking=tracking,
            export=export,
            announce=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
            **values,
        )
    except KeyboardInterrupt as error:
        console.print(
            "stopped. The same command begins at round 0 again; a sweep goes on from its checkpoints.",
            soft_wrap=True,
        )
        raise typer.Exit(130) from error

    from fedatlas.sweeps.commands.output import run_summary
    from fedatlas.sweeps.recording import write_json

    console.print(run_summary(result.values))
    if json is not None:
        try:
            write_json(json, result.values)
        except OSError as error:
            raise FedatlasError(
                f"the run is complete, but its summary cannot be written to {json} ({error.strerror})"
            ) from error
        console.print(f"summary: {json}", highlight=False)


def split_settings(settings: list[str]) -> dict[str, Any]:
    """`key=value` texts as keys of an experiment; what is not one goes to the method's `options`.

    Values are read as YAML, so `lr=0.02`, `semantic=false` and `rounds=5` have the types they look like.

    Raises:
        ConfigurationError: a text has no `=`, or its value is not valid.
    """
    from fedatlas.sweeps.experiment import Experiment

    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for text in settings:
        key, found, value = text.partition("=")
        if not found or not key:
            raise ConfigurationError(f"--set {text}: must be key=value, as lr=0.02")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"--set {text}: the value cannot be read") from error
        if isinstance(parsed, str):
            # YAML reads 1e-3 as text; numbers written so are common on command lines.
            with suppress(ValueError):
                parsed = float(parsed)
        target = values if key in Experiment.model_fields and key != "options" else options
        target[key] = parsed
    return {**values, "options": options}
