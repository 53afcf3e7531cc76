"""Polynomial bases of the graph filter UniFilter (Huang et al., ICML 2024), one set per client.

P is the symmetric normalisation without self-loops and x a feature column of one client. Two bases span the
same Krylov space:

    homophily basis     m_j = P^j x,                                               j = 0..K
    heterophily basis   u_0 = v_0,  u_j = (s + t_j v_j) / ||s + t_j v_j||,  s = (u_0 + ... + u_{j-1}) / j

with the orthonormal Lanczos vectors v_0 = x / ||x||, v_j ~ P v_{j-1} - (its parts along v_{j-1} and v_{j-2}).
The members of the second basis meet at one angle, theta = (1 - h) pi / 2, where h is the share of equal
labels among the client's edges: the more alike neighbours are, the closer the members lie. With
c = cos(theta),

    t_j = sqrt((c_j / c)^2 - c_j),   c_j = ((j - 1) c + 1) / j,

u_i . u_j = c for i != j. The published t_j has s . u_{j-1} in place of c_j. Both are equal, since
s . u_i = c_j for every i < j, so t_j depends on j and theta alone.

Where the Krylov space of a column is exhausted (||w|| below `EXHAUSTED`), v_j = 0 and no new direction
enters; a column of zeros has bases of zeros. Three-term orthogonality needs double precision, which is used
whatever the precision of the cohort.

`basis="official"` is what the authors' code computes: s . b_{j-1}, with the mixed basis b of `unibasis`, in
place of s . u_{j-1}, starting from the unnormalised x, and t_j = 0 where the radicand is negative. The angle
is then not the stated one, except for tau = 0 and columns of norm 1.

Shapes: k clients, n padded nodes, f features; bases are [K+1, k, n, f], zero on padding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithms.features import dense_features
from fedatlas.platform.federation.cohort import Cohort
from fedatlas.platform.federation.operators import adjacency_operator

Basis = Literal["exact", "official"]

UNKNOWN_HOMOPHILY = 0.75
"""Share of equal labels where no edge joins two training nodes."""

HOMOPHILY_RANGE = (0.02, 0.999)
"""Bounds of the share: at 0 the cosine is 0 and t_j infinite, at 1 all members are the same."""

EXHAUSTED = 1e-8
"""Norm of a Lanczos direction below which it is rounding."""

BLOCK_COLUMNS = 256
"""Feature columns that are treated at a time; bounds the memory in double precision."""

Members = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Iterator[Tensor]]
"""From `propagate`, columns [k, n, b] and the clients' cosines [k] to the members of a basis."""


def homophily(cohort: Cohort) -> Tensor:
    """Share of equal labels among the edges between training nodes, clamped, float64 [k]."""

    def build() -> Tensor:
        found = []
        labels, train = cohort.labels.cpu().numpy(), cohort.train.cpu().numpy()
        for row, adjacency in enumerate(cohort.adjacencies):
            edges = adjacency.tocoo()
            known = train[row, edges.row] & train[row, edges.col]
            same = labels[row, edges.row[known]] == labels[row, edges.col[known]]
            found.append(float(np.mean(same)) if same.size else UNKNOWN_HOMOPHILY)
        shares = torch.tensor(found, dtype=torch.float64, device=cohort.device)
        return shares.clamp(*HOMOPHILY_RANGE)

    return cohort.keep("homophily", build)


def angle_cosine(homophily: Tensor) -> Tensor:
    """c = cos(theta) with theta = (1 - h) pi / 2."""
    return torch.cos((1 - homophily) * math.pi / 2)


def mean_cosine(cosine: Tensor, step: int) -> Tensor:
    """c_j = ((j - 1) c + 1) / j, the squared norm of the mean of j unit vectors that meet at cosine c."""
    return ((step - 1) * cosine + 1) / step


def step_size(cosine: Tensor, step: int) -> Tensor:
    """t_j = sqrt((c_j / c)^2 - c_j), real for all c in (0, 1]."""
    mean = mean_cosine(cosine, step)
    return ((mean / cosine).square() - mean).clamp(min=0).sqrt()


def lanczos(propagate: Callable[[Tensor], Tensor], columns: Tensor, steps: int) -> Iterator[Tensor]:
    """Orthonormal v_0, ..., v_K of each column, [k, n, b] each; zero where there is no further direction."""
    before, last = torch.zeros_like(columns), unit_columns(columns)
    yield last
    for _ in range(steps):
        fresh = propagate(last)
        fresh = fresh - _inner(fresh, last) * last - _inner(fresh, before) * before
        before, last = last, unit_columns(fresh)
        yield last


