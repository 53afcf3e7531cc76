"""Sums over closed neighbourhoods N(i) + {i} of a block-diagonal graph, with weights that are learned.

The structure of A + I is symmetric, so that its transpose needs no sorting: the weight of (j, i) is found
where `reverse` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.sparse import Rows, SparseMatrix

_CHUNK = 1 << 24
"""Entries of an edge-wise product that are held at once; a backward pass over more goes in parts."""


class Neighbours:
    """Closed neighbourhoods of N nodes: CSR structure with E entries, sorted by row, then column.

    Args:
        pointers: int64 [N + 1].
        columns: int64 [E].
        reverse: int64 [E], position of the entry (j, i) for each entry (i, j).
        dtype, device: of the values that are summed.
    """

    def __init__(
        self,
        pointers: np.ndarray,
        columns: np.ndarray,
        reverse: np.ndarray,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.nodes = len(pointers) - 1
        self._dtype, self._device = dtype, device
        self._degrees = np.diff(pointers)
        index = np.int32 if len(columns) < np.iinfo(np.int32).max else np.int64

        def placed(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=index)).to(device)

        self._pointers, self._columns = placed(pointers), placed(columns)
        self._rows = placed(np.repeat(np.arange(self.nodes), self._degrees))
        self._reverse = placed(reverse)
        self._offsets = torch.from_numpy(pointers.astype(np.int64)).to(device)

    def pairs(self, ends: Tensor, starts: Tensor) -> Tensor:
        """ends_i + starts_j for every entry (i, j): two [N, h] -> [E, h]."""
        sums: Tensor = _Pairs.apply(ends, starts, self)  # type: ignore[no-untyped-call]
        return sums

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax over the neighbourhood of each node: [E, h] -> [E, h]."""
        weights: Tensor = _Softmax.apply(scores, self)  # type: ignore[no-untyped-call]
        return weights

    def weighted_sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """sum_j w_ij v_j for each head: weights [E, h], values [N, h, d] -> [N, h, d]."""
        total: Tensor = _WeightedSum.apply(weights, values, self)  # type: ignore[no-untyped-call]
        return total

    def summing(self) -> SparseMatrix:
        """The matrix A + I, which sums over closed neighbourhoods."""
        return self._matrix(np.ones(len(self._columns)))

    def normalised(self) -> SparseMatrix:
        """D~^(-1/2) (A + I) D~^(-1/2) (Kipf and Welling, 2017)."""
        scale = 1 / np.sqrt(np.maximum(self._degrees, 1))
        columns = self._columns.cpu().numpy()
        return self._matrix(np.repeat(scale, self._degrees) * scale[columns])

    def _matrix(self, values: np.ndarray) -> SparseMatrix:
        parts = (values, self._columns.cpu().numpy(), self._pointers.cpu().numpy())
        matrix = sp.csr_array(parts, shape=(self.nodes, self.nodes))
        return SparseMatrix(matrix, self._dtype, self._device, symmetric=True)

    def _by_node(self, values: Tensor, reduce: str = "sum") -> Tensor:
        """Sum or maximum over each node's entries: [E, h] -> [N, h]; 0 or -inf for a node without any."""
        initial = 0.0 if reduce == "sum" else -torch.inf
        return torch.segment_reduce(values, reduce, offsets=self._offsets, axis=0, initial=initial)

    def _product(self, weights: Tensor, values: Tensor) -> Tensor:
        """sum_j w_ij v_j: weights [h, E] and values [h, N, d], both contiguous -> [N, h, d]."""
        shape = (self.nodes, self.nodes)
        return torch.stack(
            [
                Rows(self._pointers, self._columns, weight, shape).times(value)
                for weight, value in zip(weights, values, strict=True)
            ],
            dim=1,
        )


class _Pairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ends: Tensor, starts: Tensor, graph: Neighbours) -> Tensor:
        ctx.graph = graph
        return ends.index_select(0, graph._rows).add_(starts.index_select(0, graph._columns))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        graph, gradient = ctx.graph, grads[0].contiguous()
        # What j gives to its neighbours is what they would give to j: no scattered addition is needed.
        return graph._by_node(gradient), graph._by_node(gradient.index_select(0, graph._reverse)), None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, graph: Neighbours) -> Tensor:
        largest = graph._by_node(scores, "max")
        powers = (scores - largest.index_select(0, graph._rows)).exp_()
        weights = powers.div_(graph._by_node(powers).index_select(0, graph._rows))
        ctx.graph = graph
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        weighted = grads[0] * weights
        totals = ctx.graph._by_node(weighted).index_select(0, ctx.graph._rows)
        return weighted.sub_(totals.mul_(weights)), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, graph: Neighbours) -> Tensor:
        by_head = weights.t().contiguous()
        ctx.graph = graph
        ctx.save_for_backward(by_head, values)
        return graph._product(by_head, values.transpose(0, 1).contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        by_head, values = ctx.saved_tensors
        graph, gradient = ctx.graph, grads[0].contiguous()
        transposed = by_head.index_select(1, graph._reverse)
        of_values = graph._product(transposed, gradient.transpose(0, 1).contiguous())
        edges, heads, width = by_head.shape[1], values.shape[1], values.shape[2]
        of_weights = gradient.new_empty(edges, heads)
        step = max(1, _CHUNK // (heads * width))
        for begin in range(0, edges, step):
            part = slice(begin, min(begin + step, edges))
            ends = gradient.index_select(0, graph._rows[part])
            starts = values.index_select(0, graph._columns[part])
            of_weights[part] = ends.mul_(starts).sum(dim=2)
        return of_weights, of_values, None
