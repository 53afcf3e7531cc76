"""Likelihood of a client's edges under an inner-product decoder, p(A_uv = 1 | H) = sigmoid(h_u . h_v).

The mean over the n (n - 1) ordered pairs u != v of

    -log p(A_uv | H) = softplus(h_u . h_v) - A_uv h_u . h_v

The second term is a sum over edges, so one sparse product gives it. The first is a sum over all pairs: exact
for small graphs, estimated from the edges and a sample of the other pairs for large ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedatlas.algorithms.routing import FactorGraph
from fedatlas.platform.federation.cohort import Cohort

SAMPLED_PER_EDGE = 5


def reconstruction_loss(
    cohort: Cohort, latent: Tensor, limit: int, generators: list[np.random.Generator]
) -> Tensor:
    """Mean of -log p(A_uv | H) over all pairs of different nodes of each client, [k].

    Args:
        cohort: the clients.
        latent: H, [k, n, d].
        limit: clients with more nodes are estimated. Their edges count as they are; pairs without an edge
            are represented by a sample with five times as many pairs as there are edges, weighted up, so the
            expectation is the exact mean.
        generators: one stream per client for the sample.
    """
    latent = latent * cohort.nodes[..., None]
    pairs = torch.tensor(
        [max(size * (size - 1), 1) for size in cohort.sizes], dtype=latent.dtype, device=latent.device
    )
    edges = cohort.keep("adjacency", lambda: cohort.block_diagonal(cohort.adjacencies))
    linear = (latent * cohort.propagate(edges, latent)).sum(dim=(1, 2))
    if max(cohort.sizes) <= limit:
        return (_all_pairs(cohort, latent) - linear) / pairs
    convex = [
        _sampled_pairs(latent[row, :size], adjacency, generator)
        if size > limit
        else _all_pairs(cohort, latent, row)
        for row, (size, adjacency, generator) in enumerate(
            zip(cohort.sizes, cohort.adjacencies, generators, strict=True)
        )
    ]
    return (torch.stack([part.reshape(()) for part in convex]) - linear) / pairs


def _all_pairs(cohort: Cohort, latent: Tensor, row: int | None = None) -> Tensor:
    """Sum of softplus(h_u . h_v) over u != v; of all clients [k], or of one client, [1]."""
    rows = slice(None) if row is None else slice(row, row + 1)
    latent = latent[rows]
    total = softplus(torch.bmm(latent, latent.transpose(1, 2))).sum(dim=(1, 2))
    itself = softplus(latent.square().sum(dim=2)).sum(dim=1)
    # A pair with a padded node has logit 0.
    empty = [cohort.width**2 - cohort.width - size * (size - 1) for size in cohort.sizes[rows]]
    padding = torch.tensor(empty, dtype=latent.dtype, device=latent.device) * math.log(2)
    return total - itself - padding


def _sampled_pairs(latent: Tensor, adjacency: sp.csr_array, generator: np.random.Generator) -> Tensor:
    weights = sampled_weights(adjacency, generator)
    graph = FactorGraph(weights, 1, latent.device)
    logits: Tensor = _PairDots.apply(latent, graph)  # type: ignore[no-untyped-call]
    values = torch.from_numpy(weights.data).to(device=latent.device, dtype=latent.dtype)
    return (values * softplus(logits)).sum()


def sampled_weights(adjacency: sp.csr_array, generator: np.random.Generator) -> sp.csr_array:
    """Weights of pairs whose weighted sum estimates the sum over all pairs u != v.

    Args:
        adjacency: binary symmetric CSR [n, n] without self-loops.
        generator: draws the pairs without an edge.

    Returns:
        Symmetric CSR [n, n]: 1 on every edge; on drawn pairs, how often they were drawn times the number of
        pairs without an edge over the number drawn.
    """
    n = int(adjacency.shape[0])
    csr = sp.csr_array(adjacency)
    csr.sort_indices()
    edges = np.repeat(np.arange(n), np.diff(csr.indptr)) * n + csr.indices
    count = max(SAMPLED_PER_EDGE * (edges.size // 2), n)
    first, second = generator.integers(0, n, (2, count))
    keys = (first * n + second)[first != second]
    place = np.searchsorted(edges, keys)
    known = np.zeros(keys.size, dtype=bool)
    inside = place < edges.size
    known[inside] = edges[place[inside]] == keys[inside]
    keys = keys[~known]
    absent = n * (n - 1) - edges.size
    weight = absent / (2 * keys.size) if keys.size else 0.0
    drawn = sp.csr_array((np.full(keys.size, weight), (keys // n, keys % n)), shape=(n, n))
    total = sp.csr_array(csr.astype(np.float64) + drawn + drawn.T)
    total.sort_indices()
    return total


class _PairDots(torch.autograd.Function):
    """h_u . h_v for the entries of a symmetric pattern, [n, d] -> [e]."""

    @staticmethod
    def forward(ctx: Any, latent: Tensor, graph: FactorGraph) -> Tensor:
        ctx.save_for_backward(latent)
        ctx.graph = graph
        return graph.dots(latent[None], latent[None])[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (latent,) = ctx.saved_tensors
        weights, vectors = grads[0][None], latent[None]
        total = ctx.graph.add_sums(torch.zeros_like(vectors), weights, vectors)
        return ctx.graph.add_sums(total, weights, vectors, transposed=True)[0], None
