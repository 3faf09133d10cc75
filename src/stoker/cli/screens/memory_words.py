"""Want of GPU memory in plain words: what comes next for a job, and what a person could do."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.cli.screens.set_aside import VramMode
from stoker.core.device import Device
from stoker.core.fit import suits
from stoker.core.job import Active, Event, Exited, Job, is_better_alone
from stoker.core.units import size_text

GIB = 2**30


def vram_text(mode: VramMode, size: int | None) -> str:
    """`6.0G`, `auto` or `all`, as it was asked for."""
    return size_text(size) if mode == "size" else "-" if mode == "none" else mode


def sparing_text(job: Job, event: Exited) -> str:
    """Why company cost a job its attempt, and what is different the next time, or now that it runs again."""
    return f"{_what_happened(event)}; {_what_follows(job, event)}"


def consequence_text(job: Job, event: Exited) -> str:
    """The same for where there is little room: what is different comes first."""
    return f"{_what_follows(job, event)}; {_what_happened(event)}"


def last_mishap(events: Iterable[Event]) -> Exited | None:
    """The last attempt that company cost a job."""
    found = [event for event in events if isinstance(event, Exited) and event.cause and event.company]
    return found[-1] if found else None


def oom_advice(job: Job, event: Exited, had: Iterable[Device], devices: Iterable[Device], typed: str) -> str:
    """What may help a job that ran out of GPU memory for good; `had` is what it had of all devices."""
    retry = f"stoker retry{typed}"
    if event.company:
        return f"others on its GPU had that memory; try again alone: {retry} --vram all"
    largest = max((device.memory or 0 for device in had), default=0)
    larger = [device.memory or 0 for device in devices if suits(device, job.terms.need)]
    if largest and max(larger, default=0) > largest:
        return f"there are larger GPUs: {retry} --vram {largest // GIB + 1}G"
    return "needs a larger GPU, a smaller batch, or more GPUs (-G)"


def _what_happened(event: Exited) -> str:
    if event.cause == "fault":
        return "died of a fault that all clients of MPS were told"
    return "ran out of GPU memory beside others" if event.floor else "found the GPU's memory taken by others"


def _what_follows(job: Job, event: Exited) -> str:
    runs = isinstance(job.state, Active)
    if is_better_alone(job):
        return "now alone" if runs else "next time alone"
    again = "now" if runs else "again"
    if not event.floor:
        return f"{again} with as much set aside as before"
    return f"{again} with {size_text(max(job.floor, job.terms.need.memory or 0))} set aside"
