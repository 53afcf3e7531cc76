"""Graph classification from the command to the page: real MUTAG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from fedatlas.dashboards.report import write_gains, write_report
from fedatlas.platform.federation.cluster import connected
from fedatlas.platform.graphs import store
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps import Study


@pytest.fixture(scope="module")
def ray_with_mutag(raw_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray whose workers find MUTAG."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("FEDATLAS_DATA", str(tmp_path_factory.mktemp("data")))
        store.import_folder(raw_data / "MUTAG")
        with connected(cpus=2):
            yield


@pytest.mark.data
@pytest.mark.usefixtures("ray_with_mutag", "results")
def test_a_study_of_graphs_has_gains_on_its_page(write_study: Callable[..., str], tmp_path: Path) -> None:
    study = Study(
        write_study(
            "graphs",
            datasets=["mutag"],
            partitions={"iid": [3]},
            methods=["local", {"algorithm": "seal", "options": {"hidden": 8}}],
            seeds=1,
        )
    )
    outcome = study.run()
    assert not outcome.failed
    assert len(outcome.finished) == 2
    tracked = Store()
    page = write_report(tracked, "graphs", tmp_path / "page.html").read_text(encoding="utf-8")
    assert "improved" in page
    gains = pd.read_csv(write_gains(tracked, "graphs", tmp_path / "gains.csv"))
    assert len(gains) == 1
    assert (gains["clients"] == 3).all()
