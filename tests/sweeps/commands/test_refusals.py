"""A bad configuration is refused in words, at once, before anything starts.

Seconds are those of the CPU, which a busy machine does not prolong without end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 2.0
"""What a refusal may take."""
AGAINST_TORCH = 2.5
"""Where importing torch alone takes almost as long: how many times as long as that."""

PROGRAM = """
import resource, sys
from fedatlas.sweeps.commands import main
try:
    main()
finally:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    print(spent.ru_utime + spent.ru_stime, *sorted({name.split('.')[0] for name in sys.modules}))
"""
TORCH = """
import resource, torch
spent = resource.getrusage(resource.RUSAGE_SELF)
print(spent.ru_utime + spent.ru_stime)
"""
HEAVY = {"ray", "mlflow", "pandas", "matplotlib", "sklearn", "torch_geometric", "pyarrow"}

RUN = ("run", "--dataset", "minesweeper", "--algorithm", "fedgmc")
TUNE = ("tune", "--dataset", "minesweeper", "--algorithm", "fedgmc")
STUDY = """\
description: Refused.
datasets: [minesweeper]
partitions: {metis: [5]}
methods: [{algorithm: fedgmc, options: {OPTION}}]
rounds: 3
"""

QUICK = {
    "option": ((*RUN, "--set", "tau=warm"), "tau='warm'"),
    "study": (("sweep", "taau: 1"), "'taau'"),
}
OTHERS = {
    "data set": (("run", "--dataset", "nosuch", "--algorithm", "fedavg"), "unknown data set 'nosuch'"),
    "no data set": (("run", "--algorithm", "fedavg"), "--dataset is missing"),
    "method": (("run", "--dataset", "minesweeper", "--algorithm", "fedagv"), "'fedagv': did you mean fedavg"),
    "clients": ((*RUN, "--clients", "-5"), "clients=-5"),
    "partition": ((*RUN, "--partition", "mettis"), "mettis"),
    "backbone": ((*RUN, "--backbone", "gcnn"), "'gcnn'"),
    "setting": ((*RUN, "--set", "participation=2"), "participation=2"),
    "noise": ((*RUN, "--set", "noise_delta=0.1"), "noise_delta=0.1"),
    "placement": ((*RUN, "--placement", "somewhere"), "unknown placement 'somewhere'"),
    "value in a study": (("sweep", "tau: -1"), "tau=-1"),
    "plan": (("plan", "taau: 1"), "'taau'"),
    "study's name": (("sweep", "quikstart"), "'quikstart'"),
    "filter": (("sweep", "quickstart", "--only", "clients=7"), "clients of this study '7'"),
    "search": ((*TUNE, "--search", "warmth"), "'warmth'"),
    "blindness": ((*TUNE, "--set", "weighting=test_nodes"), "weighting=test_nodes"),
    "submission": (("submit", "quikstart"), "'quikstart'"),
    "address": (("submit", "quickstart"), "RAY_ADDRESS is not set"),
    "tune": (("tune", "--dataset", "minesweeper", "--algorithm", "fedagv"), "'fedagv'"),
}
CASES = [pytest.param(*case, id=name) for name, case in QUICK.items()] + [
    pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in OTHERS.items()
]


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-c", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**inherited, "COLUMNS": "200", **environment},
    )


@pytest.fixture(scope="module")
def limit() -> float:
    return max(SECONDS, AGAINST_TORCH * float(python(TORCH).stdout))


@pytest.mark.parametrize(("words", "said"), CASES)
def test_a_bad_configuration_is_refused_at_once(
    words: tuple[str, ...], said: str, tmp_path: Path, limit: float
) -> None:
    results = tmp_path / "results"
    if ": " in words[-1]:
        study = tmp_path / "refused.yaml"
        study.write_text(STUDY.replace("OPTION", words[-1]))
        words = (*words[:-1], str(study))
    done = python(PROGRAM, *words, FEDATLAS_RESULTS=str(results))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    seconds, *modules = done.stdout.split("\n")[-2].split()
    assert not HEAVY & set(modules)
    assert not results.exists()
    assert float(seconds) < limit
