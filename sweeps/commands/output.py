"""Tables and progress that commands print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedatlas.dashboards.health import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedatlas.platform.federation.placement import PlacementPlan
    from fedatlas.sweeps.driver import Progress as StudyProgress
    from fedatlas.sweeps.driver import StudyOutcome
    from fedatlas.sweeps.planning import Part, Plans
    from fedatlas.sweeps.preflight import Preflight

MEGABYTE = 1e6
GIGABYTE = 1e9


def run_summary(values: dict[str, Any]) -> Table:
    """Summary of one run, scores in %."""
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    metric = "AUC" if values["metric"] == "auc" else "accuracy"
    seconds, startup = values["seconds_per_round"], values["startup_seconds"]
    pace = "undefined" if seconds is None else f"{seconds:.4f}"
    rows = {
        "experiment": f"{values['label']} on {values['dataset']} ({values['data_kind']}), "
        f"{values['partition']} with {values['clients']} clients, seed {values['seed']}",
        f"test {metric}": f"{_percent(values['test_score'])} at round {values['best_round']} "
        f"(best validation, {_percent(values['val_score'])})",
        "last round": _percent(values["last_test_score"]),
        "worst tenth of clients": _percent(values["worst_decile_test_score"]),
        "seconds per round": f"{pace} (start-up {startup:.2f} s)",
        "peak memory": f"{values['peak_memory_bytes'] / MEGABYTE:.0f} MB in the largest process with clients",
        "sent per round": f"{values['uplink_bytes_per_round'] / MEGABYTE:.3f} MB up, "
        f"{values['downlink_bytes_per_round'] / MEGABYTE:.3f} MB down",
        "run id": str(values["run_id"] or "not tracked"),
    }
    for name, text in rows.items():
        table.add_row(name, text)
    if values["undefined_test_clients"]:
        table.add_row("left out of the mean", f"{values['undefined_test_clients']} clients without a score")
    return table


def _percent(score: float | None) -> str:
    return "undefined" if score is None else f"{100 * score:.2f} %"


def print_preflight(console: Console, study: str, found: Preflight) -> None:
    """What a study is about to do."""
    total = len(found.todo) + len(found.finished) + len(found.failed) + found.left_out
    failed = f", {len(found.failed)} failed before" if found.failed else ""
    console.print(
        f"[bold]{study}[/bold]: {found.cells} scenarios, {total} trials: {len(found.todo)} to run, "
        f"{len(found.finished)} finished before{failed}, {found.left_out} on missing data",
        highlight=False,
        soft_wrap=True,
    )
    for name, why in found.missing.items():
        console.print(f"missing {name}: {why}", highlight=False, markup=False, soft_wrap=True)
    for change, count in Counter(each.change for each in found.stale).items():
        console.print(
            f"stale: {count} finished trials, not used ({change})",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    print_placements(console, [placed for _, placed in found.todo])
    if found.todo:
        runs = max(found.concurrency.values())
        console.print(
            f"up to {runs} trials at once; expected {duration(found.estimated_seconds())} "
            f"({found.costs.describe()})",
            highlight=False,
            soft_wrap=True,
        )


def print_placements(console: Console, plans: Iterable[PlacementPlan]) -> None:
    """Where the clients of trials live, with the arithmetic."""
    print_counts(console, Counter(placed.reason for placed in plans))


def print_counts(console: Console, reasons: Mapping[str, int]) -> None:
    """The same from the number of trials of each placement."""
    for reason, count in reasons.items():
        console.print(f"placement of {count} trials: {reason}", highlight=False, markup=False, soft_wrap=True)


def print_plans(console: Console, plans: Plans) -> None:
    """Sizes, bytes and expected hours: a few lines for each study, tables for all of them together."""
    for each in plans.studies:
        finished = f", {each.whole.finished} of them finished" if each.whole.finished else ""
        console.print(
            f"[bold]{each.name}[/bold]: {each.scenarios} scenarios, {each.methods} methods, "
            f"{each.seeds} seeds: {each.whole.trials} trials{finished}",
            highlight=False,
            soft_wrap=True,
        )
        if each is plans.studies[-1]:
            for heading, parts in (("method", each.by_method), ("data set", each.by_dataset)):
                console.print(_plan_table(heading, parts))
            print_counts(console, each.placements)
        left = f", {duration(each.seconds[1])} for what is left" if each.whole.finished else ""
        console.print(
            f"{each.whole.bytes / GIGABYTE:,.1f} GB sent, {duration(each.whole.seconds)} of trials, up to "
            f"{each.concurrent} at once: expected {duration(each.seconds[0])}{left}",
            highlight=False,
            soft_wrap=True,
        )
    sources = ", ".join(f"{count} {source}" for source, count in each.whole.sources.items())
    console.print(f"on {plans.cluster.describe()}; times: {sources}", highlight=False, soft_wrap=True)
    console.print(plans.costs.describe(), highlight=False, soft_wrap=True)


def _plan_table(heading: str, parts: Iterable[Part]) -> Table:
    """MB are of one round of a trial, all clients together; hours are those of trials one after another."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(heading, overflow="fold")
    for name in ("trials", "MB up", "MB down", "GB in all", "hours"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in parts:
        table.add_row(
            part.name,
            str(part.trials),
            _range(part.uplink),
            _range(part.downlink),
            f"{part.bytes / GIGABYTE:,.2f}",
            f"{part.seconds / 3600:,.2f}",
        )
    return table


def _range(values: tuple[float, float]) -> str:
    low, high = (f"{value / MEGABYTE:.3g}" for value in values)
    return low if low == high else f"{low} - {high}"


def print_failures(console: Console, outcome: StudyOutcome) -> None:
    """Trials that failed now, and those that failed before and were not tried again."""
    for cells, what in ((outcome.failed, "failed"), (outcome.held_back, "failed before")):
        if cells:
            hint = "" if cells is outcome.failed else "; --retry-failed tries them again"
            console.print(f"[red]{len(cells)} trials {what}[/red]{hint}:", highlight=False)
        for cell, error in cells.items():
            console.print(f"  {cell}: {error}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def study_progress(console: Console) -> Iterator[Callable[[StudyProgress], None]]:
    """A live line with done, running and failed trials, rounds and the remaining time."""
    columns = (
        TextColumn("{task.fields[counts]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task("", counts="starting", total=None)

        def show(progress: StudyProgress) -> None:
            counts = f"{progress.done}/{progress.total} done, {progress.running} running"
            if progress.failed:
                counts += f", {progress.failed} failed"
            bar.update(task, total=progress.rounds_total, completed=progress.rounds_done, counts=counts)

        try:
            yield show
        finally:
            if bar.tasks[task].total is None:
                bar.remove_task(task)
