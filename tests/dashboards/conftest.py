"""A real MLflow store with made-up trials: their scores are test numbers, not results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedatlas.algorithms.presets import preset
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking.reading import PARAMS, SUMMARY, TAGS
from fedatlas.platform.tracking.store import Store
from fedatlas.platform.tracking.tracker import Tracker

HOSTILE = "<script>alert('x')</script>"


def tracked_options(algorithm: str, dataset: str) -> dict[str, Any]:
    """A method's options with its presets, named as they are tracked."""
    kind = ALGORITHMS[algorithm].configuration_type
    tuned = {key: value for key, value in preset(algorithm, dataset).items() if key in kind.model_fields}
    return {f"method.{key}": value for key, value in kind(**tuned).model_dump(mode="json").items()}


def trial_record(algorithm: str = "fedavg", test: float | None = 0.8, **changes: Any) -> dict[str, Any]:
    """Params, tags and summary of one trial, by default on Cora, as the protocol and the presets have it.

    `changes` replace a value; ``method_lr`` is the parameter ``method.lr``.
    """
    dataset = str(changes.get("dataset", "cora"))
    options, tuned, published = (
        tracked_options(algorithm, dataset),
        preset(algorithm, dataset),
        entry(dataset),
    )
    record: dict[str, Any] = {
        "files": {},
        "params": {
            "dataset": "cora",
            "partition": "metis",
            "clients": 10,
            "algorithm": algorithm,
            "backbone": tuned.get("backbone", ALGORITHMS[algorithm].default_backbone),
            "aggregation": options["method.aggregation"],
            "label": ALGORITHMS[algorithm].title,
            "seed": 0,
            "rounds": tuned.get("rounds", published.rounds),
            "epochs": tuned.get("epochs", published.epochs),
            "features": tuned.get("features", "row" if published.row_normalise else "none"),
            "component": "largest" if published.level == "node" else None,
            "train_fraction": published.split[0] if published.level == "graph" else 0.2,
            "test_fraction": published.split[2] if published.level == "graph" else 0.4,
            "partition_seed": 0,
            "client_features": "same",
            "uncut": False,
            "evaluation": "after_local",
            "weighting": "uniform",
            "precision": "float32",
            **options,
            "method.epochs": tuned.get("epochs", published.epochs),
        },
        "tags": {
            "data_kind": "real",
            "data_sha256": "aa" * 32,
            "partition_sha256": "bb" * 32,
            "metric": "accuracy",
            "commit": f"{'cc' * 20}-dirty",
            "version": "0.1.0",
            "method_version": "1",
            "placement": "inline: as asked",
        },
        "summary": {
            "best_round": 4,
            "test_score": test,
            "worst_decile_test_score": None if test is None else test - 0.2,
            "last_test_score": None if test is None else test - 0.01,
            "seconds_per_round": 0.25,
            "uplink_bytes_per_round": 2_500_000.0,
            "downlink_bytes_per_round": 5_000_000.0,
        },
        "status": "FINISHED",
    }
    for key, value in changes.items():
        home = next(
            (part for part in ("tags", "summary") if key in record[part] or key in ("error", "stale")),
            "params",
        )
        if key in ("status", "files"):
            record[key] = value
        else:
            name = key.replace("method_", "method.", 1) if home == "params" else key
            record[home][name] = value
    return record


def frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The records as `reading.trials` would return them, without a store."""
    rows = []
    for number, record in enumerate(records):
        params = {key: str(value) for key, value in record["params"].items()}
        rows.append(
            {
                "run_id": f"run{number}",
                "status": record["status"],
                **{key: kind(params[key]) for key, kind in PARAMS.items() if key in params},
                **record["tags"],
                **record["summary"],
                "params": json.dumps(params, sort_keys=True),
            }
        )
    return pd.DataFrame(rows, columns=["run_id", "status", *PARAMS, *TAGS, *SUMMARY, "params"])


def files_of(score: float, more: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Artifacts of a trial of three clients and five rounds, with the further ones of its record."""
    steps = [score - 0.02 * (4 - step) for step in range(5)]
    rounds = {
        "round": range(5),
        "test/score": steps,
        "val/score": [score - 0.03 * (4 - step) for step in range(5)],
        "comm/uplink_bytes": 2_000_000.0,
        "comm/downlink_bytes": 1_000_000.0,
        "comm/uplink_weights_bytes": 1_500_000.0,
        "comm/uplink_size_bytes": 500_000.0,
        "comm/downlink_weights_bytes": 1_000_000.0,
        "time/train_seconds": 0.2,
        "time/evaluate_seconds": 0.05,
        "time/clients_seconds": 0.3,
        "time/aggregate_seconds": 0.02,
        "time/round_seconds": 0.35,
    }
    clients = [
        (step, client, steps[step] - 0.05, steps[step] + 0.1 * (client - 1))
        for step in range(5)
        for client in range(3)
    ]
    return {
        "rounds.parquet": pd.DataFrame(rounds),
        "clients.parquet": pd.DataFrame(clients, columns=["round", "client", "validation", "test"]),
        **more,
    }


def write_trials(
    experiment: str,
    records: Sequence[Mapping[str, Any]],
    folder: Path,
    about: Mapping[str, str] | None = None,
) -> Store:
    """Track the records as trials of a sweep; finished ones get per-round and per-client tables."""

    def fail(text: str) -> None:
        raise AssertionError(text)

    tracker = Tracker(fail)
    parent = tracker.open(experiment, experiment, {}, {"fedatlas.kind": "sweep", **(about or {})})
    for number, record in enumerate(records):
        tags = {f"fedatlas.{key}": str(value) for key, value in record["tags"].items() if key != "error"}
        tags |= {"fedatlas.kind": "trial", "fedatlas.fingerprint": f"{experiment}-{number}"}
        run = tracker.open(experiment, f"trial {number}", record["params"], tags, parent)
        if record["status"] == "FINISHED":
            summary = record["summary"].items()
            tracker.points(run, [(f"summary/{key}", value, 0) for key, value in summary if value is not None])
            place = folder / f"{experiment}-{number}"
            place.mkdir()
            score = record["summary"]["test_score"]
            files = {} if score is None else files_of(score, record.get("files", {}))
            for name, table in files.items():
                table.to_parquet(place / name)
                tracker.file(run, place / name)
        error = record["tags"].get("error")
        tracker.close(run, record["status"], {"fedatlas.error": error} if error else {})
    tracker.close(parent, "FINISHED")
    assert tracker.store is not None
    return tracker.store


Write = Callable[..., Store]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A results folder of its own, with no tracking server configured."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("FEDATLAS_RESULTS", str(folder))
        yield folder


@pytest.fixture(scope="module")
def write(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes trials into the store of `results`."""
    return lambda experiment, records, **about: write_trials(
        experiment, records, tmp_path_factory.mktemp("files"), about
    )
