"""Small random federations, small methods, and whole runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fedatlas.algorithms.registry import Method, algorithm_type, create
from fedatlas.sweeps import federations
from fedatlas.sweeps.federations import ODD, SMALL, Federation, Outcome


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_federation() -> Callable[..., Federation]:
    """Stochastic block graphs, see `fedatlas.sweeps.federations`."""
    return federations.make_federation


@pytest.fixture(scope="session")
def make_graph_federation() -> Callable[..., Federation]:
    """Clients with graphs to classify, see `fedatlas.sweeps.federations`."""
    return federations.make_graph_federation


@pytest.fixture(params=ODD)
def odd_federation(request: pytest.FixtureRequest) -> Federation:
    """One federation for each edge case of the protocol."""
    return federations.odd_federation(request.param)


@pytest.fixture(scope="session")
def make_method() -> Callable[..., Method]:
    """A method by name, in small sizes; options go to its configuration."""

    def make(name: str, backbone: str | None = None, **options: Any) -> Method:
        known = algorithm_type(name).configuration_type.model_fields
        small = {option: value for option, value in SMALL.items() if option in known}
        return create(name, backbone, {**small, **options})

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., Outcome]:
    """Run a method on a federation in this process, in float64 unless told otherwise."""
    return federations.run


@pytest.fixture(scope="session")
def assert_same_run() -> Callable[..., None]:
    """Check that two runs have the same scores, metrics, bytes and states; exactly if the tolerance is 0."""
    return federations.require_same_run


@pytest.fixture
def golden_anchors() -> torch.Tensor:
    """Simplex of 3 classes in 3 dimensions whose orthonormal basis is the identity."""
    return torch.sqrt(torch.tensor(1.5, dtype=torch.float64)) * (torch.eye(3, dtype=torch.float64) - 1 / 3)


@pytest.fixture
def golden_means() -> torch.Tensor:
    """Class means, columns are classes."""
    return torch.tensor([[1, 0.2, 0], [0, 1, 0.1], [0.3, 0, 1]], dtype=torch.float64)
