"""Moments and spans on a screen."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from stoker.queue.view_builder import ago_text, clock_text, left_text, midnight, span_text, watch_text

NOON = 1_794_052_800.0
"""2026-11-07 12:00 UTC, a Saturday."""
DAY = 86400.0


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of the tests is at Greenwich."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOON + 9120, "14:32"),
        (NOON + DAY, "Sun 12:00"),
        (NOON - DAY, "Fri 12:00"),
        (NOON + 30 * DAY, "Dec 07"),
        (NOON + 400 * DAY, "2027-12-12"),
    ],
)
def test_no_more_of_a_date_than_is_needed(at: float, text: str) -> None:
    """Today is told by the clock alone."""
    assert clock_text(at, NOON) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5.0, "0s"), (0.4, "0s"), (59.0, "59s"), (61.0, "1m"), (7300.0, "2h"), (266_400.0, "3d 2h")],
)
def test_spans(seconds: float, text: str) -> None:
    """The largest unit tells enough."""
    assert span_text(seconds) == text
    assert ago_text(NOON - seconds, NOON) == f"{text} ago"


def test_watches() -> None:
    """What has passed is told to the second, with days as Slurm writes them; what is left to the minute."""
    assert [watch_text(seconds) for seconds in (0, 4323, 2 * DAY + 10800)] == ["0:00:00", "1:12:03", "2-03:00:00"]
    assert [left_text(seconds) for seconds in (-3, 31, 1860, 3 * DAY + 60)] == ["0:00", "0:00", "0:31", "3d0:01"]


def test_today_begins_at_midnight() -> None:
    """By the clock of this place."""
    assert midnight(NOON) == NOON - DAY / 2
