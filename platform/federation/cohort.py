"""A cohort: the clients that share one process, stacked along a leading client axis.

Shapes: k clients in the cohort, n nodes of its largest client, f features, C classes. Smaller clients are
padded; `Cohort.nodes` marks real nodes. The k adjacency matrices form one block-diagonal matrix over k*n
nodes, so one sparse product propagates over all clients at once.

What has a label, a role and a prediction is an item: a node or, in graph classification, one of at most g
graphs. A client of graph classification is the disjoint union of its graphs; its cohort holds labels, roles
and what `Cohort.batch` needs to stack some of the graphs, and only such a batch has tensors of nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.sparse import SparseMatrix, pad_blocks
from fedatlas.platform.federation.unions import ClientUnion, Union, union
from fedatlas.platform.graphs.graph import ClientGraph, Level, Metric
from fedatlas.platform.randomness import bit_generator, stream

T = TypeVar("T")

NEVER = -1e9
"""Logit of a class that a client does not have: finite, and its probability is exactly 0."""


@dataclass(frozen=True)
class Task:
    """What every party of a federation knows.

    Attributes:
        clients: number of clients M of the whole federation.
        features: feature width f.
        classes: number of classes C of the whole task.
        metric: score of the task.
        seed: seed of initialisation, dropout, sampling and mini-batches.
        level: what is classified.
    """

    clients: int
    features: int
    classes: int
    metric: Metric
    seed: int
    level: Level = "node"


@dataclass(eq=False)
class Cohort:
    """The stacked graphs of k clients.

    Attributes:
        task: the federation's task.
        clients: ids of the k clients, in stacking order.
        sizes: real number of nodes n_m of each client.
        labels: int64 [k, n], or [k, g] of graphs; 0 on padding.
        nodes: bool [k, n].
        train, validation, test: bool [k, n], or [k, g].
        adjacencies: scipy CSR [n_m, n_m] of each client, binary, symmetric, without self-loops; of graphs
            none.
        dense_features: [k, n, f], or None if the features are sparse.
        sparse_features: block-diagonal [k*n, k*f], or None if the features are dense.
        groups: bool [g, n], parts of an uncut graph that are scored by themselves; then k = 1.
        node_ids: int64 [n_m] of each client, ids in the whole graph; of a batch: in the client.
        own_classes: bool [k, C], classes that a client has where clients differ, else None.
        unions: the graphs of each client of graph classification; of a batch none.
        union: the stacked graphs of a batch, else None.
        whole: the cohort that a batch is from, else None.
    """

    task: Task
    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    labels: Tensor
    nodes: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor
    adjacencies: tuple[sp.csr_array, ...]
    dense_features: Tensor | None
    sparse_features: SparseMatrix | None
    dtype: torch.dtype
    device: torch.device
    groups: Tensor | None = None
    node_ids: tuple[np.ndarray, ...] = ()
    own_classes: Tensor | None = None
    unions: tuple[ClientUnion, ...] = ()
    union: Union | None = None
    whole: Cohort | None = None
    _kept: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """Padded number of nodes n."""
        return int(self.nodes.shape[1])

    @property
    def items(self) -> int:
        """Padded number of items: nodes, or graphs."""
        return int(self.labels.shape[1])

    @property
    def held(self) -> Tensor:
        """Int64 [k]: number of items of each client."""
        if self.task.level == "node":
            return self.nodes.sum(dim=1)
        counts = self.union.chosen if self.union is not None else [own.starts[1:] for own in self.unions]
        return torch.tensor([len(graphs) for graphs in counts], device=self.device)

    @property
    def trained(self) -> Tensor:
        """Bool [k]: clients with at least one training item."""
        return self.keep("trained", lambda: self.train.any(dim=1))

    def keep(self, name: str, build: Callable[[], T]) -> T:
        """Value built on first use and kept with the cohort: operators, class masks, rings."""
        if name not in self._kept:
            self._kept[name] = build()
        value: T = self._kept[name]  # type: ignore[assignment]
        return value

    def generators(self, round_number: int, purpose: str) -> list[np.random.Generator]:
        """One random stream per client, independent of who shares the cohort."""
        return [stream(self.task.seed, client, round_number, purpose) for client in self.clients]

    def block_diagonal(self, blocks: Sequence[sp.csr_array], symmetric: bool = True) -> SparseMatrix:
        """Block-diagonal matrix [k*n, k*n] of one matrix [n_m, n_m] per client, all symmetric or not."""
        return SparseMatrix(pad_blocks(blocks, self.width, self.width), self.dtype, self.device, symmetric)

    def propagate(self, operator: SparseMatrix, values: Tensor) -> Tensor:
        """Product of a block-diagonal operator with stacked node values [k, n, h]."""
        k, n, h = values.shape
        return (operator @ values.reshape(k * n, h)).reshape(k, n, h)

    def project(self, weight: Tensor, dropout: Dropout | None = None, rate: float = 0.0) -> Tensor:
        """Features times each client's own weight: [k, n, f] x [k, f, h] -> [k, n, h].

        Args:
            weight: stacked weights [k, f, h].
            dropout: source of input dropout, None in evaluation.
            rate: probability of dropping a feature.
        """
        k, f, h = weight.shape
        if self.sparse_features is not None:
            features = self.sparse_features
            if dropout is not None and rate > 0:
                counts = self.keep("feature_counts", self._feature_counts)
                factors = dropout.flat("features", rate, counts)
                features = features.with_values(features.values * factors)
            return (features @ weight.reshape(k * f, h)).reshape(k, self.width, h)
        assert self.dense_features is not None
        dense = self.dense_features
        if dropout is not None:
            dense = dropout.apply("features", dense, rate)
        return torch.bmm(dense, weight)

    def _feature_counts(self) -> tuple[int, ...]:
        assert self.sparse_features is not None
        pointers = self.sparse_features._pointers[:: self.width].tolist()
        return tuple(int(b - a) for a, b in itertools.pairwise(pointers))

    def batch(self, rows: Sequence[int], chosen: Sequence[np.ndarray]) -> Cohort:
        """The cohort of some graphs of some clients, all of them to train on.

        Args:
            rows: positions of the clients in this cohort.
            chosen: int64 ids of the graphs of each of these clients, in its numbering; not all empty.
        """
        parts = union([self.unions[row] for row in rows], chosen, self.task.features, self.dtype, self.device)
        k, b = parts.counts.shape
        nodes = torch.arange(max(*parts.sizes, 1)) < torch.tensor(parts.sizes)[:, None]
        labels = torch.zeros(k, b, dtype=torch.int64)
        items = torch.zeros(k, b, dtype=torch.bool)
        for position, (row, ids) in enumerate(zip(rows, chosen, strict=True)):
            labels[position, : len(ids)] = self.labels[row].cpu()[torch.from_numpy(ids)]
            items[position, : len(ids)] = True
        items = items.to(self.device)
        return Cohort(
            task=self.task,
            clients=tuple(self.clients[row] for row in rows),
            sizes=parts.sizes,
            labels=labels.to(self.device),
            nodes=nodes.to(self.device),
            train=items,
            validation=torch.zeros_like(items),
            test=torch.zeros_like(items),
            adjacencies=(),
            dense_features=parts.dense_features,
            sparse_features=parts.sparse_features,
            dtype=self.dtype,
            device=self.device,
            node_ids=parts.nodes,
            own_classes=None if self.own_classes is None else self.own_classes[list(rows)],
            union=parts,
            whole=self,
        )

    def own_logits(self, logits: Tensor) -> Tensor:
        """Logits [k, items, C] with classes that a client does not have put out of reach."""
        if self.own_classes is None:
            return logits
        return logits.masked_fill(~self.own_classes[:, None, :], NEVER)

    def masked_mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Mean over each client's masked items: [k, n] -> [k]; 0 for a client whose mask is empty."""
        weights = mask.to(values.dtype)
        return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def class_indicator(self) -> Tensor:
        """One-hot training labels [k, n, C]; rows of other items are zero."""

        def build() -> Tensor:
            hot = torch.nn.functional.one_hot(self.labels, self.task.classes).to(self.dtype)
            return hot * self.train[..., None]

        return self.keep("class_indicator", build)

    def class_counts(self) -> Tensor:
        """Number of training items of each class on each client, [k, C]."""
        return self.keep("class_counts", lambda: self.class_indicator().sum(dim=1))


