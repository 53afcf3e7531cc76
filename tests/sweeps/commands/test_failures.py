"""A disk full or read-only, a folder without permission or gone: told in words, finished work kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedatlas.sweeps.commands.failures import refusal

FEDATLAS = Path(sys.executable).with_name("fedatlas")
RUN = ("run", "--dataset", "minesweeper", "--clients", "5", "--algorithm", "fedavg", "--rounds", "3")


SWEEP = ("sweep", "quickstart", "--seeds", "1", "--rounds", "3", "--no-report")
OBEYS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root may write everywhere; the program that this starts may not."""


def command(words: tuple[str, ...], results: Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, str(FEDATLAS), *words],
        env={**os.environ, "FEDATLAS_RESULTS": str(results), "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "fill"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return path


def test_a_refusal_names_the_place_and_what_to_do() -> None:
    said = refusal(FileNotFoundError(2, "No such file or directory", "/data/gone"))
    assert said is not None
    assert said.startswith("/data/gone: No such file or directory. ")
    assert "FEDATLAS_RESULTS" in said
    assert refusal(ConnectionRefusedError(111, "Connection refused")) is None
    assert refusal(OSError("no number")) is None


def test_a_run_on_a_full_disk_says_so(disk: Path) -> None:
    filler = fill(disk)
    process = command(RUN, disk / "results")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert "No space left on device" in output
    filler.unlink()
    process = command(RUN, disk / "results")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


@pytest.mark.parametrize("words", [RUN, pytest.param(SWEEP, marks=pytest.mark.slow)], ids=["run", "sweep"])
def test_a_read_only_disk_is_told_before_anything_runs(disk: Path, words: tuple[str, ...]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    output, _ = (process := command(words, disk / "results")).communicate(timeout=120)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert "Read-only file system" in output
    assert "FEDATLAS_RESULTS" in output
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    output, _ = (process := command(words, disk / "results")).communicate(timeout=300)
    assert process.returncode == 0, output


@pytest.mark.parametrize("words", [RUN, pytest.param(SWEEP, marks=pytest.mark.slow)], ids=["run", "sweep"])
def test_a_folder_without_permission_is_told_before_anything_runs(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    before = OBEYS if os.geteuid() == 0 else ()
    if before and shutil.which(before[0]) is None:
        pytest.skip("root obeys no permission")
    tmp_path.chmod(0o555)
    output, _ = (process := command(words, tmp_path / "results", before)).communicate(timeout=120)
    tmp_path.chmod(0o755)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert f"results folder {tmp_path / 'results'} cannot be written (Permission denied)" in output
    assert "FEDATLAS_RESULTS" in output


@pytest.mark.slow
def test_a_study_whose_disk_fills_up_goes_on_when_there_is_room(disk: Path) -> None:
    words = ("sweep", "quickstart", "--seeds", "1", "--rounds", "400", "--no-report")
    process = command(words, disk / "results")
    while not list(disk.glob("results/studies/quickstart/*/run_id")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    filler = fill(disk)
    output, _ = process.communicate(timeout=300)
    assert process.returncode in (1, 2), output
    assert "Traceback" not in output
    assert "No space left on device" in output or "disk is full" in output
    filler.unlink()
    process = command(words, disk / "results")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(list(disk.glob("results/studies/quickstart/*/summary.json"))) == 3


@pytest.mark.slow
def test_a_study_whose_results_folder_is_removed_ends(tmp_path: Path) -> None:
    results = tmp_path / "results"
    process = command(("sweep", "quickstart", "--seeds", "1", "--rounds", "2000"), results)
    while not list(results.glob("studies/quickstart/*/run_id")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    results.rename(tmp_path / "elsewhere")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert f"{results}: The results folder was removed while the study ran. " in output
