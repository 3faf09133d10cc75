"""Sizes, durations and times: parse what users type, format what screens show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo

from stoker.core.errors import UsageError

LAST_GPUS = "last"
"""The value of a plain `--sim`: the simulated GPUs of the last engine."""

_SIZE = r"(?ia)(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?"
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORDS = r"(?ia)(?:\d{1,9}(?:\.\d{1,9})?[smhdw])+(?:(?<=h)[0-5]\d)?"
_WORD = r"(?ia)(\d+(?:\.\d+)?)([smhdw])"


def parse_size(text: str) -> int:
    """Bytes of `24G`, `512M`, `1.5GiB` or a plain number."""
    match = re.fullmatch(_SIZE, text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a size", "write it as 24G, 512M or 1.5G")
    return int(float(match[1]) * _FACTOR[match[2].upper()])


def size_text(size: int | None) -> str:
    """A size as text: `24.0G`, `512M`."""
    if size is None:
        return "?"
    for unit in ("T", "G"):
        if size >= _FACTOR[unit]:
            return f"{size / _FACTOR[unit]:.1f}{unit}"
    if size >= _FACTOR["M"]:
        return f"{size / _FACTOR['M']:.0f}M"
    return f"{size / _FACTOR['K']:.0f}K" if size >= 1024 else str(size)


def short_size(size: int) -> str:
    """`40G`, `6.9G`."""
    return f"{size / _FACTOR['G']:.1f}".removesuffix(".0") + "G"


def amount_text(used: int | None, total: int) -> str:
    """`34.1/40G`."""
    shown = "?" if used is None else f"{used / _FACTOR['G']:.1f}"
    return f"{shown}/{short_size(total)}"


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `1h30m`, `2h10`, `2d`, and of Slurm's `MM`, `MM:SS`, `HH:MM:SS` and `D-HH:MM:SS`."""
    stripped = text.strip()
    seconds = _word_seconds(stripped) if re.fullmatch(_WORDS, stripped) else _clock_seconds(stripped)
    if seconds is None or seconds <= 0:
        raise UsageError(f"{text!r} is not a duration", "write it as 90s, 1h30m, 2d or HH:MM:SS")
    return seconds


def _word_seconds(text: str) -> float:
    complete = text if text[-1].isalpha() else f"{text}m"  # 2h10, as screens write it
    return sum(float(number) * _UNIT_SECONDS[unit.lower()] for number, unit in re.findall(_WORD, complete))


def _clock_seconds(text: str) -> float | None:
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::([0-5]\d))?(?::([0-5]\d))?", text, re.ASCII)
    if not match:
        return None
    days, first, second, third = (int(group) if group else 0 for group in match.groups())
    if match[1]:
        return days * 86400.0 + first * 3600 + second * 60 + third
    if match[4]:
        return first * 3600.0 + second * 60 + third
    return first * 60.0 + second


def duration_text(seconds: float) -> str:
    """A duration as a clock: `00:41`, `1:12:03`, `2d 03:00:00`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes:02}:{secs:02}"


def count_text(count: int, singular: str, plural: str = "") -> str:
    """`1 job`, `3 jobs`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


_BEGIN_HINT = "write it as now+1hour, 22:00, tomorrow, fri 18:00 or 2026-11-15T22:00"
_SINCE_HINT = "write it as 2h, 1d, 08:00, yesterday or 2026-11-15"
_YEARS = range(1970, 9987)
"""Outside of these, datetime fails for some time zones."""

LATEST = 253_000_000_000.0
"""A time late in those years; later ones are not a date in every time zone."""


def in_calendar(at: float) -> float:
    """The nearest time that is a date: files may contain any number."""
    return at if 0 <= at <= LATEST else LATEST if at > LATEST else 0.0


_RELATIVE_UNIT_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}

