"""The centralised references are what they say they are."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from fedatlas.platform.graphs.graph import ClientGraph


def union(graphs) -> ClientGraph:
    """All clients as one graph without edges between them, scored client by client."""
    starts = np.cumsum([0, *(graph.size for graph in graphs)])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(graph, name) for graph in graphs])

    return ClientGraph(
        client=0,
        nodes=np.arange(starts[-1]),
        features=joined("features"),
        edges=np.concatenate(
            [graph.edges + start for graph, start in zip(graphs, starts, strict=False)], axis=1
        ),
        labels=joined("labels"),
        train=joined("train"),
        validation=joined("validation"),
        test=joined("test"),
        groups=tuple(np.arange(start, end) for start, end in itertools.pairwise(starts)),
    )


def test_fedopt_weighted_by_training_nodes_is_one_model_on_the_union(make_federation, make_method, run):
    """The weighted mean of client gradients is the gradient of the mean over all training nodes."""
    federation = make_federation(sparse=False)
    options = {"shared": "all", "client_weights": "train_nodes", "dropout": 0.0}
    apart = run(make_method("fedopt", **options), federation)
    task = type(federation.task)(**{**vars(federation.task), "clients": 1})
    together = type(federation)((union(federation.graphs),), task)
    whole = run(make_method("fedopt", **options), together)
    np.testing.assert_allclose(apart.scores(), whole.scores(), rtol=0, atol=1e-12)
    for name, weight in apart.server["weights"].items():
        torch.testing.assert_close(weight, whole.server["weights"][name], rtol=0, atol=1e-10)
