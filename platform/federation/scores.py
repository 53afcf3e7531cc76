"""Scores of a cohort: accuracy or ROC-AUC per client, and their mean over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.platform.federation.cohort import Cohort

ClientWeighting = Literal["uniform", "test_nodes", "nodes"]


@dataclass(frozen=True)
class Scores:
    """Scores per client in [0, 1]; NaN where undefined.

    Attributes:
        validation, test: float64 [k]. NaN for a client without items of that role, and for the AUC of
            items that are all of one class.
    """

    validation: np.ndarray
    test: np.ndarray


def evaluate(cohort: Cohort, logits: Tensor) -> Scores:
    """Scores of logits [k, n, C] on validation and test items; [g] for the groups of an uncut graph."""
    validation, test, labels = cohort.validation, cohort.test, cohort.labels
    if cohort.groups is not None:
        validation, test = cohort.groups & validation, cohort.groups & test
        labels = labels.expand(len(cohort.groups), -1)
        logits = logits.expand(len(cohort.groups), -1, -1)
    if cohort.task.metric == "accuracy":
        masks = cohort.keep("scored", lambda: torch.stack([validation, test]))
        totals = cohort.keep("scored_totals", lambda: masks.sum(dim=2).double().cpu().numpy())
        hits = ((logits.argmax(dim=2) == labels) & masks).sum(dim=2).double().cpu().numpy()
        return Scores(*np.where(totals > 0, hits / np.maximum(totals, 1), np.nan))
    margin = (logits[..., 1] - logits[..., 0]).double().cpu().numpy()
    truth = labels.cpu().numpy()

    def score(mask: Tensor) -> np.ndarray:
        rows = mask.cpu().numpy()
        return np.array([auc(margin[m, r], truth[m, r]) for m, r in enumerate(rows)])

    return Scores(score(validation), score(test))


def auc(margin: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve by the rank statistic, ties counted one half.

    AUC = (R - P(P+1)/2) / (P N) with R the sum of the positives' ranks. NaN if P or N is 0.
    """
    positives = labels == 1
    p = int(positives.sum())
    n = labels.size - p
    if p == 0 or n == 0:
        return float("nan")
    # Average ranks of tied values; scipy.stats has this too, but costs every actor half a second to import.
    _, group, counts = np.unique(margin, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return float((ranks[positives].sum() - p * (p + 1) / 2) / (p * n))


def client_mean(scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean over the clients whose score is defined; NaN if there is none.

    Args:
        scores: [M].
        weights: [M], or None for the unweighted mean (the protocol's default).
    """
    defined = np.isfinite(scores)
    if not defined.any():
        return float("nan")
    if weights is None:
        return float(scores[defined].mean())
    chosen = weights[defined]
    return float((scores[defined] * chosen).sum() / chosen.sum()) if chosen.sum() > 0 else float("nan")


def worst_decile(scores: Sequence[float] | np.ndarray) -> float:
    """Mean score of the worst tenth of the clients (at least one)."""
    defined = np.sort(np.asarray(scores, dtype=float)[np.isfinite(scores)])
    if defined.size == 0:
        return float("nan")
    return float(defined[: max(1, defined.size // 10)].mean())
