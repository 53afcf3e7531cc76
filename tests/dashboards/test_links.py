"""Addresses of runs: of the store that holds them, without its password."""

from __future__ import annotations

import pytest

from fedatlas.dashboards.links import DEFAULT_UI, runs_path, ui_address


@pytest.mark.parametrize(
    ("uri", "given", "expected"),
    [
        ("sqlite:////data/mlflow.db", None, DEFAULT_UI),
        ("http://tracking:5000/", None, "http://tracking:5000"),
        ("https://user:secret@tracking", None, "https://***@tracking"),
        ("sqlite:////data/mlflow.db", "http://10.0.0.1:8080/", "http://10.0.0.1:8080"),
    ],
)
def test_the_address_is_the_servers_or_the_given_one(uri: str, given: str | None, expected: str) -> None:
    assert ui_address(uri, given) == expected


def test_one_run_has_a_page_and_several_are_compared() -> None:
    assert runs_path("7", ["abc"]) == "/#/experiments/7/runs/abc"
    assert runs_path("7", ["a", "b"]) == (
        "/#/compare-runs?runs=%5B%22a%22%2C%22b%22%5D&experiments=%5B%227%22%5D"
    )
