"""Rounds, scores, checkpoints and recovery, with a method whose numbers can be told by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.platform.errors import FedatlasError, NonFiniteError
from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.federation.coordinator import MAX_RECOVERIES, Coordinator, Schedule
from fedatlas.platform.federation.runtime import CohortLost, InlineRuntime


def started(job, runtime=None, rounds=4, **schedule):
    coordinator = Coordinator(job, runtime or InlineRuntime(), Schedule(rounds, **schedule))
    coordinator.start()
    return coordinator


def finish(coordinator):
    while not coordinator.finished:
        coordinator.advance()
    return coordinator


def share(graph, role, chosen):
    """Accuracy of a client that predicts one class for every node."""
    return (graph.labels[getattr(graph, role)] == chosen % 3).mean()


def plain(records):
    """Records without what depends on the clock."""
    return [replace(record, seconds={}, peak_bytes=0) for record in records]


@pytest.mark.parametrize("per_cohort", [1, 2, 3])
def test_scores_are_those_after_local_training(make_job, per_cohort):
    job = make_job()
    coordinator = finish(started(job, InlineRuntime(per_cohort)))
    assert [record.round for record in coordinator.records] == [0, 1, 2, 3]
    for r, record in enumerate(coordinator.records):
        validation = [share(graph, "validation", r + m) for m, graph in enumerate(job.graphs)]
        test = [share(graph, "test", r + m) for m, graph in enumerate(job.graphs)]
        assert record.client_validation == pytest.approx(validation)
        assert record.client_test == pytest.approx(test)
        assert record.validation == pytest.approx(np.mean(validation))
        assert record.test == pytest.approx(np.mean(test))


def test_scores_after_aggregation_are_those_of_the_next_broadcast(make_job):
    job = make_job()
    coordinator = finish(started(job, InlineRuntime(2), evaluation="after_aggregate"))
    for r, record in enumerate(coordinator.records):
        assert record.client_test == pytest.approx([share(graph, "test", r + 1) for graph in job.graphs])
    after_local = finish(started(job))
    for one, other in zip(coordinator.records, after_local.records, strict=True):
        assert (one.uplink, one.downlink, one.metrics) == (other.uplink, other.downlink, other.metrics)


@pytest.mark.parametrize("weighting", ["uniform", "nodes", "test_nodes"])
def test_weightings_of_the_client_mean(make_job, weighting):
    job = make_job()
    weights = {
        "uniform": [1, 1, 1],
        "nodes": [graph.size for graph in job.graphs],
        "test_nodes": [graph.test.sum() for graph in job.graphs],
    }[weighting]
    record = started(job, weighting=weighting).advance()
    assert record.test == pytest.approx(np.average(record.client_test, weights=weights))
    assert record.validation == pytest.approx(np.average(record.client_validation, weights=weights))


def test_metrics_are_client_means_and_diagnostics_of_the_new_server_state(make_job):
    for r, record in enumerate(finish(started(make_job(), InlineRuntime(1))).records):
        assert record.metrics == {"loss/total": 10 * (r + 1), "geometry/value": r + 1}


def test_bytes_are_those_of_all_clients(make_job):
    for per_cohort in (1, 3):
        record = started(make_job(), InlineRuntime(per_cohort)).advance()
        assert record.uplink == {"value": 3 * 4}
        assert record.downlink == {"value": 3 * 2 * 4, "shift": 3 * 4}


def test_phases_are_timed(make_job):
    record = started(make_job(), InlineRuntime(1)).advance()
    assert record.seconds.keys() == {"broadcast", "clients", "train", "evaluate", "aggregate", "round"}


def test_result_is_the_summary_of_the_records(make_job):
    coordinator = finish(started(make_job()))
    best = int(np.argmax([record.validation for record in coordinator.records]))
    assert coordinator.result().best_round == best
    assert coordinator.result().test_score == coordinator.records[best].test


@pytest.mark.parametrize("field", ["value/value", "loss/total"])
def test_what_is_not_finite_stops_the_run_before_aggregation(make_job, field):
    coordinator = started(make_job(spoil=(1, 2, field, float("nan"))), InlineRuntime(2))
    coordinator.advance()
    coordinator.advance()
    with pytest.raises(NonFiniteError, match=f"non-finite {field} at client 1 in round 2"):
        coordinator.advance()
    assert len(coordinator.records) == 2
    assert coordinator._server.value[0] == 2


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_undeclared_fields_are_refused(make_job, direction):
    verb = {"upload": "uploads", "download": "broadcasts"}[direction]
    coordinator = started(make_job(**{f"extra_{direction}": "labels/all"}))
    with pytest.raises(FedatlasError, match=f"counting {verb} undeclared fields: labels"):
        coordinator.advance()
    assert not coordinator.records


# Checkpoints


def test_checkpoints_are_written_every_few_rounds_but_not_after_the_last(make_job, tmp_path):
    path = tmp_path / "c"
    coordinator = started(make_job(), rounds=6, checkpoint_every=2, checkpoint_path=path)
    found = []
    while not coordinator.finished:
        coordinator.advance()
        found.append(Checkpoint.load(path).next_round if path.exists() else None)
    assert found == [None, 2, 2, 4, 4, 4]
    saved = Checkpoint.load(path)
    assert saved.server["value"].tolist() == [4, 4]
    assert saved.clients == {"value": saved.clients["value"], "rounds": 4}
    assert saved.clients["value"].tolist() == [3, 4, 5]
    assert list(saved.records) == list(coordinator.records[:4])


def test_no_file_without_an_interval(make_job, tmp_path):
    finish(started(make_job(), checkpoint_every=0, checkpoint_path=tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_a_new_coordinator_continues_from_the_file_under_another_placement(make_job, tmp_path):
    options = {"rounds": 7, "checkpoint_every": 2, "checkpoint_path": tmp_path / "c"}
    first = started(make_job(), InlineRuntime(2), **options)
    for _ in range(5):
        first.advance()
    runtime = InlineRuntime(1)
    second = started(make_job(), runtime, **options)
    assert len(second.records) == 4
    assert runtime.state()["rounds"] == 4
    finish(second)
    assert plain(second.records) == plain(finish(started(make_job(), rounds=7)).records)
    assert list(second.records[:4]) == list(first.records[:4])


def test_a_torn_checkpoint_stops_the_start(make_job, tmp_path):
    (tmp_path / "c").write_bytes(b"not a checkpoint")
    with pytest.raises(FedatlasError, match="delete it to start over"):
        started(make_job(), checkpoint_path=tmp_path / "c")


# Recovery


class Dying(InlineRuntime):
    """Loses a cohort at given calls, counted over all of them, of one method."""

    def __init__(self, method, calls):
        super().__init__(2)
        self._method, self._left, self.calls = method, set(calls), {}

    def _count(self, method):
        number = self.calls[method] = self.calls.get(method, -1) + 1
        if method == self._method and number in self._left:
            raise CohortLost(f"{method} {number}")

    def round(self, broadcast, round_number, score=True, participants=None):
        reports = super().round(broadcast, round_number, score, participants)
        self._count("round")
        return reports

    def evaluate(self, broadcast):
        self._count("evaluate")
        return super().evaluate(broadcast)

    def state(self):
        self._count("state")
        return super().state()

    def restore(self, packed):
        self._count("restore")
        super().restore(packed)

    def recover(self):
        super().recover()
        self._count("recover")


@pytest.mark.parametrize(
    ("method", "calls"),
    [("round", [0]), ("round", [3]), ("round", [1, 5, 6]), ("evaluate", [2]), ("state", [0]), ("state", [1])],
    ids=str,
)
def test_a_loss_at_any_point_does_not_change_the_run(make_job, method, calls):
    options = {"rounds": 6, "checkpoint_every": 2, "evaluation": "after_aggregate"}
    runtime = Dying(method, calls)
    coordinator = finish(started(make_job(), runtime, **options))
    assert runtime.calls["recover"] + 1 == len(calls)
    assert plain(coordinator.records) == plain(finish(started(make_job(), **options)).records)
    assert runtime.state()["rounds"] == 6


@pytest.mark.parametrize("method", ["recover", "restore"])
def test_a_loss_during_recovery_is_recovered_too(make_job, method):
    class Twice(Dying):
        def round(self, broadcast, round_number, score=True, participants=None):
            reports = super().round(broadcast, round_number, score, participants)
            if self.calls["round"] == 3:
                raise CohortLost("round 3")
            return reports

    runtime = Twice(method, [0])
    coordinator = finish(started(make_job(), runtime, rounds=6, checkpoint_every=2))
    assert runtime.calls["recover"] == 1
    assert plain(coordinator.records) == plain(finish(started(make_job(), rounds=6)).records)


def test_cohorts_that_keep_dying_stop_the_run(make_job):
    runtime = Dying("round", range(100))
    coordinator = started(make_job(), runtime)
    with pytest.raises(FedatlasError, match=f"died {MAX_RECOVERIES + 1} times .*memory"):
        coordinator.advance()


def test_a_committed_state_does_not_change_while_the_run_goes_on(make_job):
    runtime = InlineRuntime()
    coordinator = started(make_job(), runtime, rounds=9, checkpoint_every=2)
    for _ in range(3):
        coordinator.advance()
    kept = coordinator._committed
    assert kept.next_round == 2
    assert torch.equal(kept.clients["value"], torch.tensor([1.0, 2.0, 3.0]))
    assert kept.server["value"].tolist() == [2, 2]
    assert len(kept.records) == 2
