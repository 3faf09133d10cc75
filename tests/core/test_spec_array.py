"""Arrays are parsed as Slurm's users type them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.spec import MOST_TASKS, ArraySpec, parse_array

QUIET = settings(max_examples=200, derandomize=True, deadline=None)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("0-9", ArraySpec(tuple(range(10)))),
        ("0-15:4", ArraySpec((0, 4, 8, 12))),
        ("0-99%8", ArraySpec(tuple(range(100)), 8)),
        ("1,3,7-9", ArraySpec((1, 3, 7, 8, 9))),
        ("5", ArraySpec((5,))),
        ("7,1-2", ArraySpec((7, 1, 2))),
        (" 0-1, 4 %2 ", ArraySpec((0, 1, 4), 2)),
        ("3-3:9", ArraySpec((3,))),
    ],
)
def test_arrays(text: str, spec: ArraySpec) -> None:
    """Ranges, steps, lists and the limit; tasks keep their order."""
    assert parse_array(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "0-", "-5-3", "9-0", "0-9:0", "0-9:", "1,,2", "1,", "a-b", "0-9%", "0-9%0", "0-9%-1", "0-9%x"),
        *("%4", "0-9%4%4", "1,1", "0-9,5", "0..9", "1:2", "٣", "9" * 5000, "0-1000000", "0-999999,1000001"),
    ],
)
def test_malformed_arrays_are_refused_with_a_hint(text: str) -> None:
    """Malformed arrays are refused, and the hint shows the syntax."""
    with pytest.raises(UsageError) as refused:
        parse_array(text)
    assert refused.value.hint
    assert len(refused.value.message) < 120


def test_a_duplicate_task_is_named() -> None:
    """The error names the duplicate task."""
    with pytest.raises(UsageError, match="task 5 twice"):
        parse_array("0-9,5")


def test_the_largest_array() -> None:
    """A million tasks are allowed; a larger range is refused before it is expanded."""
    assert len(parse_array("0-999999").indices) == MOST_TASKS
    with pytest.raises(UsageError, match="999999999 tasks"):
        parse_array("1-999999999")


@QUIET
@given(st.text(alphabet="0129-,:% ") | st.text())
def test_any_text_is_an_array_or_a_usage_error(text: str) -> None:
    """Any text gives an array with tasks or a UsageError."""
    with suppress(UsageError):
        spec = parse_array(text)
        assert 0 < len(spec.indices) == len(set(spec.indices))
        assert spec.at_once is None or spec.at_once > 0
