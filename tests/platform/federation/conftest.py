"""Small clients, and a method whose every number can be told by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.contract import Algorithm, LocalUpdate, MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.federation.runtime import Job
from fedatlas.platform.federation.state import transient
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import ClientGraph


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_clients() -> Callable[..., tuple[ClientGraph, ...]]:
    """Clients of the given sizes: random edges, half of the features zero, roles and labels in turn."""

    def make(
        sizes: Sequence[int] = (7, 4, 9), features: int = 5, classes: int = 3, sparse: bool = False
    ) -> tuple[ClientGraph, ...]:
        generator = np.random.default_rng(3)
        graphs = []
        for client, size in enumerate(sizes):
            values = np.maximum(generator.standard_normal((size, features)), 0).astype(np.float32)
            roles = np.arange(size) % 3
            graphs.append(
                ClientGraph(
                    client=client,
                    nodes=np.arange(size),
                    features=sp.csr_array(values) if sparse else values,
                    edges=undirected(generator.integers(0, size, (2, 2 * size)), size),
                    labels=(np.arange(size) + client) % classes,
                    train=roles == 0,
                    validation=roles == 1,
                    test=roles == 2,
                )
            )
        return tuple(graphs)

    return make


@pytest.fixture(scope="session")
def task() -> Task:
    return Task(clients=3, features=5, classes=3, metric="accuracy", seed=0)


@dataclass
class CountingServer:
    """A value that grows by 1 each round, and a shift per client [M]."""

    value: Tensor
    shift: Tensor


@dataclass
class CountingClient:
    """What the client holds [k], and how often it trained."""

    value: Tensor
    rounds: int = 0
    shift: Tensor | None = transient()


@dataclass(frozen=True)
class Counting(Algorithm[CountingServer, CountingClient]):
    """In round r client m holds r + m after training, and r + 1 after the next broadcast.

    A client predicts the class that equals its value, modulo the number of classes, for every node.

    Args:
        spoil: (client, round, field, value) to put into an upload or a metric.
        extra_upload, extra_download: fields sent besides the declared ones.
    """

    name: ClassVar[str] = "counting"
    title: ClassVar[str] = "Counting"
    uploads: ClassVar[frozenset[str]] = frozenset({"value"})
    downloads: ClassVar[frozenset[str]] = frozenset({"value", "shift"})

    spoil: tuple[int, int, str, float] | None = None
    extra_upload: str | None = None
    extra_download: str | None = None

    @classmethod
    def create(cls, configuration: MethodConfiguration, backbone: str | None) -> Counting:
        return cls()

    def init(self, task: Task) -> CountingServer:
        return CountingServer(torch.zeros(2), torch.arange(task.clients).float())

    def broadcast(self, server: CountingServer, round_number: int) -> Broadcast:
        common = {"value/value": server.value}
        if self.extra_download:
            common[self.extra_download] = server.value
        return Broadcast(common, {"shift/shift": server.shift})

    def join(self, cohort: Cohort) -> CountingClient:
        return CountingClient(torch.zeros(len(cohort.clients)))

    def receive(self, client: CountingClient, cohort: Cohort, broadcast: Broadcast) -> None:
        client.value.copy_(broadcast.common["value/value"][0].expand_as(client.value))
        client.shift = broadcast.personal["shift/shift"]

    def update(self, client: CountingClient, cohort: Cohort, round_number: int) -> LocalUpdate:
        assert client.shift is not None
        client.value += client.shift
        client.rounds += 1
        fields = {"value/value": client.value.clone(), "loss/total": client.value * 10}
        if self.spoil is not None and self.spoil[1] == round_number and self.spoil[0] in cohort.clients:
            fields[self.spoil[2]][cohort.clients.index(self.spoil[0])] = self.spoil[3]
        metrics = {"loss/total": fields.pop("loss/total")}
        if self.extra_upload:
            fields[self.extra_upload] = client.value.clone()
        return LocalUpdate(Upload(fields), metrics)

    def predict(self, client: CountingClient, cohort: Cohort) -> Tensor:
        chosen = client.value.long() % cohort.task.classes
        hot = torch.nn.functional.one_hot(chosen, cohort.task.classes).float()
        return hot[:, None].expand(-1, cohort.width, -1)

    def aggregate(self, server: CountingServer, upload: Upload, round_number: int) -> CountingServer:
        return replace(server, value=server.value + 1)

    def diagnostics(self, server: CountingServer) -> dict[str, float]:
        return {"geometry/value": float(server.value[0])}


@pytest.fixture(scope="session")
def counting() -> Callable[..., Counting]:
    return Counting


@pytest.fixture(scope="session")
def make_job(make_clients: Callable[..., tuple[ClientGraph, ...]], task: Task) -> Callable[..., Job]:
    """Three clients that run `Counting`; arguments go to it."""

    def make(**options: Any) -> Job:
        return Job(Counting(**options), make_clients(), task)

    return make
