"""Random streams keyed by (seed, client, round, purpose).

A draw must not depend on which process a client shares or on the order in which clients arrive. Every
draw therefore comes from a counter-based generator whose key is a hash of what the draw is for; nothing
about it has to be saved in a checkpoint.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

SERVER = -1
"""Client id of draws made by the server."""


def stream(seed: int, client: int, round_number: int, purpose: str) -> np.random.Generator:
    """Generator for one purpose of one client in one round.

    Args:
        seed: seed of the experiment.
        client: client id, or `SERVER`.
        round_number: round, 0-based; -1 for what happens before round 0.
        purpose: what is drawn, for example ``"dropout/encoder"``.
    """
    return np.random.Generator(bit_generator(seed, client, round_number, purpose))


def bit_generator(seed: int, client: int, round_number: int, purpose: str) -> np.random.Philox:
    """Philox bit generator behind `stream`, for callers that want raw 64-bit words."""
    text = f"{seed}/{client}/{round_number}/{purpose}".encode()
    key = _Key(hashlib.blake2b(text, digest_size=16).digest())
    return np.random.Philox(key)  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """A key as it is. `Philox(key=...)` takes the same, and asks the operating system for entropy before."""

    def __init__(self, digest: bytes) -> None:
        self._words = np.frombuffer(digest, dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray:
        return self._words
