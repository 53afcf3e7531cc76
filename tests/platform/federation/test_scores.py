from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.federation.scores import auc, client_mean, evaluate, worst_decile


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_scikit_learns_with_ties(levels, seed):
    generator = np.random.default_rng(seed)
    margin = generator.integers(0, levels, 60) / 7
    labels = generator.integers(0, 2, 60)
    assert auc(margin, labels) == pytest.approx(roc_auc_score(labels, margin), abs=1e-12)


def test_auc_of_one_class_is_undefined():
    assert np.isnan(auc(np.arange(3.0), np.ones(3, dtype=int)))
    assert np.isnan(auc(np.arange(3.0), np.zeros(3, dtype=int)))
    assert np.isnan(auc(np.zeros(0), np.zeros(0, dtype=int)))


def test_auc_ranks():
    labels = np.array([0, 0, 1, 1])
    assert auc(np.array([1.0, 2, 3, 4]), labels) == 1
    assert auc(np.array([4.0, 3, 2, 1]), labels) == 0
    assert auc(np.zeros(4), labels) == 0.5


def random_logits(cohort, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Coarse values, so that there are ties.
    return torch.randint(0, 4, (len(cohort.clients), cohort.width, classes), generator=generator).double()


def test_accuracy_equals_scikit_learns_on_each_clients_own_nodes(make_clients, task):
    graphs = make_clients(sizes=(40, 25, 31))
    cohort = stack(graphs, task)
    logits = random_logits(cohort, 3)
    scores = evaluate(cohort, logits)
    for m, graph in enumerate(graphs):
        predicted = logits[m, : graph.size].argmax(dim=1).numpy()
        for name in ("validation", "test"):
            rows = getattr(graph, name)
            expected = accuracy_score(graph.labels[rows], predicted[rows])
            assert getattr(scores, name)[m] == pytest.approx(expected, abs=1e-15)


def test_auc_task_uses_the_margin_of_class_one(make_clients, task):
    graphs = make_clients(sizes=(40, 25, 31), classes=2)
    graphs = (*graphs[:2], replace(graphs[2], labels=np.ones(31, dtype=np.int64)))
    cohort = stack(graphs, replace(task, classes=2, metric="auc"))
    logits = random_logits(cohort, 2)
    scores = evaluate(cohort, logits)
    for m, graph in enumerate(graphs[:2]):
        margin = (logits[m, : graph.size, 1] - logits[m, : graph.size, 0]).numpy()
        for name in ("validation", "test"):
            rows = getattr(graph, name)
            expected = roc_auc_score(graph.labels[rows], margin[rows])
            assert getattr(scores, name)[m] == pytest.approx(expected, abs=1e-12)
    assert np.isnan([scores.validation[2], scores.test[2]]).all()


def test_client_without_nodes_of_a_role_has_no_score(make_clients, task):
    graphs = make_clients()
    graphs = (replace(graphs[0], test=np.zeros(7, dtype=bool)), *graphs[1:])
    cohort = stack(graphs, task)
    scores = evaluate(cohort, random_logits(cohort, 3))
    assert np.isnan(scores.test).tolist() == [True, False, False]
    assert np.isfinite(scores.validation).all()


def test_undefined_scores_leave_the_mean():
    scores = np.array([0.5, np.nan, 0.7])
    assert client_mean(scores) == pytest.approx(0.6)
    assert client_mean(scores, np.array([1.0, 100.0, 3.0])) == pytest.approx(0.65)
    assert np.isnan(client_mean(np.array([np.nan, np.nan])))
    assert np.isnan(client_mean(scores, np.array([0.0, 2.0, 0.0])))


def test_worst_decile():
    scores = np.random.default_rng(0).permutation(np.linspace(0, 1, 30))
    assert worst_decile(scores) == pytest.approx(np.mean(np.linspace(0, 1, 30)[:3]))
    assert worst_decile((0.4, np.nan, 0.2)) == pytest.approx(0.2)
    assert worst_decile([*np.ones(15), 0.0, np.nan]) == 0.0
    assert np.isnan(worst_decile([np.nan]))
