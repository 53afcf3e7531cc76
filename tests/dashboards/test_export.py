"""What is exported is what was measured, and every figure is a vector file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedatlas.dashboards.export import export_path, export_study
from fedatlas.platform.errors import FedatlasError

from .conftest import HOSTILE, Write, trial_record
from .test_projections import exported


@pytest.fixture(scope="module")
def written(write: Write, results: Path) -> dict[str, Path]:
    records = [
        trial_record(algorithm, score + 0.01 * seed, seed=seed, dataset=dataset)
        for algorithm, score in (("local", 0.6), ("fedavg", 0.7), ("fedgmc", 0.8))
        for dataset in ("cora", "citeseer")
        for seed in (0, 1)
    ]
    records += [
        trial_record("fedgmc", 0.7 + tau / 100, label=f"FedGMC (tau={tau})", method_tau=tau)
        for tau in (0.1, 5.0)
    ]
    records += [
        trial_record("fedgmc", 0.75, label="w/o Semantic", method_semantic=False),
        trial_record("fedavg", 0.5, label=HOSTILE),
        trial_record("local", 0.5, dataset="standin:questions", metric="auc", data_kind="stand-in"),
        trial_record("fedgmc", 0.99, method_version="0", stale="fedgmc was version 0, is 1"),
    ]
    records[8]["files"] = exported()
    store = write("paper", records)
    folder = results / "exports" / "paper"
    paths = export_study(store, "paper", folder)
    assert len(paths) == len(set(paths))
    return {str(path.relative_to(folder)): path for path in paths}


def test_files_have_the_papers_parts(written: dict[str, Path]) -> None:
    names = set(written)
    figures = {
        "convergence-metis-10",
        "sensitivity-fedgmc-cora-metis-10",
        "ablation-metis-10",
        "casestudy-1-cora-metis-10-tsne",
        "casestudy-1-cora-metis-10-pca",
        "critical-difference",
        "differences-published",
        "differences-best-rival",
        "round-time-cora-metis-10",
    }
    assert {f"{name}.{suffix}" for name in figures for suffix in ("pdf", "svg")} <= names
    assert {"homophilic-metis.tex", "ablation.tex", "round-time.tex"} <= names
    assert {"trials.csv", "trials.parquet", "cells.csv", "curves.parquet", "comparisons.csv"} <= names
    assert {"stand-in/trials.csv", "stand-in/other-metis.tex"} <= names
    assert any(name.startswith("vectors/") and name.endswith("/anchors.parquet") for name in names)
    for name, path in written.items():
        start = path.read_bytes()[:400]
        if name.endswith(".pdf"):
            assert start.startswith(b"%PDF")
        if name.endswith(".svg"):
            assert b"<svg" in start or b"<!DOCTYPE svg" in start


def test_numbers_are_those_of_the_store(written: dict[str, Path]) -> None:
    cells = pd.read_csv(written["cells.csv"]).set_index(["method", "dataset"])
    fedgmc = cells.loc[("FedGMC", "cora")]
    assert fedgmc["mean"] == pytest.approx(80.5)
    assert fedgmc["published"] == 83.65
    assert fedgmc["difference"] == pytest.approx(-3.15)
    trials = pd.read_csv(written["trials.csv"])
    assert trials["run_id"].str.fullmatch("[0-9a-f]{32}").all()
    # Neither the stale score nor that of the stand-in.
    assert trials["test_score"].max() == pytest.approx(0.81)
    assert "standin:questions" not in set(trials["dataset"])
    parquet = pd.read_parquet(written["cells.parquet"])
    assert parquet["mean"].tolist() == pytest.approx(cells["mean"].tolist())
    assert set(parquet.columns) == {*cells.columns, "method", "dataset"}
    curves = pd.read_parquet(written["curves.parquet"])
    last = curves[(curves["method"] == "FedGMC") & (curves["dataset"] == "cora") & (curves["round"] == 5)]
    assert last["mean"].tolist() == pytest.approx([80.5])


def test_figures_keep_names_as_text(written: dict[str, Path]) -> None:
    text = written["round-time-cora-metis-10.svg"].read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


def test_the_same_trials_give_the_same_figures(written: dict[str, Path], results: Path) -> None:
    from fedatlas.platform.tracking.store import Store

    again = export_study(Store(), "paper", results / "again")
    for path in again:
        name = str(path.relative_to(results / "again"))
        if name.endswith((".svg", ".pdf", ".csv")):
            assert path.read_bytes() == written[name].read_bytes(), name


def test_nothing_finished_is_nothing_to_export(write: Write, results: Path) -> None:
    store = write("nothing", [trial_record("fedavg", None, status="FAILED", error="no")])
    with pytest.raises(FedatlasError, match="there is nothing to export"):
        export_study(store, "nothing", results / "nothing")


@pytest.mark.usefixtures("results")
def test_a_name_cannot_leave_the_folder() -> None:
    assert export_path("../../etc/a b").parent.name == "exports"
