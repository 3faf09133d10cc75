"""Sizes, places and mishaps of jobs in the words that screens use."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.amounts import VramMode
from stoker.core.device import Device
from stoker.core.job import Active, Event, Exited, Job, needs_exclusive
from stoker.core.planner.order import QueuePosition, times_waited
from stoker.core.planner.placement import suits
from stoker.core.planner.reasons import rough_duration
from stoker.core.units import size_text

GIB = 2**30


def vram_text(mode: VramMode, size: int | None) -> str:
    """The requested GPU memory: `6.0G`, `auto`, `all`, or `-` for a job without GPU."""
    return size_text(size) if mode == "size" else "-" if mode == "none" else mode


def shared_failure_text(job: Job, event: Exited) -> str:
    """Why a job lost an attempt on a shared GPU, and what is different in the next one."""
    return f"{_shared_failure(event)}; {_next_try(job, event)}"


def retry_text(job: Job, event: Exited) -> str:
    """The same, with what is different first: narrow screens cut the end off."""
    return f"{_next_try(job, event)}; {_shared_failure(event)}"


def last_shared_failure(events: Iterable[Event]) -> Exited | None:
    """The last attempt that the job lost because it shared a GPU."""
    found = [event for event in events if isinstance(event, Exited) and event.cause and event.shared]
    return found[-1] if found else None


def oom_advice(job: Job, event: Exited, had: Iterable[Device], devices: Iterable[Device], typed: str) -> str:
    """Advice for a job that failed with out of memory at last; `had` are the devices of its last attempt."""
    retry = f"stoker retry{typed}"
    if event.shared:
        return f"other processes on its GPU used the memory; retry on an exclusive GPU: {retry} --vram all"
    largest = max((device.memory or 0 for device in had), default=0)
    larger = [device.memory or 0 for device in devices if suits(device, job.spec.resources)]
    if largest and max(larger, default=0) > largest:
        return f"retry on a larger GPU: {retry} --vram {largest // GIB + 1}G"
    return "needs a larger GPU, a smaller batch, or more GPUs (-G)"


def _shared_failure(event: Exited) -> str:
    if event.cause == "fault":
        return "killed by an MPS fault of a job on the same GPU"
    return "out of GPU memory while sharing" if event.floor else "GPU memory was taken by others"


def _next_try(job: Job, event: Exited) -> str:
    runs = isinstance(job.state, Active)
    if needs_exclusive(job):
        return "now exclusive" if runs else "retrying exclusive"
    again = "now" if runs else "retrying"
    if not event.floor:
        return f"{again} with the same memory reserved"
    return f"{again} with {size_text(max(job.floor, job.spec.resources.memory or 0))} reserved"


def place_text(place: int, waiting: int, standing: QueuePosition, now: float) -> str:
    """`place 4 of 31: waited 2h10 for about 40 min of work (3.2 times)`."""
    waited = rough_duration(max(0.0, now - standing.submitted))
    text = f"place {place} of {max(place, waiting)}: waited {waited}"
    if not standing.is_expected:
        return text
    gpus = f"on {standing.gpus} GPUs" if standing.gpus > 1 else "of work"
    batch = f", counted {standing.batch + 1} times: {standing.batch} of its batch running" if standing.batch else ""
    return (
        f"{text} for about {rough_duration(standing.seconds)} {gpus}{batch} ({times_waited(standing, now):.1f} times)"
    )
