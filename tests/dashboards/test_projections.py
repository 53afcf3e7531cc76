"""Case studies: the same plane for both moments, and the same picture each time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedatlas.dashboards.projections import MOST_VECTORS, casestudies, project
from fedatlas.dashboards.report import write_report
from fedatlas.dashboards.tables import method_by_scenario
from fedatlas.platform.tracking.reading import trials

from .conftest import Write, trial_record


def exported(nodes: int = 30) -> dict[str, pd.DataFrame]:
    draw = np.random.default_rng(0)

    def table(count: int, **columns: object) -> pd.DataFrame:
        vectors = pd.DataFrame(draw.normal(size=(count, 4)), columns=[f"x{place}" for place in range(4)])
        return pd.concat([pd.DataFrame(columns, index=range(count)), vectors], axis=1)

    both = [
        [
            table(
                nodes, round=number, client=0, node=range(nodes), label=[place % 3 for place in range(nodes)]
            ),
            table(3, round=number, **{"class": [0, 1, 2]}),
            table(2, round=number, template=[0, 1], half=1),
            table(nodes, round=number, client=0, node=range(nodes), half=1),
        ]
        for number in (0, 9)
    ]
    names = ("nodes", "anchors", "templates", "radials")
    return {
        f"{name}.parquet": pd.concat(parts, ignore_index=True)
        for name, parts in zip(names, zip(*both, strict=True), strict=True)
    }


def test_panels_hold_both_moments_and_at_most_so_many_vectors(write: Write, results: object) -> None:
    nodes = MOST_VECTORS + 50
    store = write("case", [trial_record("fedgmc", 0.8, files=exported(nodes)), trial_record("local", 0.5)])
    (table,) = method_by_scenario(trials(store, "case"))
    (found,) = casestudies(store, table)
    assert found.title == "FedGMC, Cora · metis · 10 clients, seed 0"
    assert [(panel.method, panel.title.split()[0]) for panel in found.panels] == [
        ("pca", "Embeddings,"),
        ("tsne", "Embeddings,"),
        ("pca", "Radial"),
        ("tsne", "Radial"),
    ]
    semantic = found.panels[0].plain()
    assert [moment["name"] for moment in semantic["rounds"]] == [
        "after round 1, before refinement has acted",
        "after round 10, after refinement",
    ]
    counts = {group["kind"]: len(group["points"]) for group in semantic["rounds"][1]["groups"]}
    assert counts == {"nodes": MOST_VECTORS, "anchors": 3}
    assert casestudies(store, table) is not None
    page = write_report(store, "case", results / "case.html").read_text(encoding="utf-8")  # type: ignore[operator]
    assert 'data-part="casestudy"' in page


def test_a_projection_is_the_same_each_time() -> None:
    vectors = np.random.default_rng(2).normal(size=(40, 6))
    for method in ("pca", "tsne"):
        one, axes = project(vectors, method)  # type: ignore[arg-type]
        other, _ = project(vectors, method)  # type: ignore[arg-type]
        np.testing.assert_array_equal(one, other)
        assert one.shape == (40, 2)
        assert axes


def test_principal_axes_keep_a_plane() -> None:
    plane = np.random.default_rng(3).normal(size=(20, 2))
    turned = plane @ np.linalg.qr(np.random.default_rng(4).normal(size=(5, 5)))[0][:2]
    found, axes = project(turned, "pca")
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=2), distances, atol=1e-9)
    assert axes.endswith("of the variance")


def test_two_vectors_are_not_projected() -> None:
    places, axes = project(np.ones((2, 3)), "tsne")
    assert places.shape == (2, 2)
    assert axes == "too few vectors to project"
