from __future__ import annotations

import warnings

import pytest
import torch

from fedatlas.platform.errors import FedatlasError, NonFiniteError
from fedatlas.platform.federation.host import CohortHost
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.federation.runtime import InlineRuntime, contiguous_groups


def host_of(job, clients):
    return CohortHost(job.algorithm, [job.graphs[m] for m in clients], job.task)


def broadcast_for(job, clients, value=0.0):
    server = job.algorithm.init(job.task)
    server.value += value
    return job.algorithm.broadcast(server, 0).for_clients(clients)


def test_a_round_reports_upload_scores_and_metrics_of_the_cohort(make_job):
    job = make_job()
    report = host_of(job, (1, 2)).round(broadcast_for(job, (1, 2), value=5), 0)
    assert report.upload.fields["value/value"].tolist() == [6, 7]
    assert report.metrics["loss/total"].tolist() == [60, 70]
    for row, client in enumerate((1, 2)):
        graph = job.graphs[client]
        chosen = (5 + client) % 3
        assert report.scores.test[row] == pytest.approx((graph.labels[graph.test] == chosen).mean())
        assert report.scores.validation[row] == pytest.approx(
            (graph.labels[graph.validation] == chosen).mean()
        )


def test_evaluation_receives_but_does_not_train(make_job):
    job = make_job()
    host = host_of(job, (0, 2))
    scores = host.evaluate(broadcast_for(job, (0, 2), value=1))
    for row, client in enumerate((0, 2)):
        graph = job.graphs[client]
        assert scores.test[row] == pytest.approx((graph.labels[graph.test] == 1).mean())
    assert host.state()["rounds"] == 0


def test_state_is_a_copy_and_can_be_restored_from_the_whole_federation(make_job):
    job = make_job()
    host = host_of(job, (2, 0))
    before = host.state()
    host.round(broadcast_for(job, (2, 0), value=5), 0)
    assert before["value"].tolist() == [0, 0]
    assert host.state()["value"].tolist() == [7, 5]
    host.restore({"value": torch.tensor([10.0, 11.0, 12.0]), "rounds": 9})
    assert host.state()["value"].tolist() == [12, 10]
    assert host.state()["rounds"] == 9


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["value/value", "loss/total"])
def test_what_is_not_finite_is_refused_with_client_and_round(make_job, field, value):
    job = make_job(spoil=(2, 4, field, value))
    host = host_of(job, (0, 2))
    host.round(broadcast_for(job, (0, 2)), 3)
    with pytest.raises(NonFiniteError, match=f"non-finite {field} at client 2 in round 4: lower") as caught:
        host.round(broadcast_for(job, (0, 2)), 4)
    assert (caught.value.client, caught.value.when) == (2, "round 4")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_entry_of_a_matrix_is_enough_to_be_refused(make_job, value):
    fields = {"value/matrix": torch.zeros(2, 3, 4), "value/count": torch.zeros(2, dtype=torch.int32)}
    fields["value/matrix"][1, 2, 0] = value
    with pytest.raises(NonFiniteError, match="value/matrix at client 2"):
        host_of(make_job(), (0, 2))._check(Upload(fields), {}, 0)


def test_undeclared_uploads_are_refused(make_job):
    job = make_job(extra_upload="labels/all")
    with pytest.raises(FedatlasError, match="counting uploads undeclared fields: labels"):
        host_of(job, (0,)).round(broadcast_for(job, (0,)), 0)


def test_a_read_only_broadcast_is_enough(make_job):
    """What comes out of an object store cannot be written to."""
    job = make_job()
    sent = broadcast_for(job, (0,), value=3)
    array = sent.common["value/value"].numpy().copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        # torch says so once in the life of a process.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        frozen = Broadcast({"value/value": torch.from_numpy(array)}, sent.personal)
    host = host_of(job, (0,))
    host.round(frozen, 0)
    host.round(frozen, 1)
    assert array.tolist() == [3, 3]


def test_groups_cover_all_clients_in_order():
    assert contiguous_groups(5, 2) == ((0, 1), (2, 3), (4,))
    assert contiguous_groups(3, 3) == contiguous_groups(3, 7) == ((0, 1, 2),)
    assert contiguous_groups(2, 1) == ((0,), (1,))


@pytest.mark.parametrize("per_cohort", [1, 2, 3])
def test_inline_runtime_keeps_client_order(make_job, per_cohort):
    job = make_job()
    runtime = InlineRuntime(per_cohort)
    runtime.setup(job)
    reports = runtime.round(job.algorithm.broadcast(job.algorithm.init(job.task), 0), 0)
    assert [v for report in reports for v in report.upload.fields["value/value"].tolist()] == [0, 1, 2]
    assert runtime.state()["value"].tolist() == [0, 1, 2]
    runtime.restore({"value": torch.tensor([7.0, 8.0, 9.0]), "rounds": 1})
    assert runtime.state()["value"].tolist() == [7, 8, 9]
    runtime.recover()
    assert runtime.state()["value"].tolist() == [0, 0, 0]
