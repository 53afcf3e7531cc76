"""The contract between the runtime and a method.

A method is a few hooks over two states. It decides what clients learn and what travels; the runtime
evaluates, counts bytes, times phases, checkpoints and tracks.

    server:  init -> broadcast -> aggregate -> broadcast -> ...
    client:  join -> (receive -> update -> predict) per round

A method may exchange something before round 0 (`preparation_steps`) and let the clients train on by
themselves after the last round (`personal_rounds`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator
from torch import Tensor

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.messages import Broadcast, Upload
from fedatlas.platform.graphs.graph import Level

LARGEST = 2**31 - 1
"""Of a number that counts something: larger ones are no floating-point numbers, or no sizes of arrays."""

ServerT = TypeVar("ServerT")
ClientT = TypeVar("ClientT")


class MethodConfiguration(BaseModel):
    """Base of all method configurations: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"must be at most {LARGEST}")
        return value


@dataclass(frozen=True)
class LocalUpdate:
    """Result of a client's local round.

    Attributes:
        upload: fields [k, ...] for the server.
        metrics: per-client figures [k] to track, for example ``loss/total`` or ``geometry/residual``.
    """

    upload: Upload
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Algorithm(ABC, Generic[ServerT, ClientT]):
    """A federated method.

    An instance holds configuration only, so it can travel to every actor.

    Attributes:
        name, title: in commands and in tables.
        version: goes up when a change alters results.
        configuration_type: its options with their defaults.
        default_backbone: network that it uses if nothing else is asked for; None if it has no choice.
        backbones: networks that it can use; None for all.
        levels: what it can classify: nodes of a graph, or graphs.
        partial_participation: its server can do with uploads of some clients only, [|S|, ...].
        uploads, downloads: field groups that the method may send; others are refused by the runtime.
        meanings: what an uploaded group holds, in a few words; those of the base classes need no repetition.
        note: which reading of the paper this is, where the paper leaves it open; shown under tables.
        configuration: the options of this instance.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int] = 1
    uploads: ClassVar[frozenset[str]] = frozenset()
    downloads: ClassVar[frozenset[str]] = frozenset()
    meanings: ClassVar[Mapping[str, str]] = {}
    note: ClassVar[str] = ""
    configuration_type: ClassVar[type[MethodConfiguration]] = MethodConfiguration
    default_backbone: ClassVar[str | None] = None
    backbones: ClassVar[tuple[str, ...] | None] = None
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    partial_participation: ClassVar[bool] = False

    configuration: MethodConfiguration

    @classmethod
    def meaning(cls, group: str) -> str:
        """What an uploaded group holds; empty if nobody says it."""
        said = (vars(each).get("meanings", {}) for each in cls.__mro__)
        return next((found[group] for found in said if group in found), "")

    @classmethod
    @abstractmethod
    def create(cls, configuration: MethodConfiguration, backbone: str | None) -> Self:
        """An instance with checked options.

        Args:
            configuration: of `configuration_type`.
            backbone: name of a network, or None for the default.

        Raises:
            ConfigurationError: the method cannot use this network, or options contradict each other.
        """

    def require(self, level: Level) -> None:
        """Refuse what it cannot classify as it is configured.

        Raises:
            ConfigurationError: names the level and what works there.
        """
        if level not in self.levels:
            raise ConfigurationError(
                f"{self.name} classifies {self.levels[0]}s, and the task is of {level}s: see "
                "`fedatlas algorithms` for others"
            )

    @abstractmethod
    def init(self, task: Task) -> ServerT:
        """Server state before round 0."""

    @abstractmethod
    def broadcast(self, server: ServerT, round_number: int) -> Broadcast:
        """What the clients receive at the start of a round."""

    @abstractmethod
    def join(self, cohort: Cohort) -> ClientT:
        """State of the cohort's clients before round 0; every tensor [k, ...]."""

    @abstractmethod
    def receive(self, client: ClientT, cohort: Cohort, broadcast: Broadcast) -> None:
        """Take a broadcast (personal fields already cut to [k, ...]) into the client state."""

    @abstractmethod
    def update(self, client: ClientT, cohort: Cohort, round_number: int) -> LocalUpdate:
        """Train locally; changes the client state in place."""

    @abstractmethod
    def predict(self, client: ClientT, cohort: Cohort) -> Tensor:
        """Logits [k, n, C] of the clients' present models in evaluation mode.

        Of graphs [k, g, C]; only those of validation and test graphs are read.
        """

    @abstractmethod
    def aggregate(self, server: ServerT, upload: Upload, round_number: int) -> ServerT:
        """Next server state from the uploads [M, ...] of all clients."""

    # Protected uploads, see `fedatlas.platform.federation.privacy`

    def clipped(self) -> frozenset[str]:
        """Groups of uploaded fields that are an update, whose norm can be bounded."""
        return frozenset()

    def reference(self, broadcast: Broadcast) -> Mapping[str, Tensor]:
        """What the fields of `clipped` start from in a round, by field name; zero for those left out."""
        return {}

    def additive(self) -> frozenset[str]:
        """Groups of uploaded fields of which the server needs the sum only, by means of `addends`.

        A class with an `aggregate` of its own has none unless it says so again.
        """
        return frozenset()

    def addends(self, upload: Upload) -> Upload:
        """The upload [k, ...] as fields to be added up over all clients."""
        return upload

    def combined(self, server: ServerT, sums: Upload) -> Upload:
        """An upload of one client [1, ...] that `aggregate` treats as all uploads whose addends have these
        sums [1, ...]."""
        return sums

    # Before round 0

    @property
    def preparation_steps(self) -> int:
        """Number of exchanges before round 0."""
        return 0

    def prepare_broadcast(self, server: ServerT, step: int) -> Broadcast:
        """What the clients receive at the start of a preparation step."""
        return Broadcast()

    def prepare(self, client: ClientT, cohort: Cohort, broadcast: Broadcast, step: int) -> Upload:
        """A client's part of a preparation step; changes the client state in place."""
        raise NotImplementedError(f"{self.name} declares preparation steps and has no `prepare`")

    def prepare_aggregate(self, server: ServerT, upload: Upload, step: int) -> ServerT:
        """Next server state from what the clients sent in a preparation step."""
        return server

    # After the last round

    @property
    def personal_rounds(self) -> int:
        """Number of rounds that clients train alone after the last federated one.

        They receive the broadcast of the round after the last once, and send nothing.
        """
        return 0

    def personalise(self, client: ClientT, cohort: Cohort, step: int) -> Mapping[str, Tensor]:
        """One personal round; changes the client state in place and returns figures [k] to track."""
        raise NotImplementedError(f"{self.name} declares personal rounds and has no `personalise`")

    # What is shown

    def diagnostics(self, server: ServerT) -> dict[str, float]:
        """Figures of the server state to track each round; keys like ``geometry/gram_error``."""
        return {}

    def exports(self, level: Level) -> bool:
        """Whether `snapshot` has something to export where such items are classified."""
        return type(self).snapshot is not Algorithm.snapshot

    def snapshot(self, client: ClientT, cohort: Cohort) -> dict[str, Tensor]:
        """What a client holds that is worth a figure, [k, ...] by name; for export, never sent in a round."""
        return {}

    def server_snapshot(self, server: ServerT) -> dict[str, Tensor]:
        """What the server holds that is worth a figure, by name."""
        return {}

    def mixing_matrix(self, server: ServerT) -> Tensor | None:
        """How much client i takes from client j, [M, M]; None if all receive the same."""
        return None

    def describe(self) -> dict[str, Any]:
        """What tables say about the method: at least `backbone` and `aggregation`."""
        return {"backbone": None, "aggregation": "own"}
