"""Times, sizes and mishaps in the words that screens use."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.amounts import VramMode
from stoker.core.device import Device
from stoker.core.job import Active, Event, Exited, Job, needs_exclusive
from stoker.core.planner.order import Standing, times_waited
from stoker.core.planner.placement import suits
from stoker.core.planner.reasons import rough_duration
from stoker.core.units import size_text

DAY = 86400.0
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


GIB = 2**30


def vram_text(mode: VramMode, size: int | None) -> str:
    """The requested GPU memory: `6.0G`, `auto`, `all`, or `-` for a job without GPU."""
    return size_text(size) if mode == "size" else "-" if mode == "none" else mode


def sparing_text(job: Job, event: Exited) -> str:
    """Why a job lost an attempt on a shared GPU, and what is different in the next one."""
    return f"{_what_happened(event)}; {_what_follows(job, event)}"


def consequence_text(job: Job, event: Exited) -> str:
    """The same, with what is different first: narrow screens cut the end off."""
    return f"{_what_follows(job, event)}; {_what_happened(event)}"


def last_mishap(events: Iterable[Event]) -> Exited | None:
    """The last attempt that the job lost because it shared a GPU."""
    found = [event for event in events if isinstance(event, Exited) and event.cause and event.shared]
    return found[-1] if found else None


def oom_advice(job: Job, event: Exited, had: Iterable[Device], devices: Iterable[Device], typed: str) -> str:
    """What to try for a job that finally failed with out of memory; `had` are the devices of its last attempt."""
    retry = f"stoker retry{typed}"
    if event.shared:
        return f"other processes on its GPU used the memory; retry on an exclusive GPU: {retry} --vram all"
    largest = max((device.memory or 0 for device in had), default=0)
    larger = [device.memory or 0 for device in devices if suits(device, job.spec.resources)]
    if largest and max(larger, default=0) > largest:
        return f"retry on a larger GPU: {retry} --vram {largest // GIB + 1}G"
    return "needs a larger GPU, a smaller batch, or more GPUs (-G)"


def _what_happened(event: Exited) -> str:
    if event.cause == "fault":
        return "killed by an MPS fault of a job on the same GPU"
    return "out of GPU memory while sharing" if event.floor else "GPU memory was taken by others"


def _what_follows(job: Job, event: Exited) -> str:
    runs = isinstance(job.state, Active)
    if needs_exclusive(job):
        return "now exclusive" if runs else "retrying exclusive"
    again = "now" if runs else "retrying"
    if not event.floor:
        return f"{again} with the same memory reserved"
    return f"{again} with {size_text(max(job.floor, job.spec.resources.memory or 0))} reserved"


def place_text(place: int, waiting: int, standing: Standing, now: float) -> str:
    """`place 4 of 31: waited 2h10 for about 40 min of work (3.2 times)`."""
    waited = rough_duration(max(0.0, now - standing.submitted))
    text = f"place {place} of {max(place, waiting)}: waited {waited}"
    if not standing.known:
        return text
    gpus = f"on {standing.gpus} GPUs" if standing.gpus > 1 else "of work"
    batch = f", counted {standing.batch + 1} times: {standing.batch} of its batch running" if standing.batch else ""
    return (
        f"{text} for about {rough_duration(standing.seconds)} {gpus}{batch} ({times_waited(standing, now):.1f} times)"
    )
