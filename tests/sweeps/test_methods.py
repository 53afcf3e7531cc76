"""`fedatlas new-method` writes a method that passes; `fedatlas check` finds what breaks the promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedatlas.algorithms.fedavg import FedAvg
from fedatlas.algorithms.weight_sharing import WeightSharing
from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.messages import Tensors
from fedatlas.sweeps import checks
from fedatlas.sweeps.checks import CHECKS, Subject, examine

Call = Callable[..., tuple[int, str]]


def failures(kind: type[WeightSharing[Any, Any, Any]], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the checks that fail; edge cases are left out, for time."""
    kept = tuple(check for check in CHECKS if not check.name.startswith("edge"))
    monkeypatch.setattr(checks, "CHECKS", kept)
    return {verdict.check.name for verdict in examine(Subject(kind)) if verdict.error}


class GlobalNoise(FedAvg):
    """Draws from the global generator: no two runs are equal."""

    name: ClassVar[str] = "noise"

    def stepped(self, client: Any, cohort: Cohort) -> None:
        for weight in client.weights.values():
            weight.add_(0.01 * torch.rand_like(weight))


class Mixed(FedAvg):
    """Lets clients of one process see each other."""

    name: ClassVar[str] = "mixed"

    def losses(
        self, client: Any, cohort: Cohort, weights: Tensors, representation: Any, round_number: int
    ) -> dict[str, torch.Tensor]:
        mean = representation.embedding.mean(dim=(0, 1))
        return {"mixed": (representation.embedding - mean).square().mean(dim=(1, 2))}


class Peeking(FedAvg):
    """Trains on the labels of all nodes."""

    name: ClassVar[str] = "peeking"

    def losses(
        self, client: Any, cohort: Cohort, weights: Tensors, representation: Any, round_number: int
    ) -> dict[str, torch.Tensor]:
        picked = representation.logits.gather(2, cohort.labels[..., None])[..., 0]
        return {"peek": -cohort.masked_mean(picked, cohort.nodes)}


class Forgetful(FedAvg):
    """Keeps a counter that no checkpoint holds."""

    name: ClassVar[str] = "forgetful"

    def losses(
        self, client: Any, cohort: Cohort, weights: Tensors, representation: Any, round_number: int
    ) -> dict[str, torch.Tensor]:
        client.seen = getattr(client, "seen", 0) + 1
        size = sum(weight.square().flatten(1).sum(dim=1) for weight in weights.values())
        return {"size": 0.01 * client.seen * size}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (GlobalNoise, {"placement", "repetition", "resumption after 3", "lost process"}),
        (Mixed, {"placement", "single precision"}),
        (Peeking, {"hidden labels"}),
        (Forgetful, {"resumption after 3", "lost process"}),
    ],
)
def test_a_broken_promise_is_found(
    kind: type[WeightSharing[Any, Any, Any]], found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found <= failures(kind, monkeypatch)


def test_what_new_method_writes_passes_its_own_test(tmp_path: Path, fedatlas: Call) -> None:
    code, text = fedatlas("new-method", "my-idea", "--folder", str(tmp_path))
    assert code == 0
    assert "fedatlas check my_idea:MyIdea" in text
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_idea.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{len(CHECKS) + 1} passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavg", "is a method of fedatlas already"),
        ("1st", "no name for a module"),
        ("torch", "installed module"),
    ],
)
def test_names_that_cannot_be_used_are_refused(
    tmp_path: Path, fedatlas: Call, name: str, message: str
) -> None:
    code, text = fedatlas("new-method", name, "--folder", str(tmp_path))
    assert code == 2
    assert message in text
    assert list(tmp_path.iterdir()) == []


def test_check_exits_with_1_if_a_check_fails(
    fedatlas: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CHECKS[3]
    monkeypatch.setattr(checks, "CHECKS", (first,))
    assert fedatlas("check", "fedatlas.algorithms.fedprox:FedProx")[0] == 0
    monkeypatch.setenv("PYTHONPATH", "")
    source = tmp_path / "broken_method.py"
    source.write_text(
        "import torch\nfrom fedatlas.algorithms.fedavg import FedAvg\n\n\nclass Broken(FedAvg):\n"
        "    def stepped(self, client, cohort):\n        for w in client.weights.values():\n"
        "            w.add_(torch.rand_like(w))\n"
    )
    code, text = fedatlas("check", f"{source}:Broken")
    assert code == 1
    assert "failed  repetition" in text
