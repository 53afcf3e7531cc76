"""Graphs that a server makes up to compare models: FedTAD's generator and its losses.

FedTAD (Zhu et al., IJCAI 2024). Shapes: M local models, N pseudo nodes, f features, d noise entries,
C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedatlas.algorithms.backbones.backbone import linear
from fedatlas.platform.federation.cohort import Cohort, Task
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.randomness import SERVER, stream

HIDDEN = (64, 128, 256)


def initial_generator(task: Task, noise: int) -> Tensors:
    """Weights of the generator: an embedding [C, C] from N(0, 1) and four linear layers as torch's.

    Args:
        task: gives features, classes and seed.
        noise: d.
    """
    draw = stream(task.seed, SERVER, -1, "init/generator").standard_normal((task.classes, task.classes))
    weights: Tensors = {"embedding": torch.from_numpy(draw.astype(np.float32))}
    widths = (task.classes + noise, *HIDDEN, task.features)
    for layer, (rows, columns) in enumerate(itertools.pairwise(widths)):
        named = linear(task, f"generator.{layer}", rows, columns)
        weights |= {name.removeprefix("generator."): weight for name, weight in named.items()}
    return weights


def generate(weights: Mapping[str, Tensor], labels: Tensor, noise: Tensor) -> Tensor:
    """Features X_g of pseudo nodes, [N, f].

    [e_y | z] -> 64 -> 128 -> 256, tanh after each, -> f.

    Shapes:
        labels: int64 [N]; noise: z, [N, d].
    """
    values = torch.cat([weights["embedding"][labels], noise], dim=1)
    for layer in range(len(HIDDEN)):
        values = torch.tanh(torch.addmm(weights[f"{layer}.bias"], values, weights[f"{layer}.weight"]))
    last = len(HIDDEN)
    return torch.addmm(weights[f"{last}.bias"], values, weights[f"{last}.weight"])


def pseudo_labels(nodes: int, classes: int) -> Tensor:
    """Labels in order, the same number of each class, the remainder in the last one; int64 [N]."""
    return (torch.arange(nodes) // (nodes // classes)).clamp(max=classes - 1)


def nearest_neighbours(features: Tensor, count: int) -> sp.csr_array:
    """Adjacency that joins each node to those among its `count` most similar ones, CSR [N, N].

    Similarity is the cosine of features. A node is among its own nearest and uses up one place; the result is
    made symmetric and has no self-loops, which the networks' operators add. It carries no gradient.
    """
    with torch.no_grad():
        rows = normalize(features, dim=1)
        nearest = (rows @ rows.T).topk(min(count, len(rows)), dim=1).indices
        joined = torch.zeros(len(rows), len(rows), dtype=torch.bool, device=rows.device)
        joined.scatter_(1, nearest, True)
        joined |= joined.T.clone()
        joined.fill_diagonal_(False)
    return sp.csr_array(joined.cpu().numpy().astype(np.float64))


def replicated_graph(
    task: Task, features: Tensor, adjacency: sp.csr_array, labels: Tensor, copies: int
) -> Cohort:
    """One graph as a cohort of equal clients, one for each model that is to be evaluated on it.

    Args:
        task: the federation's task.
        features: X_g, [N, f]; gradients flow through them.
        adjacency: [N, N].
        labels: pseudo labels [N].
        copies: number of models.
    """
    everyone = torch.ones(copies, len(labels), dtype=torch.bool, device=features.device)
    return Cohort(
        task=task,
        clients=tuple(range(copies)),
        sizes=(len(labels),) * copies,
        labels=labels.expand(copies, -1),
        nodes=everyone,
        train=everyone,
        validation=~everyone,
        test=~everyone,
        adjacencies=(adjacency,) * copies,
        dense_features=features.expand(copies, -1, -1),
        sparse_features=None,
        dtype=features.dtype,
        device=features.device,
    )


def class_average(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Matrix [N, C] that averages node values over each class: [M, N] -> [M, C]."""
    indicator = torch.nn.functional.one_hot(labels, classes).to(dtype)
    return indicator / indicator.sum(dim=0).clamp(min=1)


def semantic_loss(local: Tensor, labels: Tensor, average: Tensor, reliability: Tensor) -> Tensor:
    """How badly the local models recognise the pseudo nodes, each weighted where it is reliable.

        L_sem = sum_m sum_c Phi[m, c] CE(f_m(G) | class c, c)

    Shapes:
        local: logits f_m(G), [M, N, C]; labels: [N]; average: [N, C]; reliability: Phi, [M, C].
    """
    losses = cross_entropy(local.transpose(1, 2), labels.expand(len(local), -1), reduction="none")
    return (reliability * (losses @ average)).sum()


def disagreement(shared: Tensor, local: Tensor, average: Tensor, reliability: Tensor) -> Tensor:
    """Distance of the global model's logits to those of the local models, which get no gradient.

        L_dis = sum_m sum_c Phi[m, c] mean_{v in class c} mean_j |f(G)_vj - f_m(G)_vj|

    Shapes:
        shared: logits f(G), [N, C]; local: f_m(G), [M, N, C]; average: [N, C]; reliability: Phi, [M, C].
    """
    distances = (shared - local.detach()).abs().mean(dim=2)
    return (reliability * (distances @ average)).sum()


def diversity_loss(features: Tensor, noise: Tensor) -> Tensor:
    """Small if nodes differ where their noise differs; without the factor M of the published sum.

        L_div = exp(-mean_ij (mean |x_i - x_j| * mean (z_i - z_j)^2))

    Shapes:
        features: X_g, [N, f]; noise: z, [N, d].
    """
    apart = torch.pdist(features, p=1) / features.shape[1]
    noisy = torch.pdist(noise).square() / noise.shape[1]
    # Each pair counts twice in the mean over all N^2, a node with itself adds nothing.
    return torch.exp(-2 * (apart * noisy).sum() / len(features) ** 2)
