"""The machine's zone knows summer time, as the C library does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.app.jobs.local_time import LocalZone
from stoker.core.errors import UsageError
from stoker.core.units import parse_moment

QUIET = settings(max_examples=200, derandomize=True)
NAME = "Europe/Berlin"


@pytest.fixture(scope="module", autouse=True)
def berlin() -> Iterator[None]:
    """The machine is in Berlin meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", NAME)
        time.tzset()
        yield
    time.tzset()


@QUIET
@given(st.integers(0, 4_000_000_000))
def test_clocks_show_the_same(seconds: int) -> None:
    """At every moment the clocks show what the zone's own table says, and lead back to the moment."""
    ours, table = datetime.fromtimestamp(seconds, LocalZone()), datetime.fromtimestamp(seconds, ZoneInfo(NAME))
    assert (ours.replace(tzinfo=None), ours.fold) == (table.replace(tzinfo=None), table.fold)
    assert ours.timestamp() == seconds
    assert ours.tzname() == table.tzname()


@pytest.mark.parametrize("moment", ["2026-03-29T02:30", "2026-10-25T02:30", "2026-07-01T12:00"])
@pytest.mark.parametrize("fold", [0, 1])
def test_times_that_are_missing_or_come_twice(moment: str, fold: int) -> None:
    """They are understood as the table's zone does."""
    naive = datetime.fromisoformat(moment).replace(fold=fold)
    assert naive.replace(tzinfo=LocalZone()).timestamp() == naive.replace(tzinfo=ZoneInfo(NAME)).timestamp()


def test_moments_across_a_change_of_the_clocks() -> None:
    """The zone serves for reading moments: the night in which summer time begins is an hour shorter."""
    evening = datetime(2026, 3, 28, 20, tzinfo=LocalZone()).timestamp()
    assert parse_moment("08:00", evening, LocalZone()) == evening + 11 * 3600


@pytest.mark.parametrize("text", ["0001-01-01", "0001-01-01T00:00", "9999-12-31", "9999-12-31T23:59:59-23:59"])
def test_dates_that_the_c_library_does_not_know(text: str) -> None:
    """They are refused like any other that makes no sense, before the library is asked."""
    with pytest.raises(UsageError):
        parse_moment(text, 1_800_000_000, LocalZone())


def test_summer_and_winter() -> None:
    """The abbreviation is that of the season."""
    assert [datetime(2026, month, 1, tzinfo=LocalZone()).tzname() for month in (1, 7)] == ["CET", "CEST"]
    assert LocalZone().utcoffset(None) is None
