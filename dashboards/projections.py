"""Case studies: the vectors that a calibrating method has exported, projected to the plane.

The tables are those of `fedatlas.sweeps.casestudy`. A panel projects the first and the last round together;
coordinates of both are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedatlas.dashboards.cells import Repetition
from fedatlas.dashboards.tables import ScenarioTable
from fedatlas.dashboards.traces import clients_of
from fedatlas.platform.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

MOST_VECTORS = 400
"""Node embeddings and radial vectors of one moment; more are drawn without replacement, with a fixed seed."""
SEED = 0
PERPLEXITY = 30.0
MOST_TRIALS = 6

Method = Literal["pca", "tsne"]
Kind = Literal["nodes", "means", "anchors", "templates", "radials"]


@dataclass(frozen=True)
class Points:
    """Vectors of one kind at one moment.

    Attributes:
        kind: what they are.
        labels: class of each, or None.
        places: projected, [n, 2] integers; the longer side of a panel is 2000 wide.
    """

    kind: Kind
    labels: tuple[int | None, ...]
    places: np.ndarray


@dataclass(frozen=True)
class Panel:
    """One projection of some kinds of vectors.

    Attributes:
        method: ``pca`` or ``tsne``.
        title, caption, axes: texts.
        moments: round (1-based) -> vectors.
    """

    method: Method
    title: str
    caption: str
    axes: str
    moments: dict[int, tuple[Points, ...]]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        first, last = min(self.moments), max(self.moments)

        def name(number: int) -> str:
            if first == last:
                return f"after round {number}"
            state = "before refinement has acted" if number == first else "after refinement"
            return f"after round {number}, {state}"

        return {
            "method": self.method,
            "title": self.title,
            "caption": self.caption,
            "axes": self.axes,
            "rounds": [
                {
                    "name": name(number),
                    "groups": [
                        {
                            "kind": group.kind,
                            "points": [
                                [int(x), int(y), label]
                                for (x, y), label in zip(group.places, group.labels, strict=True)
                            ],
                        }
                        for group in groups
                    ],
                }
                for number, groups in sorted(self.moments.items())
            ],
        }


@dataclass(frozen=True)
class Projected:
    """The panels of one trial.

    Attributes:
        title: method, scenario and seed.
        slug: the scenario, for names of files.
        panels: projections.
    """

    title: str
    slug: str
    panels: tuple[Panel, ...]


def casestudies(store: Store, table: ScenarioTable) -> list[Projected]:
    """Panels of the trials that have exported vectors, one seed per cell, at most `MOST_TRIALS`."""
    found: list[Projected] = []
    for (row, column), group in table.groups.items():
        if len(found) == MOST_TRIALS:
            break
        panels = _panels(store, group[0])
        if panels:
            slug = f"{column.dataset}-{column.partition}-{column.clients}"
            found.append(Projected(f"{row.name}, {column.title}, seed {group[0].seed}", slug, panels))
    return found


def _panels(store: Store, each: Repetition) -> tuple[Panel, ...]:
    nodes = clients_of(store, each, "nodes.parquet")
    if nodes is None:
        return ()
    semantic: list[tuple[Kind, pd.DataFrame | None]] = [
        ("nodes", nodes),
        ("means", clients_of(store, each, "class_means.parquet")),
        ("anchors", clients_of(store, each, "anchors.parquet")),
    ]
    structural: list[tuple[Kind, pd.DataFrame | None]] = [
        ("radials", clients_of(store, each, "radials.parquet")),
        ("templates", clients_of(store, each, "templates.parquet")),
    ]
    panels = []
    for title, caption, kinds in (
        (
            "Embeddings, class means and anchors",
            "Unit vectors: structure-free embeddings of nodes (small), calibrated class means of clients "
            "(with a rim) and the server's anchors (stars).",
            semantic,
        ),
        (
            "Radial vectors and templates",
            "Unit vectors: both halves of the radial pairs of nodes (grey) and of the server's templates "
            "(stars).",
            structural,
        ),
    ):
        present = [(kind, frame) for kind, frame in kinds if frame is not None and not frame.empty]
        if present:
            panels += [_panel(method, title, caption, present) for method in _METHODS]
    return tuple(panels)


_METHODS: tuple[Method, ...] = ("pca", "tsne")


def _panel(method: Method, title: str, caption: str, kinds: Sequence[tuple[Kind, pd.DataFrame]]) -> Panel:
    parts: list[tuple[int, Kind, tuple[int | None, ...], np.ndarray]] = []
    for kind, frame in kinds:
        for number, moment in frame.groupby("round"):
            chosen = moment
            if len(moment) > MOST_VECTORS:
                draw = np.random.default_rng(SEED).choice(len(moment), MOST_VECTORS, replace=False)
                chosen = moment.iloc[np.sort(draw)]
            vectors = chosen.filter(regex=r"^x\d+$").to_numpy(dtype=float)
            parts.append((int(str(number)) + 1, kind, _labels(chosen), _unit(vectors)))
    stacked = np.concatenate([vectors for *_, vectors in parts])
    places, axes = project(stacked, method)
    places = _scaled(places)
    moments: dict[int, tuple[Points, ...]] = {}
    start = 0
    for number, kind, labels, vectors in parts:
        end = start + len(vectors)
        moments[number] = (*moments.get(number, ()), Points(kind, labels, places[start:end]))
        start = end
    return Panel(method, title, caption, axes, moments)


def _scaled(places: np.ndarray) -> np.ndarray:
    span = float(np.ptp(places, axis=0).max()) or 1.0
    scaled: np.ndarray = np.rint(2000 * (places - places.min(axis=0)) / span).astype(int)
    return scaled


def _labels(frame: pd.DataFrame) -> tuple[int | None, ...]:
    for name in ("label", "class"):
        if name in frame.columns:
            return tuple(int(value) for value in frame[name])
    return (None,) * len(frame)


def _unit(vectors: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def project(vectors: np.ndarray, method: Method) -> tuple[np.ndarray, str]:
    """Vectors [n, p] in the plane [n, 2], and what the axes are.

    Args:
        vectors: rows.
        method: ``pca``, the first two principal axes; ``tsne``, t-SNE with a fixed seed, started from them.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(vectors) < 3 or vectors.shape[1] < 2:
        return np.zeros((len(vectors), 2)), "too few vectors to project"
    axes = PCA(n_components=2, random_state=SEED).fit(vectors)
    if method == "pca":
        share = 100 * axes.explained_variance_ratio_
        return axes.transform(
            vectors
        ), f"principal axes: {share[0]:.0f} % and {share[1]:.0f} % of the variance"
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    found = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=SEED).fit_transform(vectors)
    return np.asarray(found), f"t-SNE, perplexity {perplexity:g}, seed {SEED}"
