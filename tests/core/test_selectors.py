"""Ids are parsed as users type them; unclear input is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.selectors import (
    LARGEST,
    MORE,
    All,
    Last,
    Named,
    Numbers,
    Pick,
    TaskRange,
    line_word,
    parse_selection,
    pick_text,
    tasks_text,
)

QUIET = settings(max_examples=200, derandomize=True)
IDS = st.integers(0, LARGEST)
RANGES = st.tuples(IDS, IDS).map(sorted)
PICKS: st.SearchStrategy[Pick] = st.one_of(
    RANGES.map(lambda ends: Numbers(*ends)),
    st.tuples(IDS, RANGES).map(lambda parts: TaskRange(parts[0], *parts[1])),
    st.sampled_from([Last(), All(), TaskRange(3, 0, LARGEST)]),
)
NAMES = st.text(alphabet="abz*?[]=,.-0139 ", min_size=1).map(lambda text: f"n{text}".strip())


@pytest.mark.parametrize(
    ("word", "picks"),
    [
        ("3", [Numbers(3, 3)]),
        ("1,4-9", [Numbers(1, 1), Numbers(4, 9)]),
        ("4-4", [Numbers(4, 4)]),
        ("last", [Last()]),
        ("all", [All()]),
        ("last,3", [Last(), Numbers(3, 3)]),
        ("12.3", [TaskRange(12, 3, 3)]),
        ("12.3-7,5", [TaskRange(12, 3, 7), Numbers(5, 5)]),
        ("12.*", [TaskRange(12, 0, LARGEST)]),
        ("12.0", [TaskRange(12, 0, 0)]),
        ("12.[3-7]", [TaskRange(12, 3, 7)]),
        ("12.[3-7,9,20-40:5],5", [TaskRange(12, 3, 7), TaskRange(12, 9, 9), TaskRange(12, 20, 40, 5), Numbers(5, 5)]),
        ("3,12.[0, 2]", [Numbers(3, 3), TaskRange(12, 0, 0), TaskRange(12, 2, 2)]),
        (" 1, 2 ", [Numbers(1, 1), Numbers(2, 2)]),
        (str(LARGEST), [Numbers(LARGEST, LARGEST)]),
    ],
)
def test_ids(word: str, picks: list[Pick]) -> None:
    """Numbers, ranges, tasks of an array, and lists of them."""
    assert parse_selection([word]) == tuple(picks)


@pytest.mark.parametrize(
    "word",
    [
        "vit-b",
        "vit*",
        "*",
        "3d-unet",
        "1e-3",
        "lr=1,2",
        "lr=1,,2",
        "vit,3",
        "lasting",
        "Last",
        "1*",
        "٣",
        "a-",
        "arr.[3,5]",
    ],
)
def test_names(word: str) -> None:
    """A word that does not begin with an id is one name, commas and all: `lr=1,2` never means job 2."""
    assert parse_selection([word]) == (Named(word),)


def test_names_and_globs_differ() -> None:
    """A glob is distinguished from a name."""
    assert [Named(word).is_glob for word in ("vit-b", "vit*", "v?t", "v[ia]t")] == [False, True, True, True]


def test_words_keep_their_order() -> None:
    """Words are parsed in order, and no words select nothing."""
    assert parse_selection(["9", "vit", "1-2"]) == (Numbers(9, 9), Named("vit"), Numbers(1, 2))
    assert parse_selection([]) == ()


@pytest.mark.parametrize(
    "word",
    [
        *("", " ", ",", "4-", "-4", "9-4", "1,,2", "1,", ",1", "1-2-3", "1..3", "1.2.3", "12.", ".3", "12.7-3"),
        *("+3", "1,-2", "3,vit", "12.3-13.4", "-", "."),
        *("12.[]", "12.[3", "12.[7-3]", "12.[3,,4]", "12.[0-9:0]", "12.[3:2]", "12.[3,…]"),
    ],
)
def test_malformed_ids_are_refused_with_a_hint(word: str) -> None:
    """Malformed ids and ranges are refused, and the hint shows the syntax."""
    with pytest.raises(UsageError) as refused:
        parse_selection([word])
    assert refused.value.hint
    assert len(refused.value.message) < 120


def test_hint_for_a_range_backwards() -> None:
    """The hint has the range the right way round."""
    with pytest.raises(UsageError) as refused:
        parse_selection(["9-4"])
    assert (refused.value.message, refused.value.hint) == ("9-4 is a reversed range", "write it as 4-9")


@QUIET
@given(st.lists(PICKS, min_size=1))
def test_picks_read_back(picks: list[Pick]) -> None:
    """The text of a pick parses to the same pick."""
    texts = [pick_text(pick) for pick in picks]
    assert parse_selection(texts) == tuple(picks) == parse_selection([",".join(texts)])


@QUIET
@given(st.sets(st.integers(0, 60), min_size=1))
def test_ids_of_tasks_read_back(indices: set[int]) -> None:
    """The id that screens print for some tasks selects these tasks and no others."""
    label = tasks_text(12, sorted(indices))
    assume(MORE not in label)
    picks = [pick for pick in parse_selection([label]) if isinstance(pick, TaskRange)]
    found = [index for pick in picks for index in range(pick.first, pick.last + 1, pick.step)]
    assert found == sorted(indices)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        (range(3, 100), "12.[3-99]"),
        ([4], "12.4"),
        ([4, 5], "12.[4-5]"),
        ([4, 7, 8, 9], "12.[4,7-9]"),
        ([*range(4, 60), *range(100, 200)], "12.[4-59,100-199]"),
        (range(10, 100, 5), "12.[10-95:5]"),
        ([1, 3], "12.[1,3]"),
        ([9, 2, 1], "12.[1-2,9]"),
    ],
)
def test_ids_of_tasks(indices: Sequence[int], text: str) -> None:
    """Ranges of consecutive indices, and steps, in order."""
    assert tasks_text(12, indices) == text


def test_many_ranges_are_shortened() -> None:
    """The id of many ranges shows that it is not complete; all tasks of its line are among those of the array."""
    label = tasks_text(12, [number * number for number in range(100)])
    assert label.endswith(",…]")
    assert line_word(label) == "12.*"
    assert line_word("12.[3-4]") == "12.[3-4]"


@QUIET
@given(NAMES)
def test_names_read_back(name: str) -> None:
    """A name that begins with a letter parses to itself."""
    assert [pick_text(pick) for pick in parse_selection([name])] == [name]


@QUIET
@given(st.text(alphabet="0129.,-+*last ") | st.text())
def test_any_word_is_picks_or_a_usage_error(word: str) -> None:
    """Any text gives picks or an error for the user, and no range is empty."""
    with suppress(UsageError, NoSuchJob):  # a number may be larger than any id
        for pick in parse_selection([word]):
            assert not isinstance(pick, Numbers | TaskRange) or 0 <= pick.first <= pick.last <= LARGEST


@pytest.mark.parametrize("word", [str(LARGEST + 1), f"1-{LARGEST + 1}", f"{'9' * 26}.1", "9" * 5000])
def test_no_job_has_such_a_number(word: str) -> None:
    """A number larger than any id is a missing job."""
    with pytest.raises(NoSuchJob) as missing:
        parse_selection([word])
    assert len(missing.value.message) < 120
