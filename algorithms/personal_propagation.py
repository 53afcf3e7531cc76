"""What an AdaFGL client computes by itself: an optimised topology and two propagation modules.

AdaFGL (Li et al., ICDE 2024). Shapes: k clients, n padded nodes, f features, T propagation steps, C classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedatlas.algorithms.backbones.backbone import affine
from fedatlas.algorithms.features import dense_features
from fedatlas.algorithms.propagation import label_propagation
from fedatlas.algorithms.training_rows import TrainingRows, training_rows
from fedatlas.platform.federation.cohort import Cohort, Dropout
from fedatlas.platform.federation.messages import Tensors
from fedatlas.platform.federation.operators import gcn_operator
from fedatlas.platform.federation.sparse import SparseMatrix

NegativeScale = Literal["ours", "official"]

INITIAL_SLOPE = 0.25
PERCEPTRONS = {"homophilous": 2, "features": 3, "smoothed": 3, "propagated": 3}
"""Perceptrons of the two modules and their numbers of layers."""
SIMILARITY_STEP = 1e-6
"""Similarities closer than this count as equal when the most similar nodes are chosen."""
BLOCK_ENTRIES = {"cpu": 2**19, "cuda": 2**26}
"""Entries of an n x n matrix that are held at once; on a CPU a block should fit into its cache."""


def homophily_confidence(cohort: Cohort, kappa: float, steps: int) -> Tensor:
    """Share of held-out training nodes whose label is recovered by label propagation, HCS in [0, 1], [k].

    A random half of the training nodes, rounded down, shows its labels, the other half is held out. Rows of
    all nodes that show nothing start at 1/C. 1/2 for a client with fewer than two training nodes.

    Args:
        cohort: the clients.
        kappa: share of the neighbours in a step.
        steps: number of steps.
    """
    shown = np.zeros(cohort.train.shape, dtype=bool)
    for row, generator in enumerate(cohort.generators(-1, "homophily/halves")):
        nodes = cohort.train[row].nonzero()[:, 0].cpu().numpy()
        shown[row, generator.permutation(nodes)[: nodes.size // 2]] = True
    visible = torch.from_numpy(shown).to(cohort.device)
    hidden = cohort.train & ~visible
    known = cohort.class_indicator()
    start = torch.where(visible[..., None], known, 1.0 / cohort.task.classes) * cohort.nodes[..., None]
    found = label_propagation(cohort, gcn_operator(cohort), start, kappa, steps, visible)
    recovered = (found.argmax(dim=2) == cohort.labels).to(cohort.dtype)
    return torch.where(visible.any(dim=1), cohort.masked_mean(recovered, hidden), 0.5)


def similar_predictions(probabilities: Tensor, threshold: float, most: int | None) -> sp.csr_array:
    """Pairs of nodes of one client whose predictions hardly differ, S_b, binary symmetric CSR [n, n].

        Q = rows of softmax(P) at unit length,  S = Q Q^T without its diagonal,  S_b = 1[S > threshold]

    The softmax of probabilities is what both public codes compute. It moves all similarities towards 1, so
    that a threshold of 0.999 asks for nearly identical predictions.

    Args:
        probabilities: P, [n, C].
        threshold: on the cosine.
        most: a pair is kept only if it is among the `most` most similar ones of both its ends; ties go to the
            node whose number is nearer. None keeps all pairs, up to n^2 of them.
    """
    rows = normalize(torch.softmax(probabilities.double(), dim=1), dim=1)
    n = len(rows)
    numbers = torch.arange(n, device=rows.device)
    sources, targets = [], []
    for start, stop in _blocks(n, n, rows.device):
        block = rows[start:stop] @ rows.T
        block[numbers[: stop - start], numbers[start:stop]] = -1
        close = block > threshold
        if most is not None and most < n:
            gap = (numbers[start:stop, None] - numbers).abs()
            rank = torch.round(block / SIMILARITY_STEP) - torch.minimum(gap, n - gap) / n
            chosen = rank.masked_fill_(~close, -math.inf).topk(most, dim=1).indices
            close &= torch.zeros_like(close).scatter_(1, chosen, True)
        source, target = close.nonzero(as_tuple=True)
        sources.append((source + start).cpu().numpy())
        targets.append(target.cpu().numpy())
    ends = (np.concatenate(sources), np.concatenate(targets))
    pairs = sp.csr_array((np.ones(ends[0].size), ends), shape=(n, n))
    return sp.csr_array(pairs.multiply(pairs.T))


def optimised_operator(cohort: Cohort, similar: tuple[sp.csr_array, ...], alpha: float) -> SparseMatrix:
    """Symmetric normalisation with self-loops of A_o = alpha A + (1 - alpha) S_b.

    Args:
        cohort: the clients.
        similar: S_b of each.
        alpha: share of the original graph; 1 gives `operators.gcn_operator`.
    """
    blocks = []
    for adjacency, pairs in zip(cohort.adjacencies, similar, strict=True):
        joined = alpha * adjacency + (1 - alpha) * pairs + sp.eye_array(adjacency.shape[0])
        scale = sp.diags_array(1 / np.sqrt(joined.sum(axis=1)))
        blocks.append(sp.csr_array(scale @ joined @ scale))
    return cohort.block_diagonal(blocks)


def smoothed_features(cohort: Cohort, operator: SparseMatrix, steps: int) -> Tensor:
    """X_s = [X | A^ X | ... | A^^T X], [k, n, (T + 1) f]."""
    parts = [dense_features(cohort)]
    for _ in range(steps):
        parts.append(cohort.propagate(operator, parts[-1]))
    return torch.cat(parts, dim=2)


# Signed propagation


@dataclass(frozen=True)
class SimilarPairs:
    """S_b of a cohort, arranged for blocks of rows of the matrices [k, n, n].

    Attributes:
        operator: S_b itself, block-diagonal.
        count: number of its entries per client, [k].
        blocks: per block of rows its first row, the row after its last, and the positions of its entries in
            the flattened block [k, rows, n].
    """

    operator: SparseMatrix
    count: Tensor
    blocks: tuple[tuple[int, int, Tensor], ...]

    @staticmethod
    def of(cohort: Cohort, similar: tuple[sp.csr_array, ...]) -> SimilarPairs:
        k, n = len(cohort.clients), cohort.width
        entries = [pairs.tocoo() for pairs in similar]
        client = np.repeat(np.arange(k), [pairs.nnz for pairs in entries])
        row = np.concatenate([pairs.row for pairs in entries])
        column = np.concatenate([pairs.col for pairs in entries])
        blocks = []
        for start, stop in _blocks(n, k * n, cohort.device):
            inside = (row >= start) & (row < stop)
            flat = (client[inside] * (stop - start) + row[inside] - start) * n + column[inside]
            blocks.append((start, stop, torch.from_numpy(flat.astype(np.int64)).to(cohort.device)))
        count = torch.tensor([pairs.nnz for pairs in entries], dtype=cohort.dtype, device=cohort.device)
        return SimilarPairs(cohort.block_diagonal(similar), count, tuple(blocks))


def signed_propagation(
    cohort: Cohort,
    embedding: Tensor,
    pairs: SimilarPairs,
    beta: float,
    slope: Tensor,
    negative_scale: NegativeScale = "ours",
) -> tuple[Tensor, Tensor]:
    """Propagation among similar nodes and among dissimilar ones, [k, n, C] each.

        R   = beta S_b + (1 - beta) cos(softmax(E)), zero diagonal;  mu = mean R over all n_m^2 entries
        R'  = (R - mu) / (max R - mu)   where R > mu
              -(mu - R) / mu            elsewhere; ``official``: -R / mu, which repels nodes just below
                                        the mean most and the least similar ones not at all
        R'  has diagonal 1
        positive = PReLU(R') E,  negative = PReLU(-R') E

    A scale whose denominator is 0 is left out. R is never held: with P and N the positive and negative part
    of R', both products follow from P E and N E, and N E from P E and products of rank C. Blocks of rows of R
    are formed, used and dropped, again in the backward pass.

    Args:
        cohort: the clients.
        embedding: E, [k, n, C].
        pairs: S_b.
        beta: share of S_b.
        slope: of PReLU, [k].
        negative_scale: ``ours`` or ``official``.
    """
    real = cohort.nodes[..., None]
    embedding = embedding * real
    unit = math.sqrt(1 - beta) * normalize(torch.softmax(embedding, dim=2), dim=2) * real
    sizes = cohort.nodes.sum(dim=1).to(embedding.dtype)
    own = unit.square().sum(dim=2)
    total = unit.sum(dim=1).square().sum(dim=1) - own.sum(dim=1) + beta * pairs.count
    mean = total / sizes.square()
    counted = negative_scale == "official"
    above, members, peak, place = _Above.apply(  # type: ignore[no-untyped-call]
        unit, embedding, mean, beta, pairs, counted
    )
    # The largest entry as a function of the embedding: its value comes from the blocks, its slope from here.
    ends = [unit[torch.arange(len(unit)), index] for index in (place // unit.shape[1], place % unit.shape[1])]
    cosine = (ends[0] * ends[1]).sum(dim=1)
    spread = peak + (cosine - cosine.detach()) - (mean - mean.detach())
    positive = embedding + above / _or_one(spread)
    weighted = torch.bmm(unit, torch.bmm(unit.transpose(1, 2), embedding)) - own[..., None] * embedding
    weighted = weighted + beta * cohort.propagate(pairs.operator, embedding)
    centre = mean[:, None, None]
    if counted:
        below = weighted - above - centre * members
    else:
        others = embedding.sum(dim=1, keepdim=True) - embedding
        below = above - weighted + centre * others
    negative = below / _or_one(mean)
    slope = slope[:, None, None]
    return positive - slope * negative, negative - slope * positive


class _Above(torch.autograd.Function):
    """max(R - mu, 0) E and 1[R > mu] E without the diagonal, and where R is largest, block by block.

    Shapes:
        unit: rows whose inner products are (1 - beta) cos, [k, n, C]; embedding: E, [k, n, C]; mean: mu, [k].
        Returned: two times [k, n, C], the second empty unless `counted`; max R - mu (at least 0) and its
        position in the flattened [n, n], [k].
    """

    @staticmethod
    def forward(
        ctx: Any,
        unit: Tensor,
        embedding: Tensor,
        mean: Tensor,
        beta: float,
        pairs: SimilarPairs,
        counted: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(unit, embedding, mean)
        ctx.beta, ctx.pairs = beta, pairs
        ctx.set_materialize_grads(False)
        k, n, _ = unit.shape
        above = torch.empty_like(embedding)
        members = torch.empty_like(embedding if counted else embedding[:0])
        peak = torch.zeros(k, dtype=unit.dtype, device=unit.device)
        place = torch.zeros(k, dtype=torch.int64, device=unit.device)
        for start, stop, block in _centred(unit, mean, beta, pairs):
            block.clamp_(min=0)
            highest, where = block.reshape(k, -1).max(dim=1)
            place = torch.where(highest > peak, where + start * n, place)
            peak = torch.maximum(peak, highest)
            above[:, start:stop] = torch.bmm(block, embedding)
            if counted:
                members[:, start:stop] = torch.bmm(block.sign_(), embedding)
        ctx.mark_non_differentiable(peak, place)
        return above, members, peak, place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        unit, embedding, mean = ctx.saved_tensors
        of_above, of_members = grads[:2]
        of_unit, of_embedding, of_mean = (torch.zeros_like(t) for t in (unit, embedding, mean))
        transposed = embedding.transpose(1, 2)
        for start, stop, block in _centred(unit, mean, ctx.beta, ctx.pairs):
            block.clamp_(min=0)
            rows = slice(start, stop)
            of_embedding += torch.bmm(block.transpose(1, 2), of_above[:, rows])
            block.sign_()
            if of_members is not None:
                of_embedding += torch.bmm(block.transpose(1, 2), of_members[:, rows])
            block *= torch.bmm(of_above[:, rows], transposed)
            of_unit[:, rows] += torch.bmm(block, unit)
            of_unit += torch.bmm(block.transpose(1, 2), unit[:, rows])
            of_mean -= block.sum(dim=(1, 2))
        return of_unit, of_embedding, of_mean, None, None, None


def _centred(
    unit: Tensor, mean: Tensor, beta: float, pairs: SimilarPairs
) -> Iterator[tuple[int, int, Tensor]]:
    """Blocks of rows of R - mu, [k, rows, n]; the diagonal is set to -1."""
    transposed = unit.transpose(1, 2)
    for start, stop, entries in pairs.blocks:
        block = torch.baddbmm(-mean[:, None, None], unit[:, start:stop], transposed)
        block.view(-1)[entries] += beta
        numbers = torch.arange(stop - start, device=unit.device)
        block[:, numbers, numbers + start] = -1
        yield start, stop, block


def _or_one(values: Tensor) -> Tensor:
    """[k] as a divisor of [k, n, C]: values below 1e-6 become 1."""
    return torch.where(values > 1e-6, values, 1.0)[:, None, None]


def _blocks(rows: int, columns: int, device: torch.device) -> list[tuple[int, int]]:
    """Ranges of rows of a matrix with so many entries per row that fit into a block."""
    size = max(1, BLOCK_ENTRIES.get(device.type, BLOCK_ENTRIES["cpu"]) // max(columns, 1))
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]


# Modules


@dataclass(frozen=True)
class Evidence:
    """What stays the same over the personal epochs.

    Attributes:
        probabilities: of the extractor, P^, [k, n, C].
        confidence: HCS, [k].
        features: X, [k, n, f].
        smoothed: X_s, [k, n, (T + 1) f].
        pairs: S_b.
        rows: inputs of the training nodes, for the perceptrons whose loss reads no others.
    """

    probabilities: Tensor
    confidence: Tensor
    features: Tensor
    smoothed: Tensor
    pairs: SimilarPairs
    rows: Tensors

    def inputs(self, name: str) -> Tensor:
        """What a perceptron reads, [k, n, ..]."""
        return self.features if name == "features" else self.smoothed


@dataclass(frozen=True)
class Outputs:
    """Logits of the two modules, [k, n, C] each.

    Attributes:
        homophilous: H_k, a perceptron of smoothed features.
        features: H_f, a perceptron of features.
        smoothed: H_s, another of smoothed features.
        propagated: M_p, signed propagation.
    """

    homophilous: Tensor
    features: Tensor
    smoothed: Tensor
    propagated: Tensor


class _FirstLayer(torch.autograd.Function):
    """The product of constant values and weights, [k, n, r] x [k, r, c], where it is known already.

    Args:
        weight: W, which gets the gradient.
        known: the product.
        values: all rows, or those of the training nodes if the loss reads no others.
        rows: which those are, or None.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, known: Tensor, values: Tensor, rows: TrainingRows | None) -> Tensor:
        ctx.save_for_backward(values)
        ctx.rows = rows
        return known.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (values,) = ctx.saved_tensors
        grad = grads[0] if ctx.rows is None else ctx.rows.take(grads[0])
        return torch.bmm(values.mT, grad), None, None, None


