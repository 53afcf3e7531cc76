"""What clients hold, in numbers: sizes, classes, homophily and lost edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedatlas.platform.graphs.graph import Array, FederatedGraph, Graph


@dataclass(frozen=True)
class GraphSummary:
    """Numbers of a whole graph.

    Attributes:
        name: data set.
        nodes, features, classes: n, f, C.
        edges: undirected edges.
        isolated: nodes without an edge.
        histogram: nodes of each class, C numbers.
        homophily: edge homophily, see `homophily`.
    """

    name: str
    nodes: int
    edges: int
    isolated: int
    features: int
    classes: int
    histogram: tuple[int, ...]
    homophily: float


def homophily(edges: Array, labels: Array) -> float:
    """Edge homophily: share of edges that join two nodes of the same class; nan without edges.

    Args:
        edges: [2, e].
        labels: [n].

    Source: Zhu et al., Beyond Homophily in Graph Neural Networks, NeurIPS 2020.
    """
    if edges.shape[1] == 0:
        return float("nan")
    return float(np.mean(labels[edges[0]] == labels[edges[1]]))


def describe(graph: Graph) -> GraphSummary:
    """Numbers of a whole graph."""
    return GraphSummary(
        name=graph.name,
        nodes=graph.nodes,
        edges=graph.edges.shape[1] // 2,
        isolated=_isolated(graph.edges, graph.nodes),
        features=int(graph.features.shape[1]),
        classes=graph.classes,
        histogram=_histogram(graph.labels, graph.classes),
        homophily=homophily(graph.edges, graph.labels),
    )


def describe_clients(federated: FederatedGraph, whole: Graph | None = None) -> pd.DataFrame:
    """One row per client.

    Columns: ``client``, ``nodes``, ``edges`` (undirected), ``isolated`` (nodes without an edge in the
    client), ``train``, ``validation``, ``test`` (nodes), ``histogram`` (tuple of C numbers: nodes of each
    class), ``homophily`` (nan without edges) and, if the whole graph is given, ``lost_edges``: undirected
    edges of the whole graph that touch a node of the client and that the client does not hold. A lost edge
    between two clients counts for both.

    Args:
        federated: the divided graph.
        whole: the graph that was divided, see `fedatlas.platform.graphs.federated.preprocess`.
    """
    degrees = None if whole is None else np.bincount(whole.edges[0], minlength=whole.nodes)
    rows = []
    for part in federated.clients:
        row: dict[str, object] = {
            "client": part.client,
            "nodes": part.size,
            "edges": part.edges.shape[1] // 2,
            "isolated": _isolated(part.edges, part.size),
            "train": int(part.train.sum()),
            "validation": int(part.validation.sum()),
            "test": int(part.test.sum()),
            "histogram": _histogram(part.labels, federated.classes),
            "homophily": homophily(part.edges, part.labels),
        }
        if degrees is not None:
            # Degrees count an edge inside the client twice, an edge that leaves it once.
            row["lost_edges"] = int(degrees[part.nodes].sum()) - part.edges.shape[1]
        rows.append(row)
    return pd.DataFrame(rows)


def describe_graph_clients(federated: FederatedGraph) -> pd.DataFrame:
    """One row per client of a set of graphs.

    Columns: ``client``, ``graphs``, ``nodes``, ``edges`` (undirected), ``features`` (width), ``train``,
    ``validation``, ``test`` (graphs), ``histogram`` (training graphs of each class).
    """
    return pd.DataFrame(
        [
            {
                "client": part.client,
                "graphs": part.items,
                "nodes": part.size,
                "edges": part.edges.shape[1] // 2,
                "features": int(part.features.shape[1]),
                "train": int(part.train.sum()),
                "validation": int(part.validation.sum()),
                "test": int(part.test.sum()),
                "histogram": _histogram(part.labels[part.train], part.classes or federated.classes),
            }
            for part in federated.clients
        ]
    )


def _histogram(labels: Array, classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels, minlength=classes).tolist())


def _isolated(edges: Array, nodes: int) -> int:
    return nodes - len(np.unique(edges[0]))
