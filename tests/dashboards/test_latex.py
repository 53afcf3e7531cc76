"""LaTeX that compiles: as many cells as columns, balanced braces, nothing unescaped."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedatlas.dashboards.latex import ablation_table, escaped, family, main_tables, round_time_table
from fedatlas.dashboards.tables import method_by_scenario
from fedatlas.dashboards.variations import ablations

from .conftest import frame, trial_record

SCENARIOS = [
    (dataset, partition, clients)
    for dataset in ("cora", "citeseer", "pubmed", "amazon-photo")
    for partition, counts in (("metis", (5, 10)), ("metis-overlap", (30,)))
    for clients in counts
]


def well_formed(text: str) -> None:
    assert re.sub(r"\\[{}]", "", text).count("{") == re.sub(r"\\[{}]", "", text).count("}")
    width = re.search(r"\\begin\{tabular\}\{(l?c+)\}", text)
    assert width is not None
    for line in text.splitlines():
        if line.endswith(r"\\"):
            spanned = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == len(width.group(1)), line


def line(text: str, name: str, block: int = 0) -> list[str]:
    found = [each for each in text.splitlines() if each.startswith(f"{name} &")]
    return [cell.strip() for cell in found[block].removesuffix(r"\\").split("&")]


def test_main_tables_have_the_papers_layout() -> None:
    records = [
        trial_record(algorithm, 0.7 + gain, seed=seed, dataset=dataset, partition=partition, clients=clients)
        for algorithm, gain in (("fedavg", 0.0), ("fedgmc", 0.1), ("local", 0.05))
        for dataset, partition, clients in SCENARIOS
        for seed in (0, 1)
    ]
    (table,) = method_by_scenario(frame(records))
    found = main_tables(table, ["from a test"])
    assert list(found) == ["homophilic-metis", "homophilic-metis-overlap"]
    text = found["homophilic-metis"]
    well_formed(text)
    assert text.startswith("% from a test\n")
    assert "Layout of table 1 of the FedGMC paper" in text
    assert r"\multicolumn{2}{c}{CiteSeer}" in text
    # Three sets, then the fourth with the averages by clients and of all.
    assert line(text, "FedGMC") == ["FedGMC", *[r"\textbf{80.00$\pm$0.00}"] * 6]
    assert line(text, "FedGMC", 1)[:6] == [
        "FedGMC",
        *[r"\textbf{80.00$\pm$0.00}"] * 2,
        "80.00",
        "80.00",
        "80.00",
    ]
    assert line(text, "Local")[1] == r"\underline{75.00$\pm$0.00}"
    assert line(text, "FedAvg")[1] == r"70.00$\pm$0.00"
    well_formed(found["homophilic-metis-overlap"])


def test_what_is_missing_is_a_dash_and_a_partial_result_has_a_star() -> None:
    records = [
        trial_record("fedavg", 0.7, seed=0),
        trial_record("fedavg", 0.7, seed=1),
        trial_record("fedgmc", 0.8, seed=0),
        trial_record("local", 0.5, dataset="citeseer"),
    ]
    (table,) = method_by_scenario(frame(records))
    text = main_tables(table)["homophilic-metis"]
    well_formed(text)
    assert line(text, "FedGMC")[1:] == [r"80.00$^{*}$", "--", "--"]
    assert line(text, "Local")[1:] == ["--", "50.00", "--"]


def test_names_are_escaped() -> None:
    label = r"50% & {more} \input{x} a_b^c~#$"
    (table,) = method_by_scenario(frame([trial_record("fedavg", 0.7, label=label)]))
    text = main_tables(table)["homophilic-metis"]
    assert r"\input{x}" not in text
    assert escaped(label) in text
    assert escaped("&_") == r"\&\_"


def test_the_ablation_prints_drops_and_rises() -> None:
    records = [
        trial_record("fedgmc", 0.8, clients=clients, dataset=dataset)
        for clients in (5, 10)
        for dataset in ("cora", "minesweeper")
    ]
    records += [
        trial_record(
            "fedgmc", score, clients=clients, dataset=dataset, label=label, **{f"method_{part}": False}
        )
        for clients in (5, 10)
        for dataset in ("cora", "minesweeper")
        for label, part, score in (("w/o Semantic", "semantic", 0.75), ("w/o Structural", "structural", 0.82))
    ]
    (table,) = method_by_scenario(frame(records))
    text = ablation_table(ablations(table))
    well_formed(text)
    # Two sets of two settings each stand side by side.
    assert line(text, "w/o Semantic")[1:] == [r"75.00 ($\downarrow$ 5.00)"] * 4
    assert line(text, "w/o Structural")[1:] == [r"82.00 ($\uparrow$ 2.00)"] * 4
    assert line(text, "FedGMC")[1:] == ["80.00"] * 4


def test_a_set_with_all_settings_has_a_block_of_its_own() -> None:
    settings = [("metis", 5), ("metis", 10), ("metis", 20)]
    settings += [("metis-overlap", 10), ("metis-overlap", 30), ("metis-overlap", 50)]
    records = [
        trial_record(
            "fedgmc", score, dataset=dataset, partition=partition, clients=clients, label=label, **switch
        )
        for dataset in ("cora", "minesweeper")
        for partition, clients in settings
        for label, score, switch in (
            (None, 0.8, {}),
            ("w/o Semantic", 0.7, {"method_semantic": False}),
        )
    ]
    (table,) = method_by_scenario(frame(records))
    for text in (ablation_table(ablations(table)), round_time_table(table, lambda row, column: 0.25)):
        well_formed(text)
        assert text.count(r"\multicolumn{6}{c}") == 2
        assert len(line(text, "w/o Semantic", 1)) == 7


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_tables_compile_and_are_never_blown_up(tmp_path: Path) -> None:
    records = [
        trial_record(algorithm, 0.7, seed=seed, dataset=dataset, label=label, seconds_per_round=0.1)
        for algorithm, label in (("fedavg", r"50% & {more} \x a_b^c~#$"), ("fedgmc", None))
        for dataset in ("cora", "minesweeper", "actor")
        for seed in (0, 1)
    ]
    (table,) = method_by_scenario(frame(records))
    texts = [*main_tables(table).values(), round_time_table(table, lambda row, column: 0.25)]
    head = [r"\documentclass[twocolumn]{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    (tmp_path / "paper.tex").write_text("\n".join([*head, *texts, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Float too large" not in done.stdout
    assert "Overfull" not in done.stdout


def test_round_times_have_column_averages_where_the_column_is_whole() -> None:
    records = [
        trial_record(algorithm, 0.7, seconds_per_round=seconds, clients=clients)
        for algorithm, seconds in (("fedavg", 0.1), ("fedgmc", 0.3))
        for clients in (5, 10)
        if (algorithm, clients) != ("fedgmc", 10)
    ]
    (table,) = method_by_scenario(frame(records))
    times = {key: float(group[0].trial["seconds_per_round"]) for key, group in table.groups.items()}
    text = round_time_table(table, lambda row, column: times.get((row, column)))
    well_formed(text)
    assert line(text, "FedGMC")[1:] == ["0.3", "--"]
    assert line(text, "Average")[1:] == ["0.2", "--"]


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        ("cora", "homophilic"),
        ("questions", "heterophilic"),
        ("standin:questions", "other"),
        ("mine", "other"),
    ],
)
def test_families_are_the_papers(dataset: str, kind: str) -> None:
    assert family(dataset) == kind