@dataclass(frozen=True)
class PropagationModules:
    """The homophilous and the heterophilous module without their weights.

        H_k = MLP_2(X_s);   H_f = MLP_3(X);   H_s = MLP_3(X_s);   E = MLP_3(X_s)
        M_p = (softmax(PReLU(R') E) - softmax(PReLU(-R') E) + E) / 2   (`signed_propagation`)

    Between layers: PReLU with one learned slope per perceptron, then dropout. Weights are Glorot-uniform with
    gain sqrt(2), biases 0; every client draws its own.

    Attributes:
        hidden: width.
        dropout: of hidden values.
        beta, negative_scale: of `signed_propagation`.
    """

    hidden: int
    dropout: float
    beta: float
    negative_scale: NegativeScale

    def initialise(self, cohort: Cohort, smoothed: int) -> Tensors:
        """Initial weights [k, ...].

        Args:
            cohort: the clients.
            smoothed: width of the smoothed features.
        """
        features, classes, p = cohort.task.features, cohort.task.classes, self.hidden
        weights: Tensors = {}
        for name, widths in (
            ("homophilous", (smoothed, p, classes)),
            ("features", (features, p, p, classes)),
            ("smoothed", (smoothed, p, p, classes)),
            ("propagated", (smoothed, p, p, classes)),
        ):
            for layer, (rows, columns) in enumerate(itertools.pairwise(widths)):
                weights[f"{name}.{layer}.weight"] = _drawn(cohort, f"{name}.{layer}", rows, columns)
                weights[f"{name}.{layer}.bias"] = _constant(cohort, 0.0, columns)
            weights[f"{name}.slope"] = _constant(cohort, INITIAL_SLOPE)
        weights["signed.slope"] = _constant(cohort, INITIAL_SLOPE)
        return weights

    def products(self, weights: Tensors, evidence: Evidence) -> Tensors:
        """What the first layers make of their input, without bias, [k, n, p] each.

        Most of the arithmetic of an epoch is here. As dropout comes later, the products of an evaluation are
        those of the training step that follows it.
        """
        with torch.no_grad():
            return {
                name: torch.bmm(evidence.inputs(name), weights[f"{name}.0.weight"]) for name in PERCEPTRONS
            }

    def forward(
        self,
        weights: Tensors,
        cohort: Cohort,
        evidence: Evidence,
        products: Tensors,
        dropout: Dropout | None,
    ) -> Outputs:
        """Outputs with stacked weights [k, ...].

        Gradients reach the perceptrons `features` and `smoothed` from the training nodes only.

        Args:
            weights: of all modules.
            cohort: the clients.
            evidence: what does not change.
            products: with these weights.
            dropout: None in evaluation.
        """

        def first(name: str) -> Tensor:
            rows = training_rows(cohort) if name in evidence.rows else None
            read = evidence.rows.get(name, evidence.inputs(name))
            product: Tensor = _FirstLayer.apply(  # type: ignore[no-untyped-call]
                weights[f"{name}.0.weight"], products[name], read, rows
            )
            return product + weights[f"{name}.0.bias"][:, None, :]

        embedding = self._perceptron(weights, "propagated", first("propagated"), dropout)
        positive, negative = signed_propagation(
            cohort, embedding, evidence.pairs, self.beta, weights["signed.slope"], self.negative_scale
        )
        return Outputs(
            homophilous=self._perceptron(weights, "homophilous", first("homophilous"), dropout),
            features=self._perceptron(weights, "features", first("features"), dropout),
            smoothed=self._perceptron(weights, "smoothed", first("smoothed"), dropout),
            propagated=(torch.softmax(positive, dim=2) - torch.softmax(negative, dim=2) + embedding) / 2,
        )

    def _perceptron(self, weights: Tensors, name: str, values: Tensor, dropout: Dropout | None) -> Tensor:
        """The perceptron after its first affine map."""
        slope = weights[f"{name}.slope"][:, None, None]
        for layer in range(PERCEPTRONS[name] - 1):
            values = values.clamp(min=0) + slope * values.clamp(max=0)
            if dropout is not None:
                values = dropout.apply(f"personal/{name}.{layer}", values, self.dropout)
            values = affine(values, weights, f"{name}.{layer + 1}")
        return values


