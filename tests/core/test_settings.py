"""Every setting is read from a file or a variable; wrong values are refused with an example."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.settings import KEYS, EngineSettings, read_setting, setting_text

QUIET = settings(max_examples=300, derandomize=True)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_defaults() -> None:
    """The defaults of the keys equal those of the struct, for every field."""
    read = {name: read_setting(name, key.built_in, name) for name, key in KEYS.items()}
    assert EngineSettings(**read) == EngineSettings()
    of_the_administrator = {"locked"}  # the table `[locked]`, which has keys of its own
    assert set(read) == set(EngineSettings.__struct_fields__) - of_the_administrator


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("devices", "0,1", "0,1"),
        ("strangers", "count", "count"),
        ("reserve", "1G", 2**30),
        ("reserve", 0, 0),
        ("margin", "20%", 20),
        ("margin", 0, 0),
        ("busy", "150", 150),
        ("tolerance", "1048576", 2**20),
        ("order", "shortest", "shortest"),
        ("patience", "2m", 120.0),
        ("patience", 0, 0.0),
        ("quarantine", "0s", 0.0),
        ("min_free", 2, 2),
        ("min_free", "2", 2),
        ("max_use", "none", None),
        ("max_use", 0, 0),
        ("idle_exit", "never", None),
        ("idle_exit", "0", 0.0),
        ("keep", "forever", None),
        ("keep", "4w", 4 * 604800.0),
        ("cpu_jobs", "cores", None),
        ("cpu_jobs", "8", 8),
        ("on_finish", "mail me", "mail me"),
        ("secrets", ["A*"], ("A*",)),
        ("secrets", "A*, B*", ("A*", "B*")),
        ("secrets", [], ()),
        ("groups", {"big": 2}, {"big": 2}),
        ("groups", "big=2, eval = 4", {"big": 2, "eval": 4}),
    ],
)
def test_values(name: str, raw: object, value: object) -> None:
    """Values are read from both forms."""
    assert read_setting(name, raw, name) == value


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("devices", 0),
        ("strangers", "kill"),
        ("strangers", True),
        ("reserve", "lots"),
        ("reserve", -1),
        ("reserve", True),
        ("reserve", 1.5),
        ("order", "longest"),
        ("patience", 60),
        ("patience", "60"),
        ("min_free", -1),
        ("min_free", "٣"),
        ("min_free", True),
        ("max_use", ""),
        ("keep", "never"),
        ("cpu_jobs", 0),
        ("on_finish", ["mail", "me"]),
        ("on_finish", "a\0b"),
        ("secrets", ["A*", ""]),
        ("secrets", [1]),
        ("secrets", "A*,,B*"),
        ("groups", {"big": 0}),
        ("groups", {"": 1}),
        ("groups", {"big": {"limit": 1}}),
        ("groups", "big"),
        ("groups", 3),
    ],
)
def test_wrong_values_are_refused_with_an_example(name: str, raw: object) -> None:
    """The error names the place, the value, and what would be right; a duration must have its unit."""
    with pytest.raises(UsageError) as refused:
        read_setting(name, raw, "here")
    assert refused.value.message == f"here is {setting_text(raw)!r}, not {KEYS[name].expected}"
    assert refused.value.hint == f"for example {setting_text(KEYS[name].example)}"


@pytest.mark.parametrize("name", KEYS)
def test_examples_are_right(name: str) -> None:
    """The examples of the hints are valid in both forms."""
    example = KEYS[name].example
    assert read_setting(name, example, name) == read_setting(name, setting_text(example), name)


@QUIET
@given(st.sampled_from(sorted(KEYS)), ANYTHING)
def test_anything_is_a_value_or_a_usage_error(name: str, raw: Any) -> None:
    """Any value gives a setting or a UsageError."""
    with suppress(UsageError):
        read_setting(name, raw, name)
