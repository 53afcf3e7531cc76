"""Sparse times dense: torch's CSR product against `embedding_bag`, float32, one thread.

    python benchmarks/products.py [--repeats 20]

Random block-diagonal matrices of the sizes that ten clients have. Milliseconds, the smallest of the repeats,
which alternate; the last column is the ratio of the two. `sparse.BAG_COLUMNS` follows from it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import scipy.sparse as sp
import torch
from torch import Tensor

from fedatlas.platform.federation.sparse import CSR

SIZES = {
    "Cora, propagation": (2800, 2800, 13_000),
    "Cora, features": (2800, 14_330, 49_000),
    "Cora, features transposed": (14_330, 2800, 49_000),
    "Amazon-Photo, propagation": (7650, 7650, 220_000),
}
COLUMNS = (4, 8, 16, 24, 32, 64, 128, 256)


def bags(matrix: CSR, dense: Tensor) -> Tensor:
    """The product by `embedding_bag`, whatever the number of columns."""
    return torch.nn.functional.embedding_bag(
        matrix.indices,
        dense,
        matrix.pointers,
        mode="sum",
        per_sample_weights=matrix.values,
        include_last_offset=True,
    )


def seconds(compute: Callable[[], Tensor]) -> float:
    begin = time.perf_counter()
    compute()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(f"{'matrix':28}{'columns':>8}{'CSR ms':>10}{'bags ms':>10}{'ratio':>8}")
    for name, (rows, columns, entries) in SIZES.items():
        size = (rows // 10, columns // 10)
        density = entries / 10 / size[0] / size[1]
        blocks = [sp.random_array(size, density=density, format="csr", dtype="float32") for _ in range(10)]
        whole = sp.csr_array(sp.block_diag(blocks, format="csr"))
        parts = (torch.from_numpy(part) for part in (whole.indptr, whole.indices, whole.data))
        matrix = CSR(*parts, whole.shape)
        for width in COLUMNS:
            dense = torch.randn(columns, width)
            as_csr, in_bags = [], []
            for _ in range(repeats):
                as_csr.append(seconds(lambda m=matrix, d=dense: m.tensor() @ d))
                in_bags.append(seconds(lambda m=matrix, d=dense: bags(m, d)))
            a, b = 1000 * min(as_csr), 1000 * min(in_bags)
            print(f"{name:28}{width:8}{a:10.3f}{b:10.3f}{a / b:8.2f}")


if __name__ == "__main__":
    main()
