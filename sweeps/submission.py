"""Studies on a cluster that one is not logged in to, through Ray's job submission."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.destination import redacted

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

PASSED_ON = ("FEDATLAS_DATA", "FEDATLAS_RESULTS", "FEDATLAS_OFFLINE", "MLFLOW_TRACKING_URI")
"""Variables that the job gets from here if they are set; what is not set is as on the cluster."""
SECRETS_FILE = "variables.sh"
"""Of the job's folder: variables whose value holds a password or a token."""
POLL_SECONDS = 2.0
START_SECONDS = 60.0
HOW_TO_ADDRESS = "the address of the dashboard, as in http://head:8265"


def _failures() -> tuple[type[Exception], ...]:
    """What Ray's client raises where it cannot do its work; a missing token is a `RayError`."""
    from ray.exceptions import RayError

    return RuntimeError, ConnectionError, OSError, RayError


@dataclass(frozen=True)
class Submitted:
    """A study that runs on a cluster.

    Attributes:
        job: Ray's submission id.
        address: of the cluster's dashboard.
        entrypoint: the command of the job.
    """

    job: str
    address: str
    entrypoint: str


def submission_address(given: str | None) -> str:
    """Where jobs are submitted to.

    Args:
        given: `RAY_ADDRESS`.

    Raises:
        FedatlasError: there is none, or it is the address where drivers join.
    """
    if not given:
        raise FedatlasError(f"RAY_ADDRESS is not set: it must be {HOW_TO_ADDRESS}")
    if not given.startswith(("http://", "https://")):
        raise FedatlasError(
            f"RAY_ADDRESS={given} is where drivers join, and jobs are submitted to the dashboard: set it to "
            f"{HOW_TO_ADDRESS}, or use `fedatlas sweep` on a node of the cluster"
        )
    return given


def submit(
    address: str,
    study: str,
    words: Sequence[str],
    files: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
) -> Submitted:
    """Submit `fedatlas sweep` as a job.

    Args:
        address: of the dashboard.
        study: name of a study that comes with the package, or path of a file, which is sent along.
        words: options of the command; paths of `files` among them become names in the job's folder.
        files: further files to send along.
        variables: environment of the command; by default what of `PASSED_ON` is set here.

    Raises:
        FedatlasError: no cluster answers there, or it takes no jobs.
    """
    client = _client(address)
    sent = [*files, *([Path(study)] if study.endswith((".yaml", ".yml")) else [])]
    names = {str(path): path.name for path in sent}
    if len(set(names.values())) < len(names):
        raise FedatlasError("two of the files have the same name: rename one")
    if variables is None:
        variables = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    command = ["fedatlas", "sweep", names.get(study, study), *(names.get(word, word) for word in words)]
    secret = {name: value for name, value in variables.items() if redacted(value) != value}
    settings = [f"{name}={value}" for name, value in variables.items() if name not in secret]
    # Not in the job's runtime environment: the driver has one of its own, and Ray refuses two.
    entrypoint = shlex.join(["env", *settings, *command] if settings else command)
    if secret:
        # Ray shows the command of a job to everyone and keeps it in logs.
        entrypoint = f". ./{SECRETS_FILE} && {entrypoint}"
    with tempfile.TemporaryDirectory() as folder:
        for path in sent:
            shutil.copy(path, folder)
        if secret:
            lines = [f"export {name}={shlex.quote(value)}\n" for name, value in secret.items()]
            (Path(folder) / SECRETS_FILE).write_text("".join(lines), encoding="utf-8")
        runtime: dict[str, Any] = {"working_dir": folder} if sent or secret else {}
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                job = client.submit_job(
                    entrypoint=entrypoint, runtime_env=runtime, metadata={"fedatlas.study": Path(study).stem}
                )
            except _failures() as error:
                # A cluster that has just come up takes jobs a moment after its dashboard answers.
                if "No available agent" in str(error) and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
                    continue
                raise FedatlasError(f"the cluster at {address} took no job: {_first_line(error)}") from error
            return Submitted(job, address, entrypoint)


def follow(submitted: Submitted, write: Callable[[str], None], poll: float = POLL_SECONDS) -> bool:
    """Write the job's output as it comes until it ends; whether it succeeded.

    Raises:
        FedatlasError: the cluster no longer answers.
    """
    client = _client(submitted.address)
    written = 0
    while True:
        try:
            ended = client.get_job_status(submitted.job).is_terminal()
            text = client.get_job_logs(submitted.job)
        except _failures() as error:
            raise FedatlasError(
                f"lost sight of job {submitted.job}: {_first_line(error)}; it goes on by itself, look with "
                f"`ray job status --address {submitted.address} {submitted.job}`"
            ) from error
        if len(text) > written:
            write(text[written:])
            written = len(text)
        if ended:
            return str(client.get_job_status(submitted.job).value) == "SUCCEEDED"
        time.sleep(poll)


def _client(address: str) -> JobSubmissionClient:
    try:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(address)
    except ImportError as error:
        raise FedatlasError(
            "job submission needs Ray's dashboard: pip install 'ray[default]' in the version of the cluster"
        ) from error
    except _failures() as error:
        raise FedatlasError(
            f"no cluster takes jobs at RAY_ADDRESS={address} ({_first_line(error)}): it must be "
            f"{HOW_TO_ADDRESS}, with RAY_AUTH_MODE and RAY_AUTH_TOKEN as the cluster wants them"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
