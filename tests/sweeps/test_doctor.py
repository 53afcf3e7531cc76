"""`fedatlas doctor` finds what would go wrong, says how to mend it, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedatlas.sweeps import doctor
from fedatlas.sweeps.doctor import Finding

Call = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path / "results"))
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def found() -> dict[str, Finding]:
    return {each.subject: each for each in doctor.examine()}


def test_a_sound_machine_has_no_problem_and_nothing_is_written(fedatlas: Call, tmp_path: Path) -> None:
    code, text = fedatlas("doctor")
    assert code == 0, text
    assert "0 problems" in text
    assert "a ring of 12 gave" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "subject", "level", "remedy"),
    [
        ("RAY_ADDRESS", "127.0.0.1:1", "Ray", "problem", "ray start --head"),
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:1", "tracking store", "warning", "fedatlas sync"),
        ("FEDATLAS_DATA", "/proc/nowhere", "data folder", "problem", "set FEDATLAS_DATA"),
        ("FEDATLAS_RESULTS", "/proc/nowhere", "results folder", "problem", "set FEDATLAS_RESULTS"),
        ("OMP_NUM_THREADS", "8", "threads", "warning", "export OMP_NUM_THREADS=1"),
    ],
)
def test_each_setting_that_would_fail_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, subject: str, level: str, remedy: str
) -> None:
    monkeypatch.setenv(variable, value)
    finding = found()[subject]
    assert (finding.level, remedy in finding.remedy) == (level, True)


def test_corrupt_files_are_a_problem(tmp_path: Path, fedatlas: Call) -> None:
    path = tmp_path / "data" / "actor" / "raw" / "actor.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert found()["data sets"].level == "problem"
    assert fedatlas("doctor")[0] == 1


def test_an_old_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["torch>=99.0", "nowhere>=1.0", "pytest>=99 ; extra == 'dev'"]
    monkeypatch.setattr(doctor, "requires", lambda name: needed)
    finding = found()["packages"]
    assert finding.level == "problem"
    assert "is older than 99.0; nowhere is missing" in finding.found
