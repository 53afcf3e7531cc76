"""Study files and the grids they stand for."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import Study
from fedatlas.sweeps.study import GRID_KEYS, available_studies

Write = Callable[..., str]


def cells(study: Study) -> set[tuple[str, str, int]]:
    found = (resolved.experiment for resolved in study.experiments)
    return {(each.dataset, each.partition, each.clients) for each in found}


@pytest.mark.parametrize("name", available_studies())
def test_every_shipped_study_expands(name: str) -> None:
    study = Study(name)
    experiments = study.experiments
    assert len({resolved.fingerprint("data") for resolved in experiments}) == len(experiments)


def test_shipped_studies_hold_the_scenarios_of_the_tables_they_answer() -> None:
    """Dashboards can only set a printed figure beside a trial that is there."""
    published: dict[str, set[tuple[str, str, int]]] = {}
    for item in files("fedatlas.dashboards.published").iterdir():
        if item.name.endswith(".csv"):
            for row in csv.DictReader(item.read_text(encoding="utf-8").splitlines()):
                if row.get("clients"):
                    scenario = (row["dataset"], row["partition"], int(row["clients"]))
                    published.setdefault(f"{row['paper']} table {row['table']}", set()).add(scenario)
    answered = {}
    for name in available_studies():
        study = Study(name, seeds=1)
        for answer in study.file.answers:
            # SEAL prints no client counts: `fedatlas.dashboards.literature` knows them.
            if " table " in answer and not answer.startswith("SEAL"):
                assert published[answer.lower()] & cells(study), (name, answer)
                if published[answer.lower()] <= cells(study):
                    answered[answer] = name
    assert {answer: name for answer, name in answered.items() if answer.startswith("FedGMC")} == {
        "FedGMC table 1": "homophilic",
        "FedGMC table 4": "homophilic",
        "FedGMC table 2": "heterophilic",
        "FedGMC table 5": "heterophilic",
        "FedGMC table 6": "ablation",
        "FedGMC table 7": "round-time",
    }


@pytest.mark.parametrize(("name", "table"), [("graphs-iid", 1), ("graphs-skewed", 2), ("graphs-domains", 3)])
def test_studies_of_graphs_have_every_printed_row_of_their_table(name: str, table: int) -> None:
    from fedatlas.dashboards.literature import _graph_figures
    from fedatlas.sweeps.study import expand, read_study

    printed = {
        key for key in _graph_figures() if key[1] == {1: "iid", 2: "dirichlet", 3: "cross-dataset"}[table]
    }
    found = set()
    for resolved in expand(read_study(name)[1]):
        given = resolved.experiment
        usual = 0.0 if given.algorithm not in ("seal", "sealb") else 0.005
        repdec = given.options["repdec"] or 0.0
        ending = "" if repdec == usual else "+repdec" if repdec else "-no-repdec"
        found.add((given.dataset, given.partition, given.clients, given.algorithm + ending))
    assert found == printed


def test_shipped_studies_begin_with_their_command_and_have_a_make_target() -> None:
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")
    studies = " ".join(re.findall(r"^STUDIES [:+]= (.*)$", makefile, re.MULTILINE)).split()
    assert set(studies) >= {
        *("homophilic", "heterophilic", "ablation", "sensitivity"),
        *("convergence", "round-time", "casestudy"),
    }
    for name in available_studies():
        text = files("fedatlas.sweeps").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        assert text.startswith(f"# fedatlas sweep {name}"), name
        assert name not in studies or f"make sweep-{name})" in text.splitlines()[0], name


def test_the_two_large_studies_are_the_66_scenarios() -> None:
    assert {"quickstart", "homophilic", "heterophilic"} <= set(available_studies())
    homophilic, heterophilic = cells(Study("homophilic")), cells(Study("heterophilic"))
    assert (len(homophilic), len(heterophilic)) == (36, 30)
    assert len(homophilic | heterophilic) == 66
    counts = {(mode, clients) for _, mode, clients in homophilic | heterophilic}
    assert counts == {
        *(("metis", clients) for clients in (5, 10, 20)),
        *(("metis-overlap", clients) for clients in (10, 30, 50)),
    }


def test_quickstart_is_as_small_as_promised() -> None:
    found = [resolved.experiment for resolved in Study("quickstart").experiments]
    assert {(each.algorithm, each.seed) for each in found} == {
        (algorithm, seed) for algorithm in ("local", "fedavg", "fedgmc") for seed in (0, 1)
    }
    assert {(each.dataset, each.partition, each.clients, each.rounds) for each in found} == {
        ("minesweeper", "metis", 5, 30)
    }


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ({}, 4),
        ({"seeds": 3}, 6),
        ({"algorithms": ("fedavg",)}, 2),
        ({"algorithms": ("fedgmc",)}, 2),
        ({"only": ("seed=1",)}, 2),
        ({"only": ("fedavg", "seed=0")}, 1),
        ({"only": ("clients=3",)}, 4),
        ({"only": ("label=Local|FedAvg",)}, 4),
        ({"only": ("local|fedavg",)}, 4),
    ],
)
def test_overrides_choose(write_study: Write, overrides: dict[str, Any], count: int) -> None:
    assert len(Study(write_study(), **overrides).experiments) == count


def test_overrides_change(write_study: Write) -> None:
    study = Study(write_study(), rounds=9, placement="packed")
    assert {resolved.experiment.rounds for resolved in study.experiments} == {9}
    assert {resolved.experiment.placement for resolved in study.experiments} == {"packed"}
    # A row of the study keeps its options when it is chosen by its method.
    [row, _] = Study(write_study(), algorithms=("fedavg",)).experiments
    assert row.experiment.options["hidden"] == 8


def test_seeds_may_be_listed(write_study: Write) -> None:
    seeds = [resolved.experiment.seed for resolved in Study(write_study(seeds=[4, 9])).experiments]
    assert sorted(set(seeds)) == [4, 9]


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"seed": 3}, "override 'seed': did you mean seeds"),
        ({"seeds": 0}, "seeds=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"placement": "acters"}, "placement 'acters': did you mean actors"),
        ({"algorithms": ("fedagv",)}, "algorithm 'fedagv': did you mean fedavg"),
        ({"only": ("minesweper",)}, "'minesweper': did you mean minesweeper"),
        ({"only": ("cora",)}, "data set or method of this study 'cora': valid: fedavg, local, minesweeper"),
        ({"only": ("clients=5",)}, "clients of this study '5': valid: 3"),
        ({"only": ("client=3",)}, "filter 'client': did you mean clients"),
        ({"only": ("local", "fedavg")}, "nothing is left of the study with only=local, fedavg"),
    ],
)
def test_bad_overrides_are_named(write_study: Write, overrides: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Study(write_study(), **overrides)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"method": ["local"]}, "key of study .* 'method': did you mean methods"),
        ({"datasets": []}, "datasets: "),
        ({"datasets": "minesweeper"}, "datasets: "),
        ({"datasets": ["minesweper"]}, "data set 'minesweper': did you mean minesweeper"),
        ({"partitions": {"metiss": [3]}}, "partition 'metiss': did you mean metis"),
        ({"partitions": {"metis": 3}}, r"partitions\.metis: "),
        ({"partitions": {"metis": []}}, r"partitions\.metis has no client count"),
        ({"methods": [{"algorithm": "fedavg", "option": {}}]}, "methods.*option"),
        ({"methods": ["fedagv"]}, "algorithm 'fedagv': did you mean fedavg"),
        ({"seeds": 0}, "seeds=0: the study needs at least one seed"),
        ({"seeds": [1, 1]}, "seed-1.*or remove what is repeated"),
        ({"methods": ["local", "local"]}, "seed-0.*or remove what is repeated"),
        ({"variants": []}, "variants: "),
        (
            {"methods": ["fedavg", {"algorithm": "fedavg", "backbone": "h2gcn"}]},
            "two rows of the study are called 'FedAvg' .*: give one another label",
        ),
        ({"settings": {"placment": "inline"}}, "configuration key 'placment': did you mean placement"),
    ],
)
def test_bad_files_are_named(write_study: Write, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Study(write_study(**changes))


@pytest.mark.parametrize("key", GRID_KEYS)
def test_settings_that_the_grid_would_override_are_refused(write_study: Write, key: str) -> None:
    row = {"algorithm": "local", "settings": {key: 1}}
    for changes in ({"settings": {key: 1}}, {"variants": [{key: 1}]}, {"methods": [row]}):
        with pytest.raises(ConfigurationError, match=rf"{next(iter(changes))}.* cannot set {key}: "):
            Study(write_study(**changes))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'quickstrt': did you mean quickstart"):
        Study("quickstrt")
    with pytest.raises(ConfigurationError, match=r"missing\.yaml does not exist in .*homophilic"):
        Study(str(tmp_path / "missing.yaml"))
    broken = tmp_path / "broken.yaml"
    for content, match in [
        (b"datasets: [minesweeper\nmethods:", "is not valid YAML: .*line 2"),
        (b"- a list", "must be a mapping with keys description, answers"),
        (b"", "must be a mapping"),
        (b"description: x", "methods: Field required"),
        (b"\xff\xfe\x00", "cannot be read"),
    ]:
        broken.write_bytes(content)
        with pytest.raises(ConfigurationError, match=match):
            Study(str(broken))


def test_variants_are_an_axis(write_study: Write) -> None:
    study = Study(write_study(variants=[{}, {"train_fraction": 0.1}]))
    assert [resolved.experiment.train_fraction for resolved in study.experiments].count(0.1) == 4
    assert len({resolved.fingerprint("data") for resolved in study.experiments}) == 8
