"""The GPU memory that a job reserves: by its request, by the devices it has or may get, and in each attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from stoker.core.device import Device
from stoker.core.job import Assigned, Edited, Event
from stoker.core.spec import Resources, amount_on, suits

VramMode = Literal["none", "all", "auto", "size"]


def mode_of(resources: Resources) -> VramMode:
    """Which GPU memory was requested: a size, the whole card, or auto."""
    if not resources.gpus:
        return "none"
    return "auto" if resources.auto else "all" if resources.memory is None else "size"


def amount_now(resources: Resources | None, devices: Sequence[Device]) -> int | None:
    """Bytes reserved on each device of a job; None is all of them, or unknown."""
    if resources is None:
        return None
    return min(_amounts(resources, devices), default=None) if devices else resources.memory


def amount_to_come(resources: Resources, devices: Iterable[Device]) -> int | None:
    """Bytes to reserve on each GPU for a waiting job, by the devices that suit it; None is all of it."""
    if not resources.gpus:
        return None
    suited = [device for device in devices if suits(device, resources)]
    learnt = [size for _, size in resources.predicted] if resources.auto else []
    return max(_amounts(resources, suited) if suited else learnt, default=resources.memory)


def resources_of_attempts(events: Sequence[Event], resources: Resources) -> list[Resources | None]:
    """The resources of each attempt of a job that now asks for these; None for attempts before an edit."""
    asked = None if any(isinstance(event, Edited) for event in events) else resources
    reserved: list[Resources | None] = []
    for event in events:
        if isinstance(event, Edited):
            asked = event.spec.resources
        elif isinstance(event, Assigned):
            reserved.append(event.resources or asked)
    return reserved


def _amounts(resources: Resources, devices: Iterable[Device]) -> list[int]:
    return [amount for device in devices if (amount := amount_on(resources, device)) is not None]
