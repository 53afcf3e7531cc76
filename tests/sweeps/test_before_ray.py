"""A configuration that is wrong is refused before Ray, MLflow or torch's training has been started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from fedatlas.sweeps.commands import main
sys.argv = ["fedatlas", *sys.argv[1:]]
try:
    main()
finally:
    print("imported:", *(name for name in ("ray", "mlflow") if name in sys.modules))
    print("started:", "ray" in sys.modules and sys.modules["ray"].is_initialized())
"""
BASE = "description: a\ndatasets: [minesweeper]\n"
BROKEN = {
    "twice.yaml": "description: a\ndescription: b\n",
    "tabs.yaml": "description:\n\t- a\n",
    "anchor.yaml": "description: *nothing\n",
    "bomb.yaml": "a: &a [x,x,x]\nb: &b [*a,*a,*a]\ndescription: [*b,*b]\n",
    "huge.yaml": BASE + "partitions: {metis: [1.0e+400]}\nmethods: [local]\n",
    "object.yaml": "description: !!python/object/apply:os.system [id]\n",
    "words.yaml": BASE + "partitions: {metis: [5]}\nmethods: [lócal]\n",
    "key.yaml": BASE + "partitions: {metis: [5]}\nmethods: [local]\nsettings: {ründe: 3}\n",
}
RUN = ("run", "--dataset", "minesweeper", "--algorithm", "fedavg", "--clients", "3")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("sweep", "twice.yaml"), "description stands twice (line 2"),
        (("sweep", "tabs.yaml"), "tabs.yaml is not valid YAML"),
        (("sweep", "anchor.yaml"), "undefined alias"),
        (("sweep", "bomb.yaml"), "key of study"),
        (("sweep", "huge.yaml"), "partitions.metis.0"),
        (("sweep", "object.yaml"), "could not determine a constructor"),
        (("sweep", "words.yaml"), "lócal"),
        (("sweep", "key.yaml"), "ründe"),
        ((*RUN, "--set", "lr=nan"), "lr=nan"),
        ((*RUN, "--set", "rounds=0"), "rounds=0"),
        ((*RUN, "--set", "hidden=" + "9" * 400), "hidden="),
        ((*RUN, "--set", "clip_norm=-1"), "clip_norm=-1"),
        ((*RUN, "--set", "placement=moon"), "unknown placement 'moon'"),
        ((*RUN, "--partition", "../../etc/passwd"), "passwd"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_the_key_is_named_and_nothing_has_started(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tmp_path,
        env={**os.environ, "FEDATLAS_RESULTS": str(tmp_path / "results"), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert "started: False" in done.stdout
    assert "mlflow" not in done.stdout
    assert not (tmp_path / "results").exists()
