"""Own graphs, clients and methods in runs and studies: what identifies a trial, and what a user sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas.algorithms import registry
from fedatlas.dashboards.cells import arrange
from fedatlas.platform.errors import ConfigurationError, FedatlasError
from fedatlas.platform.graphs import own
from fedatlas.sweeps import Study, run
from fedatlas.sweeps.experiment import Resolved, experiment, resolve

Call = Callable[..., tuple[int, str]]
NODES = 60
METHOD = """
from typing import ClassVar

from fedatlas.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    '''Mean of the weights.'''

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
"""


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    y = np.arange(NODES) % 2
    return {
        "x": np.eye(2)[y] + generator.normal(size=(NODES, 2)),
        "edge_index": generator.integers(0, NODES, (2, 150)),
        "y": y,
        "client": np.arange(NODES) // 20,
    }


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    np.savez(tmp_path / "mine.npz", **arrays())
    return str(tmp_path / "mine.npz")


def resolved(dataset: str, **changes: Any) -> Resolved:
    values = {"dataset": dataset, "partition": "own", "algorithm": "fedavg", **changes}
    return resolve(experiment(values))


def test_clients_are_counted_where_the_file_names_them(graph: str) -> None:
    assert resolved(graph).experiment.clients == 3
    assert resolved("minesweeper", partition="random").experiment.clients == 10


def test_a_trial_is_identified_by_what_its_files_hold(graph: str, tmp_path: Path) -> None:
    here = resolved(graph)
    (tmp_path / "other").mkdir()
    there = resolved(str(shutil.copy(graph, tmp_path / "other" / "renamed.npz")))
    assert here.identity() == there.identity()
    assert (here.data_name, there.data_name) == ("own:mine", "own:renamed")
    np.savez(graph, **arrays(seed=1))
    assert resolved(graph).identity() != there.identity()

    clients = tmp_path / "clients.csv"
    clients.write_text("node,client\n" + "".join(f"{node},{node % 2}\n" for node in range(NODES)))
    by_file = resolved(graph, partition=str(clients)).identity()
    moved = resolved(graph, partition=str(shutil.move(clients, tmp_path / "other" / "c.csv")))
    assert by_file == moved.identity() != resolved(graph).identity()


def test_settings_that_only_own_graphs_have_are_identity(graph: str) -> None:
    plain = resolved(graph)
    assert (plain.experiment.component, plain.experiment.split) == ("all", None)
    assert resolved(graph, metric="auc").identity()["metric"] == "auc"
    assert "metric" not in plain.params()
    np.savez(graph, **arrays(), **masks())
    assert resolved(graph).identity()["split"] == "own"
    assert resolved(graph, split="random").identity()["split"] == "random"


def masks() -> dict[str, np.ndarray]:
    return {
        f"{word}_mask": np.arange(NODES) % 3 == place for place, word in enumerate(("train", "val", "test"))
    }


def test_command_line_and_python_agree(graph: str, results: Path, fedatlas: Call, tmp_path: Path) -> None:
    words = ("run", "--dataset", graph, "--partition", "own", "--algorithm", "fedavg", "--rounds", "3")
    code, text = fedatlas(
        *words, "--set", "metric=auc", "--set", "hidden=8", "--json", str(tmp_path / "s.json")
    )
    assert code == 0, text
    assert "mine: repaired: " in text
    assert "test AUC" in text
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["dataset"], summary["data_kind"], summary["clients"]) == ("own:mine", "own", 3)
    for given in (graph, Path(graph), arrays()):
        quiet: dict[str, Any] = {"progress": False, "tracking": False, "announce": lambda text: None}
        options = {"metric": "auc", "options": {"hidden": 8}}
        again = run(given, algorithm="fedavg", partition="own", rounds=3, **options, **quiet)
        assert again.values["client_test_scores"] == summary["client_test_scores"]
        assert again.values["fingerprint"] == summary["fingerprint"]


@pytest.mark.ray
@pytest.mark.usefixtures("small_ray")
def test_a_study_takes_paths_beside_its_file(
    graph: str, results: Path, write_study: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "clients.csv").write_text(
        "node,client\n" + "".join(f"{node},{node % 2}\n" for node in range(NODES))
    )
    path = write_study(
        datasets=["./mine.npz"], partitions={"own": [], "./clients.csv": [], "random": [4]}, seeds=1
    )
    study = Study(path)
    assert {(each.partition_name, each.experiment.clients) for each in study.experiments} == {
        ("own", 3),
        ("own:clients", 2),
        ("random", 4),
    }
    assert len(Study(path, only=("partition=clients", "mine")).experiments) == 2
    assert study.run(announce=lambda text: None).failed == {}
    table = study.results()
    assert set(table["dataset"]) == {"own:mine"}
    assert set(table["data_kind"]) == {"own"}
    titles = {each.column.title for each in arrange(table)}
    assert titles == {
        "mine · own clients · 3 clients",
        "mine · clients · 2 clients",
        "mine · random · 4 clients",
    }


def test_a_study_may_be_made_of_objects(graph: str) -> None:
    from fedatlas.algorithms.fedprox import FedProx

    content = {
        "description": "In Python.",
        "datasets": [arrays(), graph],
        "partitions": {"own": []},
        "methods": ["local", FedProx, {"algorithm": FedProx, "options": {"mu": 1.0}, "label": "strong"}],
        "seeds": 1,
    }
    study = Study("mine", content)
    assert [each.experiment.label for each in study.experiments] == 2 * ["Local", "FedProx", "strong"]


# Methods


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", "")
    path = tmp_path / f"method_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(METHOD)
    return path


def test_a_class_of_a_file_runs_like_one_of_the_registry(
    method: Path, results: Path, fedatlas: Call, tmp_path: Path
) -> None:
    scores = []
    for algorithm in (f"{method}:Mine", "fedavg"):
        words = (
            "run",
            "--dataset",
            "minesweeper",
            "--clients",
            "3",
            "--partition",
            "random",
            "--rounds",
            "2",
        )
        code, text = fedatlas(*words, "--algorithm", algorithm, "--json", str(tmp_path / "s.json"))
        assert code == 0, text
        summary = json.loads((tmp_path / "s.json").read_text())
        scores.append(summary["client_test_scores"])
        if algorithm != "fedavg":
            assert (summary["algorithm"], summary["label"]) == (f"{method.stem}:Mine", "Mine")
    assert scores[0] == scores[1]


@pytest.mark.ray
def test_a_class_of_a_file_reaches_workers_that_cannot_import_it(
    tmp_path: Path, results: Path, fedatlas: Call, small_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray was there before the method."""
    monkeypatch.setenv("PYTHONPATH", "")
    assert fedatlas("new-method", "late_idea", "--folder", str(tmp_path))[0] == 0
    words = ["run", "--dataset", "minesweeper", "--clients", "2", "--partition", "random", "--rounds", "2"]
    words += ["--algorithm", f"{tmp_path}/late_idea.py:LateIdea", "--no-tracking"]
    scores = []
    for placement in ("inline", "packed"):
        out = tmp_path / f"{placement}.json"
        code, text = fedatlas(*words, "--placement", placement, "--json", str(out))
        assert code == 0, text
        scores.append(json.loads(out.read_text())["client_test_scores"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_another_source_is_another_trial(method: Path) -> None:
    algorithm = f"{method}:Mine"
    given = {"dataset": "minesweeper", "clients": 3, "partition": "random"}
    before = resolve(experiment({**given, "algorithm": algorithm})).identity()
    assert before["algorithm"] == f"{method.stem}:Mine"
    method.write_text(METHOD + "\nCHANGED = True\n")
    assert resolve(experiment({**given, "algorithm": algorithm})).identity() != before
    assert "code" not in resolve(experiment({**given, "algorithm": "fedavg"})).identity()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.at.all:Mine", "there is no module nowhere"),
        ("./nowhere.py:Mine", "there is no file"),
        ("fedatlas.algorithms.fedavg:FedAvgg", "there is no such class; `fedatlas new-method NAME`"),
        ("fedatlas.algorithms.fedavg:WeightSharingConfiguration", "no subclass of Algorithm"),
        ("fedatlas.platform.federation.contract:Algorithm", "lacks aggregate, broadcast, create"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(reference: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        registry.algorithm_type(reference)


def test_entry_points_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from fedatlas.algorithms import references
    from fedatlas.algorithms.backbones import GCN, backbone_type
    from fedatlas.algorithms.fedprox import FedProx

    points = {
        "fedatlas.algorithms": EntryPoint(
            "installed", "fedatlas.algorithms.fedprox:FedProx", references.ALGORITHM_GROUP
        ),
        "fedatlas.backbones": EntryPoint(
            "network", "fedatlas.algorithms.backbones.gcn:GCN", references.BACKBONE_GROUP
        ),
    }
    monkeypatch.setattr(references, "entry_points", lambda group: [points[group]])
    assert registry.algorithm_type("installed") is FedProx
    assert backbone_type("network") is GCN
    with pytest.raises(FedatlasError, match="did you mean installed"):
        registry.algorithm_type("instaled")


def test_a_backbone_by_reference(method: Path) -> None:
    method.write_text(
        "from fedatlas.algorithms.backbones import GCN\n\n\nclass Wide(GCN):\n    name = 'wide'\n"
    )
    given = {"dataset": "minesweeper", "clients": 3, "partition": "random", "algorithm": "fedavg"}
    found = resolve(experiment({**given, "backbone": f"{method}:Wide"}))
    assert found.params()["backbone"] == f"{method.stem}:Wide"
    assert found.method().describe()["backbone"] == "wide"
    assert found.code is not None


def test_a_folder_of_the_same_name_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospital").mkdir()
    with pytest.raises(ConfigurationError, match=r"write \./hospital"):
        resolved("hospital", partition="random")
    assert own.is_path("./hospital")
