"""The page in a real browser: Debian's chromium, headless, driven by playwright.

Skipped where there is no chromium on PATH or no playwright. Nothing is asserted on time here; see
`benchmarks/page.py`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedatlas.dashboards.report import write_report
from fedatlas.platform.tracking.destination import tracking_uri

from .conftest import HOSTILE, Write, trial_record
from .test_projections import exported

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
UI_SECONDS = 300


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on PATH")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


def recorded() -> dict[str, pd.DataFrame]:
    held = pd.DataFrame(
        {
            "client": range(3),
            "nodes": [10, 20, 30],
            "edges": [5, 6, 7],
            "train": 2,
            "validation": 4,
            "test": 4,
            "homophily": [0.5, 0.25, float("nan")],
            "histogram": [(4, 6), (20, 0), (1, 29)],
        }
    )
    shares = np.array([np.eye(3), np.full((3, 3), 1 / 3)])
    mixing = pd.DataFrame(shares.reshape(6, 3), columns=["from_0", "from_1", "from_2"])
    mixing.insert(0, "client", [0, 1, 2] * 2)
    mixing.insert(0, "round", [0] * 3 + [4] * 3)
    return {"federation.parquet": held, "mixing.parquet": mixing}


@pytest.fixture(scope="module")
def page_file(write: Write, results: Path) -> Path:
    scores = {"local": 0.6, "fedavg": 0.7, "fedper": 0.65, "fedgta": 0.72, "fedgmc": 0.8}
    records = [
        trial_record(
            algorithm,
            score + 0.01 * seed + (0.11 if algorithm == "local" and dataset == "citeseer" else 0),
            seed=seed,
            dataset=dataset,
            clients=clients,
            files=recorded() if algorithm == "fedgta" else exported() if algorithm == "fedgmc" else {},
        )
        for algorithm, score in scores.items()
        for dataset, clients in (("cora", 5), ("cora", 10), ("citeseer", 10))
        for seed in (0, 1)
    ]
    records += [
        trial_record("fedgmc", 0.7 + tau / 100, label=f"FedGMC (tau={tau})", method_tau=tau)
        for tau in (0.1, 5.0)
    ]
    records += [
        trial_record("fedgmc", 0.75, label="w/o Semantic", method_semantic=False),
        trial_record("fedavg", 0.5, label=HOSTILE),
        trial_record("fedavg", None, seed=1, label=HOSTILE, status="FAILED", error=HOSTILE),
    ]
    store = write("browser", records)
    return write_report(store, "browser", results / "browser.html")


class Opened:
    """The page with everything that its console said."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def first_column(self) -> list[str]:
        rows = self.page.locator("table.results").first.locator("tbody tr:visible th")
        return [text.strip() for text in rows.all_inner_texts()]


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file)
    yield found
    found.context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_loads_silently_and_fits(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    found = Opened(browser, page_file, width, scheme)
    found.page.wait_for_selector("figure svg")
    assert found.said == []
    assert found.asked == [page_file.as_uri()]
    assert found.page.evaluate("document.documentElement.scrollWidth") == width
    # Text against its ground, by the contrast ratio of WCAG 2.
    assert contrast(found.page, "body") >= 7
    for chosen in (".soft", "td .less", "td .more", "a"):
        assert contrast(found.page, chosen) >= 4.5, chosen
    sections = found.page.locator("main h2").all_inner_texts()
    assert {"Statistics", "Convergence", "Sensitivity", "Ablation", "Clients", "Case study"} <= set(sections)
    for figure in found.page.locator("figure svg").all():
        assert figure.get_attribute("aria-label")
    found.context.close()


def contrast(page: Any, chosen: str) -> float:
    """Of an element's text colour to the page's ground."""
    script = """(chosen) => [getComputedStyle(document.querySelector(chosen)).color,
        getComputedStyle(document.body).backgroundColor]"""
    values = []
    for colour in page.evaluate(script, chosen):
        channels = [int(float(part)) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        values.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(values) + 0.05) / (min(values) + 0.05)


def test_the_hostile_name_is_text(opened: Opened) -> None:
    assert HOSTILE in opened.first_column()
    assert opened.page.evaluate("document.querySelectorAll('main script').length") == 0


def test_columns_sort_both_ways_and_missing_cells_stay_last(opened: Opened) -> None:
    head = opened.page.locator('button.sort[data-sort="2"]')
    assert head.inner_text() == "10 clients"
    head.click()
    assert opened.page.locator('th[aria-sort="descending"]').count() == 1
    best_first = opened.first_column()
    head.click()
    worst_first = opened.first_column()
    known = 5
    assert best_first[:known] == ["FedGMC", "FedGTA", "Local", "FedAvg", "FedPer"]
    assert worst_first[:known] == best_first[:known][::-1]
    assert set(worst_first[known:]) == {HOSTILE, "FedGMC (tau=0.1)", "FedGMC (tau=5.0)", "w/o Semantic"}


def test_filters_hide_and_ranks_follow(opened: Opened) -> None:
    page = opened.page
    table = page.locator("table.results").first
    assert table.locator("[data-count]").inner_text() == "0 of 3"
    assert table.locator("[data-rank]").first.inner_text() == "–"
    page.get_by_role("button", name="Hide methods that lack results").click()
    assert opened.first_column() == ["Local", "FedAvg", "FedPer", "FedGTA", "FedGMC"]
    assert table.locator("[data-count]").inner_text() == "3 of 3"
    # Local: last on both Cora scenarios, third with 71.5 on CiteSeer.
    local = table.locator("tbody tr").filter(has=page.locator("th", has_text="Local"))
    ranks = {
        row.locator("th").inner_text(): row.locator("[data-rank]").inner_text()
        for row in table.locator("tbody tr:visible").all()
    }
    assert ranks["FedGMC"] == "1.00"
    assert float(ranks["Local"]) == pytest.approx((5 + 5 + 3) / 3, abs=0.01)
    page.locator('fieldset[data-filter="set"] label', has_text="Cora").locator("input").uncheck()
    assert table.locator("[data-count]").inner_text() == "1 of 1"
    assert local.locator("[data-rank]").inner_text() == "3.00"
    assert table.locator("thead th.set:visible").count() == 2
    page.get_by_role("button", name="Show all methods").click()
    assert len(opened.first_column()) == 9


def test_everything_is_reached_by_keyboard(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("button.runs").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open]").count() == 1
    assert page.locator("dialog tbody tr").count() == 2
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    figure = page.locator("section:has(#convergence) figure svg").first
    figure.focus()
    page.keyboard.press("End")
    tip = page.locator("section:has(#convergence) .tip").first.inner_text()
    assert tip.startswith("round 5")
    assert "FedGMC: 80.50 ± 0.50" in tip
    box = page.locator('section:has(#results) input[type="checkbox"]').first
    box.focus()
    page.keyboard.press("Space")
    assert not box.is_checked()


def test_the_matrix_slides_over_rounds(opened: Opened) -> None:
    page = opened.page
    page.locator("section:has(#clients)").scroll_into_view_if_needed()
    slider = page.locator('section:has(#clients) input[type="range"]')
    matrix = page.locator("section:has(#clients) figure").last
    matrix.locator("rect").first.wait_for()
    assert matrix.locator("title").first.text_content() == "client 0 takes 0.333 from client 0"
    slider.focus()
    page.keyboard.press("Home")
    assert matrix.locator("title").first.text_content() == "client 0 takes 1.000 from client 0"


def test_the_case_study_changes_its_projection(opened: Opened) -> None:
    part = opened.page.locator('[data-part="casestudy"]')
    assert part.locator("svg path").first.count() == 1
    assert "principal axes" in part.inner_text()
    part.get_by_label("projection").select_option("tsne")
    assert "t-SNE, perplexity" in part.inner_text()
    assert opened.said == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=5):
        return True
    return False


