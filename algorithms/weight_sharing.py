"""The skeleton of methods that train one model per client and share some of its weights.

Local, FedAvg, FedPer and FedOpt are settings of it; FedProx adds a loss, FedGMC losses and messages of its
own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.aggregation import (
    Aggregation,
    ClientWeights,
    Shared,
    normalised_client_weights,
    raw_client_weights,
    scaled,
    shared_names,
    weighted_mean,
)
from fedatlas.algorithms.backbones import BACKBONES, Activation, Backbone, Representation, backbone_type
from fedatlas.algorithms.backbones.graph_level import Readout
from fedatlas.algorithms.decorrelation import correlation_penalty
from fedatlas.algorithms.optimizer import AdamState, adam_step, client_adam_step, sgd_step
from fedatlas.algorithms.training_rows import training_rows
from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.batching import scattered, scored_batches, training_batches
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import Algorithm, LocalUpdate, MethodConfiguration
from fedatlas.platform.federation.messages import Broadcast, Tensors, Upload, prefixed, unprefixed
from fedatlas.platform.federation.state import transient
from fedatlas.platform.graphs.graph import Level


class WeightSharingConfiguration(MethodConfiguration):
    """Settings that all weight-sharing methods have; the defaults are the protocol's."""

    hidden: int = Field(128, ge=1, description="hidden width p")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout of hidden representations")
    input_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of input features")
    activation: Activation = Field("relu", description="hidden non-linearity")
    propagation: int = Field(1, ge=1, le=4, description="propagation rounds (H2GCN)")
    second_hop_limit: int | None = Field(None, ge=1, description="bound on 2-hop neighbours (H2GCN)")
    hops: int | None = Field(None, ge=0, le=64, description="depth of propagation K (GAMLP, UniFilter)")
    layers: int | None = Field(None, ge=1, le=16, description="layers (GAMLP, UniFilter, DisenGCN)")
    homophily_mix: float | None = Field(
        None, ge=0, le=1, description="share of the low-pass basis (UniFilter)"
    )
    basis: Literal["exact", "official"] | None = Field(None, description="heterophily basis (UniFilter)")
    factors: int | None = Field(None, ge=1, description="latent factors (DisenGCN)")
    routing: int | None = Field(None, ge=1, description="routing iterations (DisenGCN)")
    filter_lr: float | None = Field(
        None, gt=0, description="learning rate of filter coefficients (UniFilter)"
    )
    filter_weight_decay: float | None = Field(None, ge=0, description="their weight decay (UniFilter)")
    lr: float = Field(0.01, gt=0, description="learning rate of Adam")
    weight_decay: float = Field(1e-6, ge=0, description="weight decay, added to the gradient")
    epochs: int = Field(1, ge=1, description="local epochs E per round, one full-batch step each")
    aggregation: Aggregation = Field("fedavg", description="how shared weights travel")
    shared: Shared = Field("all", description="which parameters travel")
    client_weights: ClientWeights = Field("uniform", description="weights of clients in the aggregation")
    local_lr: float = Field(0.1, gt=0, description="fedopt with E > 1: rate of the local gradient steps")
    optimizer: Literal["adam", "sgd"] | None = Field(None, description="local optimizer; adam if not given")
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of sgd; 0 if not given")
    batch_size: int | None = Field(
        None, ge=1, description="graphs of a client in one step; all if not given (graphs)"
    )
    repdec: float | None = Field(
        None, ge=0, description="weight alpha of correlated representations, RepDec (graphs)"
    )
    heads: int | None = Field(None, ge=1, description="attention heads of all layers but the last (GAT)")
    readout: Readout | None = Field(None, description="pooling over the nodes of a graph (GAT, GIN)")

    @property
    def travelling(self) -> Shared:
        """What is shared once the aggregation rule is taken into account."""
        return "none" if self.aggregation == "none" else self.shared


@dataclass
class SharedServer:
    """Server side: shared weights without client axis, and moments if the server optimises."""

    weights: Tensors
    optimizer: AdamState = field(default_factory=AdamState)


@dataclass
class SharedClient:
    """Client side: stacked weights and the moments of each client's own optimizer, all [k, ...].

    Attributes:
        logits: of the present weights, if known.
        taken: local steps of this round, int64 [k].
    """

    weights: Tensors
    optimizer: AdamState
    logits: Tensor | None = transient()
    taken: Tensor | None = transient()


