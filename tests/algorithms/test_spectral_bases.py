"""Bases of UniFilter: the angle between members, the published recursion, and what has no direction left."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.algorithms.spectral_bases import (
    EXHAUSTED,
    HOMOPHILY_RANGE,
    UNKNOWN_HOMOPHILY,
    angle_cosine,
    build_bases,
    column_energies,
    heterophily_basis,
    homophily,
    lanczos,
    mean_cosine,
    step_size,
    unibasis,
)
from fedatlas.platform.federation.cohort import stack
from fedatlas.platform.graphs.edges import undirected

HOPS = 5


def propagation(graph):
    """P = D^(-1/2) A D^(-1/2), dense."""
    dense = np.zeros((graph.size, graph.size))
    dense[graph.edges[0], graph.edges[1]] = 1
    degree = dense.sum(axis=1)
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    return torch.as_tensor(scale[:, None] * dense * scale)


def random_problem(nodes=30, columns=4, seed=0):
    """A random graph's P and columns of random entries, [1, n, b]."""
    generator = np.random.default_rng(seed)
    upper = np.triu(generator.random((nodes, nodes)) < 0.2, 1)
    dense = (upper | upper.T).astype(float)
    scale = 1 / np.sqrt(np.maximum(dense.sum(axis=1), 1))
    matrix = torch.as_tensor(scale[:, None] * dense * scale)
    values = torch.as_tensor(generator.standard_normal((1, nodes, columns)))
    return lambda v: matrix @ v, values


def written_basis(matrix, x, hops, cosine, mix, official):
    """Mixed basis of one column as published, with inner products where ours has the scalar t_j; [K+1, n]."""
    norm = np.linalg.norm(x)
    last, second = x / max(norm, EXHAUSTED), np.zeros_like(x)
    power, total, members, mixed = x, last.copy(), [last], [x]
    for step in range(1, hops + 1):
        fresh = matrix @ last
        fresh = fresh - (fresh @ last) * last - (fresh @ second) * second
        fresh = fresh / max(np.linalg.norm(fresh), EXHAUSTED)
        mean = total / step
        reached = mean @ (mixed[-1] if official else members[-1])
        with np.errstate(invalid="ignore"):
            size = np.nan_to_num(np.sqrt((reached / cosine) ** 2 - ((step - 1) * cosine + 1) / step))
        member = mean + size * fresh
        member = member / max(np.linalg.norm(member), EXHAUSTED)
        power = matrix @ power
        mixed.append(mix * power + (1 - mix) * member)
        total, second, last = total + member, last, fresh
        members.append(member)
    return np.stack(mixed)


def mixed_bases(cohort, mix, basis="exact", hops=HOPS):
    return build_bases(cohort, hops + 1, lambda p, x, c: unibasis(p, x, c, hops, mix, basis))


@pytest.mark.parametrize(
    ("share", "cosine", "sizes"),
    [
        (0.2, 0.309017, (3.077684, 1.957437, 1.583327, 1.395984, 1.283438)),
        (0.6, 0.809017, (0.726543, 0.587785, 0.539345, 0.514543, 0.499442)),
        (0.9, 0.987688, (0.158384, 0.136601, 0.128589, 0.124403, 0.121826)),
    ],
)
def test_step_sizes_have_their_golden_values(share, cosine, sizes):
    found = angle_cosine(torch.tensor([share], dtype=torch.float64))
    assert found.item() == pytest.approx(cosine, abs=1e-6)
    assert [step_size(found, j).item() for j in range(1, 6)] == pytest.approx(sizes, abs=1e-6)


def test_step_sizes_are_real_for_every_angle():
    cosines = torch.cos(torch.linspace(0, math.pi / 2, 200, dtype=torch.float64)[:-1])
    for step in range(1, 20):
        mean = mean_cosine(cosines, step)
        assert ((mean / cosines).square() - mean > -1e-12).all()
        assert step_size(cosines, step).isfinite().all()


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6, 0.9, 0.999])
def test_members_of_the_heterophily_basis_meet_at_one_angle(share):
    propagate, columns = random_problem()
    cosine = angle_cosine(torch.tensor([share], dtype=torch.float64))
    members = torch.stack(list(heterophily_basis(propagate, columns, cosine, 8)))
    gram = torch.einsum("iknb,jknb->bij", members, members)
    expected = torch.full((9, 9), float(cosine), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected.expand_as(gram), rtol=0, atol=1e-9)


def test_the_mean_of_the_members_meets_each_of_them_at_the_stated_cosine():
    propagate, columns = random_problem()
    cosine = angle_cosine(torch.tensor([0.6], dtype=torch.float64))
    members = list(heterophily_basis(propagate, columns, cosine, 6))
    for step in range(1, 7):
        mean = sum(members[:step]) / step
        for member in members[:step]:
            reached = (mean * member).sum(dim=1)
            torch.testing.assert_close(reached, mean_cosine(cosine, step).expand_as(reached))


