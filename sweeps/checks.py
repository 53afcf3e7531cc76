"""What every method must satisfy, as checks that run on any class.

The strong ones are equalities: k clients stacked are k separate programs, a resumed run is the uninterrupted
one, a run repeats bit for bit. `fedatlas check package.module:Class` runs all of them on small random graphs;
the tests of this project run them on its registry.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedatlas.algorithms.registry import Method
from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.coordinator import Coordinator, Schedule
from fedatlas.platform.federation.host import CohortReport
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.federation.runtime import CohortLost, InlineRuntime
from fedatlas.platform.graphs.graph import ClientGraph
from fedatlas.sweeps.federations import (
    ODD,
    SMALL,
    Federation,
    make_federation,
    odd_federation,
    require_same_run,
    run,
)

STIRRING = {"input_dropout": 0.2, "activation": "elu", "epochs": 2}
"""Settings under which every source of randomness and every kind of state is in use."""
TOLERANCE = 1e-5
"""Largest difference between placements in float64."""


@dataclass(frozen=True)
class Subject:
    """What is checked: a class of methods on a backbone (None for its own)."""

    kind: type[Method]
    backbone: str | None = None

    def method(self, **options: Any) -> Method:
        """An instance in small sizes, with `STIRRING` and further options as far as it has them."""
        return self._create({**SMALL, **STIRRING, **options})

    def plain(self) -> Method:
        """An instance in small sizes, its other options at their defaults."""
        return self._create(SMALL)

    def _create(self, options: Mapping[str, Any]) -> Method:
        known = self.kind.configuration_type.model_fields
        given = {key: value for key, value in options.items() if key in known}
        return self.kind.create(self.kind.configuration_type(**given), self.backbone)


@dataclass(frozen=True)
class Check:
    """A check and what it says.

    Attributes:
        name: short.
        promise: what holds if it passes.
        run: raises if it does not.
    """

    name: str
    promise: str
    run: Callable[[Subject], None]


def require(holds: Any, otherwise: str) -> None:
    """Raise an `AssertionError` that says what does not hold."""
    if not holds:
        raise AssertionError(otherwise)


def placement(subject: Subject, sparse: bool = False) -> None:
    """k = 1, 2, 3 and M clients per process agree."""
    federation = make_federation(sparse=sparse)
    method = subject.method()
    together = run(method, federation)
    for per_cohort in (1, 2, 3):
        require_same_run(run(method, federation, per_cohort=per_cohort), together, TOLERANCE)


def single_precision(subject: Subject) -> None:
    """In float32 the weights agree between placements to 1e-3."""
    federation = make_federation()
    method = subject.method()
    together, apart = (run(method, federation, per_cohort=k, precision="float32") for k in (4, 1))
    others = dict(_tensors(apart.clients.get("weights", apart.clients)))
    for place, weight in _tensors(together.clients.get("weights", together.clients)):
        torch.testing.assert_close(weight, others[place], rtol=0, atol=1e-3)


def repetition(subject: Subject) -> None:
    """The same seed gives the same run, bit for bit."""
    federation = make_federation()
    method = subject.method()
    require_same_run(run(method, federation), run(method, federation))


def another_seed(subject: Subject) -> None:
    """Another seed gives other weights."""
    federation = make_federation()
    method = subject.method()
    other = dataclasses.replace(federation, task=dataclasses.replace(federation.task, seed=1))
    first, second = run(method, federation).clients, run(method, other).clients
    others = dict(_tensors(second.get("weights", second)))
    for place, weight in _tensors(first.get("weights", first)):
        if weight.is_floating_point() and weight.numel() > 1:
            require(not torch.allclose(weight, others[place]), f"{place} does not depend on the seed")


def stopped(
    method: Method, federation: Federation, schedule: Schedule, rounds: int, per_cohort: int | None = None
) -> None:
    """Start a run and leave it after some rounds, as if it had been killed."""
    coordinator = Coordinator(federation.job(method), InlineRuntime(per_cohort), schedule)
    coordinator.start()
    for _ in range(rounds):
        coordinator.advance()


def resumption(subject: Subject, rounds: int = 3) -> None:
    """A run that is stopped and resumed from its checkpoint equals the uninterrupted one."""
    federation = make_federation()
    method = subject.method()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.checkpoint"
        options: dict[str, Any] = {"rounds": 5, "checkpoint_every": 2, "checkpoint_path": path}
        stopped(method, federation, Schedule(**options), rounds)
        require(
            path.exists() == (rounds >= 2 or method.preparation_steps > 0),
            f"after {rounds} rounds the checkpoint of round 2 is {'there' if path.exists() else 'missing'}",
        )
        require_same_run(run(method, federation, **options), run(method, federation, rounds=5))


def resumption_elsewhere(subject: Subject) -> None:
    """A checkpoint may be resumed under another placement."""
    federation = make_federation()
    method = subject.method()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.checkpoint"
        options: dict[str, Any] = {"rounds": 5, "checkpoint_every": 2, "checkpoint_path": path}
        stopped(method, federation, Schedule(**options), 3, per_cohort=3)
        resumed = run(method, federation, per_cohort=1, **options)
        require_same_run(resumed, run(method, federation, rounds=5), TOLERANCE)


class Dying(InlineRuntime):
    """Loses a cohort in some rounds, once each, after its clients have already trained."""

    def __init__(self, rounds: Collection[int]) -> None:
        super().__init__(2)
        self.left = list(rounds)
        self.recoveries = 0

    def round(
        self,
        broadcast: Broadcast,
        round_number: int,
        score: bool = True,
        participants: Collection[int] | None = None,
    ) -> list[CohortReport]:
        reports = super().round(broadcast, round_number, score, participants)
        if round_number in self.left:
            self.left.remove(round_number)
            raise CohortLost("killed by the check")
        return reports

    def recover(self) -> None:
        self.recoveries += 1
        super().recover()


def lost_cohort(subject: Subject, lost: Collection[int] = (1, 4, 4)) -> None:
    """A process that dies and is replaced does not change the result."""
    federation = make_federation()
    method = subject.method()
    runtime = Dying(lost)
    outcome = run(method, federation, rounds=5, runtime=runtime, checkpoint_every=2)
    require(runtime.recoveries == len(lost), f"{runtime.recoveries} recoveries for {len(lost)} losses")
    require_same_run(outcome, run(method, federation, rounds=5, per_cohort=2))


def edge_case(subject: Subject, case: str) -> None:
    """Odd clients leave everything finite, are scored where a score exists, and agree between placements."""
    federation = odd_federation(case)
    method = subject.method(epochs=1)
    outcome = run(method, federation, rounds=3)
    for state in (outcome.server, outcome.clients):
        for place, tensor in _tensors(state):
            require(tensor.isfinite().all(), f"{place} is not finite")
    for record in outcome.records:
        for name, value in record.metrics.items():
            require(np.isfinite(value), f"{name} is {value} in round {record.round}")
        for scores, role in ((record.client_validation, "validation"), (record.client_test, "test")):
            wanted = [_defined(graph, role, federation) for graph in federation.graphs]
            require(np.isfinite(scores).tolist() == wanted, f"{role} scores {scores}, defined for {wanted}")
    require_same_run(run(method, federation, rounds=3, per_cohort=1), outcome, TOLERANCE)


def _tensors(state: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    items = state.items() if isinstance(state, Mapping) else enumerate(state)
    for name, value in items:
        if isinstance(value, Mapping | tuple | list):
            yield from _tensors(value, f"{place}/{name}")
        elif isinstance(value, torch.Tensor):
            yield f"{place}/{name}", value


def _defined(graph: ClientGraph, role: str, federation: Federation) -> bool:
    """Whether a client has a score: it has nodes of the role, of both classes if the score is an AUC."""
    labels = graph.labels[getattr(graph, role)]
    return len(set(labels)) == 2 if federation.task.metric == "auc" else len(labels) > 0


def hidden_labels(subject: Subject) -> None:
    """Labels of validation and test nodes change the scores and nothing else."""
    federation = make_federation()
    changed = federation
    for m, graph in enumerate(federation.graphs):
        changed = changed.changed(m, labels=np.where(graph.train, graph.labels, (graph.labels + 1) % 3))
    # AdaFGL may select its extractor by validation scores; training itself must not see the labels.
    method = subject.method(extractor="last")
    first, second = run(method, federation), run(method, changed)
    require_same_run(first, second, scores=False)
    require((first.scores() != second.scores()).any(), "scores do not depend on the labels")


def untouched_broadcast(subject: Subject) -> None:
    """Local training leaves the broadcast alone, which may lie in shared, read-only memory."""
    federation = make_federation()
    method = subject.method()
    runtime = InlineRuntime()
    runtime.setup(federation.job(method))
    broadcast = method.broadcast(method.init(federation.task), 0)
    before = {field: tensor.clone() for field, tensor in broadcast.common.items()}
    runtime.round(broadcast, 0)
    runtime.round(broadcast, 1)
    for field, tensor in before.items():
        require(torch.equal(broadcast.common[field], tensor), f"the broadcast field {field} was changed")


def declared_fields(subject: Subject) -> None:
    """A field that the method does not declare is refused before it reaches the server."""
    federation = make_federation()
    method = subject.plain()
    update = method.update

    def and_more(client: Any, cohort: Any, round_number: int) -> Any:
        result = update(client, cohort, round_number)
        extra = {**result.upload.fields, "labels/all": cohort.labels}
        return dataclasses.replace(result, upload=Upload(extra))

    method.update = and_more  # type: ignore[method-assign]
    coordinator = Coordinator(federation.job(method), InlineRuntime(), Schedule(1))
    coordinator.start()
    try:
        coordinator.advance()
    except FedatlasError as error:
        wanted = f"{method.name} uploads undeclared fields: labels"
        require(wanted in str(error), f"'{error}' instead of '{wanted}'")
        return
    raise AssertionError("an undeclared field was taken")


def description(subject: Subject) -> None:
    """Name, version and options are complete, and options survive as plain values."""
    method = subject.method()
    require(bool(method.name and method.title), "name or title is empty")
    require(method.version >= 1, "version must be at least 1")
    about = method.describe()
    require({"backbone", "aggregation"} <= set(about), f"describe() gives {sorted(about)}")
    plain = method.configuration.model_dump(mode="json")
    require(subject.kind.configuration_type(**plain) == method.configuration, "options change when written")


CHECKS: tuple[Check, ...] = (
    Check("placement", "k = 1, 2, 3 and M clients per process agree to 1e-5", placement),
    Check(
        "placement, sparse features", "the same where features are sparse", partial(placement, sparse=True)
    ),
    Check("single precision", "float32 agrees between placements to 1e-3", single_precision),
    Check("repetition", "the same seed gives the same run bit for bit", repetition),
    Check("another seed", "another seed gives other weights", another_seed),
    *(
        Check(
            f"resumption after {rounds}",
            "a resumed run is the uninterrupted one",
            partial(resumption, rounds=rounds),
        )
        for rounds in (1, 2, 3)
    ),
    Check("resumption elsewhere", "the same under another placement", resumption_elsewhere),
    Check("lost process", "a process that is replaced changes nothing", lost_cohort),
    *(
        Check(f"edge case: {case}", "all is finite and placements agree", partial(edge_case, case=case))
        for case in ODD
    ),
    Check("hidden labels", "labels of validation and test nodes are never used", hidden_labels),
    Check("untouched broadcast", "training does not write into what was received", untouched_broadcast),
    Check("declared fields", "nothing travels that is not declared", declared_fields),
    Check("description", "name, version and options are complete", description),
)
"""All checks, in the order in which they run."""


@dataclass(frozen=True)
class Verdict:
    """Result of a check; `error` is empty if it passed."""

    check: Check
    error: str


def examine(subject: Subject) -> Iterator[Verdict]:
    """Run all checks, one after another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for check in CHECKS:
            try:
                check.run(subject)
            except AssertionError as error:
                yield Verdict(check, _brief(error) or "it does not hold")
            except Exception as error:
                yield Verdict(check, f"{type(error).__name__}: {_brief(error)}")
            else:
                yield Verdict(check, "")
    finally:
        torch.set_num_threads(threads)


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:4])
