"""The verbs of the command line for Python and notebooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.platform.errors import FedatlasError, TrackingError

if TYPE_CHECKING:
    import pandas as pd

    from fedatlas.platform.federation.coordinator import Snapshot
    from fedatlas.platform.federation.placement import Cluster
    from fedatlas.platform.federation.records import RoundRecord
    from fedatlas.platform.tracking.store import Store
    from fedatlas.sweeps.driver import Progress, StudyOutcome
    from fedatlas.sweeps.experiment import Resolved
    from fedatlas.sweeps.preflight import Preflight

SINGLE_RUNS = "single-runs"
"""MLflow experiment of runs that belong to no study."""


def _print(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class Run:
    """Result of `run`.

    Attributes:
        values: the summary as plain values, as `fedatlas run --json` writes it.
        summary: the same as a DataFrame with one row.
        rounds: one row per round with every tracked figure.
        clients: one row per round and client: `round`, `client`, `validation`, `test`.
    """

    values: dict[str, Any]
    summary: pd.DataFrame
    rounds: pd.DataFrame
    clients: pd.DataFrame


def run(
    dataset: str,
    clients: int,
    algorithm: str,
    *,
    partition: str = "metis",
    seed: int = 0,
    tracking: bool = True,
    progress: bool = True,
    announce: Callable[[str], None] = _print,
    export: Path | None = None,
    **settings: Any,
) -> Run:
    """Run one experiment.

    Args:
        dataset, clients, algorithm, partition, seed: what to run.
        tracking: write to the MLflow store.
        progress: show a progress bar over the rounds, in a terminal or a notebook.
        announce: told where the clients live, and warnings.
        export: folder for the case-study tables of the first and the last round, see
            `fedatlas.sweeps.casestudy`.
        settings: further keys of `fedatlas.sweeps.experiment.Experiment`: `rounds`, `epochs`, `backbone`,
            `placement`, `options={"lr": 0.02}`, ...

    Raises:
        FedatlasError: what is asked for is not valid, the data are missing, or training failed.
    """
    import pandas as pd
    import torch
    from tqdm.auto import tqdm

    from fedatlas.platform.graphs.federated import build
    from fedatlas.platform.tracking.destination import require_results_folder
    from fedatlas.platform.tracking.tracker import Tracker
    from fedatlas.sweeps import casestudy, execution, recording
    from fedatlas.sweeps.experiment import experiment, resolve

    torch.set_num_threads(1)
    values = {
        "dataset": dataset,
        "clients": clients,
        "algorithm": algorithm,
        "partition": partition,
        "seed": seed,
        **settings,
    }
    resolved = resolve(experiment(values))
    require_results_folder()
    if export is not None:
        casestudy.require_export(resolved.method())
    work = execution.planned(resolved)
    federated = build(resolved.scenario())
    tracker = Tracker(announce) if tracking else None
    plans: list[str] = []
    snapshots: list[Snapshot] = []

    def placed(plan: Any) -> None:
        plans.append(plan.reason)
        announce(f"placement: {plan.reason}")

    schedule = work.schedule(None)
    with execution.driver(
        execution.job(resolved, federated), resolved.experiment, schedule, placed
    ) as driver:
        record = recording.Recording(work, SINGLE_RUNS, plans[0], tracker)
        record.partition_sha256 = federated.partition_sha256
        _, record.startup = driver.start()
        record.open()
        try:
            with tqdm(total=work.rounds, disable=not progress, unit="round") as bar:
                for _ in range(work.rounds):
                    done: RoundRecord = driver.advance()
                    record.add([done])
                    if export is not None and done.round in (0, work.rounds - 1):
                        snapshots.append(driver.snapshot())
                    bar.set_postfix(val=f"{done.validation:.4f}", test=f"{done.test:.4f}")
                    bar.update()
            if export is not None:
                casestudy.write(snapshots, federated, export)
            summary = record.finish()
        except KeyboardInterrupt:
            record.fail("", killed=True)
            raise
        except BaseException as error:
            record.fail(str(error))
            raise
    return Run(
        values=summary,
        summary=pd.DataFrame([summary]),
        rounds=recording.rounds_table(record.records),
        clients=recording.clients_table(record.records),
    )


class Study:
    """A study: a grid of experiments and its tracked results.

    Args:
        name: name of a study that comes with the package, or path of a YAML file.
        overrides: `algorithms`, `seeds`, `rounds`, `only` or `placement`, see
            `fedatlas.sweeps.study.Overrides`.

    Raises:
        ConfigurationError: the study or an override is not valid.
    """

    def __init__(self, name: str, **overrides: Any) -> None:
        from fedatlas.sweeps.study import expand, overrides_from, read_study

        self.name, self._file = read_study(name)
        self._resolved = expand(self._file, overrides_from(overrides))

    @property
    def experiments(self) -> Sequence[Resolved]:
        """All trials of the study, checked and with every default filled in."""
        return tuple(self._resolved)

    def run(
        self,
        *,
        available_only: bool = False,
        dry_run: bool = False,
        tracking: bool = True,
        before: Callable[[Preflight], None] = lambda preflight: None,
        show: Callable[[Progress], None] = lambda progress: None,
        announce: Callable[[str], None] = _print,
    ) -> StudyOutcome:
        """Run what is not finished yet.

        Args:
            available_only: leave out data sets that cannot be read, instead of refusing.
            dry_run: stop after the preflight, which then starts no Ray, downloads no data and makes no store.
            tracking: write to the MLflow store.
            before: told the preflight before anything starts.
            show: told the progress.
            announce: told warnings.

        Raises:
            FedatlasError: data are missing, a trial can never be placed, or the study is running already.
        """
        from fedatlas.platform.federation.cluster import connected
        from fedatlas.platform.tracking.destination import require_results_folder, tracking_uri
        from fedatlas.platform.tracking.tracker import Tracker
        from fedatlas.sweeps.driver import StudyOutcome, alone, run_study

        uri = tracking_uri() if tracking else None
        if dry_run:
            with _present_cluster() as cluster:
                self._check(
                    cluster, uri, _present_store(uri, announce), available_only, before, download=False
                )
            return StudyOutcome()
        require_results_folder()
        with alone(self.name), connected() as cluster:
            tracker = Tracker(announce, uri) if tracking else None
            store = None if tracker is None else tracker.store
            found = self._check(cluster, uri, store, available_only, before)
            return run_study(self.name, found, tracker, show) if found.todo else StudyOutcome()

    def _check(
        self,
        cluster: Cluster,
        uri: str | None,
        store: Store | None,
        available_only: bool,
        before: Callable[[Preflight], None],
        download: bool = True,
    ) -> Preflight:
        from fedatlas.sweeps import preflight

        found = preflight.check(
            self._resolved, cluster, self.name, uri=uri, tracking=store, download=download
        )
        before(found)
        if found.missing and not available_only:
            raise FedatlasError(
                f"{len(found.missing)} data sets are missing ({', '.join(found.missing)}): bring them "
                "with `fedatlas data import FOLDER`, or run what is there with --available-only"
            )
        return found

    def results(self) -> pd.DataFrame:
        """One row per trial that this study names and the tracking store has.

        Trials of an earlier form of the study (other rounds, another version of a method) are left out, and
        of trials that differ in their data alone all but the newest. No data are read. The columns are those
        of `fedatlas.platform.tracking.reading.trials`.

        Raises:
            TrackingError: the store cannot be reached.
        """
        from fedatlas.platform.tracking.reading import trials
        from fedatlas.platform.tracking.store import Store

        tracked = trials(Store(), self.name)
        named = {resolved.identity_hash() for resolved in self._resolved}
        found = tracked[tracked["identity"].isin(named)].drop_duplicates("identity")
        return found.reset_index(drop=True)

    def report(self, path: Path | None = None) -> Path:
        """Write the HTML report; returns its path."""
        from fedatlas.dashboards.report import report_path, write_report
        from fedatlas.platform.tracking.store import Store

        return write_report(Store(), self.name, path or report_path(self.name))


@contextmanager
def _present_cluster() -> Iterator[Cluster]:
    """The cluster that a study would run on, without starting one."""
    import ray

    from fedatlas.platform.federation.cluster import connected
    from fedatlas.platform.federation.placement import this_machine

    if os.environ.get("RAY_ADDRESS") or ray.is_initialized():
        with connected() as cluster:
            yield cluster
    else:
        yield this_machine()


def _present_store(uri: str | None, announce: Callable[[str], None]) -> Store | None:
    """The store if it is there already and answers."""
    from fedatlas.platform.tracking.destination import store_exists
    from fedatlas.platform.tracking.store import Store

    if uri is None or not store_exists(uri):
        return None
    try:
        return Store(uri)
    except TrackingError as error:
        announce(str(error))
        return None
