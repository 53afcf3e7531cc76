"""Tests of differences, against published worked examples and hand computation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedatlas.dashboards.cells import Row
from fedatlas.dashboards.significance import (
    bootstrap,
    comparisons,
    critical_difference,
    holm,
    ranking,
    scores_of,
    wilcoxon,
)
from fedatlas.dashboards.tables import method_by_scenario

from .conftest import frame, trial_record


def test_holm_steps_down() -> None:
    """4 x 0.01, then 3 x 0.02 = 0.06, 2 x 0.03 = 0.06, 1 x 0.04 is lifted to 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1, 1])
    adjusted = holm([0.01, math.nan])
    assert adjusted[0] == pytest.approx(0.01)
    assert math.isnan(adjusted[1])


def test_wilcoxon_is_exact_for_few_pairs() -> None:
    """All of n differences positive: p = 2 / 2^n."""
    assert wilcoxon([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    # Depression scores of Hollander and Wolfe: T+ = 5 of n = 9, two-sided p = 0.0390625.
    first = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    second = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    assert wilcoxon(np.subtract(first, second).tolist()) == pytest.approx(0.0390625)
    assert wilcoxon([0.0, 0.0]) == 1


@pytest.mark.parametrize(
    ("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)]
)
def test_the_critical_difference_is_that_of_the_table(methods: int, q: float) -> None:
    """Two-tailed Nemenyi values at 0.05, Demsar 2006, table 5a."""
    scenarios = 14
    expected = q * math.sqrt(methods * (methods + 1) / (6 * scenarios))
    assert critical_difference(methods, scenarios) == pytest.approx(expected, abs=2e-3)


DEMSAR = (
    ("adult", (0.763, 0.768, 0.771, 0.798)),
    ("breast cancer", (0.599, 0.591, 0.590, 0.569)),
    ("breast cancer wisconsin", (0.954, 0.971, 0.968, 0.967)),
    ("cmc", (0.628, 0.661, 0.654, 0.657)),
    ("ionosphere", (0.882, 0.888, 0.886, 0.898)),
    ("iris", (0.936, 0.931, 0.916, 0.931)),
    ("liver disorders", (0.661, 0.668, 0.609, 0.685)),
    ("lung cancer", (0.583, 0.583, 0.563, 0.625)),
    ("lymphography", (0.775, 0.838, 0.866, 0.875)),
    ("mushroom", (1.000, 1.000, 1.000, 1.000)),
    ("primary tumor", (0.940, 0.962, 0.965, 0.962)),
    ("rheum", (0.619, 0.666, 0.614, 0.669)),
    ("voting", (0.972, 0.981, 0.9751, 0.975)),
    ("wine", (0.957, 0.978, 0.946, 0.970)),
)
"""AUC of C4.5 and three variants on fourteen sets, Demsar 2006, table 6.

Its ranks of the last two on voting are 2 and 3: they are of unrounded values.
"""


def test_the_worked_example_of_demsar() -> None:
    """Average ranks 3.143, 2.000, 2.893, 1.964; critical difference 1.25.

    The paper's chi2 of 9.28 is not corrected for ties; ours is, and is larger.
    """
    names = ("local", "fedavg", "fedper", "fedgmc")
    trials = [
        trial_record(name, score, dataset=dataset)
        if dataset in ("cora",)
        else {
            **trial_record(name, score),
            "params": {**trial_record(name)["params"], "concentration": dataset},
        }
        for dataset, scores in DEMSAR
        for name, score in zip(names, scores, strict=True)
    ]
    (table,) = method_by_scenario(frame(trials))
    found = ranking(table)
    assert found is not None
    ranks = {row.algorithm: value for row, value in found.ranks.items()}
    assert [ranks[name] for name in names] == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.scenarios == 14
    # Uncorrected: 12 N / (k (k + 1)) (sum R^2 - k (k + 1)^2 / 4).
    squares = sum(value**2 for value in ranks.values())
    assert 12 * 14 / 20 * (squares - 25) == pytest.approx(9.28, abs=0.02)
    assert found.chi2 > 9.28
    assert found.critical == pytest.approx(1.25, abs=0.01)
    # 3.143 - 1.964 = 1.179 < 1.25: nothing can be told apart by Nemenyi's test, as in the paper.
    assert [len(group) for group in found.groups] == [4]


def test_a_bootstrap_interval_holds_the_mean_and_is_the_same_each_time() -> None:
    values = np.random.default_rng(1).normal(2, 1, 40).tolist()
    found = bootstrap(values)
    assert found is not None
    assert found.low < np.mean(values) < found.high
    # About 1.96 standard errors on each side.
    width = 2 * 1.96 * np.std(values, ddof=1) / math.sqrt(40)
    assert found.high - found.low == pytest.approx(width, rel=0.25)
    assert found == bootstrap(values)
    assert bootstrap([1.0, 2.0]) is None
    constant = bootstrap([1.0, 1.0, 1.0])
    assert constant is not None
    assert (constant.low, constant.high) == (1, 1)


def test_pairs_are_the_same_scenario_and_seed() -> None:
    records = [
        trial_record(name, 0.7 + gain + 0.001 * seed, seed=seed, dataset=dataset)
        for name, gain in (("fedavg", 0.0), ("fedgmc", 0.02))
        for dataset in ("cora", "citeseer", "pubmed")
        for seed in range(3)
        if (name, dataset, seed) != ("fedgmc", "pubmed", 2)
    ]
    (table,) = method_by_scenario(frame(records))
    reference = next(row for row in table.rows if row.algorithm == "fedgmc")
    (found,) = comparisons(scores_of(table.repetitions), reference)
    assert (found.row.algorithm, found.pairs, found.scenarios) == ("fedavg", 8, 3)
    assert found.difference == pytest.approx(-2)
    assert (found.wins, found.losses) == (0, 8)
    # All pairs differ by the same amount, which ties them: the normal approximation, not 2 / 2^8.
    assert found.p < 0.02
    assert found.p == found.p_holm
    assert math.isnan(found.p_scenarios)


def test_few_pairs_have_no_p_value() -> None:
    (table,) = method_by_scenario(frame([trial_record("fedavg", 0.7), trial_record("fedgmc", 0.8)]))
    (found,) = comparisons(scores_of(table.repetitions), table.rows[0])
    assert math.isnan(found.p)
    assert found.interval is None
    assert ranking(table) is None


def test_a_method_that_lacks_results_is_left_out_of_the_ranking() -> None:
    records = [
        trial_record(name, 0.5 + 0.1 * place, dataset=dataset)
        for dataset in ("cora", "citeseer", "pubmed")
        for place, name in enumerate(("local", "fedavg", "fedper", "fedgmc"))
        if name != "fedper" or dataset == "cora"
    ]
    (table,) = method_by_scenario(frame(records))
    found = ranking(table)
    assert found is not None
    assert {row.algorithm for row in found.ranks} == {"local", "fedavg", "fedgmc"}
    assert found.ranks[next(row for row in table.rows if row.algorithm == "fedgmc")] == 1
    assert found.scenarios == 3


def test_equal_scores_rank_equally() -> None:
    records = [
        trial_record(name, 0.5, dataset=dataset)
        for dataset in ("cora", "citeseer")
        for name in ("local", "fedavg", "fedgmc")
    ]
    (table,) = method_by_scenario(frame(records))
    found = ranking(table)
    assert found is not None
    assert set(found.ranks.values()) == {2.0}
    assert (found.p, found.p_f) == (1, 1)
    assert isinstance(next(iter(found.ranks)), Row)
