"""Small studies, a small Ray, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedatlas.platform.federation.cluster import connected
from fedatlas.platform.federation.records import RoundRecord

SMALL: dict[str, Any] = {
    "description": "A study for tests.",
    "datasets": ["minesweeper"],
    "partitions": {"random": [3]},
    "methods": ["local", {"algorithm": "fedavg", "options": {"hidden": 8}}],
    "seeds": 2,
    "rounds": 2,
    "settings": {"placement": "inline"},
}
"""Four short trials on the embedded data set."""


def two_rounds() -> list[RoundRecord]:
    """Records of a run of three clients as a coordinator leaves them."""
    return [
        RoundRecord(
            round=number,
            validation=0.5,
            test=0.4,
            client_validation=(0.4, 0.5, 0.6),
            client_test=(0.3, 0.4, 0.5),
            uplink={"weights": 30},
            downlink={"weights": 30},
            seconds={"train": 0.2, "round": 0.3},
        )
        for number in (0, 1)
    ]


@pytest.fixture
def write_study(tmp_path: Path) -> Callable[..., str]:
    """Writes a study file: `SMALL` with some keys changed. Returns its path."""

    def write(name: str = "small", **changes: Any) -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **changes}))
        return str(path)

    return write


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    """Ray with two CPUs and one GPU that does not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with connected(cpus=2, gpus=1):
            yield


@pytest.fixture
def fedatlas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the command line in this process: exit code, and what it printed."""

    def call(*words: str) -> tuple[int, str]:
        from fedatlas.sweeps.commands import main

        monkeypatch.setattr("sys.argv", ["fedatlas", *words])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, printed.out + printed.err

    return call
