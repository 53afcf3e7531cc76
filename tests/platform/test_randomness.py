"""The streams behind every draw."""

from __future__ import annotations

import hashlib

import numpy as np

from fedatlas.platform.randomness import bit_generator, stream


def test_a_stream_is_philox_with_the_hash_of_its_purpose_as_key():
    digest = hashlib.blake2b(b"3/1/7/dropout/0/hidden", digest_size=16).digest()
    reference = np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64))
    words = bit_generator(3, 1, 7, "dropout/0/hidden").random_raw(9)
    np.testing.assert_array_equal(words, reference.random_raw(9))


def test_purposes_clients_and_rounds_draw_apart():
    draws = {
        stream(*key).integers(2**62)
        for key in [(0, 1, 2, "a"), (0, 1, 2, "b"), (0, 1, 3, "a"), (0, 2, 2, "a")]
    }
    assert len(draws) == 4
