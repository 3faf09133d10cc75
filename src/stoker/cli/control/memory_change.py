"""More GPU memory for a job that runs again: a size, all of it, what is learnt, or more than the last time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stoker.cli.screens.set_aside import amount_now, needs_of_attempts
from stoker.core.device import Device
from stoker.core.errors import UsageError
from stoker.core.job import Job
from stoker.core.terms import Need
from stoker.core.units import size_text
from stoker.options import parse_vram, vram_word
from stoker.store import Reading


class LastTime(NamedTuple):
    """What the last attempt of a job had of each GPU; None is all of it, or what nobody has seen."""

    set_aside: int | None = None
    peak: int | None = None
    needed: int = 0
    """Bytes that it needs at least, as an end for want of memory showed."""


class Base(NamedTuple):
    """What is to grow, and what that was."""

    size: int
    words: str


def last_time(store: Reading, job: Job, devices: Sequence[Device]) -> LastTime:
    """What a job had the last time, by the devices that are known."""
    attempts, uses = store.attempts(job.id), store.uses(job.id)
    if not attempts:
        return LastTime(needed=job.floor)
    had = [device for device in devices if device.id in attempts[-1].devices]
    need = needs_of_attempts(store.events(job.id), job.terms.need)[-1]
    peak = uses[max(uses)].peak if uses else 0
    return LastTime(amount_now(need, had), peak or None, job.floor)


def changed_need(need: Need, text: str, before: LastTime) -> tuple[Need, str]:
    """The need with another amount of memory on each GPU, and how that came about in words."""
    if word := vram_word(text):
        said = "memory as learnt" if word == "auto" else "whole GPUs"
        return replace(need, memory=None, auto=word == "auto"), said
    if not text.startswith("+"):
        size, why = parse_vram(text), ""
    else:
        base = _base(need, before)
        size, why = _grown(base.size, text[1:]), f", {text[1:]} more than {base.words}" if base.words else ""
    return replace(need, memory=size, auto=False), f"{size_text(size)} on each GPU{why}"


def _base(need: Need, before: LastTime) -> Base:
    """What was asked for; more where it had more, or what it had where that was learnt."""
    set_aside, peak = before.set_aside or 0, before.peak or 0
    if need.shares and before.needed > max(need.memory or 0, set_aside, peak):
        return Base(before.needed, f"the {size_text(before.needed)} that it needs at least")
    if need.memory is not None and need.memory >= set_aside:
        return Base(need.memory, "")
    if not need.shares:
        raise UsageError("it has whole GPUs already, so there is nothing to add to", "give a size, such as --vram 12G")
    if not set_aside and not peak:
        raise UsageError("nobody knows how much memory it took", "give a size, such as --vram 12G")
    if set_aside >= peak:
        return Base(set_aside, f"the {size_text(set_aside)} set aside last time")
    return Base(peak, f"the {size_text(peak)} it held at most last time")


def _grown(size: int, more: str) -> int:
    if not more.endswith("%"):
        return size + parse_vram(more)
    try:
        return parse_vram(f"{int(size * (1 + float(more[:-1]) / 100))}B")
    except (ValueError, OverflowError):
        raise UsageError(f"--vram +{more} is not understood", "write it as +20%, +2G or 12G") from None
