"""What the source must not do: read pickles, run what it reads, listen to the network, leave its folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedatlas.dashboards.export import export_path
from fedatlas.dashboards.report import report_path
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs import catalog
from fedatlas.platform.tracking.destination import results_folder
from fedatlas.sweeps.study import read_study, require_name

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for package in ("platform", "algorithms", "dashboards", "sweeps", "benchmarks", "docs")
    for path in (ROOT / package).rglob("*.py")
)
SAFE_LOADERS = {"_UniqueKeys", "_LOADER", "SafeLoader", "CSafeLoader"}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a module with the dotted name of what is called."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name, function = [], node.func
            while isinstance(function, ast.Attribute):
                name.append(function.attr)
                function = function.value
            if isinstance(function, ast.Name):
                name.append(function.id)
            yield ".".join(reversed(name)), node


def argument(call: ast.Call, name: str) -> object:
    value = next((each.value for each in call.keywords if each.arg == name), None)
    return value.value if isinstance(value, ast.Constant) else None


def fault(name: str, call: ast.Call) -> str | None:
    """Why a call is not allowed."""
    last = name.rsplit(".", 1)[-1]
    if name in ("pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load"):
        return "reads a pickle"
    if name.endswith(("pandas.read_pickle", "pd.read_pickle")):
        return "reads a pickle"
    if name == "torch.load" and argument(call, "weights_only") is not True:
        return "reads a pickle: weights_only=True"
    if name in ("np.load", "numpy.load") and argument(call, "allow_pickle") is not False:
        return "may read a pickle: allow_pickle=False"
    if name in ("yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.unsafe_load_all"):
        return "makes objects of YAML"
    if name == "yaml.load":
        loader = call.args[1] if len(call.args) > 1 else None
        if not isinstance(loader, ast.Name) or loader.id not in SAFE_LOADERS:
            return "makes objects of YAML"
    if name in ("eval", "exec", "os.system", "os.popen"):
        return "runs a text"
    if last in ("Popen", "run", "check_output") and argument(call, "shell") is True:
        return "runs a text"
    if last in ("extractall", "unpack_archive"):
        return "lets an archive decide where files go"
    return None


def test_the_audit_sees_what_it_looks_for() -> None:
    bad = """
torch.load(path)
np.load(path)
yaml.load(text, yaml.Loader)
pickle.loads(text)
subprocess.run(text, shell=True)
archive.extractall(folder)
"""
    found = [fault(name, node) for name, node in _of(bad)]
    assert all(found)
    good = "torch.load(path, weights_only=True)\nnp.load(path, allow_pickle=False)\nyaml.safe_load(text)"
    assert not any(fault(name, node) for name, node in _of(good))


def _of(text: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_reads_pickles_or_runs_what_it_reads(path: Path) -> None:
    found = [(node.lineno, name, why) for name, node in calls(path) if (why := fault(name, node))]
    assert not found


def test_raw_files_that_are_pickles_have_a_known_sha256() -> None:
    """Planetoid's files are. Other copies are accepted of CSV files and npz files, which carry no code."""
    kinds = {catalog.entry(name).library for name in catalog.names()}
    assert "planetoid" in kinds
    for name in catalog.names():
        entry = catalog.entry(name)
        for raw in entry.files:
            if entry.library == "planetoid":
                assert raw.closed, f"{name}: other copies of {raw.name} are accepted"
                assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in raw.sha256)
            elif not raw.closed:
                assert raw.name.endswith((".npz", ".csv.gz"))


def test_nothing_listens_beyond_this_machine_unless_told() -> None:
    """The guide for a cluster starts a server for others; nothing that fedatlas starts does."""
    for path in [*SOURCES, *(ROOT / "sweeps" / "cluster").iterdir(), ROOT / "Makefile"]:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"0\.0\.0\.0|--host[= ]['\"]?(::|\*)|INADDR_ANY", text), path


# Names


@pytest.mark.parametrize(
    "name", ["../escape", "..", ".", "a/b", "/tmp/x", "", "a\x00b", "-rf", ".hidden", "a" * 101]
)
def test_a_study_whose_name_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a study"):
        require_name(name)


@pytest.mark.parametrize("file", ["...yaml", "a\x01.yaml", "~$x.yaml"])
def test_so_is_a_file_of_such_a_name(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("description: x")
    with pytest.raises(ConfigurationError, match="cannot be the name of a study"):
        read_study(str(tmp_path / file))


@given(some.text(max_size=120))
def test_no_name_of_a_study_leads_out_of_the_results_folder(name: str) -> None:
    for path in (report_path(name), export_path(name)):
        assert path.resolve().is_relative_to(results_folder())
        assert path.parent.parent == results_folder()
    try:
        require_name(name)
    except ConfigurationError:
        return
    assert (results_folder() / "studies" / name).resolve().parent == results_folder() / "studies"