def test_lanczos_directions_are_orthonormal_and_span_the_powers():
    propagate, columns = random_problem()
    directions = torch.stack(list(lanczos(propagate, columns, 6)))
    gram = torch.einsum("iknb,jknb->bij", directions, directions)
    torch.testing.assert_close(gram, torch.eye(7).double().expand_as(gram), rtol=0, atol=1e-9)
    power = columns
    for step in range(1, 7):
        power = propagate(power)
        inside = torch.einsum("iknb,knb->ikb", directions[: step + 1], power)
        rebuilt = torch.einsum("iknb,ikb->knb", directions[: step + 1], inside)
        torch.testing.assert_close(rebuilt, power)


def test_without_an_angle_all_members_are_the_first():
    propagate, columns = random_problem()
    members = list(heterophily_basis(propagate, columns, torch.ones(1, dtype=torch.float64), 4))
    for member in members[1:]:
        torch.testing.assert_close(member, members[0])


@pytest.mark.parametrize("mix", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("basis", ["exact", "official"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_bases_equal_the_published_recursion(make_federation, mix, basis, sparse):
    federation = make_federation(sparse=sparse)
    cohort = stack(federation.graphs, federation.task, "float64")
    bases = mixed_bases(cohort, mix, basis)
    cosines = angle_cosine(homophily(cohort)).tolist()
    for m, graph in enumerate(make_federation().graphs):
        matrix = propagation(graph).numpy()
        for column in range(6):
            x = graph.features[:, column].astype(np.float64)
            expected = written_basis(matrix, x, HOPS, cosines[m], mix, basis == "official")
            np.testing.assert_allclose(bases[:, m, : graph.size, column], expected, atol=1e-7)
        assert (bases[:, m, graph.size :] == 0).all()


def test_with_a_share_of_one_the_members_are_monomials(make_federation):
    federation = make_federation()
    cohort = stack(federation.graphs, federation.task, "float64")
    bases = mixed_bases(cohort, 1.0)
    for m, graph in enumerate(federation.graphs):
        power = torch.as_tensor(graph.features).double()
        for step in range(HOPS + 1):
            torch.testing.assert_close(bases[step, m, : graph.size], power)
            power = propagation(graph) @ power


def test_the_official_angle_holds_for_unit_columns_without_mixing_only():
    propagate, columns = random_problem()
    cosine = angle_cosine(torch.tensor([0.6], dtype=torch.float64))
    unit = columns / columns.norm(dim=1, keepdim=True)
    exact = torch.stack(list(unibasis(propagate, unit, cosine, 4, 0.0)))
    official = torch.stack(list(unibasis(propagate, unit, cosine, 4, 0.0, "official")))
    torch.testing.assert_close(official, exact)
    longer = torch.stack(list(unibasis(propagate, 3 * unit, cosine, 4, 0.0, "official")))[1:]
    gram = torch.einsum("iknb,jknb->bij", longer, longer)
    assert (gram - cosine).abs().max() > 0.1


def test_bases_do_not_depend_on_precision_or_placement(make_federation):
    federation = make_federation()
    together = mixed_bases(stack(federation.graphs, federation.task, "float64"), 0.5)
    single = mixed_bases(stack(federation.graphs, federation.task, "float32"), 0.5)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), together, rtol=1e-6, atol=1e-6)
    for m, graph in enumerate(federation.graphs):
        alone = mixed_bases(stack([graph], federation.task, "float64"), 0.5)
        torch.testing.assert_close(alone[:, 0], together[:, m, : graph.size])


def test_more_columns_than_a_block_are_all_built(make_federation, monkeypatch):
    federation = make_federation()
    whole = mixed_bases(stack(federation.graphs, federation.task, "float64"), 0.5)
    monkeypatch.setattr("fedatlas.algorithms.spectral_bases.BLOCK_COLUMNS", 4)
    torch.testing.assert_close(mixed_bases(stack(federation.graphs, federation.task, "float64"), 0.5), whole)


# Homophily


def path(federation, labels, train):
    """One client: a path over its nodes."""
    n = len(labels)
    steps = np.arange(n - 1)
    return federation.changed(
        0,
        edges=undirected(np.stack([steps, steps + 1]), n),
        labels=np.array(labels),
        train=np.array(train, dtype=bool),
        validation=~np.array(train, dtype=bool),
        test=np.zeros(n, dtype=bool),
    )


@pytest.mark.parametrize(
    ("labels", "train", "share"),
    [
        ((0, 0, 1, 1, 2), (1, 1, 1, 1, 1), 0.5),
        ((0, 0, 1, 1, 2), (1, 1, 1, 0, 0), 0.5),
        ((0, 0, 0, 0, 0), (1, 1, 1, 1, 1), HOMOPHILY_RANGE[1]),
        ((0, 1, 0, 1, 0), (1, 1, 1, 1, 1), HOMOPHILY_RANGE[0]),
        ((0, 0, 0, 0, 0), (1, 0, 1, 0, 1), UNKNOWN_HOMOPHILY),
        ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), UNKNOWN_HOMOPHILY),
    ],
    ids=str,
)
def test_homophily_counts_edges_between_training_nodes(make_federation, labels, train, share):
    federation = path(make_federation(sizes=(5,)), labels, train)
    found = homophily(stack(federation.graphs, federation.task))
    assert found.tolist() == pytest.approx([share])


