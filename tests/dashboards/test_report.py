"""The page, from a real tracking store: right numbers, nothing unescaped, nothing from the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedatlas.dashboards.report import write_report
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.store import Store

from .conftest import HOSTILE, Write, trial_record

LABEL = f"{HOSTILE}<img src=https://example.org/x.png>"
SCORES = {"fedavg": (0.70, 0.74), "fedgmc": (0.80, 0.84)}


class Page(HTMLParser):
    """Tags with their attributes, the text, and the rows of all tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self._in_cell = self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self._in_cell = self._in_cell or tag in ("td", "th")
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        elif self._in_cell:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


@pytest.fixture(scope="module")
def html(write: Write, results: Path) -> str:
    records = [
        trial_record(algorithm, score, seed=seed)
        for algorithm, scores in SCORES.items()
        for seed, score in enumerate(scores)
    ]
    records += [
        trial_record("fedavg", 0.60, label=LABEL),
        trial_record(
            "fedavg", None, seed=1, label=LABEL, status="FAILED", error=f"NonFiniteError: {HOSTILE}"
        ),
        trial_record(
            "local", 0.50, dataset="standin:questions", metric="auc", data_kind="stand-in", rounds=5
        ),
    ]
    store = write("study", records)
    path = write_report(store, "study", results / "new folder" / "study.html")
    assert [each.name for each in path.parent.iterdir()] == ["study.html"]
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_table_has_the_numbers_of_the_store(page: Page) -> None:
    assert page.row("FedAvg")[1] == "72.00 ± 2.00 n = 2; last round 71.00 FedGMC paper: 69.19 ± 0.67"
    assert page.row("FedGMC")[1] == "82.00 ± 2.00 n = 2; last round 81.00 FedGMC paper: 83.65 ± 0.16"
    assert page.row(LABEL)[1] == "60.00 n = 1, incomplete; last round 59.00"


def test_stand_ins_stand_apart(page: Page) -> None:
    headings = [row for row in page.rows if row[0] == "method" and "clients" in row[1]]
    assert headings[0][1:] == ["Cora · metis · 10 clients accuracy"]
    assert headings[1][1:] == ["Questions (stand-in) · metis · 10 clients ROC-AUC"]
    assert page.row("Local")[1] == "50.00 n = 1; last round 49.00"


def test_nothing_from_the_store_is_read_as_markup(html: str, page: Page) -> None:
    assert HOSTILE not in html
    assert "img" not in {tag for tag, _ in page.tags}
    assert f"NonFiniteError: {HOSTILE}" in page.row(LABEL) or any(
        f"NonFiniteError: {HOSTILE}" in row for row in page.rows
    )
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag


def test_nothing_is_loaded_from_the_network(html: str, page: Page) -> None:
    loading = ("src", "href", "srcset", "data", "poster", "action")
    assert [each for each in page.tags if any(name in each[1] for name in loading)] == []
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import", style.group(1))
    policy = next(tag[1]["content"] for tag in page.tags if tag[1].get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'nonce-")


def test_plotly_is_there_once_and_figures_have_the_curves(page: Page) -> None:
    code = [script for script in page.scripts if len(script) > 1_000_000]
    assert len(code) == 1
    figures = [json.loads(script) for script in page.scripts if script.startswith("{")]
    assert len(figures) == 4
    test_scores = {trace["name"]: trace for trace in figures[0]["data"]}
    assert {"FedAvg", "FedAvg ± std", "FedGMC", "FedGMC ± std"} < set(test_scores)
    assert "&lt;script&gt;" in figures[0]["data"][2]["name"]


def test_notes_failures_and_provenance_are_there(html: str, page: Page) -> None:
    assert "Questions (stand-in) · metis · 10 clients: 5 rounds; the papers&#39; protocol has 100." in html
    failed = next(row for row in page.rows if len(row) == 6 and row[3] == "failed")
    assert failed[:3] == [LABEL, "Cora · metis · 10 clients", "1"]
    sources = [row for row in page.rows if len(row) == 8]
    assert len(sources) == 1 + 6
    assert sources[1][4:] == ["cccccccccccc-dirty", "0.1.0 1", "real aaaaaaaaaaaa", "inline"]


def test_trials_without_rounds_are_named(write: Write, results: Path) -> None:
    store = write("partial", [trial_record("fedavg", 0.7), trial_record("fedgmc", 0.8)])
    run = next(iter(store.runs("partial", "tags.`fedatlas.kind` = 'trial'")))
    shutil.rmtree(results / "artifacts" / "partial" / run.info.run_id)
    text = write_report(store, "partial", results / "partial.html").read_text(encoding="utf-8")
    assert "no curve includes them" in text
    assert text.count(run.info.run_id) == 2


def test_trials_killed_before_their_parameters_are_listed_as_unknown(write: Write, results: Path) -> None:
    lost = [trial_record("fedavg", 0.8, status=status) for status in ("KILLED", "FAILED", "FINISHED")]
    for each in lost:
        each["params"] = {}
    lost[1]["tags"]["error"] = "DataError: no file"
    store = write("cut", [trial_record("fedavg", 0.7), *lost])
    page = Page(write_report(store, "cut", results / "cut.html").read_text(encoding="utf-8"))
    failed = sorted(row[3:5] for row in page.rows if row[:3] == ["(unknown)"] * 3)
    reason = "its parameters were not tracked"
    assert failed == [["failed", "DataError: no file"], ["finished", reason], ["killed", reason]]
    assert page.row("FedAvg")[1].startswith("70.00 n = 1;")


def test_a_sweep_of_trials_without_parameters_has_no_report(write: Write, results: Path) -> None:
    lost = trial_record("fedavg", None, status="KILLED")
    lost["params"] = {}
    store = write("all cut", [lost])
    with pytest.raises(FedatlasError, match=r"no finished trial with a test score \(1 killed\)"):
        write_report(store, "all cut", results / "all-cut.html")


def test_a_sweep_without_results_is_an_error_that_says_why(write: Write, results: Path) -> None:
    store = write("broken", [trial_record("fedavg", None, status="FAILED", error="DataError: no file\nmore")])
    with pytest.raises(FedatlasError, match=r"'broken' has no finished .*1 failed.*DataError: no file; run"):
        write_report(store, "broken", results / "broken.html")
    assert not (results / "broken.html").exists()


@pytest.mark.usefixtures("html")
def test_an_unknown_sweep_is_an_error_with_the_closest_name(results: Path) -> None:
    with pytest.raises(FedatlasError, match="unknown sweep 'stduy': did you mean study"):
        write_report(Store(), "stduy", results / "none.html")


def test_an_empty_store_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FedatlasError, match=r"no sweep 'any': the tracking store .*empty.db holds none yet"):
        write_report(Store(f"sqlite:///{tmp_path / 'empty.db'}"), "any", tmp_path / "any.html")


def test_a_browser_draws_the_figures(html: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH")
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --window-size=1280,6000 "
        "--virtual-time-budget=10000 --enable-logging=stderr --dump-dom"
    )
    command = [browser, *flags.split(), "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert len(re.findall(r'class="[^"]*js-plotly-plot', done.stdout)) == 4
    assert "CONSOLE" not in done.stderr
