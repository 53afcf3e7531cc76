"""Tables and progress that commands print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedatlas.sweeps.driver import Progress as StudyProgress
    from fedatlas.sweeps.preflight import Preflight

MEGABYTE = 1e6


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
    total = len(found.todo) + len(found.finished) + found.left_out
    console.print(
        f"[bold]{study}[/bold]: {found.cells} scenarios, {total} trials: {len(found.todo)} to run, "
        f"{len(found.finished)} finished before, {found.left_out} on missing data",
        highlight=False,
        soft_wrap=True,
    )
    for name, why in found.missing.items():
        console.print(f"missing {name}: {why}", highlight=False, markup=False, soft_wrap=True)
    placements: dict[str, int] = {}
    for _, placed in found.todo:
        placements[placed.reason] = placements.get(placed.reason, 0) + 1
    for reason, count in placements.items():
        console.print(f"placement of {count} trials: {reason}", highlight=False, markup=False, soft_wrap=True)
    if found.todo:
        runs = max(found.concurrency.values())
        console.print(
            f"up to {runs} trials at once; estimated {_duration(found.estimated_seconds())}", highlight=False
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
