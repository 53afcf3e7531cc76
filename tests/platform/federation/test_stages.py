"""What a method does before round 0 and after the last round, and fields whose shapes differ by client."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedatlas.platform.errors import FedatlasError, NonFiniteError
from fedatlas.platform.federation.checkpoint import Checkpoint
from fedatlas.platform.federation.contract import Algorithm, LocalUpdate
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.federation.records import summarise
from fedatlas.platform.federation.runtime import CohortLost, InlineRuntime


@dataclass
class StagedServer:
    """What every client sent of its own, and a count of rounds."""

    lists: tuple[Tensor, ...] = ()
    rounds: int = 0


@dataclass
class StagedClient:
    """Node lists received of the next client, and how often the client did what [k]."""

    lists: tuple[Tensor, ...]
    received: Tensor
    trained: Tensor
    personal: Tensor


@dataclass(frozen=True)
class Staged(Algorithm[StagedServer, StagedClient]):
    """Clients send their training nodes in step 0 and receive those of the next client in step 1."""

    name: ClassVar[str] = "staged"
    title: ClassVar[str] = "Staged"
    uploads: ClassVar[frozenset[str]] = frozenset({"nodes", "count"})
    downloads: ClassVar[frozenset[str]] = frozenset({"nodes", "count"})

    spoil: bool = False
    undeclared: bool = False
    preparation_steps: int = field(default=2)  # type: ignore[misc]
    personal_rounds: int = field(default=3)  # type: ignore[misc]

    @classmethod
    def create(cls, configuration, backbone):
        return cls()

    def init(self, task):
        return StagedServer()

    def join(self, cohort):
        zeros = torch.zeros(len(cohort.clients))
        return StagedClient(
            tuple(torch.zeros(0) for _ in cohort.clients), zeros, zeros.clone(), zeros.clone()
        )

    def prepare_broadcast(self, server, step):
        if step == 0:
            return Broadcast()
        group = "labels" if self.undeclared else "nodes"
        return Broadcast(ragged={f"{group}/next": (*server.lists[1:], server.lists[0])})

    def prepare(self, client, cohort, broadcast, step):
        if step == 0:
            nodes = tuple(row.nonzero()[:, 0].float() for row in cohort.train)
            if self.spoil:
                nodes = tuple(part / 0 for part in nodes)
            return Upload(ragged={"nodes/train": nodes})
        client.lists = broadcast.ragged["nodes/next"]
        return Upload({"count/count": torch.tensor([float(len(part)) for part in client.lists])})

    def prepare_aggregate(self, server, upload, step):
        return replace(server, lists=upload.ragged["nodes/train"]) if step == 0 else server

    def broadcast(self, server, round_number):
        return Broadcast({"count/rounds": torch.tensor([float(server.rounds)])})

    def receive(self, client, cohort, broadcast):
        client.received.copy_(broadcast.common["count/rounds"].expand_as(client.received))

    def update(self, client, cohort, round_number):
        client.trained += 1
        return LocalUpdate(Upload({"count/count": client.trained.clone()}))

    def personalise(self, client, cohort, step):
        client.personal += step + 1
        return {"personal/total": client.personal.clone()}

    def predict(self, client, cohort):
        return torch.nn.functional.one_hot(
            (client.trained + client.personal).long() % cohort.task.classes, cohort.task.classes
        )[:, None].expand(-1, cohort.width, -1)

    def aggregate(self, server, upload, round_number):
        return replace(server, rounds=server.rounds + 1)


@pytest.fixture
def job(make_job):
    return replace(make_job(), algorithm=Staged())


def finish(job, runtime=None, **schedule):
    runtime = runtime or InlineRuntime()
    coordinator = Coordinator(job, runtime, Schedule(2, **schedule))
    coordinator.start()
    while not coordinator.finished:
        coordinator.advance()
    return coordinator, runtime


def untimed(records):
    return [
        replace(
            record,
            seconds={},
            peak_bytes=0,
            preparation=record.preparation and replace(record.preparation, seconds=0),
        )
        for record in records
    ]


@pytest.mark.parametrize("per_cohort", [1, 2, 3])
def test_ragged_fields_reach_the_client_they_are_for(job, per_cohort):
    _, runtime = finish(job, InlineRuntime(per_cohort))
    lists = runtime.state()["lists"]
    train = [graph.train.nonzero()[0].tolist() for graph in job.graphs]
    assert [part.tolist() for part in lists] == [train[1], train[2], train[0]]


def test_preparation_is_accounted_with_the_first_round_only(job):
    coordinator, _ = finish(job)
    first, *others = coordinator.records
    nodes = sum(int(graph.train.sum()) for graph in job.graphs)
    assert first.preparation.uplink == {"nodes": 4 * nodes, "count": 4 * 3}
    assert first.preparation.downlink == {"nodes": 4 * nodes}
    assert first.uplink == {"count": 4 * 3}
    assert all(record.preparation is None for record in others)
    assert first.tracked()["comm/preparation_uplink_bytes"] == 4 * nodes + 12
    assert first.tracked()["time/preparation_seconds"] > 0
    result = summarise(coordinator.records)
    assert result.preparation_uplink_bytes == 4 * nodes + 12
    assert result.preparation_downlink_bytes == 4 * nodes


def test_personal_rounds_follow_the_last_broadcast_and_send_nothing(job):
    coordinator, runtime = finish(job)
    assert [record.round for record in coordinator.records] == [0, 1, 2, 3, 4]
    personal = coordinator.records[2:]
    assert [record.metrics["personal/total"] for record in personal] == [1, 3, 6]
    assert [record.uplink for record in personal] == [{}, {}, {}]
    assert [record.downlink for record in personal] == [{"count": 4 * 3}, {}, {}]
    assert runtime.state()["received"].tolist() == [2, 2, 2]
    assert coordinator._server.rounds == 2
    assert all(len(record.client_test) == 3 for record in personal)


def test_traffic_per_round_is_that_of_rounds_with_traffic(job):
    result = summarise(finish(job)[0].records)
    assert result.uplink_bytes_per_round == pytest.approx(2 * 12 / 3)
    assert result.downlink_bytes_per_round == 12


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_stopped_run_goes_on_in_every_stage(job, tmp_path, stop):
    whole, expected = finish(job)
    options = {"checkpoint_every": 1, "checkpoint_path": tmp_path / "run"}
    coordinator = Coordinator(job, InlineRuntime(2), Schedule(2, **options))
    coordinator.start()
    for _ in range(stop):
        coordinator.advance()
    assert Checkpoint.load(tmp_path / "run").next_round == stop
    resumed, runtime = finish(job, InlineRuntime(1), **options)
    assert untimed(resumed.records) == untimed(whole.records)
    for name, value in runtime.state().items():
        if isinstance(value, tuple):
            assert all(torch.equal(a, b) for a, b in zip(value, expected.state()[name], strict=True))
        else:
            assert torch.equal(value, expected.state()[name])


class Dying(InlineRuntime):
    """Loses a cohort once in each of some calls, after the work was done."""

    def __init__(self, *lost):
        super().__init__(2)
        self.left = list(lost)

    def _maybe(self, call, number):
        if (call, number) in self.left:
            self.left.remove((call, number))
            raise CohortLost("killed by the test")

    def prepare(self, broadcast, step):
        reports = super().prepare(broadcast, step)
        self._maybe("prepare", step)
        return reports

    def personalise(self, broadcast, step, round_number):
        reports = super().personalise(broadcast, step, round_number)
        self._maybe("personalise", step)
        return reports


@pytest.mark.parametrize("every", [0, 1, 3])
def test_a_lost_cohort_changes_nothing_in_any_stage(job, every):
    whole, _ = finish(job)
    lost = Dying(("prepare", 0), ("prepare", 1), ("personalise", 0), ("personalise", 2))
    found, _ = finish(job, lost, checkpoint_every=every)
    assert not lost.left
    assert untimed(found.records) == untimed(whole.records)


def test_what_is_not_finite_in_a_preparation_step_is_refused(job):
    with pytest.raises(NonFiniteError, match="non-finite nodes/train at client 0 in preparation step 0"):
        finish(replace(job, algorithm=Staged(spoil=True)))


def test_undeclared_fields_of_a_preparation_step_are_refused(job):
    with pytest.raises(FedatlasError, match="staged broadcasts undeclared fields: labels"):
        finish(replace(job, algorithm=Staged(undeclared=True)))


# Participation


@pytest.mark.parametrize("per_cohort", [1, 2, 3])
def test_only_participants_train_and_send(make_job, per_cohort):
    job = replace(make_job(), algorithm=Staged(preparation_steps=0, personal_rounds=0))
    coordinator = Coordinator(job, InlineRuntime(per_cohort), Schedule(6, participation=0.34))
    coordinator.start()
    chosen = []
    before = torch.zeros(3)
    while not coordinator.finished:
        record = coordinator.advance()
        trained = coordinator._runtime.state()["trained"]
        assert (trained - before).sum() == 1
        chosen.append(int((trained - before).argmax()))
        before = trained
        assert record.uplink == {"count": 4}
        assert record.downlink == {"count": 4}
        assert len(record.client_test) == 3
    assert len(set(chosen)) > 1
    again = Coordinator(job, InlineRuntime(), Schedule(6, participation=0.34))
    again.start()
    for expected in chosen:
        assert again._participants(len(again.records)) == (expected,)
        again.advance()
    assert untimed(again.records) == untimed(coordinator.records)


def test_those_who_do_not_train_are_scored_with_what_they_received(make_job):
    job = replace(make_job(), algorithm=Staged(preparation_steps=0, personal_rounds=0))
    coordinator = Coordinator(job, InlineRuntime(), Schedule(3, participation=0.34))
    coordinator.start()
    while not coordinator.finished:
        coordinator.advance()
    assert coordinator._runtime.state()["received"].tolist() == [2, 2, 2]
