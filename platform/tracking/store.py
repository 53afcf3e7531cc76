"""The MLflow store: applies operations through the client API in batches."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.platform.errors import TrackingError
from fedatlas.platform.tracking.destination import (
    is_local,
    redacted,
    require_results_folder,
    results_folder,
    tracking_uri,
)
from fedatlas.platform.tracking.operations import (
    DESCRIPTION_TAG,
    PARENT_TAG,
    RUN_TAG,
    CloseRun,
    LogFile,
    LogPoints,
    OpenRun,
    Operation,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# MLflow's limits for one `log_batch`.
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAG_LENGTH = 4000
PARAM_LENGTH = 5000
SQLITE = "sqlite:///"


class Store:
    """Access to one MLflow tracking store. Importing MLflow takes seconds, so it happens here only.

    Args:
        uri: tracking URI; by default `tracking_uri()`.

    Raises:
        TrackingError: the store cannot be reached.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or tracking_uri()
        # Without these the client retries for minutes before it admits that a server is gone.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        # One progress bar for each file of each run would bury everything else.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        # The address that MLflow prints at the end of a run holds the password.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        if is_local(self.uri):
            require_results_folder()
        try:
            path = self.uri.removeprefix(SQLITE)
            if path != self.uri and not set(path) & set("?:"):
                self._create_database(Path(path))
            self._client = self._connect(self.uri)
        except Exception as error:
            raise self._failure("cannot be reached", error) from shown(error, self.uri)
        self._experiments: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def _create_database(self, path: Path) -> None:
        """Make a new database under another name first.

        A schema whose making was interrupted can neither be used nor mended, and two processes that make it
        at once spoil it.
        """
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mlflow-") as folder:
            made, complete = Path(folder) / "made.db", Path(folder) / "complete.db"
            self._connect(f"{SQLITE}{made.resolve()}")
            shutil.copyfile(made, complete)
            with suppress(FileExistsError):
                os.link(complete, path)

    def _connect(self, uri: str) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        # Importing MLflow sets its loggers up; a new database would otherwise print its migrations, and a
        # refused write its traceback: the error says the same in words.
        for name in ("alembic", "mlflow"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
        return client

    @property
    def client(self) -> MlflowClient:
        """The underlying client, for reading."""
        return self._client

    def apply(self, operation: Operation, again: bool = False) -> None:
        """Carry an operation out.

        Args:
            operation: what to do.
            again: it may have been carried out before, in part: metric values that the run has are left out.

        Raises:
            TrackingError: the store refused it or could not be reached.
        """
        try:
            if isinstance(operation, OpenRun):
                self._open(operation)
            elif isinstance(operation, LogPoints):
                self._points(operation, again)
            elif isinstance(operation, LogFile):
                self._client.log_artifact(self.run_id(operation.run), operation.path)
            else:
                self._close(operation)
        except Exception as error:
            raise self._failure(f"refused {type(operation).__name__}", error) from shown(error, self.uri)

    def run_id(self, run: str) -> str:
        """MLflow id of a run opened here by its local name; any other name is taken as an id."""
        return self._ids.get(run, run)

    def adopt(self, run: str, run_id: str) -> None:
        """Continue an existing run under a local name."""
        self._ids[run] = run_id

    def resume(self, run: str, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Continue an existing run under a local name and mark it running.

        Args:
            run: local name from now on.
            run_id: MLflow id.
            params: logged where the run lacks them: it may have died before it had any, and MLflow refuses
                other values.
            tags: replace those of the same keys.

        Raises:
            TrackingError: the store refused it or could not be reached.
        """
        self.adopt(run, run_id)
        try:
            known = self._client.get_run(run_id).data.params
            self._params(run_id, {key: value for key, value in params.items() if key not in known})
            self._tags(run_id, tags)
            self._client.update_run(run_id, status="RUNNING")
        except Exception as error:
            raise self._failure("refused to continue a run", error) from shown(error, self.uri)

    def last_step(self, run_id: str, key: str) -> int:
        """Last step at which a run has a metric; -1 if it has none.

        Raises:
            TrackingError: the store could not be reached.
        """
        try:
            return max((point.step for point in self._client.get_metric_history(run_id, key)), default=-1)
        except Exception as error:
            raise self._failure("cannot be read", error) from shown(error, self.uri)

    def experiment_id(self, name: str) -> str:
        """Id of an experiment, created if needed."""
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                where = (results_folder() / "artifacts" / name).as_uri() if is_local(self.uri) else None
                self._experiments[name] = self._client.create_experiment(name, artifact_location=where)
            else:
                if found.lifecycle_stage != "active":
                    self._client.restore_experiment(found.experiment_id)
                self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def describe(self, experiment: str, text: str) -> None:
        """Set the description of an experiment, which is made if needed.

        MLflow is told too that it holds trained models: its UI otherwise opens pages for conversations.

        Raises:
            TrackingError: the store refused it or could not be reached.
        """
        try:
            number = self.experiment_id(experiment)
            self._client.set_experiment_tag(number, DESCRIPTION_TAG, text[:TAG_LENGTH])
            self._client.set_experiment_tag(number, "mlflow.experimentKind", "custom_model_development")
        except Exception as error:
            raise self._failure("refused a description", error) from shown(error, self.uri)

    def runs(self, experiment: str, condition: str = "") -> Iterator[Any]:
        """Runs of an experiment, newest first; none if it does not exist.

        Raises:
            TrackingError: the store could not be reached.
        """
        token: str | None = None
        while True:
            try:
                found = self._client.get_experiment_by_name(experiment)
                if found is None:
                    return
                page = self._client.search_runs(
                    [found.experiment_id], condition, max_results=1000, page_token=token
                )
            except Exception as error:
                raise self._failure("cannot be read", error) from shown(error, self.uri)
            yield from page
            token = page.token
            if not token:
                return

    def _open(self, operation: OpenRun) -> None:
        experiment = self.experiment_id(operation.experiment)
        # The operation comes a second time if the store or `sync` died half-way through it.
        begun = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{operation.run}'", max_results=1)
        if begun:
            run = begun[0]
        else:
            tags = {key: value[:TAG_LENGTH] for key, value in operation.tags.items()}
            tags[RUN_TAG] = operation.run
            if operation.parent is not None:
                tags[PARENT_TAG] = self.run_id(operation.parent)
            run = self._client.create_run(
                experiment, start_time=operation.time, tags=tags, run_name=operation.name
            )
        self._params(run.info.run_id, operation.params)
        self._ids[operation.run] = run.info.run_id

    def _params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        waiting = iter(Param(key, value[:PARAM_LENGTH]) for key, value in params.items())
        while batch := list(islice(waiting, PARAMS_PER_BATCH)):
            self._client.log_batch(run_id, params=batch)

    def _tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_tag(run_id, key, value[:TAG_LENGTH])

    def _points(self, operation: LogPoints, again: bool) -> None:
        from mlflow.entities import Metric

        run_id, points = self.run_id(operation.run), operation.points
        if again:
            known = {
                (key, point.step)
                for key in {key for key, _, _ in points}
                for point in self._client.get_metric_history(run_id, key)
            }
            points = [(key, value, step) for key, value, step in points if (key, step) not in known]
        for batch in _batches(points):
            metrics = [Metric(key, value, operation.time, step) for key, value, step in batch]
            self._client.log_batch(run_id, metrics=metrics)

    def _close(self, operation: CloseRun) -> None:
        run_id = self.run_id(operation.run)
        self._tags(run_id, operation.tags)
        # Another process may have begun the run, before the clock was set back.
        begun = self._client.get_run(run_id).info.start_time or 0
        self._client.set_terminated(run_id, status=operation.status, end_time=max(operation.time, begun))

    def _failure(self, what: str, error: Exception) -> TrackingError:
        lines = [
            line
            for line in redacted(str(error), self.uri).splitlines()
            if not line.startswith("(raised as a")
        ]
        reason = lines[0][:300] if lines else type(error).__name__
        return TrackingError(f"tracking store {redacted(self.uri)} {what}: {reason}")

    def download(self, run_id: str, name: str, folder: Path) -> Path:
        """Local path of an artifact.

        Raises:
            TrackingError: there is no such artifact, or it cannot be read.
        """
        try:
            return Path(self._client.download_artifacts(run_id, name, str(folder)))
        except Exception as error:
            raise self._failure(f"cannot give artifact {name} of run {run_id}", error) from shown(
                error, self.uri
            )


def _batches(points: Sequence[tuple[str, float, int]]) -> Iterator[list[tuple[str, float, int]]]:
    """Parts that MLflow takes at once and stores whole; a step is not divided unless it is longer."""
    batch: list[tuple[str, float, int]] = []
    for _, group in groupby(points, key=lambda point: point[2]):
        step = list(group)
        if batch and len(batch) + len(step) > METRICS_PER_BATCH:
            yield batch
            batch = []
        batch += step
        while len(batch) > METRICS_PER_BATCH:
            yield batch[:METRICS_PER_BATCH]
            batch = batch[METRICS_PER_BATCH:]
    if batch:
        yield batch


def shown(error: Exception, uri: str) -> Exception | None:
    """The cause that a traceback may show: none if its text, or that of what led to it, holds a secret."""
    cause: BaseException | None = error
    while cause is not None:
        if redacted(str(cause), uri) != str(cause):
            return None
        cause = cause.__cause__ or cause.__context__
    return error