@pytest.fixture
def ui(results: Path) -> Iterator[str]:
    """MLflow's own UI over the store of the tests."""
    port = free_port()
    words = ["-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(), "--host", "127.0.0.1"]
    log = (results / "ui.log").open("w")
    server = subprocess.Popen(
        [sys.executable, *words, "--port", str(port), "--workers", "1"],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + UI_SECONDS
        while not answers(f"{address}/health"):
            assert server.poll() is None, (results / "ui.log").read_text()
            assert time.monotonic() < end, "the UI does not answer"
            time.sleep(1)
        yield address
    finally:
        # The server starts further processes; all of them are of this session.
        os.killpg(server.pid, 15)
        server.wait(60)
        log.close()


@pytest.mark.slow
def test_a_score_leads_to_its_run_in_the_live_ui(opened: Opened, ui: str) -> None:
    page = opened.page
    page.locator("#ui").fill(ui)
    page.keyboard.press("Tab")
    single = page.locator("tr", has=page.locator("th", has_text="w/o Semantic")).locator("a.score").first
    run = str(single.get_attribute("href")).rsplit("/", 1)[1]
    with opened.context.expect_page() as opening:
        single.click()
    shown = opening.value
    shown.get_by_text(run).first.wait_for(timeout=120_000)
    shown.get_by_text("trial").first.wait_for()
    several = page.locator("a.score").first
    with opened.context.expect_page() as opening:
        several.click()
    compared = opening.value
    compared.get_by_text("Comparing 2 Runs").first.wait_for(timeout=120_000)
