"""Who holds which graphs: the ways to divide a set of graphs among clients.

How many graphs of each class a client has in each role is the partition, drawn from a seed of its own; which
graphs they are is drawn from the seed of the experiment. Repetitions thus share the partition and differ in
the graphs.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias, get_args

import numpy as np

from fedatlas.platform.errors import ConfigurationError, PartitionError, unknown_name
from fedatlas.platform.graphs.graph import Array
from fedatlas.platform.randomness import SERVER, stream

GraphMode: TypeAlias = Literal["iid", "dirichlet", "cross-dataset"]
GRAPH_MODES: tuple[GraphMode, ...] = get_args(GraphMode)
GRAPH_CONCENTRATION = 0.01
"""Of ``dirichlet`` if none is given: beta of SEAL."""
ROLES = 3
"""Train, validation, test."""


def quotas(
    histogram: Array,
    mode: str,
    clients: int,
    train: float,
    test: float,
    seed: int = 0,
    concentration: float | None = None,
) -> Array:
    """Graphs of each client, role and class, int64 [M, 3, C]; roles are train, validation, test.

    Of each class, round(test n_c) graphs are for the test, round((1 - train - test) n_c) for validation, the
    rest for training. Those of a role are dealt out one by one, class after class, in turn over the clients,
    so that clients have equally many, and equally many of each class, up to one.

    Modes:
        ``iid``: all three roles are dealt like that.
        ``dirichlet``: so are validation and test. For training, client m has class shares
            q_m ~ Dirichlet(beta, ..., beta) over the C classes. The clients take turns; in each, a client
            takes one graph of a class drawn from q_m among the classes that are left (in proportion to what
            is left, if all of its share is gone). All clients train on equally many graphs, up to one.

    Args:
        histogram: int64 [C], graphs of each class.
        mode: ``iid`` or ``dirichlet``.
        clients: M.
        train, test: shares of the graphs.
        seed: of the class shares and the turns.
        concentration: beta > 0 of ``dirichlet``; `GRAPH_CONCENTRATION` if not given.

    Raises:
        ConfigurationError: unknown mode, or the shares leave nothing for validation.
        PartitionError: more clients than graphs to train on.

    Sources: the skew follows Hsu et al. (arXiv 1909.06335), with clients of equal size. That it concerns
    training graphs only is our reading of SEAL (arXiv 2512.16247): if the test graphs were skewed with beta =
    0.01 too, training alone would score near 100 %, and the paper prints 57 to 63 %.
    """
    if mode not in ("iid", "dirichlet"):
        raise unknown_name("partition of a set of graphs", mode, ("iid", "dirichlet"))
    roles = role_counts(histogram, train, test)
    if clients > roles[0].sum():
        raise PartitionError(
            f"clients={clients} exceeds the {roles[0].sum()} graphs to train on: use fewer clients"
        )
    dealt = np.stack([_dealt(counts, clients) for counts in roles], axis=1)
    if mode == "dirichlet":
        beta = GRAPH_CONCENTRATION if concentration is None else concentration
        dealt[:, 0] = _skewed(roles[0], clients, beta, seed)
    return dealt


def role_counts(histogram: Array, train: float, test: float) -> Array:
    """Graphs of each role and class, int64 [3, C]; a class with few graphs has them for training.

    Raises:
        ConfigurationError: a share is not above 0, or they leave nothing for validation.
    """
    if not (train > 0 and test > 0 and train + test < 1):
        raise ConfigurationError(
            f"train_fraction={train:g} and test_fraction={test:g} must be above 0 and leave a part "
            "for validation: choose fractions whose sum is below 1"
        )
    tested = np.rint(test * histogram).astype(np.int64)
    validated = np.minimum(np.rint((1 - train - test) * histogram).astype(np.int64), histogram - tested)
    return np.stack([histogram - tested - validated, validated, tested])


def _dealt(counts: Array, clients: int) -> Array:
    """Counts of each client and class, [M, C], when the graphs [C] are dealt in turn."""
    classes = np.repeat(np.arange(len(counts)), counts)
    owner = np.arange(classes.size) % clients
    out = np.zeros((clients, len(counts)), dtype=np.int64)
    np.add.at(out, (owner, classes), 1)
    return out


def _skewed(counts: Array, clients: int, concentration: float, seed: int) -> Array:
    draws = stream(seed, SERVER, -1, "dirichlet")
    # With a small beta a share underflows to 0/0 now and then; a power of a uniform draw does not.
    logs = np.log(draws.gamma(concentration + 1, size=(clients, len(counts))))
    logs += np.log(draws.random((clients, len(counts)))) / concentration
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    left = counts.astype(np.int64).copy()
    out = np.zeros((clients, len(counts)), dtype=np.int64)
    for turn, luck in enumerate(draws.random(int(left.sum()))):
        client = turn % clients
        wanted = shares[client] * (left > 0)
        if wanted.sum() == 0:
            wanted = left.astype(np.float64)
        mass = np.cumsum(wanted)
        chosen = int(np.searchsorted(mass, luck * mass[-1], side="right"))
        out[client, chosen] += 1
        left[chosen] -= 1
    return out


def deal(labels: Array, wanted: Array, seed: int) -> list[tuple[Array, Array]]:
    """Graphs of each client: ids, ascending, and their role (0 train, 1 validation, 2 test).

    Args:
        labels: int64 [g].
        wanted: int64 [M, 3, C], see `quotas`; over all clients and roles every graph once.
        seed: draws which graphs they are.
    """
    clients, roles, classes = wanted.shape
    owner = np.empty(labels.size, dtype=np.int64)
    role = np.empty(labels.size, dtype=np.int64)
    places = np.indices((clients, roles)).reshape(2, -1)
    for label in range(classes):
        order = stream(seed, SERVER, -1, f"graphs/{label}").permutation(np.flatnonzero(labels == label))
        counts = wanted[:, :, label].reshape(-1)
        owner[order], role[order] = np.repeat(places, counts, axis=1)
    members = [np.flatnonzero(owner == client).astype(np.int64) for client in range(clients)]
    return [(ids, role[ids]) for ids in members]


def quotas_sha256(wanted: Array) -> str:
    """Hash of a partition: the same for the same counts on every machine."""
    digest = hashlib.sha256(f"{wanted.shape}".encode())
    digest.update(np.ascontiguousarray(wanted).astype("<i8").tobytes())
    return digest.hexdigest()
