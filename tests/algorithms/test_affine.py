"""Products with few columns take another way than those with many; both are the dense layer."""

from __future__ import annotations

import pytest
import torch

from fedatlas.algorithms.backbones.backbone import NARROW, affine


@pytest.mark.parametrize("columns", [1, 7, NARROW, NARROW + 1])
def test_values_and_first_and_second_derivatives_are_those_of_the_dense_layer(columns):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    values, weight, bias = draw(3, 5, 4), draw(3, 4, columns), draw(3, columns)
    found = []
    for layer in (
        lambda v, w, b: affine(v, {"x.weight": w, "x.bias": b}, "x"),
        lambda v, w, b: torch.einsum("knr,krc->knc", v, w) + b[:, None],
    ):
        leaves = [each.clone().requires_grad_() for each in (values, weight, bias)]
        result = layer(*leaves)
        first = torch.autograd.grad(result.pow(3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in first), leaves)
        found.append((result.detach(), *(each.detach() for each in first), *second))
    torch.testing.assert_close(*found)
