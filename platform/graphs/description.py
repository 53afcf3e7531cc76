"""What clients hold, in numbers: sizes, classes, homophily and lost edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.csgraph import connected_components

from fedatlas.platform.graphs.graph import Array, FederatedGraph, Graph

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class GraphStatistics:
    """What decides which methods suit a graph.

    Attributes:
        edge_homophily: share of edges that join two nodes of the same class.
        node_homophily: mean over nodes with neighbours of the share of neighbours of their class.
        adjusted_homophily: edge homophily less what the class sizes give by chance; 0 by chance, at most 1.
        label_informativeness: share of the uncertainty about a node's label that a neighbour's label removes.
        degrees: least, median, mean and largest degree.
        components, largest_component: number of connected components, nodes of the largest one.
        density: share of the entries of the features that are not zero.
        feature_range: smallest and largest entry.
        row_norms: mean and standard deviation over nodes of the Euclidean norm of the features.
        zero_rows, constant_columns: nodes without any feature, features that are the same everywhere.

    Source: Platonov et al., Characterizing Graph Datasets for Node Classification, NeurIPS 2023 (adjusted
    homophily and label informativeness); Pei et al., Geom-GCN, ICLR 2020 (node homophily).
    """

    edge_homophily: float
    node_homophily: float
    adjusted_homophily: float
    label_informativeness: float
    degrees: tuple[int, float, float, int]
    components: int
    largest_component: int
    density: float
    feature_range: tuple[float, float]
    row_norms: tuple[float, float]
    zero_rows: int
    constant_columns: int


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


def statistics(graph: Graph) -> GraphStatistics:
    """Heterophily, degrees and features of a whole graph, in time O(n f + e + C^2).

    With p(c) the share of edge ends at nodes of class c and p(c, d) that of directed edges from c to d, the
    adjusted homophily is (h - sum_c p(c)^2) / (1 - sum_c p(c)^2), and the label informativeness
    2 - sum_{c,d} p(c, d) log p(c, d) / sum_c p(c) log p(c).
    """
    degrees = np.bincount(graph.edges[0], minlength=graph.nodes)
    count, component = connected_components(graph.adjacency(), directed=False)
    same, adjusted, informativeness = homophily(graph.edges, graph.labels), math.nan, math.nan
    of_node = math.nan
    if graph.edges.shape[1]:
        source, target = graph.labels[graph.edges[0]], graph.labels[graph.edges[1]]
        joint = np.bincount(source * graph.classes + target, minlength=graph.classes**2) / source.size
        ends = joint.reshape(graph.classes, -1).sum(axis=1)
        by_chance = float((ends**2).sum())
        adjusted = (same - by_chance) / (1 - by_chance) if by_chance < 1 else math.nan
        entropy = _plogp(ends)
        informativeness = 2 - _plogp(joint) / entropy if entropy else math.nan
        agreeing = np.bincount(graph.edges[0], weights=source == target, minlength=graph.nodes)
        of_node = float((agreeing[degrees > 0] / degrees[degrees > 0]).mean())
    features = graph.features
    if isinstance(features, np.ndarray):
        low, high = features.min(axis=0), features.max(axis=0)
        filled = int(np.count_nonzero(features))
        norms = np.sqrt((features.astype(np.float64) ** 2).sum(axis=1))
    else:
        low, high = features.min(axis=0).toarray().ravel(), features.max(axis=0).toarray().ravel()
        filled = int(features.count_nonzero())
        norms = np.sqrt(np.asarray(features.astype(np.float64).power(2).sum(axis=1)).ravel())
    return GraphStatistics(
        edge_homophily=same,
        node_homophily=of_node,
        adjusted_homophily=adjusted,
        label_informativeness=informativeness,
        degrees=(int(degrees.min()), float(np.median(degrees)), float(degrees.mean()), int(degrees.max())),
        components=int(count),
        largest_component=int(np.bincount(component).max()),
        density=filled / (graph.nodes * features.shape[1]),
        feature_range=(float(low.min()), float(high.max())),
        row_norms=(float(norms.mean()), float(norms.std())),
        zero_rows=int(np.count_nonzero(norms == 0)),
        constant_columns=int(np.count_nonzero(low == high)),
    )


def _plogp(shares: Array) -> float:
    positive = shares[shares > 0]
    return float((positive * np.log(positive)).sum())


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
    import pandas as pd

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


def client_rows(federated: FederatedGraph) -> list[dict[str, object]]:
    """What each client holds, as plain rows that travel between processes.

    The columns of `describe_clients` without lost edges, or of `describe_graph_clients`, whose homophily is
    undefined.
    """
    if federated.level == "graph":
        held = describe_graph_clients(federated).assign(homophily=math.nan)
    else:
        held = describe_clients(federated)
    return [{str(key): value for key, value in row.items()} for row in held.to_dict("records")]


def describe_graph_clients(federated: FederatedGraph) -> pd.DataFrame:
    """One row per client of a set of graphs.

    Columns: ``client``, ``graphs``, ``nodes``, ``edges`` (undirected), ``features`` (width), ``train``,
    ``validation``, ``test`` (graphs), ``histogram`` (training graphs of each class).
    """
    import pandas as pd

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
