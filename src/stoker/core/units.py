"""Sizes, durations and counts: from what people type to numbers, and back to what they read."""

from __future__ import annotations

import re

from stoker.core.errors import UsageError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORDS = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?[smhdw])+", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of `24G`, `512M`, `1.5GiB` or a plain number."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a size", "write it as 24G, 512M or 1.5G")
    return int(float(match[1]) * _FACTOR[match[2].upper()])


def size_text(size: int | None) -> str:
    """A size as people read it: `24.0G`, `512M`."""
    if size is None:
        return "?"
    for unit in ("T", "G"):
        if size >= _FACTOR[unit]:
            return f"{size / _FACTOR[unit]:.1f}{unit}"
    if size >= _FACTOR["M"]:
        return f"{size / _FACTOR['M']:.0f}M"
    return f"{size / _FACTOR['K']:.0f}K" if size >= 1024 else str(size)


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `1h30m`, `2d`, and of Slurm's `MM`, `MM:SS`, `HH:MM:SS` and `D-HH:MM:SS`."""
    stripped = text.strip()
    seconds = _word_seconds(stripped) if _WORDS.fullmatch(stripped) else _clock_seconds(stripped)
    if seconds is None or seconds <= 0:
        raise UsageError(f"{text!r} is not a duration", "write it as 90s, 1h30m, 2d or HH:MM:SS")
    return seconds


def _word_seconds(text: str) -> float:
    return sum(float(number) * _UNIT_SECONDS[unit.lower()] for number, unit in _WORD.findall(text))


def _clock_seconds(text: str) -> float | None:
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d\d))?(?::(\d\d))?", text, re.ASCII)
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
