"""The case-study tables hold what the method holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.federated import build
from fedatlas.sweeps import run
from fedatlas.sweeps.experiment import experiment, resolve

SMALL = {"dataset": "minesweeper", "clients": 3, "partition": "random", "rounds": 2, "placement": "inline"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("case")
    result = run(
        algorithm="fedgmc",
        export=folder,
        tracking=False,
        progress=False,
        options={"hidden": 8, "templates": 4},
        **SMALL,
    )
    return result, {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}


def test_anchors_and_templates_are_unit_vectors_of_both_rounds(exported) -> None:
    _, tables = exported
    for name, rows in (("anchors", 2 * 2), ("templates", 2 * 4 * 2)):
        table = tables[name]
        assert len(table) == rows
        assert set(table["round"]) == {0, 1}
        np.testing.assert_allclose(np.linalg.norm(table.filter(regex=r"^x\d"), axis=1), 1.0, atol=1e-6)


def test_nodes_are_the_clients_nodes_and_predictions_give_the_score(exported) -> None:
    result, tables = exported
    scenario = resolve(experiment({**SMALL, "algorithm": "fedgmc"})).scenario()
    nodes = tables["nodes"][tables["nodes"]["round"] == 1]
    for graph in build(scenario).clients:
        mine = nodes[nodes["client"] == graph.client]
        np.testing.assert_array_equal(mine["node"], graph.nodes)
        np.testing.assert_array_equal(mine["label"], graph.labels)
        assert (mine["role"] == "test").sum() == graph.test.sum()
    assert len(tables["radials"]) == 2 * len(tables["nodes"])
    assert result.values["rounds"] == 2


def test_a_method_with_nothing_to_export_says_so(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to export: use algorithm=fedgmc"):
        run(algorithm="local", export=tmp_path / "none", tracking=False, progress=False, **SMALL)
