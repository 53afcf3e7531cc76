"""Each command's help has an example that the command itself accepts; shells complete names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from fedatlas.sweeps.commands import app, completion

ROOT = typer.main.get_command(app)


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    found = getattr(command, "commands", None)
    if found is None:
        yield path, command
        return
    for name, each in found.items():
        yield from commands(each, (*path, name))


ALL = dict(commands(ROOT))


def example(command: click.Command) -> list[str]:
    found = re.search(r"Example: (.+)", command.help or "")
    assert found is not None, "no example"
    words = shlex.split(found[1])
    while "=" in words[0]:
        words.pop(0)
    assert words[0] == "fedatlas"
    return words[1:]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_example_of_a_command_is_accepted_by_it(path: tuple[str, ...]) -> None:
    """Parsing checks every option, type and argument; nothing runs."""
    words = example(ALL[path])
    assert tuple(words[: len(path)]) == path
    ALL[path].make_context("fedatlas", words[len(path) :])


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_says_what_each_option_is(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", "") or parameter.name == "help", parameter.name


RUNNABLE = ("algorithms", "data list", "data describe", "partition", "doctor", "new-method", "check", "plan")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_examples_that_need_nothing_run(name: str, tmp_path: Path) -> None:
    words = example(ALL[tuple(name.split())])
    if name == "plan":
        words = ["plan", "quickstart"]
    environment = {**os.environ, "FEDATLAS_RESULTS": str(tmp_path), "FEDATLAS_DATA": str(tmp_path / "data")}
    script = "from fedatlas.sweeps.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


def completed(words: str, number: int) -> list[str]:
    environment = {
        **os.environ,
        "_FEDATLAS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number),
    }
    script = "import sys; sys.argv[0] = 'fedatlas'; from fedatlas.sweeps.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def test_a_shell_completes_commands_and_names() -> None:
    assert completed("fedatlas run --algorithm fedg", 3) == ["fedgnn", "fedgta", "fedgmc"]
    assert "sweep" in completed("fedatlas sw", 1)


def test_completion_knows_what_there_is() -> None:
    from fedatlas.algorithms.backbones import BACKBONES
    from fedatlas.algorithms.registry import ALGORITHMS
    from fedatlas.platform.federation.placement import PLACEMENTS
    from fedatlas.platform.graphs.federated import CHOICES
    from fedatlas.sweeps.study import available_studies

    assert completion.algorithms("") == list(ALGORITHMS)
    assert sorted(completion.backbones("")) == sorted(BACKBONES)
    assert completion.partitions("") == list(CHOICES["partition"])
    assert sorted(completion.placements("")) == sorted(PLACEMENTS)
    assert completion.studies("") == available_studies()
    assert completion.datasets("standin:q") == ["standin:questions"]
