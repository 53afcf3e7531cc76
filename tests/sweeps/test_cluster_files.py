"""The files that bring a cluster up name the pinned Ray, share what must be shared, and do what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "sweeps" / "cluster"
[RAY] = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
VARIABLES = {"FEDATLAS_DATA", "FEDATLAS_RESULTS", "MLFLOW_TRACKING_URI"}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


def clusters() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "raycluster.yaml", read("raycluster.yaml")["spec"]
    yield "rayjob.yaml", read("rayjob.yaml")["spec"]["rayClusterSpec"]


def test_kuberay_files_are_of_the_stable_version_and_the_pinned_ray() -> None:
    for name, kind in (("raycluster.yaml", "RayCluster"), ("rayjob.yaml", "RayJob")):
        assert (read(name)["apiVersion"], read(name)["kind"]) == ("ray.io/v1", kind)
    for _, spec in clusters():
        assert spec["rayVersion"] == RAY
    assert f"rayproject/ray:{RAY}-py311" in (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert f"= {RAY}" in (FOLDER / "autoscaler.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", dict(clusters()))
def test_pods_of_a_cluster_share_code_data_and_results(name: str) -> None:
    """Trials write checkpoints, and read data, under the paths of the driver."""
    spec = dict(clusters())[name]
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    seen = []
    for pod in pods:
        template = pod["template"]["spec"]
        [container] = template["containers"]
        assert {each["name"] for each in container["env"]} >= VARIABLES
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in template["volumes"]
        }
        seen.append((container["env"], container["volumeMounts"], template["volumes"]))
        assert container["image"].startswith("fedatlas:")
    assert all(each == seen[0] for each in seen)
    for group in spec["workerGroupSpecs"]:
        # A study is planned on the nodes that are there when it starts.
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]


def test_the_ray_job_runs_a_study_that_exists() -> None:
    from fedatlas.sweeps import Study

    command, verb, study, *options = read("rayjob.yaml")["spec"]["entrypoint"].split()
    assert (command, verb, options) == ("fedatlas", "sweep", ["--available-only"])
    assert Study(study, seeds=1).experiments


def test_the_autoscaler_file_is_what_ray_accepts(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(read("autoscaler.yaml"))
    validate_config(prepared)
    assert prepared["max_workers"] == len(read("autoscaler.yaml")["provider"]["worker_ips"])
    start = [command for command in prepared["head_start_ray_commands"] if "ray start" in command]
    assert all(variable in start[0] for variable in VARIABLES)


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs the batch script with stand-ins for SLURM, Ray and fedatlas; exit code and what was called."""
    log = tmp_path / "calls"
    programs = {
        "srun": 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"',
        "scontrol": f'[ "$1" = show ] && printf "a\\nb\\nc\\n" || echo "scontrol $*" >> {log}',
        "hostname": 'echo "10.0.0.1 fd00::1"',
        "ray": f'echo "ray $*" >> {log}\nexec sleep 60',
        # Makes the token, or waits for the nodes.
        "python": f"""[ "$1" != -c ] || {{ echo token; exit; }}
cat > /dev/null
until [ "$(grep -c '^ray start' {log})" -ge "$2" ]; do sleep 0.05; done""",
        "fedatlas": f"""echo "fedatlas $* at $RAY_ADDRESS $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> {log}
$STUDY_DOES""",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def run(*words: str, study_does: str = "true") -> tuple[int, list[str]]:
        environment = {
            **os.environ,
            "FEDATLAS_ENVIRONMENT": str(tmp_path),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_NODELIST": "a,b,c",
            "SLURM_JOB_ID": "60001",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_GPUS_ON_NODE": "2",
            "STUDY_DOES": study_does,
        }
        command = ["bash", str(FOLDER / "slurm.sbatch"), *words]
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            # A test run in the background has its children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return done.returncode, log.read_text().splitlines() if log.exists() else [done.stderr]

    return run


def test_the_batch_script_starts_ray_on_every_node_and_the_study_on_the_first(
    slurm: Callable[..., tuple[int, list[str]]],
) -> None:
    code, calls = slurm("heterophilic", "--only", "minesweeper,clients=5|10")
    assert code == 0
    starts = [call for call in calls if call.startswith("ray start")]
    assert len(starts) == 3
    [head] = [call for call in starts if "--head" in call]
    assert "--node-ip-address=10.0.0.1 --port=20001" in head
    assert all("--num-cpus=8 --num-gpus=2" in call and "--block" in call for call in starts)
    assert sum("--address=10.0.0.1:20001" in call for call in starts) == 2
    assert (
        "fedatlas sweep heterophilic --only minesweeper,clients=5|10 at 10.0.0.1:20001 token token" in calls
    )


@pytest.mark.parametrize(
    ("does", "code", "requeued"),
    [
        ("exit 1", 1, False),
        # The signal that SLURM sends before the time limit reaches the study as Ctrl-C.
        ("eval trap 'exit 130' INT; kill -USR1 $PPID; sleep 20 > /dev/null 2>&1 & wait", 130, True),
        ("eval trap 'exit 130' INT; kill -TERM $PPID; sleep 20 > /dev/null 2>&1 & wait", 130, False),
    ],
)
def test_the_batch_script_ends_as_the_study_does(
    slurm: Callable[..., tuple[int, list[str]]], does: str, code: int, requeued: bool
) -> None:
    found, calls = slurm("quickstart", study_does=does)
    assert found == code
    assert ("scontrol requeue 60001" in calls) == requeued


def test_the_batch_script_needs_a_study(slurm: Callable[..., tuple[int, list[str]]]) -> None:
    code, [printed] = slurm()
    assert code == 2
    assert "usage: sbatch slurm.sbatch STUDY" in printed
