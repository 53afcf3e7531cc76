"""What is tracked, as plain operations that a store applies now or a journal keeps for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

FINGERPRINT_TAG = "fedatlas.fingerprint"
IDENTITY_TAG = "fedatlas.identity"
STUDY_TAG = "fedatlas.study"
KIND_TAG = "fedatlas.kind"
RUN_TAG = "fedatlas.run"
ANSWERS_TAG = "fedatlas.answers"
"""On a sweep: what it is compared with."""
DESCRIPTION_TAG = "mlflow.note.content"
"""What MLflow shows as the description of a run or an experiment."""
RAY_TAG = "fedatlas.ray"
"""On a sweep: address of the cluster that it runs on."""
TRIALS_TAG = "fedatlas.trials"
"""On a sweep: how many trials it set out to run."""
REPLACED_TAG = "fedatlas.replaced"
"""On runs whose trial is run anew although it had finished."""
PARENT_TAG = "mlflow.parentRunId"
SUMMARY_PREFIX = "summary/"


@dataclass(frozen=True)
class OpenRun:
    """A new run.

    Attributes:
        run: local name of the run, unique for ever.
        experiment: MLflow experiment, one per study.
        name: shown in the UI.
        parent: local name or MLflow id of the parent run, or None.
        params, tags: as MLflow takes them.
        time: milliseconds since 1970.
    """

    run: str
    experiment: str
    name: str
    parent: str | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    time: int


@dataclass(frozen=True)
class LogPoints:
    """Metric values: (key, value, step) each."""

    run: str
    points: Sequence[tuple[str, float, int]]
    time: int


@dataclass(frozen=True)
class LogFile:
    """An artifact: a file of this machine."""

    run: str
    path: str


@dataclass(frozen=True)
class CloseRun:
    """End of a run; `tags` may hold an error text."""

    run: str
    status: RunStatus
    tags: Mapping[str, str]
    time: int


Operation = OpenRun | LogPoints | LogFile | CloseRun
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (OpenRun, LogPoints, LogFile, CloseRun)}


def to_plain(operation: Operation) -> dict[str, Any]:
    """JSON form of an operation."""
    return {"operation": type(operation).__name__, **asdict(operation)}


def from_plain(values: Mapping[str, Any]) -> Operation:
    """Inverse of `to_plain`."""
    fields = dict(values)
    operation: Operation = _KINDS[fields.pop("operation")](**fields)
    if isinstance(operation, LogPoints):
        points = [(str(key), float(value), int(step)) for key, value, step in operation.points]
        return LogPoints(operation.run, points, operation.time)
    return operation
