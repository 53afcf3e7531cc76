"""Roles of the nodes: train, validation, test."""

from __future__ import annotations

import numpy as np

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs.graph import Split
from fedatlas.platform.randomness import SERVER, stream


def random_split(nodes: int, train: float, test: float, seed: int) -> Split:
    """Global random split, drawn before the graph is divided and blind to classes.

    One permutation of all n nodes: the first round(train n) are for training, the next round(test n) for
    the test, the rest for validation. The ratio holds for the whole graph; a client has it only roughly.

    Args:
        nodes: n.
        train, test: fractions of n; what they leave, more than nothing, is the validation fraction.
        seed: seed of the experiment.

    Raises:
        ConfigurationError: a fraction is not above 0, or they leave nothing for validation.

    Source: FED-PUB (Baek et al., ICML 2023), data preparation of its published code.
    """
    if not (train > 0 and test > 0 and train + test < 1):
        raise ConfigurationError(
            f"train_fraction={train:g} and test_fraction={test:g} must be above 0 and leave a part "
            "for validation: choose fractions whose sum is below 1"
        )
    order = stream(seed, SERVER, -1, "split").permutation(nodes)
    first = round(train * nodes)
    second = first + round(test * nodes)
    masks = np.zeros((3, nodes), dtype=bool)
    for mask, ids in zip(masks, np.split(order, [first, second]), strict=True):
        mask[ids] = True
    return Split(train=masks[0], test=masks[1], validation=masks[2])
