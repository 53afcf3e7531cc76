"""One distribution made of four folders; `platform/` must not shadow the standard library."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("platform", "algorithms", "dashboards", "sweeps")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = SETTINGS["tool"]["setuptools"]


def folders_with_modules() -> set[str]:
    found = set()
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            found.add("fedatlas." + ".".join(path.parent.relative_to(ROOT).parts))
    return found


def test_every_folder_with_modules_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == folders_with_modules()


def test_every_data_file_is_listed() -> None:
    patterns = {
        package: {suffix.lstrip("*") for suffix in suffixes}
        for package, suffixes in SETUPTOOLS["package-data"].items()
    }
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*"):
            if path.is_dir() or path.suffix in (".py", ".pyc"):
                continue
            package = "fedatlas." + ".".join(path.parent.relative_to(ROOT).parts)
            assert any(path.name.endswith(end) for end in patterns.get(package, ())), path


def test_platform_has_no_init() -> None:
    """With one, `import platform` from the repository root finds the folder, and torch and ray die."""
    assert not (ROOT / "platform" / "__init__.py").exists()


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    return done.stdout.strip()


SHOW = "import platform; print(platform.python_version(), platform.__file__)"


def test_the_standard_platform_module_wins_in_the_repository_root() -> None:
    """Under `python -c`, which puts the working directory first on the path."""
    number, path = run(sys.executable, "-c", SHOW).split(" ", 1)
    assert number == sys.version.split()[0]
    assert not Path(path).is_relative_to(ROOT / "platform")


def test_the_standard_platform_module_wins_under_python_m_pytest(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("def test_it():\n    import platform\n    assert platform.python_version()\n")
    assert "1 passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))


def test_version_is_that_of_the_distribution() -> None:
    assert version("fedatlas") == SETTINGS["project"]["version"]


def test_pinned_versions_cover_the_dependencies() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = SETTINGS["project"]["optional-dependencies"]
    named = SETTINGS["project"]["dependencies"] + extras["dev"] + extras["docs"]
    wanted = {name.split(">")[0].split("[")[0].lower().replace("_", "-") for name in named}
    assert wanted <= pinned
