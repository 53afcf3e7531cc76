"""The uncut reference and clients with their own feature order."""

from __future__ import annotations

import numpy as np

from fedatlas.platform.graphs.federated import Scenario, build, preprocess


def test_the_uncut_reference_holds_everything_and_knows_the_parts() -> None:
    cut = build(Scenario(dataset="minesweeper", clients=3))
    uncut = build(Scenario(dataset="minesweeper", clients=3, uncut=True))
    (whole,) = uncut.clients
    assert uncut.lost_edges == 0 < cut.lost_edges
    assert whole.size == 10_000
    assert whole.groups is not None
    for part, client in zip(whole.groups, cut.clients, strict=True):
        np.testing.assert_array_equal(part, client.nodes)
        np.testing.assert_array_equal(whole.test[part], client.test)
    assert uncut.partition_sha256 == cut.partition_sha256


def test_permuted_clients_have_the_same_columns_in_their_own_order() -> None:
    scenario = Scenario(dataset="minesweeper", clients=3, client_features="permuted")
    graph = preprocess(scenario)
    orders = set()
    for client in build(scenario).clients:
        plain, mixed = graph.features[client.nodes], client.features
        np.testing.assert_array_equal(np.sort(plain, axis=1), np.sort(mixed, axis=1))
        order = tuple(int(np.flatnonzero((column == plain.T).all(axis=1))[0]) for column in mixed.T)
        orders.add(order)
    assert len(orders) > 1


def test_rotated_clients_keep_lengths_and_angles() -> None:
    scenario = Scenario(dataset="minesweeper", clients=3, client_features="rotated")
    turned, plain = build(scenario), build(Scenario(dataset="minesweeper", clients=3))
    for one, other in zip(turned.clients, plain.clients, strict=True):
        assert not np.allclose(one.features, other.features)
        np.testing.assert_allclose(
            one.features[:50] @ one.features[:50].T, other.features[:50] @ other.features[:50].T, atol=1e-5
        )
    first, second = (client.features[:1] for client in turned.clients[:2])
    assert not np.allclose(first, second)
