"""`fedatlas report` hands over to the report and prints where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedatlas.platform.errors import FedatlasError
from fedatlas.sweeps.commands.report import report


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Path]]:
    seen: list[tuple[str, Path]] = []

    def write(store: object, experiment: str, path: Path, ui: str | None) -> Path:
        if experiment == "none":
            raise FedatlasError("no sweep 'none'")
        seen.append((experiment, path))
        return path

    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path))
    monkeypatch.setattr("fedatlas.dashboards.report.write_report", write)
    monkeypatch.setattr("fedatlas.dashboards.report.keep_page", lambda store, experiment, path: None)
    monkeypatch.setattr("fedatlas.platform.tracking.store.Store", lambda: None)
    return seen


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command("report")(report)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.strip()


def test_the_default_place_is_in_the_results_folder(calls: list[tuple[str, Path]], tmp_path: Path) -> None:
    path = tmp_path / "reports" / "quickstart.html"
    assert run("quickstart") == str(path)
    assert calls == [("quickstart", path)]


def test_a_name_cannot_leave_the_folder(calls: list[tuple[str, Path]], tmp_path: Path) -> None:
    run("../../etc/a b")
    assert calls[0][1].parent == tmp_path / "reports"


def test_the_place_can_be_given(calls: list[tuple[str, Path]], tmp_path: Path) -> None:
    run("quickstart", "--output", str(tmp_path / "x.html"))
    assert calls == [("quickstart", tmp_path / "x.html")]


@pytest.mark.usefixtures("calls")
def test_an_error_of_the_report_is_passed_on() -> None:
    with pytest.raises(FedatlasError, match="no sweep 'none'"):
        run("none")


def test_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedatlas.sweeps.commands.report;"
        "print([name for name in ('torch', 'pandas', 'jinja2', 'mlflow', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
