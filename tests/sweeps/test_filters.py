"""Which trials of a study are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import Study

Write = Callable[..., str]
GRID: dict[str, Any] = {
    "datasets": ["minesweeper", "cora"],
    "partitions": {"random": [3, 4]},
    "methods": ["local", {"algorithm": "fedavg", "axes": [{"product": {"lr": [0.5, 1.0]}}]}],
    "seeds": 2,
}
"""2 data sets x 2 client counts x 3 rows x 2 seeds."""


@pytest.mark.parametrize(
    ("changes", "overrides", "count"),
    [
        ({}, {}, 24),
        ({"only": ["cora"]}, {}, 12),
        ({"only": ["cora", "clients=4"]}, {}, 6),
        ({"only": ["cora"]}, {"only": ("clients=4",)}, 6),
        ({"without": ["cora"]}, {}, 12),
        ({"without": ["cora", "clients=4"]}, {}, 6),
        ({"without": [{"dataset": "cora", "clients": 4}]}, {}, 18),
        ({"without": [{"dataset": ["cora"], "algorithm": ["fedavg", "local"], "seed": 1}]}, {}, 18),
        ({"only": [{"lr": 1.0}]}, {}, 8),
        ({"only": [{"lr": [0.5, 1]}]}, {}, 16),
        ({}, {"only": ("lr=1.0",)}, 8),
        ({}, {"without": ("local", "seed=0")}, 8),
        ({"without": ["fedavg"]}, {"without": ("seed=0",)}, 4),
        # What the file leaves out need not be there where the command names other methods.
        ({"without": ["label=Local"]}, {"algorithms": ("fedopt",)}, 8),
    ],
)
def test_conditions(
    write_study: Write, changes: dict[str, Any], overrides: dict[str, Any], count: int
) -> None:
    assert len(Study(write_study(**{**GRID, **changes}), **overrides).experiments) == count


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"without": ["pubmed"]},
            "data set or method of this study 'pubmed': valid: cora, fedavg, local, mi",
        ),
        ({"without": [{"dataset": "cora", "client": 4}]}, "filter 'client': did you mean clients"),
        ({"only": ["hidden=3"]}, "filter 'hidden'"),
        ({"only": ["lr=2"]}, "lr of this study '2'"),
        ({"only": ["cora"], "without": ["cora"]}, "nothing is left of the study with only=cora and without="),
    ],
)
def test_bad_conditions_are_named(write_study: Write, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Study(write_study(**{**GRID, **changes}))
