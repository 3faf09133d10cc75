"""Known names in braces are replaced, once, and everything else in a command stays as it was typed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.launch import fill

QUIET = settings(max_examples=100, derandomize=True, deadline=None)
VALUES = {"i": "7", "id": "31", "gpu": "0,2", "name": "vit {i} $& \\1"}


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{i}", "7"),
        ("--out=run-{id}/{i}.txt", "--out=run-31/7.txt"),
        ("{i}{i}", "77"),
        ("cuda:{gpu}", "cuda:0,2"),
        ("${i}", "${i}"),
        ("$${i}", "$${i}"),
        ("{I} { i } {lr} {} {i {0}", "{I} { i } {lr} {} {i {0}"),
        ('{"i": {i}, "id": "{id}"}', '{"i": 7, "id": "31"}'),
        ("{{i}}", "{7}"),
        ("${x:-{i}}", "${x:-7}"),
    ],
)
def test_known_names_are_replaced(word: str, filled: str) -> None:
    """Anywhere in a word; a shell's variable of the same name and other braces are not touched."""
    assert fill([word], VALUES) == (filled,)


def test_one_pass_only() -> None:
    """Braces and backslashes that a value brings in stay as they are."""
    assert fill(["{name}", "x"], VALUES) == ("vit {i} $& \\1", "x")


def test_only_names_with_a_value() -> None:
    """Outside an array {i} means nothing, and without any value nothing does."""
    assert fill(["{i}", "{id}"], {"id": "3"}) == ("{i}", "3")
    assert fill(["{i}", "{id}"], {}) == ("{i}", "{id}")


@QUIET
@given(st.lists(st.text(alphabet="{}i$x")), st.text(alphabet="{}ix$"))
def test_a_name_in_braces_is_gone_or_a_shells(words: list[str], value: str) -> None:
    """With a harmless value nothing is left to replace; any value leaves the number of words as it was."""
    assert fill(fill(words, {"i": "v"}), {"i": "w"}) == fill(words, {"i": "v"})
    assert len(fill(words, {"i": value})) == len(words)