def combined(outputs: Outputs, probabilities: Tensor, share: Tensor) -> Tensor:
    """Class probabilities Y = HCS Y_ho + (1 - HCS) Y_he, [k, n, C].

        Y_ho = (softmax(H_k) + softmax(P^)) / 2
        Y_he = (softmax(H_f) + softmax(H_s) + softmax(M_p)) / 3

    Args:
        outputs: of the modules.
        probabilities: P^, [k, n, C].
        share: HCS, or 0 and 1 for one module only, [k].
    """
    homophilous = (torch.softmax(outputs.homophilous, dim=2) + torch.softmax(probabilities, dim=2)) / 2
    heterophilous = (
        torch.softmax(outputs.features, dim=2)
        + torch.softmax(outputs.smoothed, dim=2)
        + torch.softmax(outputs.propagated, dim=2)
    ) / 3
    weight = share[:, None, None]
    return weight * homophilous + (1 - weight) * heterophilous


def _drawn(cohort: Cohort, name: str, rows: int, columns: int) -> Tensor:
    """Glorot-uniform matrices [k, rows, columns] with gain sqrt(2), one stream per client."""
    bound = math.sqrt(12.0 / (rows + columns))
    draws = [
        generator.uniform(-bound, bound, (rows, columns)).astype(np.float32)
        for generator in cohort.generators(-1, f"init/personal/{name}")
    ]
    return torch.from_numpy(np.stack(draws)).to(cohort.device, cohort.dtype)


def _constant(cohort: Cohort, value: float, *shape: int) -> Tensor:
    return torch.full((len(cohort.clients), *shape), value, dtype=cohort.dtype, device=cohort.device)
