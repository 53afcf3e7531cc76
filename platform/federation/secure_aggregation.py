"""Secure aggregation by pairwise masks (Bonawitz et al., CCS 2017): the server learns sums only.

A number x travels as an element of the ring of integers modulo 2^64, in fixed point with `BITS` fractional
bits. Every pair i < j of participants shares uniform ring elements s_ij, which i adds and j subtracts:

    y_i = round(2^BITS x_i) + sum_{j > i} s_ij - sum_{j < i} s_ji   mod 2^64
    sum_i y_i = sum_i round(2^BITS x_i)                             mod 2^64

so a single y_i is uniform, and the sum is that of the rounded numbers, exactly.

The arithmetic, the messages and their bytes are those of a deployment; the keys are not. They are derived
from the experiment's seed, where parties would agree on them by a key exchange. A participant that does not
send leaves masks that nothing cancels: the sum is refused. Here such a round is run again with all of them;
there are no shares of keys from which the server could remove the masks of those that dropped out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.messages import Tensors, Upload
from fedatlas.platform.randomness import bit_generator

BITS = 28
"""Fractional bits: steps of 4e-9."""
_LIMIT = 2.0**62


def masked(
    fields: Mapping[str, Tensor],
    clients: Sequence[int],
    participants: Collection[int],
    seed: int,
    round_number: int,
) -> Tensors:
    """Fields of some clients as masked ring elements, int64 of the same shapes.

    Args:
        fields: [k, ...] of any type of number.
        clients: ids of the k clients.
        participants: ids of all clients of the sum.

    Raises:
        FedatlasError: a number is too large for the ring.
    """
    return {
        name: _masked(name, tensor, clients, sorted(participants), seed, round_number)
        for name, tensor in fields.items()
    }


def _masked(
    name: str,
    tensor: Tensor,
    clients: Sequence[int],
    participants: Sequence[int],
    seed: int,
    round_number: int,
) -> Tensor:
    encoded = _encoded(name, tensor, len(participants))
    shape = encoded.shape[1:]
    row_of = {client: row for row, client in enumerate(clients)}
    for position, first in enumerate(participants):
        for second in participants[position + 1 :]:
            if first not in row_of and second not in row_of:
                continue
            source = bit_generator(seed, first, round_number, f"secure_aggregation/{second}/{name}")
            mask = source.random_raw(math.prod(shape)).astype(np.uint64, copy=False).reshape(shape)
            if first in row_of:
                encoded[row_of[first]] += mask
            if second in row_of:
                encoded[row_of[second]] -= mask
    return torch.from_numpy(encoded.view(np.int64))


def _encoded(name: str, tensor: Tensor, participants: int) -> np.ndarray:
    scaled = np.rint(tensor.detach().cpu().double().numpy() * 2.0**BITS)
    if scaled.size and float(np.abs(scaled).max()) * participants >= _LIMIT:
        raise FedatlasError(
            f"secure_aggregation: {name} has a value of {float(tensor.abs().max()):g}, and the sum of "
            f"{participants} must stay below {_LIMIT / 2**BITS:g}: lower the learning rate (lr)"
        )
    return scaled.astype(np.int64).view(np.uint64)


def unmasked(upload: Upload, participants: int, dtype: torch.dtype) -> Upload:
    """Sums over all participants as fields [1, ...].

    Args:
        upload: masked fields [M, ...].
        participants: how many clients took part in the masks.
        dtype: of the sums.

    Raises:
        FedatlasError: an upload is missing.
    """
    sums: Tensors = {}
    for name, tensor in upload.fields.items():
        if len(tensor) != participants:
            raise FedatlasError(
                f"secure_aggregation: {len(tensor)} of {participants} uploads of {name} have arrived, and "
                "masks only cancel in the sum of all"
            )
        total = tensor.numpy().view(np.uint64).sum(axis=0, keepdims=True, dtype=np.uint64)
        sums[name] = torch.from_numpy(total.view(np.int64).astype(np.float64) / 2.0**BITS).to(dtype)
    return Upload(sums)
