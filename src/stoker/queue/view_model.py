"""The data behind status, live display and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Assigned, Edited, Event
from stoker.core.planner.placement import suits
from stoker.core.spec import Resources, amount_on

VramMode = Literal["none", "all", "auto", "size"]


def mode_of(resources: Resources) -> VramMode:
    """How much GPU memory somebody asked for: a size, the whole card, or what is learnt."""
    if not resources.gpus:
        return "none"
    return "auto" if resources.auto else "all" if resources.memory is None else "size"


def amount_now(resources: Resources | None, devices: Sequence[Device]) -> int | None:
    """Bytes on each of the devices that a job has; None is all of them, or nobody knows."""
    if resources is None:
        return None
    return min(_amounts(resources, devices), default=None) if devices else resources.memory


def amount_to_come(resources: Resources, devices: Iterable[Device]) -> int | None:
    """Bytes on each GPU for one that waits, by the devices that it could have; None is all of it."""
    if not resources.gpus:
        return None
    known = [device for device in devices if suits(device, resources)]
    learnt = [size for _, size in resources.predicted] if resources.auto else []
    return max(_amounts(resources, known) if known else learnt, default=resources.memory)


def resources_of_attempts(events: Sequence[Event], resources: Resources) -> list[Resources | None]:
    """What was set aside for each attempt of a job that now has this need; None where it was changed since."""
    asked = None if any(isinstance(event, Edited) for event in events) else resources
    found: list[Resources | None] = []
    for event in events:
        if isinstance(event, Edited):
            asked = event.spec.resources
        elif isinstance(event, Assigned):
            found.append(event.resources or asked)
    return found


def _amounts(resources: Resources, devices: Iterable[Device]) -> list[int]:
    return [amount for device in devices if (amount := amount_on(resources, device)) is not None]


JobWord = Literal[
    "queued",
    "held",
    "blocked",
    "scheduled",
    "starting",
    "running",
    "stopping",
    "done",
    "failed",
    "oom",
    "timeout",
    "cancelled",
    "skipped",
    "lost",
]

LETTERS: dict[JobWord, str] = {
    "queued": "PD",
    "held": "PD",
    "blocked": "PD",
    "scheduled": "PD",
    "starting": "CF",
    "running": "R",
    "stopping": "CG",
    "done": "CD",
    "failed": "F",
    "oom": "OOM",
    "timeout": "TO",
    "cancelled": "CA",
    "skipped": "CA",
    "lost": "NF",
}
"""The words of Slurm's squeue for the same."""


class Mark(Struct, frozen=True):
    """Something that somebody set, since when."""

    note: str
    since: datetime | None = None


class EngineLine(Struct, frozen=True):
    """The engine in the background."""

    running: bool
    pid: int | None = None
    version: str = ""
    since: datetime | None = None
    seen: datetime | None = None
    """When it showed what is told of devices and reasons."""
    trouble: str = ""
    draining: bool = False
    paused: Mark | None = None
    silence: str = ""
    """What to know where it lives but does not answer, so that what it showed is old."""


class ForeignProcess(Struct, frozen=True):
    """A process on a device that is none of our jobs."""

    pid: int
    owner: str
    command: str
    memory_bytes: int | None
    graphics: bool = False


class LeaseLine(Struct, frozen=True):
    """What another user, or another queue, has claimed of a device."""

    owner: str
    pid: int
    what: str
    memory_bytes: int | None
    """None is all of it."""
    since: datetime


class DeviceLine(Struct, frozen=True):
    """One device, and who has what of it."""

    id: str
    label: str
    model: str
    kind: str
    memory_bytes: int | None
    used_bytes: int | None
    """By anybody, as the driver says."""
    ours_bytes: int
    """By our jobs."""
    reserved_bytes: int
    """By our jobs, whether they use it or not."""
    others_bytes: int
    """Used or claimed by anybody else."""
    utilisation_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    problem: str
    drained: Mark | None
    jobs: list[str]
    leases: list[LeaseLine]
    strangers: list[ForeignProcess]
    combined_speed: float | None = None
    """What our jobs on it do together, in parts of what one does alone; null where there is one, or nobody can tell."""


class JobLine(Struct, frozen=True):
    """A job, or several tasks of an array that wait alike."""

    id: int
    label: str
    """As it is typed: `3`, `12.3`; `12.[3-99]` stands for several."""
    tasks: int
    name: str
    command: str
    state: JobWord
    group: str
    priority: int
    gpus: int
    devices: list[str]
    vram_bytes: int | None
    """Asked for on each GPU; null is all of it, or what is learnt."""
    used_bytes: int | None
    """In use on all its GPUs together, where that can be told."""
    submitted: datetime
    started: datetime | None
    seconds: float | None
    """How long it has been running."""
    limit_seconds: float | None
    expected_start: datetime | None
    expected_end: datetime | None
    why: str
    """Why it waits, in words."""
    run: str
    """The foreground run that it belongs to; empty where it is the queue's."""
    hook: bool = False
    vram_mode: VramMode = "all"
    """How much was asked for on each GPU: a size, the whole card, or what is learnt."""
    reserved_bytes: int | None = None
    """Set aside on each GPU, for one that waits if it started now; null is all of it."""
    held_bytes: int | None = None
    """In use on the GPU of which it has most, now..."""
    peak_vram_bytes: int | None = None
    """... and at most so far, or in its last attempt."""
    utilisation_percent: int | None = None
    """How busy it kept its GPUs on average while it had them to itself."""
    speed: float | None = None
    """In parts of its speed alone, where it shares a GPU and its log tells."""


class Counts(Struct, frozen=True):
    """How many jobs are where."""

    active: int
    waiting: int
    held: int


class Status(Struct, frozen=True):
    """The queue: `stoker status --json`."""

    schema: str
    at: datetime
    host: str
    version: str
    simulated: bool
    engine: EngineLine
    devices: list[DeviceLine]
    jobs: list[JobLine]
    counts: Counts
    hidden: Counts
    """Those of the counts that are not among the jobs."""
    today: dict[str, int]
    """How many jobs ended since midnight, by how they ended."""
    expected_empty: datetime | None
    notes: list[str]


def moment(at: float | None) -> datetime | None:
    """Seconds since the epoch as a moment."""
    return None if at is None else exactly(at)


def exactly(at: float) -> datetime:
    """The same for a moment that is known."""
    return datetime.fromtimestamp(round(at, 3), UTC)
