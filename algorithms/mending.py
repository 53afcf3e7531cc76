"""Graphs with hidden nodes and graphs with generated neighbours (Zhang et al., NeurIPS 2021).

An **impaired** graph lacks some nodes of a client; what they were tells a generator how missing neighbours
look. A **mended** graph has generated leaves: node v gets c_v new nodes that are joined to v only. Leaves
follow the client's own nodes, sorted by the node that they belong to; they have no label and no role.

Shapes: k clients, n padded nodes, f features, q most neighbours that are generated for a node, L_m leaves of
client m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.algorithms.backbones.backbone import affine
from fedatlas.algorithms.backbones.sage import GraphSAGE
from fedatlas.platform.federation.cohort import Cohort, Dropout, Precision, stack
from fedatlas.platform.federation.messages import Ragged, Tensors
from fedatlas.platform.federation.operators import mean_operator
from fedatlas.platform.graphs.graph import Array, ClientGraph, Features

SPARSE_SHARE = 0.2
"""Mended features stay sparse up to this share of non-zero entries; above it the dense product is faster."""


@dataclass(frozen=True)
class Impaired:
    """What is left of a cohort's graphs when nodes are hidden, and what is missing there.

    Attributes:
        cohort: the induced subgraphs of the nodes that are kept.
        kept: int64 [n'_m] per client, positions of its nodes in the whole graph, ascending.
        missing: number of hidden neighbours of each kept node, [k, n'].
        targets: int64 [n'_m, q] per client, positions of up to q hidden neighbours, lowest first; else -1.
        active: bool [k], clients whose missing neighbours can be learned: with training nodes, and with an
            edge between a kept and a hidden node.
    """

    cohort: Cohort
    kept: Ragged
    missing: Tensor
    targets: Ragged
    active: Tensor


def impair(cohort: Cohort, portion: float, most: int) -> Impaired:
    """Hide a random share of each client's validation nodes, floor(portion |U_m|) of them.

    A client with fewer than two validation nodes keeps its graph and is not active.

    Args:
        cohort: the clients.
        portion: share of the validation nodes that is hidden.
        most: q.
    """
    graphs, kept, missing, targets = [], [], [], []
    streams = cohort.generators(-1, "generator/hidden")
    for graph, adjacency, generator in zip(client_graphs(cohort), cohort.adjacencies, streams, strict=True):
        candidates = np.flatnonzero(graph.validation)
        count = int(portion * candidates.size) if candidates.size >= 2 else 0
        hidden = np.zeros(graph.size, dtype=bool)
        hidden[generator.choice(candidates, count, replace=False)] = True
        rest = np.flatnonzero(~hidden)
        lost = sp.csr_array(adjacency[rest][:, np.flatnonzero(hidden)])
        lost.sort_indices()
        graphs.append(_induced(graph, adjacency, rest))
        kept.append(torch.from_numpy(rest).to(cohort.device))
        missing.append(np.diff(lost.indptr))
        targets.append(torch.from_numpy(_first(lost, np.flatnonzero(hidden), most)).to(cohort.device))
    impaired = stack(graphs, cohort.task, _precision(cohort), cohort.device)
    numbers = torch.zeros(impaired.nodes.shape, dtype=cohort.dtype)
    for row, counts in enumerate(missing):
        numbers[row, : counts.size] = torch.from_numpy(counts)
    numbers = numbers.to(cohort.device)
    active = (numbers.sum(dim=1) > 0) & impaired.trained
    return Impaired(impaired, tuple(kept), numbers, tuple(targets), active)


def mend(cohort: Cohort, features: Ragged, counts: Ragged, dense: bool = False) -> Cohort:
    """The cohort with its generated leaves: n_m + L_m nodes, of which the first n_m are the client's own.

    Args:
        cohort: the clients.
        features: [L_m, f] per client, sorted by the node that a leaf belongs to.
        counts: c_v, int64 [n_m] per client, with sum L_m.
        dense: make the features dense. Otherwise sparse features stay sparse while that is faster.
    """
    graphs = client_graphs(cohort)
    if cohort.sparse_features is not None and not dense:
        leaves = sum(part.numel() for part in features)
        entries = sum(cohort.sizes) * cohort.task.features + leaves
        dense = cohort.sparse_features.values.numel() + leaves > SPARSE_SHARE * entries
    mended = [
        _mended(graph, part.cpu().numpy(), number.cpu().numpy(), dense)
        for graph, part, number in zip(graphs, features, counts, strict=True)
    ]
    return stack(mended, cohort.task, _precision(cohort), cohort.device)


def parents(counts: Tensor) -> Tensor:
    """The node that each leaf belongs to, [L] from counts [n]."""
    return torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)


def mended_logits(
    network: GraphSAGE,
    weights: Tensors,
    cohort: Cohort,
    leaves: Ragged,
    counts: Tensor,
    dropout: Dropout | None,
) -> Tensor:
    """Logits [k, n, C] of the cohort's nodes in its mended graph, without building that graph.

    The only neighbour of a leaf is its node v, so with a_v = sum_{u in N(v)} W_nb h_u and leaves x_l

        h'_l = act(W_self x_l + W_nb h_v + b)
        h'_v = act(W_self h_v + (a_v + sum_{l of v} W_nb x_l) / (deg_v + c_v) + b)

    and the same without h'_l in the second layer. Equals `network.forward` on `mend(...)`; gradients flow to
    the leaves, and no operator changes when the counts do.

    Args:
        network: two-layer GraphSAGE.
        weights: its stacked weights.
        cohort: the clients.
        leaves: [L_m, f] per client, sorted by the node that a leaf belongs to.
        counts: c_v, [k, n].
        dropout: source of dropout, None in evaluation.
    """
    k, n = cohort.nodes.shape
    p = network.hidden
    operator = mean_operator(cohort)
    degree = cohort.keep("degrees", lambda: _degrees(cohort))
    divisor = (degree + counts).clamp(min=1)[..., None]
    owner = parents(counts.reshape(-1))
    sizes = [part.shape[0] for part in leaves]
    client = torch.repeat_interleave(
        torch.arange(k, device=owner.device), torch.tensor(sizes, device=owner.device)
    )

    def layer(projected: Tensor, sent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        own, neighbours = projected.chunk(2, dim=2)
        total = (cohort.propagate(operator, neighbours) * degree[..., None]).reshape(k * n, p)
        total = total.index_add(0, owner, sent).reshape(k, n, p)
        return own + total / divisor + bias[:, None, :], neighbours.reshape(k * n, p)

    def product(rows: Ragged, weight: Tensor) -> Tensor:
        return torch.cat([part @ each for part, each in zip(rows, weight.unbind(), strict=True)])

    def drop(purpose: str, values: Tensor) -> Tensor:
        return values if dropout is None else dropout.apply(f"helper/{purpose}", values, network.dropout)

    bias = weights["encoder.0.bias"]
    leaf_own, leaf_sent = product(leaves, weights["encoder.0.weight"]).chunk(2, dim=1)
    first, sent = layer(cohort.project(weights["encoder.0.weight"]), leaf_sent, bias)
    leaf = network.act(leaf_own + sent[owner] + bias[client])
    if dropout is not None and network.dropout > 0:
        factors = dropout.flat("helper/leaves", network.dropout, [size * p for size in sizes])
        leaf = leaf * factors.reshape(-1, p)
    first = drop("hidden.0", network.act(first))
    weight = weights["encoder.1.weight"]
    second, _ = layer(
        torch.bmm(first, weight),
        product(torch.split(leaf, sizes), weight[..., p:]),
        weights["encoder.1.bias"],
    )
    hidden = drop("hidden.1", network.act(second))
    return affine(hidden, weights, "classifier")


def client_graphs(cohort: Cohort) -> list[ClientGraph]:
    """The graphs of a cohort's clients, with node ids 0..n_m-1."""
    features: list[Features] = []
    if cohort.sparse_features is None:
        assert cohort.dense_features is not None
        whole = cohort.dense_features.cpu().numpy()
        features = [block[:size] for block, size in zip(whole, cohort.sizes, strict=True)]
    else:
        matrix, n, f = cohort.sparse_features.scipy(), cohort.width, cohort.task.features
        features = [
            sp.csr_array(matrix[m * n : m * n + size, m * f : (m + 1) * f])
            for m, size in enumerate(cohort.sizes)
        ]
    masks = [mask.cpu().numpy() for mask in (cohort.train, cohort.validation, cohort.test)]
    labels = cohort.labels.cpu().numpy()
    graphs = []
    for m, (client, size) in enumerate(zip(cohort.clients, cohort.sizes, strict=True)):
        edges = np.stack(cohort.adjacencies[m].nonzero()).astype(np.int64)
        train, validation, test = (mask[m, :size] for mask in masks)
        graphs.append(
            ClientGraph(
                client, np.arange(size), features[m], edges, labels[m, :size], train, validation, test
            )
        )
    return graphs


def _induced(graph: ClientGraph, adjacency: sp.csr_array, kept: Array) -> ClientGraph:
    edges = np.stack(sp.csr_array(adjacency[kept][:, kept]).nonzero()).astype(np.int64)
    return ClientGraph(
        graph.client,
        kept,
        graph.features[kept],
        edges,
        graph.labels[kept],
        graph.train[kept],
        graph.validation[kept],
        graph.test[kept],
    )


def _mended(graph: ClientGraph, leaves: Array, counts: Array, dense: bool) -> ClientGraph:
    n, count = graph.size, leaves.shape[0]
    features: Features
    if isinstance(graph.features, np.ndarray):
        features = np.concatenate([graph.features, leaves])
    elif dense:
        features = np.concatenate([graph.features.toarray(), leaves])
    else:
        features = sp.csr_array(sp.vstack([graph.features, sp.csr_array(leaves)], format="csr"))
    new = np.stack([np.repeat(np.arange(n), counts), np.arange(n, n + count)])
    nothing = np.zeros(count, dtype=bool)
    return ClientGraph(
        graph.client,
        np.arange(n + count),
        features,
        np.concatenate([graph.edges, new, new[::-1]], axis=1),
        np.concatenate([graph.labels, np.zeros(count, dtype=np.int64)]),
        np.concatenate([graph.train, nothing]),
        np.concatenate([graph.validation, nothing]),
        np.concatenate([graph.test, nothing]),
    )


def _first(matrix: sp.csr_array, columns: Array, most: int) -> Array:
    """Names of the first `most` entries of each row, [rows, most]; -1 where there are fewer."""
    counts = np.diff(matrix.indptr)
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    found = np.full((matrix.shape[0], most), -1, dtype=np.int64)
    chosen = rank < most
    rows = np.repeat(np.arange(matrix.shape[0]), counts)
    found[rows[chosen], rank[chosen]] = columns[matrix.indices[chosen]]
    return found


def _degrees(cohort: Cohort) -> Tensor:
    degrees = torch.zeros(cohort.nodes.shape, dtype=cohort.dtype)
    for row, adjacency in enumerate(cohort.adjacencies):
        degrees[row, : adjacency.shape[0]] = torch.from_numpy(np.diff(adjacency.indptr))
    return degrees.to(cohort.device)


def _precision(cohort: Cohort) -> Precision:
    return "float64" if cohort.dtype == torch.float64 else "float32"