def heterophily_basis(
    propagate: Callable[[Tensor], Tensor], columns: Tensor, cosine: Tensor, hops: int
) -> Iterator[Tensor]:
    """u_0, ..., u_K of each column, [k, n, b] each.

    Args:
        propagate: product with P of stacked columns [k, n, b].
        columns: x, [k, n, b].
        cosine: c of each client, [k].
        hops: K.
    """
    total = torch.zeros_like(columns)
    for step, direction in enumerate(lanczos(propagate, columns, hops)):
        member = direction
        if step > 0:
            member = unit_columns(total / step + _scalars(step_size(cosine, step)) * direction)
        total = total + member
        yield member


def homophily_basis(propagate: Callable[[Tensor], Tensor], columns: Tensor, hops: int) -> Iterator[Tensor]:
    """m_0, ..., m_K of each column, [k, n, b] each."""
    power = columns
    yield power
    for _ in range(hops):
        power = propagate(power)
        yield power


def unibasis(
    propagate: Callable[[Tensor], Tensor],
    columns: Tensor,
    cosine: Tensor,
    hops: int,
    mix: float,
    basis: Basis = "exact",
) -> Iterator[Tensor]:
    """b_0 = x, b_j = tau m_j + (1 - tau) u_j, [k, n, b] each.

    Args:
        mix: tau, share of the homophily basis; with 1 the result is the monomials P^j x.
    """
    powers = homophily_basis(propagate, columns, hops)
    if basis == "official":
        yield from _official(propagate, powers, columns, cosine, hops, mix)
        return
    for step, (power, member) in enumerate(
        zip(powers, heterophily_basis(propagate, columns, cosine, hops), strict=True)
    ):
        yield power if step == 0 else mix * power + (1 - mix) * member


def _official(
    propagate: Callable[[Tensor], Tensor],
    powers: Iterator[Tensor],
    columns: Tensor,
    cosine: Tensor,
    hops: int,
    mix: float,
) -> Iterator[Tensor]:
    total = torch.zeros_like(columns)
    mixed = columns
    for step, (power, direction) in enumerate(zip(powers, lanczos(propagate, columns, hops), strict=True)):
        member = direction
        if step > 0:
            mean = total / step
            radicand = (_inner(mean, mixed) / _scalars(cosine)).square() - _scalars(mean_cosine(cosine, step))
            member = unit_columns(mean + radicand.clamp(min=0).sqrt() * direction)
            mixed = mix * power + (1 - mix) * member
        total = total + member
        yield mixed


def build_bases(cohort: Cohort, count: int, members: Members) -> Tensor:
    """A basis of all feature columns of a cohort, [count, k, n, f] in the cohort's precision."""
    k, n, f = len(cohort.clients), cohort.width, cohort.task.features
    bases = torch.empty(count, k, n, f, dtype=cohort.dtype, device=cohort.device)
    for columns, position, member in _each_member(cohort, members):
        bases[position, :, :, columns] = member
    return bases


def column_energies(cohort: Cohort, count: int, members: Members) -> Tensor:
    """Squared norms of a basis whose feature columns have norm 1, [k, count, f] in the cohort's precision."""
    k, f = len(cohort.clients), cohort.task.features
    energies = torch.empty(k, count, f, dtype=cohort.dtype, device=cohort.device)
    for columns, position, member in _each_member(cohort, members, normalised=True):
        energies[:, position, columns] = member.square().sum(dim=1).to(cohort.dtype)
    return energies


def _each_member(
    cohort: Cohort, members: Members, normalised: bool = False
) -> Iterator[tuple[slice, int, Tensor]]:
    wide = dataclasses.replace(cohort, dtype=torch.float64, _kept={})
    operator = adjacency_operator(wide)
    features, cosine = dense_features(cohort), angle_cosine(homophily(cohort))
    for start in range(0, cohort.task.features, BLOCK_COLUMNS):
        columns = slice(start, min(start + BLOCK_COLUMNS, cohort.task.features))
        values = features[:, :, columns].double()
        if normalised:
            values = unit_columns(values)
        for position, member in enumerate(members(lambda v: wide.propagate(operator, v), values, cosine)):
            yield columns, position, member


def unit_columns(values: Tensor) -> Tensor:
    """Columns over the nodes scaled to norm 1, [k, n, b]; zero where the norm is below `EXHAUSTED`."""
    norms = values.norm(dim=1, keepdim=True)
    scaled: Tensor = values / norms.masked_fill(norms < EXHAUSTED, math.inf)
    return scaled


def _inner(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(dim=1, keepdim=True)


def _scalars(values: Tensor) -> Tensor:
    return values[:, None, None]
