"""Generator of missing neighbours (Zhang et al., NeurIPS 2021) and its training.

For each node of an impaired graph it predicts how many neighbours are missing, and what they look like:

    z_v  = ReLU(P ReLU(P X W_1 + b_1) W_2 + b_2),   P = D~^(-1) (A + I)                      latent [n', l]
    n~_v = ReLU(w z_v + b),   c_v = min(q, floor(n~_v))
    x~_v = tanh(W_5 ReLU(W_4 ReLU(W_3 (z_v + noise)))),   noise ~ N(0, I)                           [q, f]

of which the first c_v rows count. With T the training nodes and x_{v,k} the hidden neighbours of v,

    L   = a SmoothL1(n~, n) + b L_f + c CE(helper on the mended impaired graph),   each over T
    L_f = 1 / (q |T|) sum_{v in T} sum_{j <= c_v} min_k mean((x~_{v,j} - x_{v,k})^2)

where v without hidden neighbours has no part in L_f. L_f has no gradient while all c_v are 0, and floor has
none at all: the number is learned from the first term.

Training is local at first. Then every client sends the x~ of its training nodes to the others. There a random
node with neighbours stands in for v, and q of its neighbours, drawn with replacement, for x_{v,k}. They give
d mean((x~ - nearest)^2) / d x~. The sender adds b / (q |T|) of their sum to the gradient of its local loss,
divides by M, and steps with the feature head (W_3, W_4, W_5) alone.

No row of anyone's features travels. That is no proof of privacy: the gradient of a squared distance is 2/f
of the difference between x~ and the row that was nearest, so whoever has both can compute that row. The
server has both; a client has them if the sum that it receives has one term (M = 2).

Where the paper is silent: initial weights are equal on all clients and never averaged; w starts non-negative
and b at 0, because z >= 0 then keeps the ReLU of n~ alive; in the exchange, frozen parts are in evaluation
mode and the head's moments start anew; a client that generates nothing does not step its head.

Shapes: k clients, n' nodes of an impaired graph, l latent, q most neighbours generated, L_m rows generated
on client m (sorted by node), f features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import affine, glorot, linear, uniform
from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.algorithms.features import dense_features
from fedatlas.algorithms.mending import Impaired, impair, mended_logits, parents
from fedatlas.algorithms.optimizer import AdamState, adam_step
from fedatlas.algorithms.search_spaces import among
from fedatlas.algorithms.weight_sharing import cross_entropy
from fedatlas.platform.federation.cohort import Cohort, Dropout, Task
from fedatlas.platform.federation.contract import MethodConfiguration
from fedatlas.platform.federation.messages import Ragged, Tensors, prefixed, unprefixed
from fedatlas.platform.federation.operators import mean_operator
from fedatlas.platform.randomness import stream

CHUNK = 1 << 24
"""Entries of a block of squared differences."""


class GeneratorConfiguration(MethodConfiguration):
    """Options of the generator; the defaults are those of the official code but for `generator_width=2048`.

    On Cora with 10 clients and `generator_lr=0.01`, widths 2048 and 256 reach validation scores of 78.6 and
    79.1 (means of two seeds), for 100 s and 20 s of preparation on one busy core.
    """

    generator_epochs: int = Field(20, ge=0, description="local epochs of the generator")
    exchange_epochs: int = Field(20, ge=0, description="epochs of the feature head with other clients")
    generator_lr: float = Field(0.001, gt=0, description="learning rate of the generator's Adam")
    generator_weight_decay: float = Field(1e-4, ge=0, description="weight decay of the generator")
    generator_dropout: float = Field(0.5, ge=0, lt=1, description="dropout in the generator")
    hidden_portion: float = Field(0.5, gt=0, le=1, description="share of validation nodes that are hidden")
    generated_neighbours: int = Field(
        5, ge=1, description="most neighbours generated for a node q", json_schema_extra=among(2, 5, 10)
    )
    encoder_width: int = Field(32, ge=1, description="hidden width of the generator's encoder")
    latent: int = Field(128, ge=1, description="latent width l of the generator")
    inner_width: int = Field(256, ge=1, description="first hidden width of the feature head")
    generator_width: int = Field(256, ge=1, description="last hidden width of the feature head")
    degree_weight: float = Field(1.0, ge=0, description="weight a of the number of missing neighbours")
    feature_weight: float = Field(1.0, ge=0, description="weight b of their features")
    classification_weight: float = Field(1.0, ge=0, description="weight c of the helper classifier")


@dataclass(frozen=True)
class NeighbourGenerator:
    """The network of the generator without its weights.

    Names of weights start with ``encoder.``, ``degree.`` or ``head.``.
    """

    configuration: GeneratorConfiguration

    def initialise(self, task: Task) -> Tensors:
        """Initial weights of encoder and degree head, without client axis."""
        given = self.configuration
        degree = linear(task, "generator.degree", given.latent, 1)
        return {
            "encoder.0.weight": glorot(
                task, "generator.encoder.0.weight", task.features, given.encoder_width
            ),
            "encoder.0.bias": torch.zeros(given.encoder_width),
            "encoder.1.weight": glorot(task, "generator.encoder.1.weight", given.encoder_width, given.latent),
            "encoder.1.bias": torch.zeros(given.latent),
            "degree.weight": degree["generator.degree.weight"].abs(),
            "degree.bias": torch.zeros(1),
        }

    def initialise_head(self, task: Task) -> Tensors:
        """Initial weights of the feature head of one client; those of its last layer are [q, width, f]."""
        given, prefix = self.configuration, "generator.head"
        inner, width, q = given.inner_width, given.generator_width, given.generated_neighbours
        bound = 1.0 / np.sqrt(width)
        last = {
            f"{prefix}.2.weight": uniform(task, f"{prefix}.2.weight", (q, width, task.features), bound),
            f"{prefix}.2.bias": uniform(task, f"{prefix}.2.bias", (q, task.features), bound),
        }
        layers = linear(task, f"{prefix}.0", given.latent, inner) | linear(task, f"{prefix}.1", inner, width)
        return {name.removeprefix("generator."): weight for name, weight in (layers | last).items()}

    def encode(self, weights: Tensors, cohort: Cohort, dropout: Dropout | None) -> Tensor:
        """z, [k, n', l], with stacked weights; `dropout` is None in evaluation."""
        operator = mean_operator(cohort, self_loops=True)
        first = cohort.propagate(operator, cohort.project(weights["encoder.0.weight"]))
        first = torch.relu(first + weights["encoder.0.bias"][:, None, :])
        if dropout is not None:
            first = dropout.apply("generator/encoder", first, self.configuration.generator_dropout)
        second = cohort.propagate(operator, torch.bmm(first, weights["encoder.1.weight"]))
        return torch.relu(second + weights["encoder.1.bias"][:, None, :])

    def degrees(self, weights: Tensors, latent: Tensor) -> Tensor:
        """n~, the predicted number of missing neighbours, [k, n']."""
        predicted = affine(latent, weights, "degree")
        return torch.relu(predicted[..., 0])

    def rows(self, head: Tensors, noisy: Tensor, counts: Tensor, kept: Tensor | None = None) -> Tensor:
        """Features of one client's generated neighbours, [L, f] in [-1, 1], sorted by node.

        Args:
            head: weights of the client's feature head.
            noisy: z + noise of the nodes with c_v > 0, [s, l].
            counts: their c_v, [s].
            kept: factors of dropout, [s, width]; None in evaluation.
        """
        hidden = torch.relu(noisy @ head["head.0.weight"] + head["head.0.bias"])
        hidden = torch.relu(hidden @ head["head.1.weight"] + head["head.1.bias"])
        if kept is not None:
            hidden = hidden * kept
        q = self.configuration.generated_neighbours
        parts, places = [], []
        for slot, (weight, bias) in enumerate(
            zip(head["head.2.weight"].unbind(), head["head.2.bias"].unbind(), strict=True)
        ):
            chosen = (counts > slot).nonzero()[:, 0]
            if chosen.numel():
                parts.append(torch.addmm(bias, hidden[chosen], weight))
                places.append(chosen * q + slot)
        return torch.tanh(torch.cat(parts)[torch.argsort(torch.cat(places))])


def nearest(rows: Tensor, features: Tensor, candidates: Tensor) -> Tensor:
    """The candidate at the smallest squared distance from each row, [L, f].

    Args:
        rows: [L, f].
        features: [n, f].
        candidates: rows of `features` to choose from, int64 [L, q]; -1 for none. The first is not -1.
    """
    best = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    with torch.no_grad():
        step = max(1, CHUNK // max(1, rows.shape[1]))
        for start in range(0, rows.shape[0], step):
            part = slice(start, start + step)
            distances = torch.stack(
                [
                    (rows[part] - features[column.clamp(min=0)])
                    .square()
                    .sum(dim=1)
                    .masked_fill(column < 0, torch.inf)
                    for column in candidates[part].unbind(dim=1)
                ]
            )
            best[part] = distances.argmin(dim=0)
    return features[candidates.gather(1, best[:, None])[:, 0]]


class GeneratorTraining:
    """Generators of a cohort's clients during preparation; gone afterwards.

    Args:
        cohort: the clients.
        configuration: sizes, rates and weights of the losses.
        helper: classifier that is trained with the generator.
    """

    def __init__(self, cohort: Cohort, configuration: GeneratorConfiguration, helper: GraphSAGE) -> None:
        self.configuration = configuration
        self.generator = NeighbourGenerator(configuration)
        self.helper = helper
        self.whole = cohort
        self.impaired: Impaired = impair(
            cohort, configuration.hidden_portion, configuration.generated_neighbours
        )
        self.cohort = self.impaired.cohort
        self.body = self._stacked(
            {**self.generator.initialise(cohort.task), **prefixed("helper", helper.initialise(cohort.task))}
        )
        self.heads: list[Tensors | None] = [None] * len(cohort.clients)
        self._optimizer = AdamState.zeros(self.body)
        self._head_optimizers: list[AdamState | None] = [None] * len(cohort.clients)
        self._features = dense_features(cohort)
        self._latent: Tensor | None = None
        self._counts: Tensor | None = None
        self._sent: list[Tensor] = []

    # Local training

    def local_epoch(self, epoch: int) -> Tensor:
        """One step of all parts of the generator and of the helper; the loss of each client, [k]."""
        dropout = Dropout(self.cohort, epoch, 0)
        live = {name: weight.detach().requires_grad_() for name, weight in self.body.items()}
        latent = self.generator.encode(live, self.cohort, dropout)
        degrees = self.generator.degrees(live, latent)
        counts = self._leaf_counts(degrees)
        inputs = [each.detach().requires_grad_() for each in latent]
        generated = self._generate(inputs, counts, epoch, "local", train=True)
        rows = tuple(each.detach().requires_grad_() for each in generated)
        missing = torch.nn.functional.smooth_l1_loss(degrees, self.impaired.missing, reduction="none")
        loss = self.configuration.degree_weight * self.cohort.masked_mean(missing, self.cohort.train)
        loss = (loss + self._leaf_losses(rows, counts, live, dropout)) * self.impaired.active
        names = list(live)
        found = torch.autograd.grad(
            loss.sum(), [*(live[name] for name in names), *rows], retain_graph=True, allow_unused=True
        )
        gradients, row_gradients = list(found[: len(names)]), found[len(names) :]
        back = torch.stack(self._step_heads(generated, row_gradients, inputs))
        encoder = [place for place, name in enumerate(names) if name.startswith("encoder.")]
        through = torch.autograd.grad(latent, [live[names[place]] for place in encoder], back)
        for place, more in zip(encoder, through, strict=True):
            gradients[place] = gradients[place] + more
        adam_step(
            self.body,
            {name: each for name, each in zip(names, gradients, strict=True) if each is not None},
            self._optimizer,
            self.configuration.generator_lr,
            self.configuration.generator_weight_decay,
            self.impaired.active,
        )
        return loss.detach()

    # Exchange

    @torch.no_grad()
    def freeze(self) -> None:
        """Fix encoder, degree head and helper; from now on the feature heads alone are trained."""
        self._latent = self.generator.encode(self.body, self.cohort, None)
        self._counts = self._leaf_counts(self.generator.degrees(self.body, self._latent))
        self._head_optimizers = [None] * len(self.heads)

    def offer(self, epoch: int) -> tuple[Ragged, Ragged]:
        """What is sent: generated features [L'_m, f] of the training nodes, and their counts [|T_m|]."""
        latent, counts = self._frozen()
        self._sent = self._generate(list(latent), counts, epoch, "exchange", train=True)
        features = tuple(
            rows.detach()[self.cohort.train[m][parents(counts[m])]] for m, rows in enumerate(self._sent)
        )
        return features, tuple(
            counts[m][self.cohort.train[m]].to(torch.int32) for m in range(len(self.heads))
        )

    @torch.no_grad()
    def respond(self, epoch: int, features: Ragged, counts: Ragged) -> Ragged:
        """Gradients [R_m, f] of the mean squared distance between what others generated and the nearest of q
        neighbours of a random own node; zero from a client without edges.

        Args:
            epoch: epoch of the exchange.
            features: x~ of all other clients, [R_m, f], sorted by node.
            counts: number of rows of each of their training nodes.
        """
        answers = []
        for m, (rows, number) in enumerate(zip(features, counts, strict=True)):
            candidates = self._stand_ins(m, epoch, number.numel())
            if candidates is None or not rows.numel():
                answers.append(torch.zeros_like(rows))
                continue
            found = nearest(rows, self._features[m], candidates[parents(number.to(torch.int64))])
            answers.append((rows - found) * (2 / rows.shape[1]))
        return tuple(answers)

    def apply(self, gradients: Ragged) -> None:
        """One step of the feature heads; `gradients` are the sums of what others returned, [L'_m, f]."""
        _, counts = self._frozen()
        rows = tuple(each.detach().requires_grad_() for each in self._sent)
        if not any(each.numel() for each in rows):
            return
        loss = self._leaf_losses(rows, counts, self.body, None) * self.impaired.active
        found = torch.autograd.grad(loss.sum(), rows, allow_unused=True)
        given, clients = self.configuration, self.cohort.task.clients
        total = []
        for m, (each, remote) in enumerate(zip(found, gradients, strict=True)):
            gradient = torch.zeros_like(rows[m]) if each is None else each.clone()
            own = self.cohort.train[m][parents(counts[m])]
            gradient[own] += given.feature_weight / self._slots(m) * remote.to(gradient.dtype)
            total.append(gradient / clients)
        self._step_heads(self._sent, total, None)
        self._sent = []

    @torch.no_grad()
    def leaves(self) -> tuple[Ragged, Ragged]:
        """Generated neighbours in evaluation mode: features [L_m, f], and c_v of all nodes of whole graphs,
        int64 [n_m], 0 for nodes that were hidden."""
        latent, counts = self._frozen()
        rows = self._generate(list(latent), counts, -1, "leaves", train=False)
        spread = []
        for m, size in enumerate(self.whole.sizes):
            number = torch.zeros(size, dtype=torch.int64, device=counts.device)
            kept = self.impaired.kept[m]
            number[kept] = counts[m, : kept.numel()]
            spread.append(number)
        return tuple(rows), tuple(spread)

    # Parts of a step

    def _stacked(self, weights: Mapping[str, Tensor]) -> Tensors:
        k = len(self.whole.clients)
        return {
            name: self._placed(weight).expand(k, *weight.shape).clone() for name, weight in weights.items()
        }

    def _placed(self, weight: Tensor) -> Tensor:
        return weight.to(self.whole.device, self.whole.dtype)

    def _frozen(self) -> tuple[Tensor, Tensor]:
        assert self._latent is not None
        assert self._counts is not None
        return self._latent, self._counts

    def _slots(self, m: int) -> int:
        """q |T| of a client, at least 1."""
        return max(1, self.configuration.generated_neighbours * int(self.cohort.train[m].sum()))

    def _leaf_counts(self, degrees: Tensor) -> Tensor:
        """c_v, int64 [k, n']; 0 on padding and on clients that cannot learn it."""
        counts = degrees.detach().floor().clamp(max=self.configuration.generated_neighbours).to(torch.int64)
        return counts * self.cohort.nodes * self.impaired.active[:, None]

    def _generate(
        self, latent: list[Tensor], counts: Tensor, step: int, purpose: str, train: bool
    ) -> list[Tensor]:
        """Rows [L_m, f] of each client; its head is made when it first generates something."""
        generated = []
        for m, z in enumerate(latent):
            chosen = counts[m].nonzero()[:, 0]
            if not chosen.numel():
                generated.append(z.new_zeros((0, self.whole.task.features)))
                continue
            if self.heads[m] is None:
                initial = self.generator.initialise_head(self.whole.task)
                self.heads[m] = {name: self._placed(weight).clone() for name, weight in initial.items()}
            head = self.heads[m]
            assert head is not None
            for weight in head.values():
                weight.requires_grad_(train)
            noise, kept = self._draws(m, step, purpose, chosen, train)
            generated.append(self.generator.rows(head, z[chosen] + noise, counts[m][chosen], kept))
        return generated

    def _draws(
        self, m: int, step: int, purpose: str, chosen: Tensor, train: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Noise [s, l], drawn for every node of the client, and factors of dropout [s, width]."""
        given, cohort = self.configuration, self.cohort

        def source(what: str) -> np.random.Generator:
            return stream(cohort.task.seed, cohort.clients[m], step, f"generator/{purpose}/{what}")

        shape = (cohort.sizes[m], given.latent)
        noise = self._placed(torch.from_numpy(source("noise").standard_normal(shape, dtype=np.float32)))
        if not train or given.generator_dropout == 0:
            return noise[chosen], None
        drawn = source("dropout").random((chosen.numel(), given.generator_width), dtype=np.float32)
        kept = torch.from_numpy((drawn >= given.generator_dropout).astype(np.float32))
        return noise[chosen], self._placed(kept) / (1 - given.generator_dropout)

    def _leaf_losses(self, rows: Ragged, counts: Tensor, weights: Tensors, dropout: Dropout | None) -> Tensor:
        """b L_f + c CE of each client, [k]."""
        given = self.configuration
        logits = mended_logits(self.helper, unprefixed("helper", weights), self.cohort, rows, counts, dropout)
        features = torch.stack([self._feature_loss(m, each, counts[m]) for m, each in enumerate(rows)])
        return given.feature_weight * features + given.classification_weight * cross_entropy(
            self.cohort, logits
        )

    def _feature_loss(self, m: int, rows: Tensor, counts: Tensor) -> Tensor:
        owner = parents(counts)
        compared = self.cohort.train[m][owner] & (self.impaired.missing[m][owner] > 0)
        own = rows[compared]
        found = nearest(own, self._features[m], self.impaired.targets[m][owner[compared]])
        return (own - found).square().sum() / (max(1, rows.shape[1]) * self._slots(m))

    def _step_heads(
        self, generated: list[Tensor], gradients: list[Tensor] | Ragged, inputs: list[Tensor] | None
    ) -> list[Tensor]:
        """Step the head of each client that generated rows, one after the other: a head can be large.

        Returns the gradients by `inputs`, if those are given.
        """
        back = [torch.zeros_like(each) for each in inputs or []]
        for m, rows in enumerate(generated):
            head, gradient = self.heads[m], gradients[m]
            if head is None or gradient is None or not rows.numel():
                continue
            names = list(head)
            wanted = [head[name] for name in names] + ([inputs[m]] if inputs is not None else [])
            found = torch.autograd.grad(rows, wanted, gradient)
            if inputs is not None:
                back[m] = found[-1]
            optimizer = self._head_optimizers[m] or AdamState.zeros(head)
            self._head_optimizers[m] = optimizer
            adam_step(
                {name: weight.detach() for name, weight in head.items()},
                dict(zip(names, found, strict=False)),
                optimizer,
                self.configuration.generator_lr,
                self.configuration.generator_weight_decay,
            )
        return back

    def _stand_ins(self, m: int, epoch: int, count: int) -> Tensor | None:
        """For each of `count` nodes q neighbours of a random own node, drawn with replacement, [count, q]."""
        adjacency = self.whole.adjacencies[m]
        degrees = np.diff(adjacency.indptr)
        connected = np.flatnonzero(degrees)
        if not connected.size:
            return None
        source = stream(self.whole.task.seed, self.whole.clients[m], epoch, "generator/exchange/targets")
        nodes = source.choice(connected, count)
        shape = (count, self.configuration.generated_neighbours)
        places = (source.random(shape) * degrees[nodes, None]).astype(np.int64)
        found = adjacency.indices[adjacency.indptr[nodes, None] + places]
        return torch.from_numpy(found.astype(np.int64)).to(self.whole.device)
