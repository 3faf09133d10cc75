"""Times in the zone of the user: clocks, dates and moments."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil

from stoker.core.units import DAY, in_calendar


def to_datetime_or_none(at: float | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def to_datetime(at: float) -> datetime:
    """A time as data for screens and JSON."""
    return datetime.fromtimestamp(round(in_calendar(at), 3), UTC)


def clock_text(at: float, now: float) -> str:
    """`14:32` today, `Fri 12:00` within six days, else a date."""
    then, today = time.localtime(in_calendar(at)), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if abs(at - now) < 6 * DAY:
        return time.strftime("%a %H:%M", then)
    return time.strftime("%Y-%m-%d" if abs(at - now) > 300 * DAY else "%b %d", then)


def stamp(at: float) -> str:
    """`2026-11-15 22:14:03`, local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(in_calendar(at)))


def start_text(at: float, now: float) -> str:
    """When a job will start: `now`, `at 11:40`, `tomorrow 09:15`, `Fri 12:00`, or a date."""
    if at <= now:
        return "now"
    clock = clock_text(at, now)
    if ":" in clock and " " not in clock:
        return f"at {clock}"
    if time.localtime(in_calendar(at))[:3] == time.localtime(now + DAY)[:3]:
        return f"tomorrow {clock[-5:]}"
    return clock


def midnight(now: float) -> float:
    """When today began, local time."""
    year, month, day, *_ = time.localtime(now)
    return time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))


_TICK_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080, 43200)


def tick_seconds(since: float, until: float, most: int) -> int:
    """The shortest even step that divides a period into at most about so many parts."""
    minutes = (until - since) / 60
    return 60 * next((step for step in _TICK_MINUTES if minutes / step <= max(1, most)), _TICK_MINUTES[-1])


def ticks(since: float, until: float, most: int) -> list[float]:
    """Even local times in a period, at most about so many."""
    step = tick_seconds(since, until, most)
    shift = time.localtime(since).tm_gmtoff
    first = ceil((since + shift) / step) * step - shift
    return [first + place * step for place in range(int((until - first) // step) + 1)]


class LocalZone(tzinfo):
    """The zone of the C library: TZ, or that of the system.

    datetime.astimezone() gives the offset of one moment, which is an hour off for half of the year.
    """

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Offset from UTC at a local time."""
        if moment is None:
            return None
        naive = moment.replace(tzinfo=None)
        return naive - datetime.fromtimestamp(naive.timestamp(), UTC).replace(tzinfo=None)

    def fromutc(self, moment: datetime) -> datetime:
        """The local time of a moment in UTC."""
        seconds = moment.replace(tzinfo=UTC).timestamp()
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Unknown: only the whole offset is used."""
        del moment
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """The abbreviation at a local time: CET, EDT."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()
