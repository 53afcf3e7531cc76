"""The layers point one way: platform <- algorithms <- dashboards <- sweeps."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("platform", "algorithms", "dashboards", "sweeps")
MODULES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Full names that a module imports, at the top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_its_own_layer_and_those_below(path: Path) -> None:
    level = LAYERS.index(path.relative_to(ROOT).parts[0])
    for name in imported(path):
        if name.startswith("fedatlas."):
            assert LAYERS.index(name.split(".")[1]) <= level, f"{path} imports {name}"
        else:
            assert name.split(".")[0] != "fedatlas", f"{path} imports the namespace itself"


@pytest.mark.parametrize("path", sorted((ROOT / "algorithms").rglob("*.py")), ids=lambda path: path.name)
def test_methods_know_neither_ray_nor_mlflow(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & {"ray", "mlflow"}


def loaded_after(code: str) -> set[str]:
    """Top-level modules in memory after running some code in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    return set(done.stdout.split("\n")[-2].split())


def test_the_in_process_runtime_needs_neither_ray_nor_mlflow() -> None:
    loaded = loaded_after(
        "import fedatlas.algorithms.registry, fedatlas.platform.federation.coordinator, "
        "fedatlas.platform.federation.runtime"
    )
    assert "torch" in loaded
    assert not loaded & {"ray", "mlflow", "torch_geometric", "ogb", "pandas", "sklearn", "ot", "networkx"} - {
        "networkx"  # torch itself may import it
    }


def test_client_actors_import_torch_but_no_graph_library() -> None:
    """An actor that imports torch_geometric takes seconds longer to start and 100 MB more."""
    loaded = loaded_after("import fedatlas.platform.federation.actors, fedatlas.algorithms.registry")
    assert "ray" in loaded
    assert not loaded & {"mlflow", "torch_geometric", "ogb", "sklearn", "ot", "pymetis", "matplotlib"}


def test_the_command_line_starts_without_heavy_imports() -> None:
    loaded = loaded_after("import fedatlas.sweeps.commands")
    assert not loaded & {"torch", "ray", "mlflow", "pandas", "matplotlib", "sklearn", "torch_geometric"}
