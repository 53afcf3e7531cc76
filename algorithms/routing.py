"""Neighbourhood routing over latent factors, parameter-free (Ma et al., ICML 2019).

Every node has K factor vectors, every neighbour v of a node u explains itself by them in the shares

    a_uv,k = softmax_k(x_v,k . c_u,k / tau),   c_u,k <- unit(x_u,k + sum_v a_uv,k x_v,k)

starting from c = x = unit(h), T times. `unit` divides by the Euclidean length; a zero vector stays zero.

On a list of e directed edges, gathered factor vectors are a tensor [e, K, p] per iteration, hundreds of times
the size of the graph. Here the dot products are a sampled dense product, the sums a sparse one, both over one
CSR structure with a block per factor, so that nothing of that size exists. The backward pass is written out;
it keeps the shares [K, e] of every iteration and computes the centres c again from them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.sparse import Rows, csr_tensor


class FactorGraph:
    """The neighbourhoods of N nodes, once per factor: a block-diagonal CSR structure over K*N rows.

    Args:
        adjacency: symmetric scipy CSR [N, N]; only its pattern is used.
        factors: number of blocks K.
        device: where the structure lives.
    """

    def __init__(self, adjacency: sp.csr_array, factors: int, device: torch.device) -> None:
        csr = sp.csr_array(adjacency)
        csr.sort_indices()
        nodes, edges = int(csr.shape[0]), int(csr.nnz)
        largest = factors * max(nodes, edges) + 1
        kind = np.int32 if largest < np.iinfo(np.int32).max else np.int64
        block = np.arange(factors, dtype=kind)[:, None]
        pointers = (csr.indptr[:-1].astype(kind)[None] + block * edges).ravel()
        self.edges = edges
        self._pointers = torch.from_numpy(np.append(pointers, kind(factors * edges))).to(device)
        self._indices = torch.from_numpy((csr.indices.astype(kind)[None] + block * nodes).ravel()).to(device)
        self._shape = (factors * nodes, factors * nodes)
        # Entry (u, v) of a symmetric pattern is entry `order` of its transpose.
        order = sp.csr_array((np.arange(edges), csr.indices, csr.indptr), shape=csr.shape).T.tocsr()
        order.sort_indices()
        self._order = torch.from_numpy(order.data.astype(np.int64)).to(device)
        self._patterns: dict[torch.dtype, Tensor] = {}

    def dots(self, centres: Tensor, vectors: Tensor) -> Tensor:
        """Dot product of every node's centre with each of its neighbours' vectors.

        Shapes:
            centres, vectors: [K, N, p]; result: [K, e], edges ordered by their centre.
        """
        factors, _, width = vectors.shape
        products = torch.sparse.sampled_addmm(
            self._pattern(centres.dtype), centres.reshape(-1, width), vectors.reshape(-1, width).T, beta=0.0
        )
        values: Tensor = products.values().view(factors, self.edges)
        return values

    def add_sums(self, total: Tensor, shares: Tensor, vectors: Tensor, transposed: bool = False) -> Tensor:
        """Add the weighted sum of the neighbours' vectors to `total` in place, and return it.

        Args:
            total: [K, N, p].
            shares: weight of every edge, [K, e].
            vectors: [K, N, p].
            transposed: weigh edge (u, v) by the share of (v, u).
        """
        if transposed:
            shares = shares.index_select(1, self._order)
        width = vectors.shape[2]
        rows = Rows(self._pointers, self._indices, shares.reshape(-1), self._shape)
        rows.add_times(vectors.reshape(-1, width), total.view(-1, width))
        return total

    def _pattern(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._patterns:
            zeros = torch.zeros(self._indices.numel(), dtype=dtype, device=self._indices.device)
            self._patterns[dtype] = csr_tensor(self._pointers, self._indices, zeros, self._shape)
        return self._patterns[dtype]


def factor_graph(cohort: Cohort, factors: int) -> FactorGraph:
    """The graph of all k*n nodes of a cohort, built once and kept with it."""

    def build() -> FactorGraph:
        n = cohort.width
        padded = [sp.csr_array(adjacency) for adjacency in cohort.adjacencies]
        for adjacency in padded:
            adjacency.resize((n, n))
        return FactorGraph(sp.csr_array(sp.block_diag(padded, format="csr")), factors, cohort.device)

    return cohort.keep(f"factor_graph/{factors}", build)


def route(vectors: Tensor, graph: FactorGraph, iterations: int, temperature: float = 1.0) -> Tensor:
    """Centres after some routing iterations; every factor of a node has length 1, or 0 if it is zero.

    Args:
        vectors: factors h of all nodes, need not be normalised.
        graph: their neighbourhoods.
        iterations: T >= 1.
        temperature: tau.

    Shapes:
        vectors: [K, N, p]; result: [K, N, p].
    """
    routed: Tensor = _Routing.apply(vectors, graph, iterations, temperature)  # type: ignore[no-untyped-call]
    return routed


class _Routing(torch.autograd.Function):
    """Works in a few buffers [K, N, p]: to allocate large tensors anew costs as much as the products."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, graph: FactorGraph, iterations: int, temperature: float) -> Tensor:
        x = vectors.clone(memory_format=torch.contiguous_format)
        inverse = _normalise(x)
        centres = x.clone()
        shares, inverses = [], []
        for _ in range(iterations):
            share = torch.softmax(graph.dots(centres, x) / temperature, dim=0)
            inverses.append(_normalise(graph.add_sums(centres.copy_(x), share, x)))
            shares.append(share)
        ctx.save_for_backward(x, inverse, centres, *shares, *inverses)
        ctx.graph, ctx.iterations, ctx.temperature = graph, iterations, temperature
        return centres

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        graph, iterations = ctx.graph, ctx.iterations
        x, inverse, result, *rest = ctx.saved_tensors
        shares, inverses = rest[:iterations], rest[iterations:]
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        centres, buffer, into_x = result.clone(), torch.empty_like(x), torch.zeros_like(x)
        for step in reversed(range(iterations)):
            share = shares[step]
            _normalise_backward(grad, centres, inverses[step], buffer)
            into_share = graph.dots(grad, x)
            graph.add_sums(into_x.add_(grad), share, grad, transposed=True)
            # Softmax over the factors, then the dot products x_v . c_u with the centres of the step before.
            into_dot = share * (into_share - (share * into_share).sum(dim=0)) / ctx.temperature
            graph.add_sums(grad.zero_(), into_dot, x)
            centres.copy_(x)
            if step > 0:
                graph.add_sums(centres, shares[step - 1], x).mul_(inverses[step - 1])
            graph.add_sums(into_x, into_dot, centres, transposed=True)
        _normalise_backward(into_x.add_(grad), x, inverse, buffer)
        return into_x, None, None, None


def _normalise(vectors: Tensor) -> Tensor:
    """Scale rows to length 1 in place; returns the factors [..., 1], which are 0 for zero rows."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    zero = length < torch.finfo(length.dtype).tiny ** 0.5
    inverse: Tensor = length.masked_fill(zero, math.inf).reciprocal_()
    vectors.mul_(inverse)
    return inverse


def _normalise_backward(grad: Tensor, unit: Tensor, inverse: Tensor, buffer: Tensor) -> None:
    """Gradient through `_normalise` in place: the part orthogonal to the result, scaled; 0 at a zero row."""
    along = torch.mul(unit, grad, out=buffer).sum(dim=-1, keepdim=True)
    grad.addcmul_(unit, along, value=-1).mul_(inverse)
