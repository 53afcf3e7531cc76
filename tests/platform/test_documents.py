"""YAML that people write."""

from __future__ import annotations

import pytest

from fedatlas.platform.documents import read_yaml
from fedatlas.platform.errors import ConfigurationError


def test_merged_keys_may_be_overridden() -> None:
    read = read_yaml("a: &base {x: 1, y: 2}\nb: {<<: *base, y: 3}\n", "it")
    assert read == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"it is not valid YAML: key a stands twice \(line 3, column 1\)"),
        ("rows:\n  - {x: 1, x: 2}\n", r"key x stands twice \(line 2, column 12\)"),
        ("a: [1\nb: 2", r"line 2"),
        ("a: !!python/object:os.system {}", r"could not determine a constructor"),
        ("[" * 3000, "nested too deeply"),
        ("a: 2026-13-45", "month must be in"),
        ("a: \x00", "special characters are not allowed"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_yaml(text, "it")
