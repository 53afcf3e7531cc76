"""The page, from a real tracking store: right numbers, nothing unescaped, nothing from the network."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedatlas.dashboards.report import write_report
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.operations import ANSWERS_TAG, DESCRIPTION_TAG
from fedatlas.platform.tracking.store import Store

from .conftest import HOSTILE, Write, trial_record

LABEL = f"{HOSTILE}<img src=https://example.org/x.png>"
SCORES = {"fedavg": (0.70, 0.74), "fedgmc": (0.80, 0.84)}
VOID = {"meta", "img", "br", "input", "link", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, the rows of all tables by section, and the page's values."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self._in_cell = self._in_script = False
        self.feed(html)
        self.data: dict[str, Any] = json.loads(next(text for text in self.scripts if text.startswith("{")))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self._in_cell = self._in_cell or tag in ("td", "th")
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"
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

    @property
    def text(self) -> str:
        """The page without its style, script and values."""
        return re.sub(r"<(style|script)\b.*?</\1>", "", self.html, flags=re.DOTALL)


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(write: Write, results: Path) -> Page:
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
        trial_record("fedgmc", 0.99, seed=0, method_version="0", stale="fedgmc was version 0, is 1"),
    ]
    about = {DESCRIPTION_TAG: f"What it is. {HOSTILE}", ANSWERS_TAG: "FedGMC table 1"}
    store = write("study", records, **about)
    path = write_report(store, "study", results / "new folder" / "study.html")
    assert [each.name for each in path.parent.iterdir()] == ["study.html"]
    return read(path)


def test_the_table_has_the_numbers_of_the_store(page: Page) -> None:
    fedavg = "72.00 ± 2.00 n = 2 ▲ +2.81 last round 71.00 paper 69.19 ± 0.67"
    fedgmc = "82.00 ± 2.00 best n = 2 ▼ −1.65 last round 81.00 paper 83.65 ± 0.16"
    assert page.row("FedAvg")[1] == fedavg.replace(" n", " second n", 1)
    assert page.row("FedGMC")[1] == fedgmc
    assert page.row(LABEL)[1] == "60.00 n = 1 partial last round 59.00"


def test_stand_ins_and_stale_results_stand_apart(page: Page) -> None:
    headings = [row[1] for row in page.rows if row and row[0].startswith("method") and len(row) == 3]
    assert headings == ["Cora metis, accuracy", "Cora metis, accuracy", "Questions (stand-in) metis, ROC-AUC"]
    assert [table["kind"] for table in page.data["tables"]] == ["measured", "stale", "stand-in"]
    assert page.row("Local")[1] == "50.00 n = 1 last round 49.00"
    # The stale score of 99 enters no other cell.
    measured = page.data["tables"][0]
    assert max(cell["mean"] for cell in measured["cells"].values()) == 82
    assert "Stale results" in page.text


def test_a_score_leads_to_its_runs(page: Page) -> None:
    links = [tag for name, tag in page.tags if name == "a" and tag.get("class") == "score"]
    cells = page.data["tables"][0]["cells"]
    runs = [run[0] for run in cells["0-0"]["runs"]]
    assert len(runs) == 2
    first = links[0]["href"] or ""
    assert first.startswith("http://127.0.0.1:5000/#/compare-runs?runs=%5B%22")
    assert all(run in first for run in runs)
    single = next(link["href"] for link in links if "/runs/" in str(link["href"]))
    assert re.fullmatch(r"http://127.0.0.1:5000/#/experiments/\d+/runs/[0-9a-f]{32}", str(single))


def test_nothing_from_the_store_is_read_as_markup(page: Page) -> None:
    assert HOSTILE not in page.html
    assert "img" not in {tag for tag, _ in page.tags}
    assert any(f"NonFiniteError: {HOSTILE}" in row for row in page.rows)
    assert [row["name"] for row in page.data["tables"][0]["rows"]].count(LABEL) == 1
    assert page.html.count("<script") == 2
    assert page.open == []
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag


def test_nothing_is_loaded_from_the_network(page: Page) -> None:
    loading = ("src", "srcset", "data", "poster", "action")
    assert [each for each in page.tags if any(name in each[1] for name in loading)] == []
    assert "link" not in {tag for tag, _ in page.tags}
    style = re.search(r"<style>(.*?)</style>", page.html, flags=re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import", style.group(1))
    policy = next(tag[1]["content"] for tag in page.tags if tag[1].get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'nonce-")


def test_curves_costs_and_clients_are_means_over_seeds(page: Page) -> None:
    table = page.data["tables"][0]
    names = [row["name"] for row in table["rows"]]
    key = f"{names.index('FedGMC')}-0"
    curve = table["curves"][key]
    assert curve["test"] == [7400, 7600, 7800, 8000, 8200]
    assert curve["test_std"] == [200] * 5
    assert curve["n"] == 2
    # 95 % of 80 is 76: the fourth of 72, 74, 76, .. is 78, so the third round; 3 MB travel in each.
    assert table["effort"][key] == [3.0, 9.0]
    cost = table["cost"][key]
    assert cost["seconds"] == {"training": 0.2, "evaluation": 0.05, "transport": 0.05, "aggregation": 0.02}
    assert cost["up"] == {"weights": 1.5, "size": 0.5}
    assert cost["down"] == {"weights": 1.0}
    assert cost["paper"] == 6.32
    assert table["clients"][key] == [72.0, 82.0, 92.0]
    assert table["cells"][key]["worst"] == 62.0


def test_notes_failures_and_provenance_are_there(page: Page) -> None:
    assert (
        "Questions (stand-in) · metis · 10 clients: 5 rounds; the papers&#39; protocol has 100." in page.html
    )
    assert "Compared with: FedGMC table 1." in page.text
    failed = next(row for row in page.rows if len(row) == 7 and row[3] == "failed")
    assert failed[:3] == [LABEL, "Cora · metis · 10 clients", "1"]
    texts, lines = page.data["provenance"]["texts"], page.data["provenance"]["lines"]
    assert len(lines) == 7
    shown = [texts[place] for place in lines[0][5:]]
    assert shown[:6] == ["cccccccccccc-dirty", "0.1.0", "1", "real", "aaaaaaaaaaaa", "inline"]


def test_trials_without_rounds_are_named(write: Write, results: Path) -> None:
    store = write("partial", [trial_record("fedavg", 0.7), trial_record("fedgmc", 0.8)])
    run = next(iter(store.runs("partial", "tags.`fedatlas.kind` = 'trial'")))
    shutil.rmtree(results / "artifacts" / "partial" / run.info.run_id)
    page = read(write_report(store, "partial", results / "partial.html"))
    assert "no curve or cost includes them" in page.text
    assert len(page.data["tables"][0]["curves"]) == 1


def test_trials_killed_before_their_parameters_are_listed_as_unknown(write: Write, results: Path) -> None:
    lost = [trial_record("fedavg", 0.8, status=status) for status in ("KILLED", "FAILED", "FINISHED")]
    for each in lost:
        each["params"] = {}
    lost[1]["tags"]["error"] = "DataError: no file"
    store = write("cut", [trial_record("fedavg", 0.7), *lost])
    page = read(write_report(store, "cut", results / "cut.html"))
    failed = sorted([row[3], row[5]] for row in page.rows if row[:3] == ["(unknown)"] * 3)
    reason = "its parameters were not tracked"
    assert failed == [["failed", "DataError: no file"], ["finished", reason], ["killed", reason]]
    assert page.row("FedAvg")[1].startswith("70.00 n = 1")


def test_one_method_with_one_seed_has_no_deviation_rank_or_test(write: Write, results: Path) -> None:
    store = write("single", [trial_record("fedopt", 0.7)])
    page = read(write_report(store, "single", results / "single.html"))
    assert page.row("FedOpt") == ["FedOpt", "70.00 n = 1 last round 69.00", "–", "–"]
    assert "±" not in page.row("FedOpt")[1]
    assert 'id="statistics"' not in page.html
    assert 'id="differences"' not in page.html
    assert "test_std" not in page.data["tables"][0]["curves"]["0-0"]


def test_a_study_of_failures_has_a_page_that_says_why(write: Write, results: Path) -> None:
    store = write("broken", [trial_record("fedavg", None, status="FAILED", error="DataError: no file\nmore")])
    page = read(write_report(store, "broken", results / "broken.html"))
    assert "No trial of this study has finished with a test score" in page.text
    assert "DataError: no file" in page.text
    assert page.data["tables"] == []


def test_an_undefined_score_is_no_number(write: Write, results: Path) -> None:
    store = write("undefined", [trial_record("fedavg", 0.7), trial_record("fedgmc", None)])
    page = read(write_report(store, "undefined", results / "undefined.html"))
    assert [row["name"] for row in page.data["tables"][0]["rows"]] == ["FedAvg"]
    assert "finished without a test score" in page.text
    assert "NaN" not in page.scripts[0]


def test_a_method_without_any_result_is_named_as_missing(write: Write, results: Path) -> None:
    failed = [trial_record("fedavg", None, seed=seed, status="FAILED", error="x") for seed in (0, 1)]
    store = write("absent", [trial_record("local", 0.7), *failed])
    page = read(write_report(store, "absent", results / "absent.html"))
    assert [row["name"] for row in page.data["tables"][0]["rows"]] == ["Local"]
    assert "FedAvg, Cora · metis · 10 clients: seeds 0, 1" in page.text
    assert "<dt>results missing</dt><dd>2</dd>" in page.text


def test_an_empty_study_has_a_page(results: Path) -> None:
    store = Store()
    store.experiment_id("empty")
    page = read(write_report(store, "empty", results / "empty.html"))
    assert "Nothing has been started" in page.text


@pytest.mark.usefixtures("page")
def test_an_unknown_sweep_is_an_error_with_the_closest_name(results: Path) -> None:
    with pytest.raises(FedatlasError, match="unknown study 'stduy': did you mean study"):
        write_report(Store(), "stduy", results / "none.html")


def test_an_empty_store_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FedatlasError, match=r"no study 'any': the tracking store .*empty.db holds none yet"):
        write_report(Store(f"sqlite:///{tmp_path / 'empty.db'}"), "any", tmp_path / "any.html")
