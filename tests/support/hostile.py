"""Hostile input for property tests: how many examples, and mutations of valid bytes."""

from __future__ import annotations

import functools
import os
import re

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TOKEN = re.compile(rb'"[^"\n]*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\w+')

NUMBERS = (
    *(b"0", b"-0", b"-1", b"0.5", b"-0.5", b"1e-320", b"1e15", b"1e300", b"-1e300", b"1e999", b"NaN", b"Infinity"),
    *(b"253402300900", b"-99999999999", b"4294967296", b"9223372036854775807", b"9223372036854775808"),
    *(b"-9223372036854775809", b"1" + b"0" * 80, b"9" * 5000),
)
"""Numbers at the edge of what formats, integers and dates allow."""
NASTY = (
    *(b"", b"\0", b"\n", b"\r\n", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b" ", b"=", b",", b'"', b"'", b"\\"),
    *(b"{", b"}", b"[" * 200, b"]", b"null", b"true", b'"text"', b"[]", b"{}", b"a" * 5000),
    *(b"\x1b[2J", b"\x1b]0;x\x07", b'"\\u001b[2J"', b'"\\ud800"', b'"\\u202e"', "\u202e".encode()),
)
"""Words and characters that formats forbid or terminals obey."""


def examples() -> int:
    """How many inputs each property test tries; STOKER_EXAMPLES asks for more."""
    return int(os.environ.get("STOKER_EXAMPLES", "300"))


hostile = settings(
    max_examples=examples(),
    derandomize="STOKER_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""The settings of such a test, as a decorator: the same inputs in every `make check`, new ones in `make faults`."""


def mutated(valid: bytes) -> st.SearchStrategy[bytes]:
    """The bytes after one to four edits: a number, word or range replaced, a range repeated, or the end cut off."""
    return (_edits.map(lambda edit: [edit]) | st.lists(_edits, min_size=2, max_size=4)).map(
        lambda edits: functools.reduce(_edited, edits, valid)
    )


_Edit = tuple[str, int, int, bytes]
_places, _lengths, _pieces = st.integers(0, 2**16), st.integers(0, 40), st.sampled_from(NASTY) | st.binary(max_size=8)
_edits: st.SearchStrategy[_Edit] = st.tuples(
    st.just("number"), _places, st.just(0), st.sampled_from(NUMBERS)
) | st.tuples(st.sampled_from(["word", "range", "repeat", "cut"]), _places, _lengths, _pieces)


def _edited(contents: bytes, edit: _Edit) -> bytes:
    kind, place, length, new = edit
    begin = place % (len(contents) + 1)
    end = begin + length
    if kind in {"number", "word"} and (found := list((_NUMBER if kind == "number" else _TOKEN).finditer(contents))):
        begin, end = found[place % len(found)].span()
    elif kind == "repeat":
        new, end = contents[begin:end], begin
    elif kind == "cut":
        new, end = b"", len(contents)
    return contents[:begin] + new + contents[end:]
