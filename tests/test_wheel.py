"""The wheel holds all four packages with their data and works away from the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREE = ("platform", "algorithms", "dashboards", "sweeps", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Content of the wheel, built from a copy of the tree so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in TREE:
        path = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, source / name, ignore=ignore) if path.is_dir() else shutil.copy(path, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_every_module_and_data_file_is_in_the_wheel(unpacked: Path) -> None:
    for layer in TREE[:4]:
        for path in (ROOT / layer).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert (unpacked / "fedatlas" / path.relative_to(ROOT)).is_file(), path


def test_it_runs_away_from_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    """Without `site`, the editable install of the checkout is out of reach."""
    libraries = sysconfig.get_paths()["purelib"]
    script = (
        f"import sys; sys.path[:0] = [{str(unpacked)!r}]; sys.path.append({libraries!r})\n"
        "from fedatlas.sweeps import run\n"
        "import fedatlas.platform.errors as errors\n"
        f"assert errors.__file__.startswith({str(unpacked)!r}), errors.__file__\n"
        "from fedatlas.sweeps.study import expand, read_study\n"
        "assert len(expand(read_study('quickstart')[1])) == 6\n"
        "from fedatlas.dashboards.literature import published\n"
        "assert published('cora', 'metis', 10, 'fedgmc').value == 83.65\n"
        "done = run(dataset='minesweeper', partition='random', clients=3, algorithm='fedgmc', rounds=1,\n"
        "           placement='inline', tracking=False, progress=False)\n"
        "print(done.values['rounds'])\n"
    )
    command = [sys.executable, "-S", "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("1")
