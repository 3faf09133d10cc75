"""Sizes, durations, counts and times are parsed and formatted for users, also on days when clocks change."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.units import (
    count_text,
    duration_text,
    left_text,
    parse_duration,
    parse_moment,
    parse_since,
    parse_size,
    size_text,
    span_text,
)

QUIET = settings(max_examples=200, derandomize=True)
SAMPLES = json.loads((Path(__file__).parents[1] / "data/units.json").read_text())
NOTATIONS: dict[str, Callable[[Any], str]] = {
    "size": size_text,
    "duration": duration_text,
    "span": span_text,
    "left": left_text,
}
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


@pytest.mark.parametrize("name", SAMPLES)
def test_amounts_are_shown_as_in_the_samples(name: str) -> None:
    """The page shows the same samples as the same text."""
    assert [NOTATIONS[name](value) for value, _ in SAMPLES[name]] == [text for _, text in SAMPLES[name]]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("2h10", 7800),
        ("1d2h05", 93900),
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


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "soon", "-5m", "1:2:3", "5m 3", "5m30", "1h5", "25:61:00", "9" * 400 + "s"]
)
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


def test_counts_know_their_plural() -> None:
    """One job, two jobs, no jobs; irregular plurals are given."""
    assert [count_text(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert count_text(2, "entry", "entries") == "2 entries"


BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
HOUR = 3600


def at(text: str, zone: tzinfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


NOW = at("2026-11-15T18:30")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("now+1hour", HOUR),
        ("now+30minutes", 1800),
        ("now + 2 hours", 2 * HOUR),
        ("now+1day", 86400),
        ("now+1week", 604800),
        ("now+60", 60),
        ("+60", 60),
        ("+2h", 2 * HOUR),
        ("+1h30m", 5400),
        ("+1.5h", 5400),
        ("NOW+1Hour", HOUR),
    ],
)
def test_from_now(text: str, seconds: float) -> None:
    """Slurm's now+ forms, also with short units; a bare number is seconds, as in Slurm."""
    assert parse_moment(text, NOW, BERLIN) == NOW + seconds


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("22:00", "2026-11-15T22:00"),
        ("22:00:30", "2026-11-15T22:00:30"),
        ("18:30", "2026-11-15T18:30"),
        ("18:29", "2026-11-16T18:29"),
        ("9:05", "2026-11-16T09:05"),
        ("10:00pm", "2026-11-15T22:00"),
        ("12:00 AM", "2026-11-16T00:00"),
        ("midnight", "2026-11-16T00:00"),
        ("noon", "2026-11-16T12:00"),
        ("teatime", "2026-11-16T16:00"),
    ],
)
def test_time_of_day(text: str, moment: str) -> None:
    """A time of day is the next one, today or tomorrow."""
    assert parse_moment(text, NOW, BERLIN) == at(moment)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("tomorrow", "2026-11-16T00:00"),
        ("tomorrow 9:00", "2026-11-16T09:00"),
        ("tomorrow noon", "2026-11-16T12:00"),
        ("today 20:00", "2026-11-15T20:00"),
        ("fri 18:00", "2026-11-20T18:00"),
        ("Friday", "2026-11-20T00:00"),
        ("sunday 23:59", "2026-11-15T23:59"),
        ("sun 0:01", "2026-11-22T00:01"),
        ("2026-12-24", "2026-12-24T00:00"),
        ("20261224", "2026-12-24T00:00"),
        ("2026-12-24T12:34:00", "2026-12-24T12:34"),
        ("2026-12-24T12:34", "2026-12-24T12:34"),
        ("2026-12-24 12:34", "2026-12-24T12:34"),
        ("2026-12-24 teatime", "2026-12-24T16:00"),
        ("2010-01-20T12:34:00", "2010-01-20T12:34"),
        ("2026-07-01T12:00", "2026-07-01T12:00"),
    ],
)
def test_days(text: str, moment: str) -> None:
    """A day begins at midnight of the time zone; a past date is accepted; a day of the week is the next one."""
    assert parse_moment(text, NOW, BERLIN) == at(moment)


@pytest.mark.parametrize(
    "text", ["2026-11-16T00:00Z", "2026-11-16T02:00+02:00", "20261116T000000Z", "2026-11-15t19:00:00.000-05:00"]
)
def test_a_zone_of_its_own(text: str) -> None:
    """An offset or a Z overrides the time zone of the machine."""
    assert parse_moment(text, NOW, BERLIN) == at("2026-11-16T00:00", UTC)


