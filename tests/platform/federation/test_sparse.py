"""Sparse products and their gradients against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedatlas.platform.federation.sparse import BAG_COLUMNS, SparseMatrix

CPU = torch.device("cpu")


def random_matrix(rows=6, columns=9, density=0.3, seed=0):
    return sp.csr_array(sp.random(rows, columns, density, format="csr", random_state=seed))


def random(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(matrix, symmetric=False):
    return SparseMatrix(matrix, torch.float64, CPU, symmetric)


def product_and_gradient(multiply, dense, weights):
    leaf = dense.clone().requires_grad_()
    product = multiply(leaf)
    (gradient,) = torch.autograd.grad((product * weights).sum(), leaf)
    return product.detach(), gradient


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_product_and_gradient_equal_the_dense_ones(density):
    matrix = random_matrix(density=density)
    full = torch.as_tensor(matrix.toarray())
    dense, weights = random(9, 4), random(6, 4, seed=2)
    mine = product_and_gradient(lambda x: build(matrix) @ x, dense, weights)
    theirs = product_and_gradient(lambda x: full @ x, dense, weights)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("columns", [1, BAG_COLUMNS - 1, BAG_COLUMNS, 3 * BAG_COLUMNS + 1])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6])
def test_narrow_and_wide_products_in_float32(columns, density):
    matrix = random_matrix(40, 30, density).astype(np.float32)
    sparse = SparseMatrix(matrix, torch.float32, CPU)
    full = torch.as_tensor(matrix.toarray())
    dense, weights = random(30, columns).float(), random(40, columns, seed=2).float()
    mine = product_and_gradient(lambda x: sparse @ x, dense, weights)
    theirs = product_and_gradient(lambda x: full @ x, dense, weights)
    torch.testing.assert_close(mine, theirs)


def test_a_wide_product_of_a_view():
    matrix = random_matrix(40, 30).astype(np.float32)
    columns = random(2 * BAG_COLUMNS, 30).float().T
    product = SparseMatrix(matrix, torch.float32, CPU) @ columns
    torch.testing.assert_close(product, torch.as_tensor(matrix.toarray()) @ columns)


def test_gradient_check():
    matrix = build(random_matrix())
    assert torch.autograd.gradcheck(lambda x: matrix @ x, (random(9, 2).requires_grad_(),))


def test_symmetric_matrix_stores_no_transpose():
    half = random_matrix(7, 7)
    matrix = sp.csr_array(half + half.T)
    symmetric, general = build(matrix, symmetric=True), build(matrix)
    assert symmetric._backward is symmetric._forward
    dense, weights = random(7, 3), random(7, 3, seed=2)
    torch.testing.assert_close(
        product_and_gradient(lambda x: symmetric @ x, dense, weights),
        product_and_gradient(lambda x: general @ x, dense, weights),
    )


def test_new_values_keep_the_structure_and_change_both_passes():
    matrix = random_matrix()
    original = build(matrix)
    values = random(matrix.nnz, seed=3)
    other = original.with_values(values)
    full = torch.as_tensor(
        sp.csr_array((values.numpy(), matrix.indices, matrix.indptr), matrix.shape).toarray()
    )
    dense, weights = random(9, 4), random(6, 4, seed=2)
    torch.testing.assert_close(
        product_and_gradient(lambda x: other @ x, dense, weights),
        product_and_gradient(lambda x: full @ x, dense, weights),
    )
    torch.testing.assert_close(original @ dense, torch.as_tensor(matrix.toarray()) @ dense)


def test_symmetric_matrix_refuses_new_values():
    matrix = build(sp.csr_array(np.eye(3)), symmetric=True)
    with pytest.raises(ValueError, match="symmetric"):
        matrix.with_values(torch.ones(3))


def test_unsorted_indices_are_sorted():
    matrix = sp.csr_array((np.array([1.0, 2.0, 3.0]), np.array([4, 0, 2]), np.array([0, 2, 3])), shape=(2, 5))
    expected = matrix.toarray()
    built = build(matrix)
    assert built.values.tolist() == [2, 1, 3]
    torch.testing.assert_close(built @ torch.eye(5).double(), torch.as_tensor(expected))


def test_columns_of_a_wider_tensor_can_be_multiplied():
    matrix, wide = random_matrix(), random(9, 8)
    dense = wide[:, ::2]
    torch.testing.assert_close(build(matrix) @ dense, torch.as_tensor(matrix.toarray()) @ dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [6, 1])
@pytest.mark.parametrize("columns", [4, 2 * BAG_COLUMNS])
def test_both_kernels_give_the_dense_product_with_its_first_and_second_derivative(dtype, rows, columns):
    """Wide products in float32 sum rows, others multiply a CSR matrix."""
    matrix = random_matrix(rows=rows)
    built = SparseMatrix(matrix, dtype, CPU)
    full = torch.as_tensor(matrix.toarray()).to(dtype)
    found = []
    for multiply in (lambda x: built @ x, lambda x: full @ x):
        leaf = random(9, columns).to(dtype).requires_grad_()
        value = multiply(leaf).square().sum()
        (first,) = torch.autograd.grad(value, leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        found.append((value.detach(), first.detach(), second))
    torch.testing.assert_close(*found)


def test_a_product_does_not_read_the_memory_it_is_written_to():
    matrix, dense = random_matrix(density=0.05), random(9, 4)
    rows = build(matrix)._forward
    garbage = torch.full((6, 4), torch.nan, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", lambda *_, **__: garbage)
        product = rows @ dense
    torch.testing.assert_close(product, torch.as_tensor(matrix.toarray()) @ dense)