def test_homophily_reads_training_labels_only(make_federation):
    federation = make_federation()
    changed = federation
    for m, graph in enumerate(federation.graphs):
        changed = changed.changed(m, labels=np.where(graph.train, graph.labels, 0))
    first, second = (homophily(stack(f.graphs, f.task)) for f in (federation, changed))
    assert torch.equal(first, second)


# What has no direction left


def test_disconnected_components_do_not_mix(make_federation):
    federation = make_federation(sizes=(12,))
    halves = [np.array(list(itertools.combinations(nodes, 2))).T for nodes in (range(6), range(6, 12))]
    keep = np.random.default_rng(0).random(15) < 0.6
    edges = np.concatenate([half[:, keep] for half in halves], axis=1)
    features = federation.graphs[0].features + 0.1
    features[6:, :3] = 0
    features[:6, 3:] = 0
    split = federation.changed(0, edges=undirected(edges, 12), features=features)
    bases = mixed_bases(stack(split.graphs, split.task, "float64"), 0.5)
    assert (bases[:, 0, 6:, :3].abs() < 1e-12).all()
    assert (bases[:, 0, :6, 3:].abs() < 1e-12).all()
    assert (bases[:, 0, :6, :3].abs().amax(dim=(1, 2)) > 1e-3).all()


def test_a_column_of_zeros_has_bases_of_zeros(make_federation):
    federation = make_federation()
    features = federation.graphs[1].features.copy()
    features[:, 2] = 0
    changed = federation.changed(1, features=features)
    bases = mixed_bases(stack(changed.graphs, changed.task, "float64"), 0.5)
    assert (bases[:, 1, :, 2] == 0).all()
    assert bases.isfinite().all()


def test_without_edges_only_the_first_direction_exists(make_federation):
    federation = make_federation().changed(2, edges=np.zeros((2, 0), dtype=np.int64))
    cohort = stack(federation.graphs, federation.task, "float64")
    powers = mixed_bases(cohort, 1.0)
    assert (powers[1:, 2] == 0).all()
    members = mixed_bases(cohort, 0.0)
    for member in members[2:]:
        torch.testing.assert_close(member[2], members[1, 2])


def test_an_exhausted_krylov_space_adds_no_direction(make_federation):
    """Two joined nodes: P has two eigenvalues, so v_2 and all that follow do not exist."""
    edges = undirected(np.array([[0], [1]]), 2)
    features = np.array([[1, 0.5, 0, 2, 1, 3], [0, 0.5, 1, 1, 1, 1]], dtype=np.float32)
    federation = make_federation(sizes=(2,)).changed(0, edges=edges, features=features)
    cohort = stack(federation.graphs, federation.task, "float32")
    bases = mixed_bases(cohort, 0.0, hops=8)[1:, 0]
    assert bases.isfinite().all()
    torch.testing.assert_close(bases.norm(dim=1), torch.ones(8, 6))
    matrix = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    directions = list(lanczos(lambda v: matrix @ v, torch.as_tensor(features).double()[None], 4))
    assert all((direction == 0).all() for direction in directions[2:])
    # The second column is an eigenvector: even v_1 does not exist, and all members are the first.
    torch.testing.assert_close(bases[:, :, 1], bases[:1, :, 1].expand(8, 2))


# Energies


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_energies_are_those_of_normalised_columns(make_federation, scale):
    federation = make_federation()
    scaled = replace(
        federation, graphs=tuple(replace(g, features=scale * g.features) for g in federation.graphs)
    )
    cohort = stack(scaled.graphs, scaled.task, "float64")
    found = column_energies(cohort, HOPS + 1, lambda p, x, c: unibasis(p, x, c, HOPS, 0.5))
    unit = federation
    for m, graph in enumerate(federation.graphs):
        norms = np.linalg.norm(graph.features.astype(np.float64), axis=0)
        unit = unit.changed(m, features=graph.features / np.maximum(norms, 1e-12))
    bases = mixed_bases(stack(unit.graphs, unit.task, "float64"), 0.5)
    torch.testing.assert_close(found, bases.square().sum(dim=2).transpose(0, 1), rtol=1e-5, atol=1e-7)
