"""The documentation names messages, commands and settings that exist; notebooks run."""

from __future__ import annotations

import ast
import json
import re
import shlex
import xml.etree.ElementTree
from pathlib import Path

import click
import pytest
import typer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
LAYERS = ("platform", "algorithms", "dashboards", "sweeps")


def texts_of_the_code() -> str:
    """Everything between quotation marks, with what is filled in left out."""
    parts = []
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    values = (v.value if isinstance(v, ast.Constant) else "\x00" for v in node.values)
                    parts.append("".join(map(str, values)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    parts.append(node.value)
    return "\n".join(parts)


def test_every_message_under_troubleshooting_is_one_of_the_code() -> None:
    code = texts_of_the_code()
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) > 25
    for message in messages:
        pieces = [piece.strip(" :,") for piece in re.split(r"\.\.\.|'|=?\d+", message)]
        for piece in filter(lambda piece: len(piece) > 3, pieces):
            assert piece in code, f"'{piece}' of '{message}'"


def commands_of(page: Path) -> list[str]:
    """Command lines of fedatlas in code blocks and between back ticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
    # What stands to the right, a comment or the words of a picture, is set off by spaces.
    lines = [line.strip().split("  ")[0] for line in blocks.splitlines()]
    lines += re.findall(r"`(fedatlas [^`]+)`", text)
    found = [line.rstrip(",") for line in lines if re.match(r"([A-Z_]+=\S+ )*fedatlas \w", line)]
    # `--seeds S` and `...` stand for something.
    return [line for line in found if not re.search(r" [A-Z]( |$)|\.\.\.", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_shown_is_accepted(page: Path) -> None:
    """Parsing checks the command, its options and their types; nothing runs."""
    from fedatlas.sweeps.commands import app

    root = typer.main.get_command(app)
    for line in commands_of(page):
        words = shlex.split(re.sub(r"\s*\\$", "", line))
        while "=" in words[0]:
            words.pop(0)
        command: click.Command = root
        words.pop(0)
        while hasattr(command, "commands"):
            if words and words[0].startswith("-"):
                break
            assert words, line
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        if words and not hasattr(command, "commands"):
            try:
                command.make_context("fedatlas", words)
            except Exception as error:
                raise AssertionError(f"{page.name}: {line}: {error}") from None


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_whole(path: Path) -> None:
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.get("aria-label")
    assert path.name in "".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install fedatlas[docs]")
    nbclient = pytest.importorskip("nbclient")
    for name in ("FEDATLAS_DATA", "FEDATLAS_RESULTS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
