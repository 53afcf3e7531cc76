"""The verbs of the command line for Python and notebooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.platform.errors import FedatlasError, TrackingError
from fedatlas.platform.graphs.catalog import entry

if TYPE_CHECKING:
    import pandas as pd

    from fedatlas.platform.federation.coordinator import Snapshot
    from fedatlas.platform.federation.placement import Cluster
    from fedatlas.platform.federation.records import RoundRecord
    from fedatlas.platform.tracking.store import Store
    from fedatlas.platform.tracking.tracker import Tracker
    from fedatlas.sweeps.driver import Progress, StudyOutcome
    from fedatlas.sweeps.experiment import Experiment, Resolved
    from fedatlas.sweeps.planning import Plans
    from fedatlas.sweeps.preflight import Preflight
    from fedatlas.sweeps.search import Evaluated, SearchOutcome

SINGLE_RUNS = "single-runs"
"""MLflow experiment of runs that belong to no study."""


def _print(text: str) -> None:
    print(text, flush=True)


def dataset_of(given: Any) -> str:
    """Data set of an experiment: a name, a path, or a graph in memory, which is kept in the data folder.

    Raises:
        DataError: it is no usable graph.
    """
    from fedatlas.platform.graphs import own

    if isinstance(given, str):
        return given
    if isinstance(given, Path):
        return str(own.path_of(str(given)))
    return str(own.keep(given))


def algorithm_of(given: Any) -> str:
    """Algorithm of an experiment: a name, a reference, or a class."""
    return f"{given.__module__}:{given.__qualname__}" if isinstance(given, type) else str(given)


def announce_repairs(experiments: Iterable[Experiment], announce: Callable[[str], None]) -> None:
    """Say which own graphs were repaired on the way in, and what should be changed about them."""
    from fedatlas.platform.graphs import own

    unscaled = {each.dataset: each.features in ("default", "none") for each in experiments}
    for dataset in sorted(each for each in unscaled if own.is_path(each)):
        found = own.load(dataset)
        if found.repaired:
            what = "; ".join(each.what for each in found.repaired)
            announce(f"{found.graph.name}: repaired: {what} (`fedatlas data describe {dataset}` says why)")
        for each in found.remarks:
            if each.kind == "advised" and unscaled[dataset]:
                announce(f"{found.graph.name}: {each}")


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
    dataset: Any,
    clients: int | None = None,
    algorithm: Any = "fedavg",
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
        dataset: name in the catalog, path of a graph, or the graph itself (a PyG `Data`, a networkx graph, a
            mapping of arrays).
        clients: number of clients; if not given, what the partition says, or 10.
        algorithm: name of a method, `package.module:Class`, or the class itself.
        partition: a mode, ``own``, or the path of a membership file.
        seed: of split, initial weights and training.
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
    from fedatlas.sweeps.experiment import experiment, resolve

    values = {
        "dataset": dataset_of(dataset),
        "clients": clients,
        "algorithm": algorithm_of(algorithm),
        "partition": str(partition),
        "seed": seed,
        **settings,
    }
    resolved = resolve(experiment(values))

    # What is wrong is said before these are loaded, which takes longer than to find it.
    import pandas as pd
    import torch
    from tqdm.auto import tqdm

    from fedatlas.platform.graphs.description import client_rows
    from fedatlas.platform.graphs.federated import build
    from fedatlas.platform.tracking.destination import require_results_folder
    from fedatlas.platform.tracking.tracker import Tracker
    from fedatlas.sweeps import casestudy, execution, recording

    torch.set_num_threads(1)
    announce_repairs([resolved.experiment], announce)
    require_results_folder()
    if export is not None:
        casestudy.require_export(resolved.method(), entry(resolved.experiment.dataset).level)
    work = execution.planned(resolved)
    plans: list[str] = []
    snapshots: list[Snapshot] = []

    def placed(plan: Any) -> None:
        plans.append(plan.reason)
        say(f"placement: {plan.reason}")
        if resolved.protection().active:
            say(f"privacy: {resolved.protection().describe(resolved.method())}")

    def say(text: str) -> None:
        bar.clear()
        announce(text)
        bar.refresh()

    schedule = work.schedule(None)
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=work.rounds, disable=not progress, unit="round"))
        bar.set_description(f"reading {resolved.experiment.dataset}")
        federated = build(resolved.scenario())
        bar.set_description("starting")
        tracker = Tracker(say) if tracking else None
        driver = stack.enter_context(
            execution.driver(execution.job(resolved, federated), resolved.experiment, schedule, placed)
        )
        record = recording.Recording(work, SINGLE_RUNS, plans[0], tracker)
        record.partition_sha256 = federated.partition_sha256
        record.clients = client_rows(federated)
        _, record.startup = driver.start()
        record.open()
        bar.set_description("")
        bar.reset()
        try:
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


def tune(
    dataset: Any,
    clients: int | None = None,
    algorithm: Any = "fedavg",
    *,
    partition: str = "metis",
    configurations: int = 20,
    seeds: int = 1,
    search: Sequence[str] = (),
    sampler_seed: int = 0,
    concurrent: int | None = None,
    output: Path | None = None,
    command: str = "",
    tracking: bool = True,
    show: Callable[[Sequence[Evaluated], int], None] = lambda tried, total: None,
    announce: Callable[[str], None] = _print,
    **settings: Any,
) -> SearchOutcome:
    """Search a method's options on validation scores; the test nodes stay out of sight.

    The search starts from the present values. Started again, it goes on.

    Args:
        dataset, clients, algorithm, partition: what to tune, as for `run`.
        configurations: how many to try, those of an earlier start included.
        seeds: every configuration is scored as the mean over so many seeds.
        search: options to search; all that have a space if none is named, see `fedatlas.sweeps.spaces`.
        sampler_seed: seed of Optuna's sampler.
        concurrent: upper bound of configurations at the same time.
        output: file for the best configuration; in the results folder if not given.
        command: how the search was started, for that file.
        tracking: write to the MLflow store.
        show: told what was tried so far, and how many are wanted.
        announce: told warnings.
        settings: further keys of `fedatlas.sweeps.experiment.Experiment`.

    Raises:
        FedatlasError: what is asked for is not valid, or the data are missing.
    """
    from fedatlas.sweeps.experiment import experiment, require_blind, resolve
    from fedatlas.sweeps.spaces import space_of

    dataset, algorithm = dataset_of(dataset), algorithm_of(algorithm)
    values = {"dataset": dataset, "clients": clients, "algorithm": algorithm, "partition": str(partition)}
    resolved = resolve(experiment({**values, "seed": 0, "placement": "inline", **settings}))
    require_blind(resolved.experiment)
    space = space_of(algorithm, search)

    # Ray takes longer to load than a mistake to find.
    from fedatlas.platform.federation.cluster import connected
    from fedatlas.platform.graphs.federated import data_sha256
    from fedatlas.platform.tracking.destination import require_results_folder
    from fedatlas.platform.tracking.tracker import Tracker
    from fedatlas.sweeps.driver import alone
    from fedatlas.sweeps.search import Search, run_search

    wanted = Search(resolved, space, configurations, tuple(range(seeds)), sampler_seed, concurrent)
    data_sha256(dataset)
    announce_repairs([resolved.experiment], announce)
    require_results_folder()
    with alone(wanted.name, "search"), connected() as cluster:
        tracker = Tracker(announce) if tracking else None
        return run_search(wanted, cluster, tracker, show, output, command)


class Study:
    """A study: a grid of experiments and its tracked results.

    Args:
        name: name of a study that comes with the package, path of a YAML file, or, with `content`, any name.
        content: what a study file holds; its data sets may be graphs and its methods classes, as for `run`.
        tuned: files with tuned configurations, see `fedatlas.sweeps.tuned`.
        overrides: `algorithms`, `seeds`, `rounds`, `only`, `without` or `placement`, see
            `fedatlas.sweeps.study.Overrides`.

    Raises:
        ConfigurationError: the study, a tuned configuration or an override is not valid.
    """

    def __init__(
        self,
        name: str,
        content: Mapping[str, Any] | None = None,
        *,
        tuned: Sequence[Path] = (),
        **overrides: Any,
    ) -> None:
        from fedatlas.sweeps.study import expand, overrides_from, read_study, require_name, study_from
        from fedatlas.sweeps.tuned import read_tuned

        if content is None:
            self.name, self.file = read_study(name)
        else:
            require_name(name)
            given = {**content, "datasets": [dataset_of(each) for each in content.get("datasets", ())]}
            given["methods"] = [
                {**each, "algorithm": algorithm_of(each.get("algorithm"))}
                if isinstance(each, Mapping)
                else algorithm_of(each)
                for each in content.get("methods", ())
            ]
            self.name, self.file = name, study_from(name, given)
        found = [read_tuned(Path(path)) for path in tuned]
        self._resolved = expand(self.file, overrides_from(overrides), found)

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
        force: bool = False,
        retry_failed: bool = False,
        report: bool = False,
        before: Callable[[Preflight], None] = lambda preflight: None,
        show: Callable[[Progress], None] = lambda progress: None,
        announce: Callable[[str], None] = _print,
    ) -> StudyOutcome:
        """Run what is not finished yet.

        Args:
            available_only: leave out data sets that cannot be read, instead of refusing.
            dry_run: stop after the preflight, which then starts no Ray, downloads no data and makes no store.
            tracking: write to the MLflow store.
            force: run everything anew, whatever has finished.
            retry_failed: try again what failed for its own reasons.
            report: write the HTML report at the end, and keep it with the sweep's own run as its summary is.
            before: told the preflight before anything starts.
            show: told the progress.
            announce: told warnings.

        Raises:
            FedatlasError: data are missing, a trial can never be placed, or the study is running already.
        """
        from fedatlas.platform.federation.cluster import connected
        from fedatlas.platform.tracking.destination import require_results_folder, tracking_uri
        from fedatlas.platform.tracking.operations import ANSWERS_TAG, DESCRIPTION_TAG
        from fedatlas.platform.tracking.tracker import Tracker
        from fedatlas.sweeps.driver import StudyOutcome, alone, begin_anew, mark_stale, run_study

        uri = tracking_uri() if tracking else None

        def check(cluster: Cluster, store: Store | None, download: bool = True) -> Preflight:
            return self._check(
                cluster, uri, store, available_only, before, download, force, retry_failed, announce
            )

        if dry_run:
            with _present_cluster() as cluster:
                check(cluster, _present_store(uri, announce), download=False)
            return StudyOutcome()
        require_results_folder()
        with alone(self.name), connected() as cluster:
            tracker = Tracker(announce, uri) if tracking else None
            store = None if tracker is None else tracker.store
            found = check(cluster, store)
            if force:
                begin_anew(self.name, found, store)
            if store is not None:
                mark_stale(found, store)
            outcome = StudyOutcome()
            if found.todo:
                if tracker is not None:
                    tracker.describe(self.name, self._description())
                tags = {DESCRIPTION_TAG: self.file.description}
                if self.file.answers:
                    tags[ANSWERS_TAG] = ", ".join(self.file.answers)
                outcome = run_study(self.name, found, tracker, show, self.file.export, tags)
            outcome.held_back = found.failed
            if tracker is not None and tracker.store is not None:
                self._keep_tables(tracker, outcome, report and not outcome.interrupted, announce)
            return outcome

    def _description(self) -> str:
        """What MLflow shows above the runs of the study, in Markdown."""
        answers = f" Compared with: {', '.join(self.file.answers)}." if self.file.answers else ""
        return (
            f"{self.file.description}{answers}\n\n"
            "A run of kind `sweep` is a start of the study: its artifacts are the summary table and the "
            "study page (HTML). The runs nested in it are the trials, one per method, scenario and seed. "
            "Search them by `tags.dataset`, `tags.partition`, `tags.clients`, `tags.method`; "
            "`tags.fedatlas.kind = 'trial'` leaves the sweeps out. Metrics: `summary/` at the "
            "best-validation round, and by round `val/`, `test/`, `loss/`, `comm/` (bytes of all clients) "
            "and `time/` (seconds)."
        )

    def _keep_tables(
        self, tracker: Tracker, outcome: StudyOutcome, report: bool, announce: Callable[[str], None]
    ) -> None:
        """Summary table and report of what is finished, as files and as artifacts of the sweep's own run."""
        from fedatlas.dashboards.tables import summary_table
        from fedatlas.platform.tracking.destination import results_folder

        try:
            trials = self.results()
            if not (trials["status"] == "FINISHED").any():
                return
            path = results_folder() / "reports" / f"{self.name}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            summary_table(trials).to_csv(path, index=False)
            paths = [path]
            if report:
                outcome.report = self.report()
                paths.append(outcome.report)
        except FedatlasError as error:
            announce(f"no tables: {error}")
            return
        if outcome.parent is not None:
            for each in paths:
                tracker.file(outcome.parent, each)

    def _check(
        self,
        cluster: Cluster,
        uri: str | None,
        store: Store | None,
        available_only: bool,
        before: Callable[[Preflight], None],
        download: bool,
        force: bool,
        retry_failed: bool,
        announce: Callable[[str], None],
    ) -> Preflight:
        from fedatlas.sweeps import preflight

        found = preflight.check(
            self._resolved,
            cluster,
            self.name,
            uri=uri,
            tracking=store,
            download=download,
            concurrent=self.file.concurrent,
            force=force,
            retry_failed=retry_failed,
        )
        announce_repairs((each.experiment for each in self._resolved), announce)
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
        found = tracked[tracked["identity"].isin(named)]
        # What is stale was there before what is not, whatever the clock said.
        ranked = found.sort_values("stale", key=lambda stale: stale.notna(), kind="stable")
        return ranked.drop_duplicates("identity").sort_index().reset_index(drop=True)

    def report(self, path: Path | None = None) -> Path:
        """Write the HTML report; returns its path."""
        from fedatlas.dashboards.report import report_path, write_report
        from fedatlas.platform.tracking.store import Store

        return write_report(Store(), self.name, path or report_path(self.name))


