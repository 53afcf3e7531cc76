"""What a process sets on its device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedatlas.platform.federation.devices import full_precision


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_tf32_is_off_on_a_gpu_whoever_has_turned_it_on() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    full_precision(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_nothing_is_set_on_the_cpu() -> None:
    torch.set_float32_matmul_precision("high")
    full_precision(torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == "high"
