"""Reading YAML that people write: studies, presets, tuned configurations."""

from __future__ import annotations

from typing import Any

import yaml

from fedatlas.platform.errors import ConfigurationError


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping; plain YAML keeps the last one and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # A merged mapping (<<) may hold what the mapping itself overrides.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, what: str) -> Any:
    """Content of a YAML document.

    Args:
        text: the document.
        what: its name in an error message.

    Raises:
        ConfigurationError: it is not valid YAML, or a mapping has a key twice; names line and column.
    """
    try:
        return yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} is not valid YAML: {_said(error)}") from error


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())