_NAMED_TIMES = {"midnight": time(0), "noon": time(12), "fika": time(15), "teatime": time(16)}
_NAMED_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_STEP = r"(?a)(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)\s*"
_CLOCK = r"(?a)(\d{1,2}):(\d\d)(?::(\d\d))?\s*([ap]m)?"
_DAY = r"(?a)([a-z]+|\d{4}-\d\d-\d\d)(?:(?:t|\s)\s*(\S.*))?"
_ISO = r"(?a)\d{4}-?\d\d-?\d\d(?:(?:t|\s)[\d:.,]+\s*(?:z|[+-][\d:]+)?)?"


def parse_moment(text: str, now: float, zone: tzinfo) -> float:
    """Seconds since the epoch of `now+1hour`, `+2h`, `22:00`, `tomorrow`, `fri 18:00` or an ISO 8601 date or time.

    A time of day or a day of the week is the next one; a day begins at midnight.
    """
    typed = text.strip().lower()
    moment = _from_now(typed, now)
    if moment is None:
        moment = min((near for near in _times_around(typed, now, zone) if near >= now), default=None)
    if moment is None:
        moment = _on_a_weekday(typed, now, zone)
    return _checked(_on_a_day(typed, now, zone) if moment is None else moment, text, _BEGIN_HINT)


def parse_since(text: str, now: float, zone: tzinfo) -> float:
    """Seconds since the epoch of `2h` or `1d` ago, of the last such time of day, or of an ISO 8601 date or time."""
    typed = text.strip().lower()
    ago = _seconds(re.sub(r"^now\s*-|\sago$", "", typed))  # `2h`, `2 hours ago` or Slurm's `now-2hours`
    moment = None if ago is None else max(0.0, now - ago)
    if moment is None:
        moment = max((near for near in _times_around(typed, now, zone) if near <= now), default=None)
    return _checked(_on_a_day(typed, now, zone) if moment is None else moment, text, _SINCE_HINT)


def _checked(moment: float | None, text: str, hint: str) -> float:
    if moment is None:
        raise UsageError(f"{text[:60]!r} is not a time", hint)
    if not 0 <= moment <= LATEST:
        raise UsageError(f"{text[:60]!r} is too far away", hint)
    return moment


def _from_now(typed: str, now: float) -> float | None:
    """`now`, `now+1hour` or `+2h`; a number without a unit is seconds, as in Slurm."""
    sign, plus, rest = typed.partition("+")
    if sign.strip() not in ("", "now") or not (sign or plus):
        return None
    seconds = _seconds(f"{rest}s" if rest.strip().isdecimal() else rest) if plus else 0.0
    return None if seconds is None else now + seconds


def _seconds(steps: str) -> float | None:
    """The sum of `1h30m` or `2 days`; None for other text."""
    parts = re.findall(_STEP, steps)
    if not parts or re.sub(_STEP, "", steps).strip() or any(unit not in _RELATIVE_UNIT_SECONDS for _, unit in parts):
        return None
    return sum(float(count) * _RELATIVE_UNIT_SECONDS[unit] for count, unit in parts)


def _times_around(typed: str, now: float, zone: tzinfo) -> Iterator[float]:
    """That time of day yesterday, today and tomorrow."""
    clock = _time_of_day(typed)
    if clock is not None:
        for days in (-1, 0, 1):
            yield from _moments(_day(now, zone, days), clock, zone)


