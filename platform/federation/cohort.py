"""A cohort: the clients that share one process, stacked along a leading client axis.

Shapes: k clients in the cohort, n nodes of its largest client, f features, C classes. Smaller clients are
padded; `Cohort.nodes` marks real nodes. The k adjacency matrices form one block-diagonal matrix over k*n
nodes, so one sparse product propagates over all clients at once.
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

from fedatlas.platform.federation.sparse import SparseMatrix
from fedatlas.platform.graphs.graph import ClientGraph, Metric
from fedatlas.platform.randomness import bit_generator, stream

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """What every party of a federation knows.

    Attributes:
        clients: number of clients M of the whole federation.
        features: feature width f.
        classes: number of classes C of the whole task.
        metric: score of the task.
        seed: seed of initialisation, dropout and sampling.
    """

    clients: int
    features: int
    classes: int
    metric: Metric
    seed: int


@dataclass(eq=False)
class Cohort:
    """The stacked graphs of k clients.

    Attributes:
        task: the federation's task.
        clients: ids of the k clients, in stacking order.
        sizes: real number of nodes n_m of each client.
        labels: int64 [k, n]; 0 on padding.
        nodes, train, validation, test: bool [k, n].
        adjacencies: scipy CSR [n_m, n_m] of each client, binary, symmetric, without self-loops.
        dense_features: [k, n, f], or None if the features are sparse.
        sparse_features: block-diagonal [k*n, k*f], or None if the features are dense.
        groups: bool [g, n], parts of an uncut graph that are scored by themselves; then k = 1.
        node_ids: int64 [n_m] of each client, ids in the whole graph.
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
    _kept: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """Padded number of nodes n."""
        return int(self.labels.shape[1])

    @property
    def trained(self) -> Tensor:
        """Bool [k]: clients with at least one training node."""
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
        return SparseMatrix(_pad_blocks(blocks, self.width, self.width), self.dtype, self.device, symmetric)

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

    def masked_mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Mean over each client's masked nodes: [k, n] -> [k]; 0 for a client whose mask is empty."""
        weights = mask.to(values.dtype)
        return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def class_indicator(self) -> Tensor:
        """One-hot training labels [k, n, C]; rows of other nodes are zero."""

        def build() -> Tensor:
            hot = torch.nn.functional.one_hot(self.labels, self.task.classes).to(self.dtype)
            return hot * self.train[..., None]

        return self.keep("class_indicator", build)

    def class_counts(self) -> Tensor:
        """Number of training nodes of each class on each client, [k, C]."""
        return self.keep("class_counts", lambda: self.class_indicator().sum(dim=1))


class Dropout:
    """Dropout masks of one local epoch, drawn from each client's own stream.

    A mask does not depend on padding or on the other clients of the cohort. Probabilities are rounded to
    1/65536, so that one 64-bit word decides four entries.
    """

    def __init__(self, cohort: Cohort, round_number: int, epoch: int) -> None:
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

    def apply(self, purpose: str, values: Tensor, rate: float) -> Tensor:
        """Drop entries of stacked node values [k, n, h] and scale the rest by 1/(1-rate)."""
        if rate <= 0:
            return values
        cohort = self._cohort
        width = values.shape[2]
        factors = np.zeros((len(cohort.clients), cohort.width, width), dtype=np.float32)
        for row, (client, size) in enumerate(zip(cohort.clients, cohort.sizes, strict=True)):
            kept = self._draw(client, purpose, rate, size * width)
            np.multiply(kept.reshape(size, width), 1.0 / (1.0 - rate), out=factors[row, :size])
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
    n = max(sizes)

    def padded(name: str, fill: bool | int, kind: torch.dtype) -> Tensor:
        out = torch.full((len(graphs), n), fill, dtype=kind)
        for row, graph in enumerate(graphs):
            out[row, : graph.size] = torch.as_tensor(np.array(getattr(graph, name)))
        return out.to(place)

    nodes = torch.zeros((len(graphs), n), dtype=torch.bool)
    for row, size in enumerate(sizes):
        nodes[row, :size] = True
    dense: Tensor | None = None
    sparse: SparseMatrix | None = None
    if all(sp.issparse(graph.features) for graph in graphs):
        blocks = [sp.csr_array(graph.features) for graph in graphs]
        sparse = SparseMatrix(_pad_blocks(blocks, n, task.features), dtype, place)
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
        adjacencies=tuple(_adjacency(graph) for graph in graphs),
        dense_features=dense,
        sparse_features=sparse,
        dtype=dtype,
        device=place,
        groups=_groups(graphs, n, place),
        node_ids=tuple(graph.nodes for graph in graphs),
    )


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


def _pad_blocks(blocks: Sequence[sp.csr_array], rows: int, columns: int) -> sp.csr_array:
    """Block-diagonal CSR of blocks padded to [rows, columns] each."""
    shape = (len(blocks) * rows, len(blocks) * columns)
    entries = sum(int(block.nnz) for block in blocks)
    index = np.int32 if max(entries, *shape) < np.iinfo(np.int32).max else np.int64
    pointers = np.zeros(shape[0] + 1, dtype=index)
    indices = np.empty(entries, dtype=index)
    values = np.empty(entries, dtype=blocks[0].dtype)
    offset = 0
    for position, block in enumerate(blocks):
        end, first = offset + int(block.nnz), position * rows
        np.add(block.indices, position * columns, out=indices[offset:end], casting="unsafe")
        values[offset:end] = block.data
        last = first + block.shape[0]
        pointers[first + 1 : last + 1] = block.indptr[1:] + offset
        pointers[last + 1 : first + rows + 1] = end
        offset = end
    return sp.csr_array((values, indices, pointers), shape=shape)
