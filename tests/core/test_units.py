"""Sizes, durations and counts are parsed and formatted for users."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.units import count_text, duration_text, parse_duration, parse_size, size_text

QUIET = settings(max_examples=100, derandomize=True, deadline=None)
TYPED = st.text(alphabet="0123456789.:- smhdwKMGTiBſK٣", max_size=12) | st.text(max_size=8)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24G", 24 * 2**30),
        ("512M", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        (" 8 gb ", 8 * 2**30),
        ("2T", 2 * 2**40),
        ("4k", 4096),
        ("4096", 4096),
    ],
)
def test_sizes_are_powers_of_two(text: str, size: int) -> None:
    """G is 2**30 bytes with and without `iB`, as on every GPU tool's screen."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1,5G", "24 gigs", "auto", "9" * 400 + "G"])
def test_malformed_sizes_are_refused_with_an_example(text: str) -> None:
    """The error says how a size is written."""
    with pytest.raises(UsageError) as refused:
        parse_size(text)
    assert "24G" in refused.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "?"),
        (0, "0"),
        (1023, "1023"),
        (2048, "2K"),
        (300 * 2**20, "300M"),
        (24 * 2**30, "24.0G"),
        (3 * 2**39, "1.5T"),
    ],
)
def test_sizes_are_shown_short(size: int | None, text: str) -> None:
    """One decimal from G upwards, none below; a question mark where unknown."""
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("0.5h", 1800),
        ("10", 600),
        ("10:30", 630),
        ("01:00:00", 3600),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("2-01:02:03", 176523),
    ],
)
def test_durations_in_words_and_in_slurms_forms(text: str, seconds: float) -> None:
    """A bare number is minutes, as Slurm's --time has it."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "soon", "-5m", "1:2:3", "5m 3", "9" * 400 + "s"])
def test_malformed_durations_are_refused_with_an_example(text: str) -> None:
    """Zero and negative durations are refused, too."""
    with pytest.raises(UsageError) as refused:
        parse_duration(text)
    assert "1h30m" in refused.value.hint


@QUIET
@given(TYPED)
def test_any_text_is_a_number_or_a_usage_error(text: str) -> None:
    """Any text gives a number or a UsageError."""
    for parse in (parse_size, parse_duration):
        with suppress(UsageError):
            assert 0 <= parse(text) < 10**27


@QUIET
@given(st.integers(100 * 2**20, 2**50))
def test_a_shown_size_reads_back_as_nearly_the_same(size: int) -> None:
    """A shown size parses to the same size up to rounding."""
    assert parse_size(size_text(size)) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "00:00"), (41.9, "00:41"), (4323, "1:12:03"), (183600, "2d 03:00:00")],
)
def test_durations_are_shown_as_clocks(seconds: float, text: str) -> None:
    """Hours and days appear only when needed; a negative duration shows as zero."""
    assert duration_text(seconds) == text


def test_counts_know_their_plural() -> None:
    """One job, two jobs, no jobs; irregular plurals are given."""
    assert [count_text(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert count_text(2, "entry", "entries") == "2 entries"
