"""Made-up configurations: every one works or is refused in words, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.platform.errors import ConfigurationError
from fedatlas.sweeps import Study
from fedatlas.sweeps.commands.run import split_settings
from fedatlas.sweeps.experiment import Experiment, experiment, resolve
from fedatlas.sweeps.study import StudyFile

MANY = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

STUDY: dict[str, Any] = {
    "description": "made up",
    "datasets": ["minesweeper"],
    "partitions": {"metis": [5]},
    "methods": [
        "local",
        {"algorithm": "fedgmc", "options": {"tau": 2.0}, "axes": [{"product": {"eta": [0.1]}}]},
    ],
    "variants": [{"train": 0.3}],
    "axes": [{"product": {"participation": [0.5]}}],
    "seeds": 2,
    "rounds": 3,
    "only": ["minesweeper"],
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "node": {"dataset": "minesweeper"},
    "graph": {"dataset": "mutag", "partition": "iid", "clients": 4},
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "metis", "minesweeper", "fedavg", "../../etc", "a=b|c", "\x00", "�", "1e999", "~"])
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to everything in a document."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [at] + [way for key, value in items for way in paths(value, (*at, key))]


def replaced(content: Any, way: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at one place."""
    if not way:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[way[0]] = replaced(content[way[0]], way[1:], value)
    return copy


@contextmanager
def refused_in_words(*about: str) -> Iterator[None]:
    """Allows a ConfigurationError that says something, and no other error."""
    said = " ".join(about)
    try:
        yield
    except ConfigurationError as error:
        said = str(error)
    else:
        return
    assert said.strip()
    assert all(word in said for word in about), said


def expanded(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    with refused_in_words():
        assert Study(str(path)).experiments


@MANY
@given(text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str | bytes) -> None:
    expanded(tmp_path / "study.yaml", text)


@MANY
@given(way=st.sampled_from(paths(STUDY)), value=values)
def test_a_study_with_one_wrong_value_is_refused_in_words(
    tmp_path: Path, way: tuple[Any, ...], value: Any
) -> None:
    expanded(tmp_path / "study.yaml", yaml.safe_dump(replaced(STUDY, way, value)))


@MANY
@given(content=st.dictionaries(st.sampled_from(sorted(StudyFile.model_fields)), values, max_size=6))
def test_a_made_up_study_is_refused_in_words(tmp_path: Path, content: dict[str, Any]) -> None:
    expanded(tmp_path / "study.yaml", yaml.safe_dump(content))


@MANY
@given(key=st.sampled_from(sorted(Experiment.model_fields)) | st.text(max_size=10), value=values)
def test_an_experiment_with_one_wrong_value_is_refused_in_words(key: str, value: Any) -> None:
    with refused_in_words():
        resolve(experiment({"dataset": "minesweeper", "clients": 5, "algorithm": "fedgmc", key: value}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_option_with_a_wrong_value_is_refused_in_words(name: str) -> None:
    level = sorted(ALGORITHMS[name].levels)[-1]
    wrong = (None, True, -1, 0, 10**30, math.nan, math.inf, "", "x", [], {}, [1, 2])
    for option in ALGORITHMS[name].configuration_type.model_fields:
        for value in wrong:
            with refused_in_words(option):
                resolve(experiment({**SCENARIOS[level], "algorithm": name, "options": {option: value}}))


@MANY
@given(
    words=st.lists(
        st.text(max_size=20) | st.builds("{}={}".format, st.text(max_size=6), st.text(max_size=12)),
        max_size=3,
    )
)
def test_any_setting_on_the_command_line_is_read_or_refused(words: list[str]) -> None:
    with refused_in_words():
        split_settings(words)


@pytest.mark.parametrize("option", ["only", "without", "algorithms"])
def test_any_filter_is_understood_or_refused(option: str) -> None:
    @MANY
    @given(
        words=st.lists(
            st.text(max_size=20) | st.sampled_from(["cora", "clients=5", "=", "|", "a=", "=b"]), max_size=3
        )
    )
    def check(words: list[str]) -> None:
        with refused_in_words():
            assert Study("quickstart", **{option: tuple(words)}).experiments is not None  # type: ignore[arg-type]

    check()
