"""Sparse matrices with a cheap, exact backward pass.

A product with a constant sparse matrix S needs S itself forward and its transpose backward. Both are built
once as CSR, so that neither pass converts or sorts anything.

On a CPU in float32, torch's `embedding_bag` computes the same sums of rows 2.5 to 5 times as fast as its CSR
product where rows are wide (`benchmarks/products.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

BAG_COLUMNS = 16
"""Columns from which on `embedding_bag` is the faster product."""


@dataclass(frozen=True)
class CSR:
    """A sparse matrix [r, c] of parts that are known to be valid; its products have no gradients.

    Attributes:
        pointers: int [r + 1].
        indices: int of the same type [nnz], columns sorted within a row.
        values: [nnz].
        shape: (r, c).
    """

    pointers: Tensor
    indices: Tensor
    values: Tensor
    shape: tuple[int, int]

    def tensor(self) -> Tensor:
        """As torch's CSR tensor, which shares the parts."""
        _announce_once()
        parts = (self.pointers, self.indices, self.values)
        return torch.sparse_csr_tensor(*parts, self.shape, check_invariants=False)

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not self.in_bags(dense):
            # `tensor @ dense` would fill its result with zeros and copy it first.
            product = dense.new_empty(self.shape[0], dense.shape[1])
            return product.addmm_(self.tensor(), dense.detach().contiguous(), beta=0)
        # Detached: what needs a gradient is also prepared for a backward pass. This is what
        # `torch.nn.functional.embedding_bag` calls after its checks; mode 0 is the sum.
        return torch.embedding_bag(
            dense.detach().contiguous(), self.indices, self.pointers, False, 0, False, self.values, True
        )[0]

    def in_bags(self, dense: Tensor) -> bool:
        """Whether the product with `dense` is taken by `embedding_bag`."""
        return (
            dense.shape[1] >= BAG_COLUMNS
            and dense.dtype == torch.float32
            and dense.device.type == "cpu"
            and self.indices.numel() > 0
        )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: CSR, transposed: CSR) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(grads[0], ctx.transposed, ctx.matrix), None, None  # type: ignore[no-untyped-call]


class SparseMatrix:
    """A constant sparse matrix [r, c] that multiplies dense matrices [c, h] with gradients.

    Args:
        matrix: scipy sparse matrix.
        dtype, device: of the values.
        symmetric: the caller knows that the matrix equals its transpose, which is then not stored twice.
    """

    def __init__(
        self, matrix: sp.csr_array, dtype: torch.dtype, device: torch.device, symmetric: bool = False
    ) -> None:
        csr = sp.csr_array(matrix)
        csr.sort_indices()
        self.shape: tuple[int, int] = (int(csr.shape[0]), int(csr.shape[1]))
        self.values = torch.from_numpy(csr.data).to(device=device, dtype=dtype)
        self._pointers, self._indices = _structure(csr, device)
        self._forward = CSR(self._pointers, self._indices, self.values, self.shape)
        self._order: Tensor | None = None
        if symmetric:
            self._backward = self._forward
        else:
            order = sp.csr_array(
                (np.arange(csr.nnz, dtype=np.int64), csr.indices, csr.indptr), shape=csr.shape
            ).T.tocsr()
            order.sort_indices()
            self._order = torch.from_numpy(order.data).to(device)
            self._transposed_structure = _structure(order, device)
            self._backward = self._transpose(self.values)

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _Product.apply(dense, self._forward, self._backward)  # type: ignore[no-untyped-call]
        return product

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same structure with other values [nnz] (in row-major order); used by input dropout."""
        if self._order is None:
            raise ValueError("a symmetric matrix cannot take new values")
        other = object.__new__(SparseMatrix)
        other.__dict__.update(self.__dict__)
        other.values = values
        other._forward = CSR(self._pointers, self._indices, values, self.shape)
        other._backward = self._transpose(values)
        return other

    def scipy(self) -> sp.csr_array:
        """The matrix in main memory."""
        parts = (self.values, self._indices, self._pointers)
        return sp.csr_array(tuple(part.cpu().numpy() for part in parts), shape=self.shape)

    def _transpose(self, values: Tensor) -> CSR:
        assert self._order is not None
        pointers, indices = self._transposed_structure
        return CSR(pointers, indices, values[self._order], (self.shape[1], self.shape[0]))


def _structure(csr: sp.csr_array, device: torch.device) -> tuple[Tensor, Tensor]:
    largest = max(csr.nnz, *csr.shape)
    index = np.int32 if largest < np.iinfo(np.int32).max else np.int64
    return (
        torch.from_numpy(csr.indptr.astype(index)).to(device),
        torch.from_numpy(csr.indices.astype(index)).to(device),
    )


@cache
def _announce_once() -> None:
    """Create one CSR tensor while torch's once-only notices about CSR tensors are silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(empty, empty[:0], torch.zeros(0), (0, 1), check_invariants=False)


def pad_blocks(blocks: Sequence[sp.csr_array], rows: int, columns: int) -> sp.csr_array:
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
