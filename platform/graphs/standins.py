"""Stand-ins: synthetic graphs with a published data set's size, for timing and scale tests.

A stand-in has exactly the published number of nodes, undirected edges, classes and features, and an exact
edge homophily h (share of edges whose ends have the same class). It is connected, so the largest component
keeps every node. Scores on a stand-in say nothing about the real set and never share a table with it.

What is matched, and from where:

================  ======  ==================================================  ==========================
set               h       degrees                                             class sizes
================  ======  ==================================================  ==========================
roman-empire      0.05    chain of words with short shortcuts, mean 2.9       equal
amazon-ratings    0.38    mild power law (exponent 4), mean 7.6               skewed, invented
questions         0.84    power law (exponent 2.7), mean 6.3                  97 % and 3 %
ogbn-arxiv        0.66    power law (exponent 2.5), mean 13.8                 those of the real label file
================  ======  ==================================================  ==========================

Homophily and the class balance of Questions are quoted from memory of Platonov et al. (ICLR 2023), that of
ogbn-arxiv as usually reported; they were not re-read. The exponents are ours. The published edge count of
ogbn-arxiv, 1,166,243, counts citations; here it is the number of undirected edges, a little more than the
symmetrised graph has. Clustering, diameter and label informativeness are not matched.

Features are Gaussian around a mean per class: x = mu_y + noise, with unit noise and class means about two
noise widths apart, so that a linear classifier learns something but not everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedatlas.platform.errors import unknown_name
from fedatlas.platform.graphs import catalog
from fedatlas.platform.graphs.edges import undirected
from fedatlas.platform.graphs.graph import Array, Graph
from fedatlas.platform.randomness import SERVER, stream

Propose: TypeAlias = Callable[[int, bool], tuple[Array, Array]]

_CLASS_DISTANCE = 2.0
_SHORTCUT = 0.15

_ARXIV_CLASS_SIZES = (
    565,
    687,
    4839,
    2080,
    5862,
    4958,
    1618,
    589,
    6232,
    2820,
    7869,
    750,
    29,
    2358,
    597,
    403,
    27321,
    515,
    749,
    2877,
    2076,
    393,
    1903,
    2834,
    22187,
    1257,
    4605,
    4801,
    21406,
    416,
    11814,
    2828,
    411,
    1271,
    7867,
    127,
    3524,
    2369,
    1507,
    2029,
)


@dataclass(frozen=True)
class _Law:
    """Statistics of a stand-in that the catalog does not hold.

    Attributes:
        homophily: edge homophily h.
        exponent: exponent of the degree law P(degree = d) ~ d^-exponent; None for the chain.
        shares: relative class sizes; None for the chain, whose classes follow each other like words.
    """

    homophily: float
    exponent: float | None = None
    shares: tuple[float, ...] | None = None


_LAWS = {
    "standin:roman-empire": _Law(0.05),
    "standin:amazon-ratings": _Law(0.38, 4.0, (0.42, 0.25, 0.17, 0.10, 0.06)),
    "standin:questions": _Law(0.84, 2.7, (0.97, 0.03)),
    "standin:ogbn-arxiv": _Law(0.66, 2.5, _ARXIV_CLASS_SIZES),
}


def generate(name: str, seed: int = 0, nodes: int | None = None) -> Graph:
    """The stand-in `name`, the same on every call with the same seed.

    Args:
        name: a name of `catalog.standin_names`, for example ``"standin:ogbn-arxiv"``.
        seed: seed of every draw.
        nodes: number of nodes if it is not the published one; the mean degree stays.

    Raises:
        ConfigurationError: there is no such stand-in.
    """
    entry = catalog.entry(name)
    if name not in _LAWS:
        raise unknown_name("stand-in", name, _LAWS)
    law = _LAWS[name]
    size = entry.nodes if nodes is None else nodes
    edges = round(entry.published_edges * size / entry.nodes)
    labels = _labels(name, seed, size, entry.classes, law)
    generator = stream(seed, SERVER, -1, f"{name}/edges")
    base, propose = _chain(labels, generator) if law.exponent is None else _attachment(labels, law, generator)
    pairs = _complete(base, labels, edges, law.homophily, propose)
    return Graph(
        name=name,
        features=_features(name, seed, labels, entry.classes, entry.features),
        edges=undirected(pairs, size),
        labels=labels,
        classes=entry.classes,
        metric=entry.metric,
        kind="stand-in",
    )


def _labels(name: str, seed: int, nodes: int, classes: int, law: _Law) -> Array:
    generator = stream(seed, SERVER, -1, f"{name}/labels")
    if law.shares is None:
        # Each word's class is a step away from its predecessor's; the step 0 keeps the class.
        steps = np.arange(1, classes)
        odds = 0.8**steps
        moves = generator.choice(steps, size=nodes, p=odds / odds.sum())
        moves[generator.random(nodes) < law.homophily] = 0
        return np.asarray(np.cumsum(moves) % classes, dtype=np.int64)
    shares = np.cumsum(law.shares) / np.sum(law.shares)
    bounds = np.rint(shares * nodes).astype(np.int64)
    ordered = np.repeat(np.arange(classes, dtype=np.int64), np.diff(bounds, prepend=0))
    return generator.permutation(ordered)


def _features(name: str, seed: int, labels: Array, classes: int, width: int) -> Array:
    generator = stream(seed, SERVER, -1, f"{name}/features")
    spread = _CLASS_DISTANCE / np.sqrt(2 * width)
    means = generator.standard_normal((classes, width), dtype=np.float32) * np.float32(spread)
    features = generator.standard_normal((labels.size, width), dtype=np.float32)
    features += means[labels]
    return features


def _chain(labels: Array, generator: np.random.Generator) -> tuple[Array, Propose]:
    """Node i is joined to i + 1; further edges span a short distance, like those within a sentence."""
    nodes = labels.size

    def propose(count: int, same: bool) -> tuple[Array, Array]:
        span = 1 + generator.geometric(_SHORTCUT, size=count)
        source = generator.integers(0, nodes, size=count)
        inside = source + span < nodes
        return source[inside], (source + span)[inside]

    return np.stack([np.arange(nodes - 1), np.arange(1, nodes)]), propose


def _attachment(labels: Array, law: _Law, generator: np.random.Generator) -> tuple[Array, Propose]:
    """A random tree and further edges, both drawn in proportion to power-law weights."""
    assert law.exponent is not None
    nodes = labels.size
    quantiles = (generator.permutation(nodes) + 0.5) / nodes
    weights = quantiles ** (-1 / (law.exponent - 1))

    by_class = np.argsort(labels, kind="stable")
    mass = np.cumsum(weights[by_class])
    ends = np.cumsum(np.bincount(labels))
    class_end = mass[ends - 1]
    class_start = np.concatenate([[0.0], class_end[:-1]])

    def draw(low: Array | float, high: Array | float, count: int) -> Array:
        place = low + generator.random(count) * (np.asarray(high) - low)
        return by_class[np.minimum(np.searchsorted(mass, place, side="right"), nodes - 1)]

    def propose(count: int, same: bool) -> tuple[Array, Array]:
        source = draw(0.0, mass[-1], count)
        if same:
            own = labels[source]
            return source, draw(class_start[own], class_end[own], count)
        return source, draw(0.0, mass[-1], count)

    return _tree(labels, weights, law.homophily, generator), propose


def _tree(labels: Array, weights: Array, homophily: float, generator: np.random.Generator) -> Array:
    """Join each node, in a random order, to an earlier one: with probability h of its class, else any."""
    nodes = labels.size
    order = generator.permutation(nodes)
    parents = order[_earlier(weights[order], generator)]
    own_class = generator.random(nodes) < homophily
    for label in range(int(labels.max()) + 1):
        places = np.flatnonzero(labels[order] == label)
        if not places.size:
            continue
        members = order[places]
        own_parents = members[_earlier(weights[members], generator)]
        chosen = own_class[places]
        # The first of its class has no earlier companion.
        chosen[0] = False
        parents[places[chosen]] = own_parents[chosen]
    return np.stack([order[1:], parents[1:]])


def _earlier(weights: Array, generator: np.random.Generator) -> Array:
    """For each place i of a sequence an earlier place, drawn in proportion to the weights; 0 for i = 0."""
    mass = np.cumsum(weights)
    before = np.concatenate([[0.0], mass[:-1]])
    places = np.searchsorted(mass, generator.random(weights.size) * before, side="right")
    return np.asarray(np.minimum(places, np.maximum(np.arange(weights.size) - 1, 0)))


def _complete(base: Array, labels: Array, edges: int, homophily: float, propose: Propose) -> Array:
    """Add proposed edges to a connected base until both the edge count and the homophily are exact."""
    nodes = labels.size
    chosen = np.unique(_keys(base[0], base[1], nodes))
    same_in_base = int(np.sum(labels[chosen // nodes] == labels[chosen % nodes]))
    same_wanted = round(homophily * edges)
    for same, missing in (
        (True, same_wanted - same_in_base),
        (False, edges - same_wanted - (chosen.size - same_in_base)),
    ):
        while missing > 0:
            source, target = propose(2 * missing + 100, same)
            fits = (source != target) & ((labels[source] == labels[target]) == same)
            keys = _keys(source[fits], target[fits], nodes)
            _, first = np.unique(keys, return_index=True)
            # In the order drawn: the smallest keys would favour low node ids.
            keys = keys[np.sort(first)]
            keys = keys[~np.isin(keys, chosen, assume_unique=True)][:missing]
            chosen = np.concatenate([chosen, keys])
            missing -= keys.size
    return np.asarray(np.stack([chosen // nodes, chosen % nodes]))


def _keys(source: Array, target: Array, nodes: int) -> Array:
    return np.asarray(np.minimum(source, target) * nodes + np.maximum(source, target))
