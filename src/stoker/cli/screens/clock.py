"""Moments and spans as a person reads them on a screen."""

from __future__ import annotations

import time

DAY = 86400.0
_SPANS = (("d", DAY), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def clock_text(at: float, now: float) -> str:
    """`14:32` where it is today, with as much of a date as is needed elsewhere."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if abs(at - now) < 6 * DAY:
        return time.strftime("%a %H:%M", then)
    return time.strftime("%Y-%m-%d" if abs(at - now) > 300 * DAY else "%b %d", then)


def stamp(at: float) -> str:
    """`2026-11-15 22:14:03`, here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


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
    """Hours, minutes and seconds that have passed: `1:12:03`, `2-03:00:00` with days as Slurm writes them."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}{clock[clock.index(':') :]}" if days else clock


def left_text(seconds: float) -> str:
    """Hours and minutes that are left: `0:31`, with days where there are any; less than a minute is `0:00`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}"
    return f"{days}d{clock}" if days else clock


def midnight(now: float) -> float:
    """When today began, here."""
    year, month, day, *_ = time.localtime(now)
    return time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))