@dataclass(frozen=True)
class Step:
    """One local step: what it sees, and of which clients.

    Attributes:
        cohort: the whole cohort, or a batch of graphs of k' of its clients.
        rows: positions of these clients in the whole cohort, int64 [k']; None for all in order.
        dropout: masks of this step.
    """

    cohort: Cohort
    rows: Tensor | None
    dropout: Dropout

    def of(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The rows of stacked tensors that belong to this step's clients."""
        if self.rows is None:
            return tensors
        return {name: tensor.index_select(0, self.rows) for name, tensor in tensors.items()}

    def spread(self, values: Tensor, clients: int) -> Tensor:
        """Values [k', ...] as [k, ...], with zeros for the other clients."""
        if self.rows is None:
            return values
        out = values.new_zeros(clients, *values.shape[1:])
        return out.index_copy_(0, self.rows, values)


ConfigurationT = TypeVar("ConfigurationT", bound=WeightSharingConfiguration)
ServerT = TypeVar("ServerT", bound=SharedServer)
ClientT = TypeVar("ClientT", bound=SharedClient)


class WeightSharing(Algorithm[ServerT, ClientT], Generic[ConfigurationT, ServerT, ClientT]):
    """Federated training with shared weights.

    Each local epoch minimises the sum over clients of each client's own objective, so the gradients of the
    stacked weights are those of k separate programs.

    Args:
        configuration: settings of the method.
        backbone: the network; by default the method's `default_backbone`.
    """

    uploads: ClassVar[frozenset[str]] = frozenset({"weights", "size"})
    meanings: ClassVar[Mapping[str, str]] = {
        "weights": "shared parameters after local training, or their gradients (fedopt)",
        "size": "numbers of training items and of all items",
    }
    downloads: ClassVar[frozenset[str]] = frozenset({"weights"})
    default_backbone: ClassVar[str | None] = "gcn"
    configuration_type: ClassVar[type[MethodConfiguration]] = WeightSharingConfiguration

    configuration: ConfigurationT

    def __init__(self, configuration: ConfigurationT, backbone: Backbone) -> None:
        self.configuration = configuration
        self.backbone = backbone

    @classmethod
    def create(cls, configuration: MethodConfiguration, backbone: str | None) -> Self:
        name = backbone or cls.default_backbone
        kind = backbone_type(str(name))
        if cls.backbones is not None and not issubclass(
            kind, tuple(BACKBONES[each] for each in cls.backbones)
        ):
            allowed = " or ".join(f"backbone={each}" for each in cls.backbones)
            raise ConfigurationError(f"{cls.name} does not work with backbone={name}: use {allowed}")
        return cls(cast(ConfigurationT, configuration), _network(kind, configuration))

    def describe(self) -> dict[str, Any]:
        return {"backbone": self.backbone.name, "aggregation": self.configuration.aggregation}

    def require(self, level: Level) -> None:
        super().require(level)
        if level not in self.backbone.levels:
            fitting = " or ".join(
                f"backbone={name}" for name, kind in BACKBONES.items() if level in kind.levels
            )
            raise ConfigurationError(
                f"backbone={self.backbone.name} classifies {self.backbone.levels[0]}s, and the task is of "
                f"{level}s: use {fitting}"
            )
        given = self.configuration
        for name in ("batch_size", "repdec") if level == "node" else ():
            if getattr(given, name) is not None:
                raise ConfigurationError(
                    f"{name}={getattr(given, name)} is for the classification of graphs: leave it out"
                )
        if level == "graph" and given.aggregation == "fedopt":
            raise ConfigurationError(
                "aggregation=fedopt takes full-batch gradients of nodes: use aggregation=fedavg on graphs"
            )
        if given.momentum is not None and given.optimizer != "sgd":
            raise ConfigurationError(f"momentum={given.momentum:g} belongs to optimizer=sgd")

    # Server side

    def init(self, task: Task) -> ServerT:
        return self._server(self._shared(self.initialise(task)), task)

    def broadcast(self, server: ServerT, round_number: int) -> Broadcast:
        return Broadcast(prefixed("weights", server.weights))

    def aggregate(self, server: ServerT, upload: Upload, round_number: int) -> ServerT:
        sent = unprefixed("weights", upload.fields)
        if not sent:
            return server
        weights = normalised_client_weights(self.configuration.client_weights, upload.fields)
        mean = weighted_mean(sent, weights)
        if self.configuration.aggregation == "fedavg":
            return dataclasses.replace(server, weights=mean)
        precision = next(iter(mean.values())).dtype
        new = {name: weight.to(precision).clone() for name, weight in server.weights.items()}
        optimizer = server.optimizer if server.optimizer.first else AdamState.zeros(new)
        self._descend(new, mean, optimizer)
        return dataclasses.replace(server, weights=new, optimizer=optimizer)

    # Protected uploads

    def clipped(self) -> frozenset[str]:
        return frozenset({"weights"} if self.configuration.travelling != "none" else ())

    def reference(self, broadcast: Broadcast) -> Mapping[str, Tensor]:
        """The received weights; gradients start from zero."""
        if self.configuration.aggregation == "fedopt":
            return {}
        received = {**broadcast.common, **broadcast.personal}
        return {name: tensor for name, tensor in received.items() if name.startswith("weights/")}

    def additive(self) -> frozenset[str]:
        return frozenset({"weights", "size"})

    def addends(self, upload: Upload) -> Upload:
        """Weights times the client's raw aggregation weight q_m, which travels too; the rest as it is."""
        if not self.clipped():
            return upload
        raw = raw_client_weights(self.configuration.client_weights, upload.fields)
        weights = {name: value for name, value in upload.fields.items() if name.startswith("weights/")}
        return Upload({**upload.fields, **scaled(weights, raw), "size/share": raw})

    def combined(self, server: ServerT, sums: Upload) -> Upload:
        """sum_m q_m theta_m / sum_m q_m as the weights of one client; no weights if no client has a say,
        since none has changed them."""
        fields = dict(sums.fields)
        share = fields.pop("size/share", None)
        if share is None:
            return sums
        for name in [name for name in fields if name.startswith("weights/")]:
            total = fields.pop(name)
            if float(share) > 0:
                fields[name] = total / share.to(total.dtype)
        return Upload(fields)

    # Client side

    def join(self, cohort: Cohort) -> ClientT:
        k = len(cohort.clients)
        weights = {
            name: weight.to(cohort.device, cohort.dtype).expand(k, *weight.shape).clone()
            for name, weight in self.initialise(cohort.task).items()
        }
        own = weights
        if self.configuration.aggregation == "fedopt":
            travelling = shared_names(weights, self.configuration.travelling)
            own = {name: weight for name, weight in weights.items() if name not in travelling}
        weights = self.backbone.fitted(weights, cohort)
        return self._client(weights, self._fresh_optimizer(own, cohort), cohort)

    def _fresh_optimizer(self, weights: Tensors, cohort: Cohort) -> AdamState:
        state = AdamState.zeros(weights)
        if self.configuration.optimizer == "sgd":
            return AdamState(first=state.first)
        if cohort.task.level == "graph":
            # Clients with more batches take more steps.
            state.step = torch.zeros(len(cohort.clients), dtype=torch.int64, device=cohort.device)
        return state

    def receive(self, client: ClientT, cohort: Cohort, broadcast: Broadcast) -> None:
        client.logits = None
        for name, weight in unprefixed("weights", {**broadcast.common, **broadcast.personal}).items():
            client.weights[name].copy_(weight.expand_as(client.weights[name]))

    def update(self, client: ClientT, cohort: Cohort, round_number: int) -> LocalUpdate:
        gradients: Tensors = {}
        losses: dict[str, Tensor] = {}
        client.taken = torch.zeros(len(cohort.clients), dtype=torch.int64, device=cohort.device)
        for epoch in range(self.configuration.epochs):
            seen: list[tuple[Step, dict[str, Tensor]]] = []
            for step in self._steps(cohort, round_number, epoch):
                found, current = self._gradients(client, step, round_number)
                self._step(client, cohort, step, current, gradients, epoch)
                seen.append((step, found))
            losses = _averaged(seen, len(cohort.clients))
        client.logits = None
        fields = {**self._sent_weights(client, gradients), **self._sizes(cohort)}
        fields.update(self.own_upload(client, cohort, round_number))
        return LocalUpdate(Upload(fields), {**losses, **self.own_metrics(client)})

    def predict(self, client: ClientT, cohort: Cohort) -> Tensor:
        if client.logits is not None:
            return client.logits
        with torch.no_grad():
            if cohort.task.level == "node":
                return self.represent(client, cohort, client.weights, None).logits
            logits = client.weights[next(iter(client.weights))].new_zeros(
                len(cohort.clients), cohort.items, cohort.task.classes
            )
            for batch in scored_batches(cohort):
                weights = {name: weight[batch.rows] for name, weight in client.weights.items()}
                scattered(batch, self.represent(client, batch.cohort, weights, None).logits, logits)
            return logits

    def exports(self, level: Level) -> bool:
        return level == "graph" or type(self).snapshot is not WeightSharing.snapshot

    def snapshot(self, client: ClientT, cohort: Cohort) -> dict[str, Tensor]:
        """On graphs, see `fedatlas.algorithms.landscape`: `spectrum` [k, p] of the representations,
        `landscape` [k, points, points] along two filter-normalised directions, and `sharpness` [k], the
        largest eigenvalue of the Hessian of the training loss."""
        if cohort.task.level == "node":
            return {}
        from fedatlas.algorithms import landscape

        loss = landscape.TrainingLoss(self, client, cohort)
        first, second = (
            landscape.filter_normalised(client.weights, cohort, f"direction/{each}") for each in (1, 2)
        )
        return {
            "spectrum": landscape.representation_spectrum(self, client, cohort),
            "landscape": landscape.loss_slice(loss, client.weights, first, second),
            "sharpness": landscape.largest_eigenvalue(loss, client.weights, cohort),
        }

    # What a method adds

    def initialise(self, task: Task) -> Tensors:
        """Initial weights without client axis. A parameter named ``private.*`` never travels."""
        return self.backbone.initialise(task)

    def represent(
        self, client: ClientT, cohort: Cohort, weights: Tensors, dropout: Dropout | None
    ) -> Representation:
        """Forward pass of the clients' models with stacked weights; `dropout` is None in evaluation."""
        return self.backbone.forward(weights, cohort, dropout)

    def stepped(self, client: ClientT, cohort: Cohort) -> None:
        """Called after every local optimizer step."""

    def rates(self, name: str) -> tuple[float, float]:
        """Learning rate and weight decay of a parameter."""
        given = self.configuration
        if not name.startswith("encoder.filter"):
            return given.lr, given.weight_decay
        decay = given.weight_decay if given.filter_weight_decay is None else given.filter_weight_decay
        return given.filter_lr or given.lr, decay

    def losses(
        self,
        client: ClientT,
        cohort: Cohort,
        weights: Tensors,
        representation: Representation,
        round_number: int,
    ) -> Mapping[str, Tensor]:
        """Weighted terms of each client's objective besides cross-entropy, [k] each, by name.

        `weights` are the live stacked weights that `representation` was computed with.
        """
        return {}

    def own_upload(self, client: ClientT, cohort: Cohort, round_number: int) -> Tensors:
        """Fields that the method uploads besides weights and sizes."""
        return {}

    def own_metrics(self, client: ClientT) -> Tensors:
        """Per-client figures [k] to track besides the losses."""
        return {}

    def _server(self, weights: Tensors, task: Task) -> ServerT:
        return SharedServer(weights)  # type: ignore[return-value]

    def _client(self, weights: Tensors, optimizer: AdamState, cohort: Cohort) -> ClientT:
        return SharedClient(weights, optimizer)  # type: ignore[return-value]

    # Steps of `update`

    def _steps(self, cohort: Cohort, round_number: int, epoch: int) -> Iterator[Step]:
        """Steps of a local epoch: one over all nodes, or one for each batch of graphs."""
        if cohort.task.level == "node":
            yield Step(cohort, None, Dropout(cohort, round_number, epoch))
            return
        batches = training_batches(cohort, self.configuration.batch_size, round_number, epoch)
        for number, batch in enumerate(batches):
            everyone = len(batch.rows) == len(cohort.clients)
            dropout = Dropout(batch.cohort, round_number, f"{epoch}.{number}")
            yield Step(batch.cohort, None if everyone else batch.rows, dropout)

    def _gradients(self, client: ClientT, step: Step, round_number: int) -> tuple[dict[str, Tensor], Tensors]:
        """Losses [k'] and gradients [k', ...] of a step's clients at their present weights."""
        return self._differentiated(client, step, step.of(client.weights), round_number)

    def _differentiated(
        self, client: ClientT, step: Step, weights: Mapping[str, Tensor], round_number: int
    ) -> tuple[dict[str, Tensor], Tensors]:
        """Losses [k'] and gradients [k', ...] of a step's clients at the given weights [k', ...]."""
        cohort = step.cohort
        live = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        representation = self.represent(client, cohort, live, step.dropout)
        terms = {"cross_entropy": cross_entropy(cohort, representation.logits)}
        if self.configuration.repdec is not None:
            penalty = correlation_penalty(representation.embedding, cohort.train)
            terms["repdec"] = self.configuration.repdec * penalty
        terms.update(self.losses(client, cohort, live, representation, round_number))
        total = torch.stack(list(terms.values())).sum(dim=0)
        names = list(live)
        found = torch.autograd.grad(total.sum(), [live[name] for name in names], allow_unused=True)
        losses = {f"loss/{name}": term.detach() for name, term in terms.items()}
        losses["loss/total"] = total.detach()
        return losses, {
            name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None
        }

    def _step(
        self,
        client: ClientT,
        cohort: Cohort,
        step: Step,
        current: Tensors,
        gradients: Tensors,
        epoch: int,
    ) -> None:
        configuration = self.configuration
        clients = len(cohort.clients)
        current = {name: step.spread(gradient, clients) for name, gradient in current.items()}
        active = step.spread(step.cohort.trained, clients)
        assert client.taken is not None
        client.taken += active
        if configuration.aggregation == "fedopt":
            for name in shared_names(list(current), configuration.travelling):
                gradient = current.pop(name)
                gradients[name] = gradient if name not in gradients else gradients[name] + gradient
                # Weights move between the epochs only, so that E = 1 is exactly a shared gradient step.
                if epoch + 1 < configuration.epochs:
                    client.weights[name].sub_(gradient, alpha=configuration.local_lr)
        if current:
            self._descend_locally(client, current, active)
        self.stepped(client, cohort)

    def _descend_locally(self, client: ClientT, gradients: Tensors, active: Tensor) -> None:
        """One step of the clients' own optimizers.

        Args:
            client: state with weights and moments [k, ...].
            gradients: [k, ...].
            active: bool [k], clients that take the step.
        """
        given, rates = self.configuration, {name: self.rates(name) for name in gradients}
        if given.optimizer == "sgd":
            sgd_step(client.weights, gradients, client.optimizer, rates, given.momentum or 0.0, active)
        elif isinstance(client.optimizer.step, Tensor):
            client_adam_step(client.weights, gradients, client.optimizer, rates, active)
        else:
            self._descend(client.weights, gradients, client.optimizer, active)

    def _descend(
        self, weights: Tensors, gradients: Tensors, optimizer: AdamState, active: Tensor | None = None
    ) -> None:
        given = self.configuration
        own = {name: self.rates(name) for name in gradients}
        adam_step(weights, gradients, optimizer, given.lr, given.weight_decay, active, own)

    def _sent_weights(self, client: ClientT, gradients: Tensors) -> Tensors:
        source = gradients if self.configuration.aggregation == "fedopt" else client.weights
        return prefixed("weights", self._shared(source))

    def _shared(self, weights: Mapping[str, Tensor]) -> Tensors:
        return {name: weights[name] for name in shared_names(weights, self.configuration.travelling)}

    def _sizes(self, cohort: Cohort) -> Tensors:
        if self.configuration.travelling == "none":
            return {}
        return {
            "size/train_nodes": cohort.train.sum(dim=1).to(torch.int32),
            "size/nodes": cohort.held.to(torch.int32),
        }


def _network(kind: type[Backbone], configuration: MethodConfiguration) -> Backbone:
    """The network with the options that it shares with the method's configuration.

    Raises:
        ConfigurationError: an option of another network was changed.
    """
    values = configuration.model_dump()
    options = type(configuration).model_fields
    own = {entry.name for entry in dataclasses.fields(kind)}
    for other in BACKBONES.values():
        for entry in dataclasses.fields(other):
            if entry.name in own or entry.name not in options:
                continue
            if values[entry.name] != options[entry.name].default:
                raise ConfigurationError(
                    f"{entry.name}={values[entry.name]} has no meaning for {kind.name}: it belongs to "
                    f"backbone={other.name}"
                )
    return kind(**{key: value for key, value in values.items() if key in own and value is not None})


def _averaged(seen: Sequence[tuple[Step, dict[str, Tensor]]], clients: int) -> dict[str, Tensor]:
    """Mean of each loss over the steps that a client has taken, [k]."""
    if len(seen) == 1 and seen[0][0].rows is None:
        return seen[0][1]
    count = sum(step.spread(torch.ones_like(next(iter(found.values()))), clients) for step, found in seen)
    assert isinstance(count, Tensor)
    return {
        name: torch.stack([step.spread(found[name], clients) for step, found in seen]).sum(dim=0)
        / count.clamp(min=1)
        for name in seen[0][1]
    }


def cross_entropy(cohort: Cohort, logits: Tensor) -> Tensor:
    """Mean cross-entropy over each client's training items, [k]; 0 for a client without any."""
    if cohort.task.level == "node":
        rows = training_rows(cohort)
        chosen = torch.log_softmax(rows.take(logits), dim=2)
        labels = cohort.keep("training_labels", lambda: cohort.labels.gather(1, rows.index)[..., None])
        return cohort.masked_mean(-chosen.gather(2, labels)[..., 0], rows.present)
    picked = torch.log_softmax(logits, dim=2).gather(2, cohort.labels[..., None])[..., 0]
    return cohort.masked_mean(-picked, cohort.train)
