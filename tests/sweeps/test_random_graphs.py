"""Made-up graphs from the file to the result: each is run to a finite result, or refused in words.

Duplicate edges, self-loops, one direction only, nodes that do not exist, isolated nodes, no edges, one node,
one class, negative labels, NaN and infinite features, more clients than nodes, 32-bit indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.records import RoundRecord
from fedatlas.sweeps import run
from fedatlas.sweeps.federations import SMALL
from fedatlas.sweeps.recording import rounds_table

METHODS = [name for name, kind in ALGORITHMS.items() if "node" in kind.levels]
SCORES = ("val/score", "test/score", "test/worst_decile")
PARTITIONS = ("random", "metis", "metis-overlap", "louvain", "label-skew")


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Arrays of a graph with anything that a file may hold; most are usable."""
    n = draw(st.integers(1, 14))
    wild = draw(st.integers(0, 5)) == 0
    kind = draw(st.sampled_from([np.int32, np.int64]))
    last = n if wild else n - 1
    pairs = draw(st.lists(st.tuples(st.integers(-1 if wild else 0, last), st.integers(0, last)), max_size=40))
    draws = np.random.default_rng(draw(st.integers(0, 2**16)))
    features = draws.standard_normal((n, draw(st.integers(1, 4)))).astype(np.float32)
    if wild and draw(st.booleans()):
        features[draws.integers(n), 0] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e38]))
    classes = draw(st.integers(1, 3))
    labels = draws.integers(-1 if wild else 0, classes, n)
    return {
        "x": features,
        "edge_index": np.array(pairs, dtype=kind).reshape(-1, 2).T,
        "y": labels.astype(draw(st.sampled_from([np.int32, np.int64]))),
    }


def check(examples: int) -> tuple[int, int]:
    """Numbers of graphs that ran and that were refused."""
    ended = {True: 0, False: 0}
    seen: list[RoundRecord] = []

    def noted(records: Sequence[RoundRecord]) -> pd.DataFrame:
        seen[:] = records
        return rounds_table(records)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        graph=graphs(),
        clients=st.integers(1, 6),
        partition=st.sampled_from(PARTITIONS),
        method=st.sampled_from(METHODS),
        seed=st.integers(0, 3),
    )
    def holds(graph: dict[str, Any], clients: int, partition: str, method: str, seed: int) -> None:
        known = ALGORITHMS[method].configuration_type.model_fields
        try:
            found = run(
                graph,
                clients,
                method,
                partition=partition,
                seed=seed,
                rounds=2,
                placement="inline",
                allow_untrained=True,
                options={key: value for key, value in SMALL.items() if key in known},
                tracking=False,
                progress=False,
                announce=lambda text: None,
            )
        except FedatlasError:
            ended[False] += 1
            return
        ended[True] += 1
        for record in seen:
            # Scores are undefined without scored nodes. In the table figures that a round lacks are NaN too.
            figures = {key: value for key, value in record.tracked().items() if key not in SCORES}
            assert np.isfinite(list(figures.values())).all(), figures
        scores = found.clients[["validation", "test"]].to_numpy()
        assert ((scores >= 0) & (scores <= 1) | np.isnan(scores)).all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedatlas.sweeps.recording.rounds_table", noted)
        holds()
    return ended[True], ended[False]


def test_any_graph_runs_or_is_refused_in_words(results: Path) -> None:
    ran, refused = check(25)
    assert ran
    assert refused


@pytest.mark.slow
def test_many_graphs_run_or_are_refused_in_words(results: Path) -> None:
    ran, refused = check(400)
    assert ran > 50
    assert refused > 50