def plan_on_cluster(
    studies: Sequence[Study],
    *,
    tracking: bool = True,
    available_only: bool = False,
    announce: Callable[[str], None] = _print,
) -> Plans:
    """What studies cost on the cluster of `RAY_ADDRESS`, or on this machine.

    Args:
        studies: what is planned; starts nothing and needs no data.
        tracking: fit the cost model on finished trials of the tracking store too, if there is one.
        available_only: leave out data sets that cannot be read here.
        announce: told warnings, and what is left out.

    Raises:
        PlacementError: a trial can never be placed.
        FedatlasError: `available_only`, and no data set of a study is here.
    """
    from fedatlas.platform.tracking.destination import tracking_uri
    from fedatlas.sweeps.costs import finished_trials, fit
    from fedatlas.sweeps.planning import plan_studies

    store = _present_store(tracking_uri() if tracking else None, announce)
    costs = fit(finished_trials(store))
    with _present_cluster() as cluster:
        wanted = [
            (
                study.name,
                _readable(study, announce) if available_only else study.experiments,
                study.file.concurrent,
            )
            for study in studies
        ]
        return plan_studies(wanted, cluster, costs)


def _readable(study: Study, announce: Callable[[str], None]) -> Sequence[Resolved]:
    """Trials of a study whose data can be read here."""
    from fedatlas.sweeps.preflight import read_hashes

    hashes, missing = read_hashes({each.experiment.dataset for each in study.experiments}, download=False)
    found = tuple(each for each in study.experiments if each.experiment.dataset in hashes)
    left_out = len(study.experiments) - len(found)
    if not found:
        raise FedatlasError(
            f"no data set of {study.name} is here ({', '.join(missing)}): bring one with "
            "`fedatlas data import FOLDER`, or plan without --available-only"
        )
    if missing:
        announce(f"{study.name}: left out {left_out} trials on missing data ({', '.join(missing)})")
    return found


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
