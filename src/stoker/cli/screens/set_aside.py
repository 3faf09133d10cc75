"""How much of its GPUs is set aside for a job: by what it asks for, or by what was learnt of such work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from stoker.core.device import Device
from stoker.core.fit import suits
from stoker.core.job import Assigned, Edited, Event
from stoker.core.terms import Need, amount_on

VramMode = Literal["none", "all", "auto", "size"]


def mode_of(need: Need) -> VramMode:
    """How much GPU memory somebody asked for: a size, the whole card, or what is learnt."""
    if not need.gpus:
        return "none"
    return "auto" if need.auto else "all" if need.memory is None else "size"


def amount_now(need: Need | None, devices: Sequence[Device]) -> int | None:
    """Bytes on each of the devices that a job has; None is all of them, or nobody knows."""
    if need is None:
        return None
    return min(_amounts(need, devices), default=None) if devices else need.memory


def amount_to_come(need: Need, devices: Iterable[Device]) -> int | None:
    """Bytes on each GPU for one that waits, by the devices that it could have; None is all of it."""
    if not need.gpus:
        return None
    known = [device for device in devices if suits(device, need)]
    learnt = [size for _, size in need.predicted] if need.auto else []
    return max(_amounts(need, known) if known else learnt, default=need.memory)


def needs_of_attempts(events: Sequence[Event], need: Need) -> list[Need | None]:
    """What was set aside for each attempt of a job that now has this need; None where it was changed since."""
    asked = None if any(isinstance(event, Edited) for event in events) else need
    found: list[Need | None] = []
    for event in events:
        if isinstance(event, Edited):
            asked = event.terms.need
        elif isinstance(event, Assigned):
            found.append(event.need or asked)
    return found


def _amounts(need: Need, devices: Iterable[Device]) -> list[int]:
    return [amount for device in devices if (amount := amount_on(need, device)) is not None]
