"""`fedatlas data`: the commands print what the store says and exit accordingly."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedatlas.platform.graphs import catalog
from fedatlas.sweeps.commands.data import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "data"


def test_list_names_every_set_and_standin(folder: Path) -> None:
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    for name in catalog.names() + catalog.standin_names():
        assert name in result.output
    assert "embedded" in result.output


@pytest.mark.data
def test_import_then_verify_and_a_corrupt_file_exits_with_1(folder: Path, raw_data: Path) -> None:
    result = CliRunner().invoke(app, ["import", str(raw_data / "Cora")])
    assert result.exit_code == 0
    assert "8 files imported" in result.output
    assert CliRunner().invoke(app, ["verify", "cora"]).exit_code == 0

    damaged = folder / "Cora" / "raw" / "ind.cora.y"
    damaged.write_bytes(b"")
    result = CliRunner().invoke(app, ["verify"])
    assert result.exit_code == 1
    assert str(damaged) in result.output


def test_no_name_touches_its_state(folder: Path) -> None:
    result = CliRunner().invoke(app, ["verify"])
    assert {line.split()[0] for line in result.output.splitlines() if line[0] != " "} >= set(catalog.names())


def test_every_command_shows_an_example() -> None:
    for command in ("list", "import", "verify"):
        assert f"Example: fedatlas data {command}" in CliRunner().invoke(app, [command, "--help"]).output