class TestClockChanges:
    """Days of 23 and of 25 hours."""

    def test_time_after_the_change(self) -> None:
        """The distance is in real seconds, not in clock time."""
        evening = at("2026-03-28T20:00")
        assert parse_moment("08:00", evening, BERLIN) == evening + 11 * HOUR
        evening = at("2026-10-24T20:00")
        assert parse_moment("08:00", evening, BERLIN) == evening + 13 * HOUR

    def test_skipped_time(self) -> None:
        """02:30 on the day that skips it is 03:30."""
        assert parse_moment("2:30", at("2026-03-29T01:00"), BERLIN) == at("2026-03-29T03:30")

    def test_repeated_time(self) -> None:
        """After the first 02:30, the next one is the second."""
        assert parse_moment("2:30", at("2026-10-25T01:00"), BERLIN) == at("2026-10-25T02:30")
        between = at("2026-10-25T02:45")
        assert parse_moment("2:30", between, BERLIN) == at("2026-10-25T02:30", fold=1) == between + 45 * 60

    def test_repeated_time_with_a_date(self) -> None:
        """With a date it is the first one."""
        assert parse_moment("2026-10-25T02:30", NOW, BERLIN) == at("2026-10-25T02:30")
        assert parse_moment("2026-11-01T01:30", NOW, NEW_YORK) == at("2026-11-01T01:30", NEW_YORK)

    def test_hours_from_now(self) -> None:
        """An hour is an hour on every day."""
        before = at("2026-03-29T01:30")
        assert parse_moment("now+1hour", before, BERLIN) == at("2026-03-29T03:30")


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "12:60", "13:00pm", "0:00am", "24:00", "now-1hour", "now+", "+", "+1fortnight", "1h"),
        *("now1", "2026-13-01", "2026-02-30", "2026-11-15T25:00", "2026-11-15x22:00", "2026-W10", "0120", "10", "-5m"),
        *("now+999999999weeks", "0001-01-01", "9999-12-31", "1969-12-31", "tomorrow soon", "٣:٠٠", "9" * 400),
        *("now+" + "9" * 400, "+1h 3", "tomorrowish", "midnight noon"),
    ],
)
def test_malformed_times_are_refused_with_an_example(text: str) -> None:
    """Nonsense, invalid times and times out of range are refused."""
    with pytest.raises(UsageError) as refused:
        parse_moment(text, NOW, BERLIN)
    assert "now+1hour" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1d", "2026-11-14T18:30"),
        ("2h", "2026-11-15T16:30"),
        ("1h30m", "2026-11-15T17:00"),
        ("2 hours ago", "2026-11-15T16:30"),
        ("now-2hours", "2026-11-15T16:30"),
        ("08:00", "2026-11-15T08:00"),
        ("22:00", "2026-11-14T22:00"),
        ("midnight", "2026-11-15T00:00"),
        ("today", "2026-11-15T00:00"),
        ("yesterday", "2026-11-14T00:00"),
        ("yesterday 9:00", "2026-11-14T09:00"),
        ("2026-11-01", "2026-11-01T00:00"),
        ("2026-11-01T12:00", "2026-11-01T12:00"),
    ],
)
def test_since(text: str, moment: str) -> None:
    """Durations count back, and a time of day is the last one."""
    assert parse_since(text, NOW, BERLIN) == at(moment)


def test_since_the_beginning() -> None:
    """A duration longer than the epoch gives the epoch."""
    assert parse_since("9999w", NOW, BERLIN) == 0


@pytest.mark.parametrize("text", ["", "now+1h", "+1h", "10", "soon", "1x", "2026-13-01", "-1d"])
def test_malformed_past_times_are_refused_with_an_example(text: str) -> None:
    """The hint shows the syntax."""
    with pytest.raises(UsageError) as refused:
        parse_since(text, NOW, BERLIN)
    assert "1d" in refused.value.hint


@QUIET
@given(st.floats(1e9, 4e9), st.integers(0, 86399), st.sampled_from([BERLIN, NEW_YORK, ZoneInfo("Australia/Lord_Howe")]))
def test_next_and_previous_time(now: float, second: int, zone: tzinfo) -> None:
    """The next and the last such time are at most a day and a clock change away."""
    text = f"{second // 3600}:{second // 60 % 60:02}:{second % 60:02}"
    most = timedelta(hours=25).total_seconds()
    assert parse_since(text, now, zone) <= now <= parse_moment(text, now, zone)
    assert parse_moment(text, now, zone) - now <= most
    assert now - parse_since(text, now, zone) <= most


@QUIET
@given(st.text(alphabet="now+-0123456789:tz hdmay ") | st.text())
def test_any_text_is_a_moment_or_a_usage_error(text: str) -> None:
    """Any text gives a time that can be shown, or a UsageError."""
    for parse in (parse_moment, parse_since):
        with suppress(UsageError):
            datetime.fromtimestamp(parse(text, NOW, BERLIN), BERLIN)