def _on_a_day(typed: str, now: float, zone: tzinfo) -> float | None:
    """A day by name or date, with or without a time, or any other form of ISO 8601."""
    match = re.fullmatch(_DAY, typed)
    day = _day_named(match[1], now, zone) if match else None
    clock = _time_of_day(match[2] or "midnight") if match else None
    if day is not None and clock is not None:
        return next(_moments(day, clock, zone))
    moment = _iso(typed)
    return None if moment is None else (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def _on_a_weekday(typed: str, now: float, zone: tzinfo) -> float | None:
    """`friday 18:00` or `fri 18:00`: the next such time, in a week if it is over today."""
    word, _, rest = typed.partition(" ")
    clock = _time_of_day(rest.strip() or "midnight")
    number = next((number for number, day in enumerate(_WEEKDAYS) if word in (day, day[:3])), None)
    if number is None or clock is None:
        return None
    days = (number - _day(now, zone, 0).weekday()) % 7
    near = (moment for ahead in (days, days + 7) for moment in _moments(_day(now, zone, ahead), clock, zone))
    return next((moment for moment in near if moment >= now), None)


def _day_named(word: str, now: float, zone: tzinfo) -> date | None:
    if word in _NAMED_DAYS:
        return _day(now, zone, _NAMED_DAYS[word])
    moment = _iso(word)
    return None if moment is None else moment.date()


def _day(now: float, zone: tzinfo, days: int) -> date:
    return datetime.fromtimestamp(now, zone).date() + timedelta(days=days)


def _time_of_day(typed: str) -> time | None:
    if typed in _NAMED_TIMES:
        return _NAMED_TIMES[typed]
    match = re.fullmatch(_CLOCK, typed)
    if not match:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "pm" else 0) if 1 <= hour <= 12 else 24
    return time(hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _moments(day: date, clock: time, zone: tzinfo) -> Iterator[float]:
    """That time on that day: twice in the hour that repeats when summer time ends.

    In the hour that is skipped when summer time begins, it is later by the length of the skip.
    """
    first, second = (datetime.combine(day, clock, zone).replace(fold=fold).timestamp() for fold in (0, 1))
    yield first
    if second > first:
        yield second


def _iso(typed: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(typed.upper()) if re.fullmatch(_ISO, typed) else None
    except ValueError:
        return None
    return moment if moment and moment.year in _YEARS else None


_SMALLEST_DEVICE = 2**20


def parse_sim(spec: str) -> list[tuple[int, int]]:
    """Count and bytes of each group in `2x80G,4x24G`."""
    groups = [_group(part.strip().lower()) for part in spec.split(",")]
    if not all(count and size >= _SMALLEST_DEVICE for count, size in groups):
        hint = "write COUNTxMEMORY, for example 4x24G, or 2x80G,4x24G for two kinds"
        raise UsageError(f"{spec!r} is not a description of simulated GPUs", hint)
    return groups


def device_sizes(spec: str) -> list[int]:
    """Bytes of each simulated device, by its index."""
    return [size for count, size in parse_sim(spec) for _ in range(count)]


def sim_text(sizes: Iterable[int]) -> str:
    """The shortest text that describes such devices: `4x24G`."""
    groups = Counter(size_text(size).replace(".0", "") for size in sizes)
    return ",".join(f"{count}x{size}" for size, count in groups.items()) or "no GPU"


def _group(text: str) -> tuple[int, int]:
    count, _, size = text.partition("x")
    if not (is_number(count) and len(count) <= 3 and 0 < len(size) <= 12):
        return 0, 0
    return int(count), parse_size(size)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


DAY = 86400.0
"""Seconds."""
_SPANS = (("d", DAY), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def span_text(seconds: float) -> str:
    """`3d 2h`, `2h`, `5m`: the largest unit, and the next one for days."""
    whole = max(0.0, seconds)
    if whole >= DAY:
        days, rest = divmod(whole, DAY)
        return f"{days:.0f}d {rest // 3600:.0f}h"
    return next((f"{whole // size:.0f}{unit}" for unit, size in _SPANS if whole >= size), "0s")


def ago_text(at: float, now: float) -> str:
    """`2h ago`."""
    return f"{span_text(now - at)} ago"


def watch_text(seconds: float) -> str:
    """Elapsed time: `1:12:03`; with days as Slurm writes them: `2-03:00:00`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}{clock[clock.index(':') :]}" if days else clock


def left_text(seconds: float) -> str:
    """Time left: `8s`, `3m`, `2h10`, `3d4h`."""
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole}s" if whole < 60 else f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02}" if hours < 24 else f"{hours // 24}d{hours % 24}h"