class Dropout:
    """Dropout masks of one local epoch or step, drawn from each client's own stream.

    A mask does not depend on padding or on the other clients of the cohort. Probabilities are rounded to
    1/65536, so that one 64-bit word decides four entries.
    """

    def __init__(self, cohort: Cohort, round_number: int, epoch: int | str) -> None:
        self._cohort = cohort
        self._round = round_number
        self._epoch = epoch

    def of(self, cohort: Cohort) -> Dropout:
        """The same streams for another cohort of the same clients, for example with generated nodes."""
        return Dropout(cohort, self._round, self._epoch)

    def _draw(self, client: int, purpose: str, rate: float, count: int) -> np.ndarray:
        source = bit_generator(
            self._cohort.task.seed, client, self._round, f"dropout/{self._epoch}/{purpose}"
        )
        words = source.random_raw(-(-count // 4)).astype("<u8", copy=False)
        kept: np.ndarray = words.view("<u2")[:count] >= round(rate * 65536)
        return kept

    def apply(self, purpose: str, values: Tensor, rate: float, sizes: Sequence[int] | None = None) -> Tensor:
        """Drop entries of stacked values [k, n, h] and scale the rest by 1/(1-rate).

        Args:
            purpose: what is dropped.
            values: of nodes, or of other things.
            rate: probability of dropping an entry.
            sizes: how many of the n are no padding, for each client; its nodes if not given.
        """
        if rate <= 0:
            return values
        cohort = self._cohort
        width = values.shape[2]
        factors = np.zeros((len(cohort.clients), values.shape[1], width), dtype=np.float32)
        scale = np.float32(1.0 / (1.0 - rate))
        for row, (client, size) in enumerate(zip(cohort.clients, sizes or cohort.sizes, strict=True)):
            kept = self._draw(client, purpose, rate, size * width)
            np.multiply(kept.reshape(size, width), scale, out=factors[row, :size])
        return values * torch.from_numpy(factors).to(device=values.device, dtype=values.dtype)

    def flat(self, purpose: str, rate: float, counts: Sequence[int]) -> Tensor:
        """Dropout factors for `counts[m]` entries of each client, concatenated."""
        kept = [
            self._draw(client, purpose, rate, count)
            for client, count in zip(self._cohort.clients, counts, strict=True)
        ]
        factors = torch.from_numpy(np.concatenate(kept)).to(self._cohort.device)
        return factors.to(self._cohort.dtype) / (1.0 - rate)


Precision = Literal["float32", "float64"]


def stack(
    graphs: Sequence[ClientGraph],
    task: Task,
    precision: Precision = "float32",
    device: torch.device | str = "cpu",
) -> Cohort:
    """Build the cohort of the given clients.

    Args:
        graphs: k >= 1 client graphs of one federation.
        task: the federation's task.
        precision: floating-point type of features, operators and weights.
        device: where the tensors live.
    """
    dtype = torch.float64 if precision == "float64" else torch.float32
    place = torch.device(device)
    sizes = tuple(graph.size for graph in graphs)
    n, items = max(sizes), max(graph.items for graph in graphs)
    level = task.level == "graph"
    if any((graph.starts is not None) != level for graph in graphs):
        raise ValueError(f"clients of a task of {task.level}s hold something else")

    def padded(name: str, fill: bool | int, kind: torch.dtype) -> Tensor:
        out = torch.full((len(graphs), items), fill, dtype=kind)
        for row, graph in enumerate(graphs):
            out[row, : graph.items] = torch.as_tensor(np.array(getattr(graph, name)))
        return out.to(place)

    nodes = torch.zeros((len(graphs), n), dtype=torch.bool)
    for row, size in enumerate(sizes):
        nodes[row, :size] = True
    dense: Tensor | None = None
    sparse: SparseMatrix | None = None
    unions: tuple[ClientUnion, ...] = ()
    if level:
        unions = tuple(ClientUnion.of(graph) for graph in graphs)
    elif all(sp.issparse(graph.features) for graph in graphs):
        blocks = [sp.csr_array(graph.features) for graph in graphs]
        sparse = SparseMatrix(pad_blocks(blocks, n, task.features), dtype, place)
    else:
        dense = torch.zeros((len(graphs), n, task.features), dtype=dtype)
        for row, graph in enumerate(graphs):
            values = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
            dense[row, : graph.size] = torch.as_tensor(np.array(values), dtype=dtype)
        dense = dense.to(place)
    return Cohort(
        task=task,
        clients=tuple(graph.client for graph in graphs),
        sizes=sizes,
        labels=padded("labels", 0, torch.int64),
        nodes=nodes.to(place),
        train=padded("train", False, torch.bool),
        validation=padded("validation", False, torch.bool),
        test=padded("test", False, torch.bool),
        adjacencies=() if level else tuple(_adjacency(graph) for graph in graphs),
        dense_features=dense,
        sparse_features=sparse,
        dtype=dtype,
        device=place,
        groups=_groups(graphs, n, place),
        node_ids=tuple(graph.nodes for graph in graphs),
        own_classes=_own_classes(graphs, task.classes, place),
        unions=unions,
    )


def _own_classes(graphs: Sequence[ClientGraph], classes: int, place: torch.device) -> Tensor | None:
    if all(graph.classes is None for graph in graphs):
        return None
    own = torch.tensor([graph.classes or classes for graph in graphs])
    return (torch.arange(classes) < own[:, None]).to(place)


def _groups(graphs: Sequence[ClientGraph], n: int, place: torch.device) -> Tensor | None:
    parts = graphs[0].groups
    if parts is None:
        return None
    if len(graphs) > 1:
        raise ValueError("an uncut graph is a cohort of its own")
    masks = torch.zeros((len(parts), n), dtype=torch.bool)
    for row, nodes in enumerate(parts):
        masks[row, torch.as_tensor(nodes)] = True
    return masks.to(place)


def _adjacency(graph: ClientGraph) -> sp.csr_array:
    values = np.ones(graph.edges.shape[1], dtype=np.float64)
    return sp.csr_array((values, (graph.edges[0], graph.edges[1])), shape=(graph.size, graph.size))
