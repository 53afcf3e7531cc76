"""Build and opening time of a page of 66 scenarios x 15 methods x 10 seeds (9,900 runs), and its size.

    python benchmarks/page.py [--seeds 10] [--keep FOLDER]

The runs are made up, in a store of their own: rows are written to MLflow's tables at once, since tracking
them one by one would take hours, and every run has the Parquet files of a trial. The page is opened in
Debian's chromium where that and playwright are installed; it is open when its script has built everything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedatlas.algorithms.presets import preset
from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.dashboards.report import write_report
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking.destination import RESULTS_VARIABLE, URI_VARIABLE
from fedatlas.platform.tracking.store import Store

STUDY = "synthetic"
SETS = (
    *("cora", "citeseer", "pubmed", "amazon-computers", "amazon-photo", "ogbn-arxiv"),
    *("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"),
)
SETTINGS = (*(("metis", m) for m in (5, 10, 20)), *(("metis-overlap", m) for m in (10, 30, 50)))
METHODS = (
    *("local", "fedavg", "fedprox", "fedper", "gcfl", "fedgnn", "fedsageplus", "fedpub", "fedgta"),
    *("adafgl", "fedtad", "fediih", "fedici", "fedssa", "fedgmc"),
)
PERSONALISED = ("gcfl", "fedpub", "fedgta", "fediih", "fedici", "fedssa")


def trials(seeds: int) -> Iterator[tuple[str, str, int, str, int]]:
    """Data set, partition, clients, method and seed of every run."""
    for dataset in SETS:
        for partition, clients in SETTINGS:
            for method in METHODS:
                for seed in range(seeds):
                    yield dataset, partition, clients, method, seed


def params(dataset: str, partition: str, clients: int, method: str, seed: int) -> dict[str, Any]:
    """Parameters as a trial of the protocol tracks them."""
    kind, tuned, published = ALGORITHMS[method].configuration_type, preset(method, dataset), entry(dataset)
    options = kind(**{key: value for key, value in tuned.items() if key in kind.model_fields})
    flat = {f"method.{key}": value for key, value in options.model_dump(mode="json").items()}
    train, _, test = published.split
    return {
        "dataset": dataset,
        "partition": partition,
        "clients": clients,
        "algorithm": method,
        "backbone": ALGORITHMS[method].default_backbone,
        "label": ALGORITHMS[method].title,
        "aggregation": flat["method.aggregation"],
        "seed": seed,
        "rounds": tuned.get("rounds", published.rounds),
        "epochs": tuned.get("epochs", published.epochs),
        "features": tuned.get("features", "row" if published.row_normalise else "none"),
        "component": "largest",
        "train_fraction": train,
        "test_fraction": test,
        "partition_seed": 0,
        "client_features": "same",
        "uncut": False,
        "weighting": "uniform",
        "evaluation": "after_local",
        "precision": "float32",
        **flat,
        "method.epochs": tuned.get("epochs", published.epochs),
    }


def tables(draw: np.random.Generator, level: float, clients: int, rounds: int) -> dict[str, pd.DataFrame]:
    """Per-round and per-client tables of a run, as recording writes them."""
    rise = level * (1 - np.exp(-np.arange(1, rounds + 1) / 15))
    scores = np.clip(rise[:, None] + draw.normal(0, 0.02, (rounds, clients)), 0, 1)
    each = {
        "round": range(rounds),
        "test/score": scores.mean(axis=1),
        "val/score": scores.mean(axis=1) + draw.normal(0, 0.005, rounds),
        **{f"comm/{way}link_{name}bytes": 1e6 for way in ("up", "down") for name in ("", "weights_")},
        **{
            f"time/{phase}_seconds": draw.gamma(4, 0.01, rounds)
            for phase in ("broadcast", "clients", "train", "evaluate", "aggregate", "round")
        },
    }
    pairs = {
        "round": np.repeat(np.arange(rounds), clients),
        "client": np.tile(np.arange(clients), rounds),
        "validation": scores.ravel(),
        "test": scores.ravel(),
    }
    return {"rounds.parquet": pd.DataFrame(each), "clients.parquet": pd.DataFrame(pairs)}


def fill(store: Store, folder: Path, seeds: int) -> int:
    """Write all runs; returns their number."""
    import sqlite3

    experiment = store.experiment_id(STUDY)
    draw = np.random.default_rng(0)
    rows: dict[str, list[tuple[Any, ...]]] = {"runs": [], "params": [], "tags": [], "latest_metrics": []}
    now = int(time.time() * 1000)
    done: dict[tuple[str, int], Path] = {}
    for number, trial in enumerate(trials(seeds)):
        dataset, _, clients, method, seed = trial
        run = uuid.uuid4().hex
        place = folder / run / "artifacts"
        place.mkdir(parents=True)
        given = params(*trial)
        rounds = min(int(given["rounds"]), 200)
        level = 0.5 + 0.02 * METHODS.index(method) + draw.normal(0, 0.01)
        # A few hundred different files are enough; writing is not what is measured.
        key = (f"{clients}-{rounds}-{METHODS.index(method)}", seed % 2)
        if key not in done:
            done[key] = place
            for name, table in tables(draw, level, clients, rounds).items():
                table.to_parquet(place / name, index=False)
        else:
            for source in done[key].iterdir():
                shutil.copyfile(source, place / source.name)
        rows["runs"].append((run, f"{method}-{number}", experiment, now, place.as_uri()))
        rows["params"] += [(name, str(value), run) for name, value in given.items()]
        tags = {
            "fedatlas.kind": "trial",
            "fedatlas.fingerprint": f"{number:020d}",
            "fedatlas.data_kind": entry(dataset).kind,
            "fedatlas.data_sha256": "0" * 64,
            "fedatlas.partition_sha256": "0" * 64,
            "fedatlas.metric": entry(dataset).metric,
            "fedatlas.commit": "0" * 40,
            "fedatlas.version": "0.1.0",
            "fedatlas.method_version": "1",
            "fedatlas.placement": "inline: synthetic",
            "fedatlas.hardware": "none, the runs are made up",
        }
        rows["tags"] += [(name, value, run) for name, value in tags.items()]
        figures = {
            "best_round": rounds - 1,
            "val_score": level,
            "test_score": level,
            "last_test_score": level - 0.01,
            "worst_decile_test_score": level - 0.1,
            "seconds_per_round": 0.05,
            "uplink_bytes_per_round": 1e6,
            "downlink_bytes_per_round": 1e6,
        }
        rows["latest_metrics"] += [
            (f"summary/{name}", float(value), now, 0, False, run) for name, value in figures.items()
        ]
    path = store.uri.removeprefix("sqlite:///")
    with sqlite3.connect(path) as base:
        base.executemany(
            "insert into runs (run_uuid, name, experiment_id, start_time, end_time, artifact_uri, status, "
            "lifecycle_stage, source_type, user_id) "
            "values (?, ?, ?, ?, ?4, ?5, 'FINISHED', 'active', 'LOCAL', 'x')",
            rows["runs"],
        )
        base.executemany("insert into params (key, value, run_uuid) values (?, ?, ?)", rows["params"])
        base.executemany("insert into tags (key, value, run_uuid) values (?, ?, ?)", rows["tags"])
        base.executemany(
            "insert into latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
            "values (?, ?, ?, ?, ?, ?)",
            rows["latest_metrics"],
        )
    return len(rows["runs"])


def opening(page: Path) -> str:
    """Seconds until the page is usable and until the first figure is there, in words."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return "not opened: no chromium on PATH"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "not opened: no playwright"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        opened = time.perf_counter() - begin
        tab.wait_for_selector("figure svg", state="attached")
        painted = time.perf_counter() - begin
        browser.close()
    return f"opened in {opened:.2f} s, first figure after {painted:.2f} s"


def main() -> None:
    """Make the store, build the page, open it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="folder that is kept; a temporary one by default")
    chosen = parser.parse_args()
    os.environ.pop(URI_VARIABLE, None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        os.environ[RESULTS_VARIABLE] = str(folder.resolve())
        store = Store()
        begin = time.perf_counter()
        count = fill(store, folder.resolve() / "artifacts", chosen.seeds)
        print(f"{count} runs made in {time.perf_counter() - begin:.0f} s", flush=True)
        begin, used = time.perf_counter(), time.process_time()
        page = write_report(store, STUDY, folder / "page.html")
        built = time.perf_counter() - begin
        size = page.stat().st_size / 1e6
        cpu = time.process_time() - used
        print(f"page built in {built:.1f} s ({cpu:.1f} s of CPU), {size:.2f} MB", flush=True)
        print(opening(page))


if __name__ == "__main__":
    main()
