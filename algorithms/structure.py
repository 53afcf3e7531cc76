"""Encodings of a node's place in its graph: return probabilities of random walks, and its degree."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from fedatlas.platform.federation.unions import ClientUnion

DENSE = 500
"""Graphs with more nodes are not held as dense matrices."""
_ENTRIES = 1 << 22


def structural_encodings(graphs: ClientUnion, walks: int = 16, degrees: int = 16) -> np.ndarray:
    """Encodings of all nodes, float32 [n, walks + degrees].

        rw_k(v) = ((A D^-1)^k)_vv for k = 1..walks; 0 for a node without edges
        one-hot of min(max(deg(v), 1), degrees)

    Source: FedStar (Tan et al., AAAI 2023).
    """
    adjacency = graphs.adjacency()
    degree = np.diff(adjacency.indptr)
    out = np.zeros((len(degree), walks + degrees), dtype=np.float32)
    out[:, :walks] = return_probabilities(adjacency, graphs.starts, walks)
    out[np.arange(len(degree)), walks + np.clip(degree, 1, degrees) - 1] = 1
    return out


def return_probabilities(adjacency: sp.csr_array, starts: np.ndarray, walks: int) -> np.ndarray:
    """Diagonals of (A D^-1)^k, k = 1..walks, of block-diagonal A, float64 [n, walks].

    N = D^-1/2 A D^-1/2 is symmetric and has the same diagonals, so that (N^(i+j))_vv is the product of row v
    of N^i with row v of N^j, and powers up to walks/2 are enough. Small graphs are padded and multiplied in
    batches, sorted by size.

    Args:
        adjacency: binary symmetric CSR [n, n].
        starts: int64 [g + 1], first node of each block, and n.
        walks: largest k.
    """
    degree = np.diff(adjacency.indptr)
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0.0)
    normalised = sp.csr_array(sp.diags_array(scale) @ adjacency @ sp.diags_array(scale))
    sizes = np.diff(starts)
    out = np.zeros((len(degree), walks))
    order = np.argsort(sizes, kind="stable")
    small = order[sizes[order] <= DENSE]
    position = 0
    while position < len(small):
        stop = position + 1
        while stop < len(small) and (stop + 1 - position) * int(sizes[small[stop]]) ** 2 <= _ENTRIES:
            stop += 1
        _dense_blocks(normalised, starts, small[position:stop], out)
        position = stop
    for graph in order[sizes[order] > DENSE]:
        part = slice(starts[graph], starts[graph + 1])
        out[part] = _sparse_block(sp.csr_array(normalised[part, part]), walks)
    return out


def _dense_blocks(matrix: sp.csr_array, starts: np.ndarray, graphs: np.ndarray, out: np.ndarray) -> None:
    width = int((starts[graphs + 1] - starts[graphs]).max())
    blocks = np.zeros((len(graphs), width, width))
    for place, graph in enumerate(graphs):
        first, end = starts[graph], starts[graph + 1]
        entries = slice(matrix.indptr[first], matrix.indptr[end])
        rows = np.repeat(np.arange(end - first), np.diff(matrix.indptr[first : end + 1]))
        blocks[place, rows, matrix.indices[entries] - first] = matrix.data[entries]
    power = base = torch.from_numpy(blocks)
    walks = out.shape[1]
    found = [torch.diagonal(base, dim1=1, dim2=2)]
    while len(found) < walks:
        found.append((power * power).sum(dim=2))
        if len(found) < walks:
            following = power @ base
            found.append((power * following).sum(dim=2))
            power = following
    diagonals = torch.stack(found, dim=2).numpy()
    for place, graph in enumerate(graphs):
        first, end = starts[graph], starts[graph + 1]
        out[first:end] = diagonals[place, : end - first]


def _sparse_block(matrix: sp.csr_array, walks: int) -> np.ndarray:
    power = matrix
    found = [matrix.diagonal()]
    while len(found) < walks:
        found.append(np.asarray(power.multiply(power).sum(axis=1)).ravel())
        if len(found) < walks:
            following = sp.csr_array(power @ matrix)
            found.append(np.asarray(power.multiply(following).sum(axis=1)).ravel())
            power = following
    return np.stack(found, axis=1)
