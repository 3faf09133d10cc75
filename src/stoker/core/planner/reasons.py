"""Reasons for waiting as data, and their sentences for all screens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.spec import Dependency, Name, Resources, awaited_text, suits
from stoker.core.units import count_text, size_text


class Crowded(Struct, frozen=True, tag="crowded"):
    """Fewer devices are free than the job needs."""

    needed: int
    free: int
    first_to_end: int | None = None
    """The running job that ends first, if known."""
    unmeasured: bool = False
    """Whether it needs exclusive devices only for its first run, which measures its memory."""


class MemoryShort(Struct, frozen=True, tag="memory_short"):
    """No allowed device has enough free memory for the job."""

    needed: int
    most_free: int
    device: str
    first_to_end: int | None = None


class TooBusy(Struct, frozen=True, tag="too_busy"):
    """There is enough memory, but the load of the jobs together would exceed the bound."""

    device: str
    load: int
    """Percent, with the job."""
    bound: int
    first_to_end: int | None = None


class KeptFree(Struct, frozen=True, tag="kept_free", omit_defaults=True):
    """Devices are free, but reserved for a job that goes first."""

    job: int
    gpus: int
    start: float | None = None
    """When that job can start, if limits and history tell."""


class Outranked(Struct, frozen=True, tag="outranked"):
    """Another waiting job goes first."""

    job: int
    by: Literal["priority", "overdue", "waited", "smaller", "alike", "older", "shorter"]
    theirs: float = 0.0
    """The value by which the other job goes first: its priority, its waiting time as a multiple of its work, or
    seconds."""
    ours: float = 0.0
    """The same value of our job."""
    batch: int = 0
    """How many jobs of our batch are running, if that decides."""


class UnknownDuration(Struct, frozen=True, tag="unknown_duration"):
    """Neither a limit nor history tells how long a job takes, so a default counts."""

    seconds: float
    gpus: int


class Leased(Struct, frozen=True, tag="leased"):
    """Another engine, of this or another user, holds the devices."""

    device: str
    owner: str
    what: str = ""
    gpus: int = 1
    """How many suitable devices other engines hold."""
    short: MemoryShort | TooBusy | None = None
    """The memory or load that a sharing job lacks beside that lease."""
    owners: tuple[tuple[str, int], ...] = ()
    """All users who hold some, with their number, if there are several."""
    until: float | None = None
    """When the first of the devices is free at the latest, if limits tell."""


class Occupied(Struct, frozen=True, tag="occupied"):
    """A foreign process without a lease is on the device."""

    device: str
    who: str
    memory: int | None = None
    stale: bool = False
    """Whether it has long been still, so that a job that states its memory could share the device."""


class Draining(Struct, frozen=True, tag="draining"):
    """The last job has ended, but the driver has not freed its memory yet."""

    device: str


class Booked(Struct, frozen=True, tag="booked", omit_defaults=True):
    """Another user has booked the device, from now or for later."""

    device: str
    owner: str
    since: float
    until: float
    why: str = ""
    later: bool = False
    """Whether the device is free until then, but the job may not end in time."""
    unlimited: bool = False
    """Whether neither a limit nor history tells how long the job takes."""


class Unusable(Struct, frozen=True, tag="unusable"):
    """The device is lost, forbidden, or cannot be read."""

    device: str
    problem: str


class Yields(Struct, frozen=True, tag="gives_way"):
    """A device is free, but left to another engine whose demand goes first."""

    owner: str
    """Empty for another engine of the same user."""
    why: Literal["used less", "waited longer"] = "used less"


class Unclaimable(Struct, frozen=True, tag="unclaimable"):
    """Devices may be free, but the ledger cannot be used, so none can be claimed."""

    problem: str


class MaxUse(Struct, frozen=True, tag="max_use", omit_defaults=True):
    """The user's limit --max-use is reached, or the one that the administrator set."""

    limit: int
    rule: str = ""
    """The name of the administrator's limit."""


class WeekUsed(Struct, frozen=True, tag="week_used"):
    """The user has had all GPU-hours of this week that the administrator allows."""

    limit: int
    hours: float
    until: float
    """When the next week begins."""
    rule: str


class MinFree(Struct, frozen=True, tag="min_free"):
    """The user's --min-free leaves these GPUs to others."""

    limit: int


class AtLimit(Struct, frozen=True, tag="at_limit"):
    """The user's limit of running jobs (-j) is reached."""

    limit: int


class CapFull(Struct, frozen=True, tag="cap_full"):
    """The limit of its group, array or kind of jobs is reached."""

    name: str
    limit: int


class QueuePaused(Struct, frozen=True, tag="queue_paused"):
    """The queue is paused."""

    note: str


class Drained(Struct, frozen=True, tag="drained"):
    """A user drained the device."""

    device: str
    note: str


class HeldBack(Struct, frozen=True, tag="held_back"):
    """A user holds the job."""

    note: str


class NotBefore(Struct, frozen=True, tag="not_before"):
    """Its --begin has not come yet (seconds since the epoch)."""

    at: float


class Behind(Struct, frozen=True, tag="behind"):
    """Other jobs have to end first."""

    dependencies: tuple[Dependency, ...]


class OutOfResources(Struct, frozen=True, tag="short"):
    """The machine is short of something without which no process can be started, or a disk does not work."""

    problem: str


class InCluster(Struct, frozen=True, tag="in_cluster"):
    """The job waits for the scheduler of a cluster."""

    since: float | None
    """When it was handed over; None if it was not yet."""
    words: str
    expected: float | None = None
    """When the scheduler expects to start it."""


class NeverFits(Struct, frozen=True, tag="never_fits"):
    """The machine does not have what the job asks for."""

    sentence: str


Reason = (
    Crowded
    | MemoryShort
    | TooBusy
    | KeptFree
    | Outranked
    | UnknownDuration
    | Leased
    | Occupied
    | Draining
    | Drained
    | Booked
    | Unusable
    | Yields
    | Unclaimable
    | MaxUse
    | WeekUsed
    | MinFree
    | AtLimit
    | CapFull
    | QueuePaused
    | HeldBack
    | NotBefore
    | Behind
    | OutOfResources
    | InCluster
    | NeverFits
)


def sentence(reason: Reason, moment: Callable[[float], str] = str, name: Name = str) -> str:
    """The sentence of a reason; `moment` formats a time in the local zone, `name` a job id as users type it."""
    match reason:
        case Crowded(needed, free, first, unmeasured):
            gpus = count_text(needed, "GPU")
            needs = f"first run needs {gpus} to itself (measuring memory)" if unmeasured else f"needs {gpus}"
            return f"{needs}; {free or 'none'} free{_ends_first(first, name)}"
        case MemoryShort(needed, most_free, device, first):
            most = f"most free is {size_text(most_free)} (GPU {device})"
            return f"needs {size_text(needed)}; {most}{_ends_first(first, name)}"
        case TooBusy(device, load, bound, first):
            return f"would load GPU {device} to {load}% (limit {bound}%){_ends_first(first, name)}"
        case KeptFree(job, gpus, start):
            needs = f" (needs {gpus})" if gpus > 1 else ""
            then = "" if start is None else f" from {moment(start)}; this job may not finish by then"
            return f"free GPUs are reserved for #{name(job)}{needs}{then}"
        case NeverFits(text) | Unclaimable(text):
            return text
        case InCluster(since, words, expected):
            begun = words if since is None else f"in Slurm since {moment(since)}: {words}"
            return begun if expected is None else f"{begun}; expected {moment(expected)}"
        case MaxUse() | WeekUsed() | MinFree():
            return _of_a_limit(reason, moment)
        case Outranked() | UnknownDuration():
            return _of_the_order(reason, name)
        case Leased() | Occupied() | Draining() | Drained() | Booked() | Unusable() | Yields():
            return _of_a_device(reason, moment)
        case _:
            return _of_the_queue(reason, moment, name)


def _of_a_device(
    reason: Leased | Occupied | Draining | Drained | Booked | Unusable | Yields, moment: Callable[[float], str]
) -> str:
    match reason:
        case Leased():
            return _leased(reason, moment)
        case Occupied(device, who, memory, stale):
            hint = ", long idle; a job with -m SIZE could share it" if stale else ""
            return f"GPU {device} is in use by {who}" + (f" ({size_text(memory)})" if memory else "") + hint
        case Draining(device):
            return f"GPU {device} has not yet released the memory of its last job"
        case Drained(device, note):
            return f"GPU {device} is {note}"
        case Booked():
            return _booked(reason, moment)
        case Unusable(device, problem):
            return f"GPU {device}: {problem}"
        case Yields(owner, why):
            return (
                f"{owner} is ahead ({why}{' recently' * (why == 'used less')})"
                if owner
                else "your older run goes first"
            )


def _booked(reason: Booked, moment: Callable[[float], str]) -> str:
    lasts = rough_duration(reason.until - reason.since)
    words = f"GPU {reason.device} is booked by {reason.owner} from {moment(reason.since)} for {lasts}"
    why = f": {reason.why}" if reason.why else ""
    hint = " (set a limit with -t)" if reason.unlimited else ""
    return f"{words}{why}{f'; this job may not end by then{hint}' if reason.later else ''}"


def _leased(reason: Leased, moment: Callable[[float], str]) -> str:
    held = f"{reason.gpus} GPUs are" if reason.gpus > 1 else f"GPU {reason.device} is"
    words = f"{sentence(reason.short)}; shared with" if reason.short else f"{held} held by"
    what = f" ({reason.what})" if reason.what else ""
    who = ", ".join(f"{owner} ({gpus})" for owner, gpus in reason.owners) or f"{reason.owner}{what}"
    if reason.until is None or reason.short:
        return f"{words} {who}"
    return f"{words} {who}; {'the first is ' * (reason.gpus > 1)}free by {moment(reason.until)} at the latest"


def _of_the_order(reason: Outranked | UnknownDuration, name: Name) -> str:
    if isinstance(reason, UnknownDuration):
        gpus = f" on {reason.gpus} GPUs" if reason.gpus > 1 else ""
        return f"its duration is unknown and counts as {rough_duration(reason.seconds)}{gpus} (set it with -t)"
    return f"job {name(reason.job)} goes first: {_advantage(reason)}"


def _advantage(reason: Outranked) -> str:
    theirs, ours = reason.theirs, reason.ours
    match reason.by:
        case "priority":
            return f"priority {theirs:.0f}, this job {ours:.0f}"
        case "overdue":
            return f"it has waited more than {theirs / 86400:.0f} days"
        case "waited":
            running = f"; {count_text(reason.batch, 'job')} of its batch running" if reason.batch else ""
            return f"it has waited {_times(theirs)} its expected work, this job {_times(ours)}{running}"
        case "smaller":
            return "it needs less GPU time, and both are new"
        case "alike":
            return "it is older and takes about as long"
        case "older":
            return "it is older"
        case "shorter":
            return "it is shorter or older"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def rough_duration(seconds: float) -> str:
    """`40s`, `30 min`, `2h10`, `3d 4h`: as exact as an estimate is."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f}s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}" if minutes else f"{hours}h"
    return f"{hours // 24}d {hours % 24}h"


def _of_a_limit(reason: MaxUse | WeekUsed | MinFree, moment: Callable[[float], str]) -> str:
    match reason:
        case MaxUse(limit, rule):
            return f"{count_text(limit, 'GPU')} in use ({rule or 'limit --max-use'})"
        case WeekUsed(limit, hours, until, rule):
            return f"{hours:.1f} of {limit} GPU-hours of this week are used ({rule}); it ends {moment(until)}"
        case MinFree(limit):
            return f"{count_text(limit, 'GPU')} left free for others (--min-free)"


def _of_the_queue(
    reason: AtLimit | CapFull | QueuePaused | HeldBack | NotBefore | Behind | OutOfResources,
    moment: Callable[[float], str],
    name: Name,
) -> str:
    match reason:
        case AtLimit(limit):
            return f"limit of {limit} running jobs reached (-j)"
        case CapFull(kind, limit):
            return _cap_text(kind, limit)
        case QueuePaused(note):
            return f"the queue is {note}"
        case HeldBack(note):
            return note or "held"
        case NotBefore(at):
            return f"begins {moment(at)}"
        case OutOfResources(problem):
            return f"{problem}; retrying soon"
        case Behind(dependencies):
            return "waiting for " + ", ".join(awaited_text(dependency, name) for dependency in dependencies)


def _cap_text(name: str, limit: int) -> str:
    kind, _, which = name.partition(" ")
    if kind == "group":
        return f"group '{which}' is at its limit ({limit} running)"
    return f"{'array' if kind == 'array' else name} limit reached ({limit} of {limit} running)"


def _ends_first(job: int | None, name: Name) -> str:
    return f"; #{name(job)} ends first" if job is not None else ""


# -- jobs that can never start --------------------------------------------------------------------


def most_at_once(devices: Iterable[Device]) -> int:
    """How many of the devices one job could hold at once."""
    count = 0
    claimed: set[str] = set()
    for device in sorted(devices, key=lambda device: len(device.claims)):
        if claimed.isdisjoint(device.claims):
            count += 1
            claimed.update(device.claims)
    return count


def never_fits(
    resources: Resources, devices: Sequence[Device], max_use: int | None = None, min_free: int = 0
) -> str | None:
    """Why these devices can never meet the resources, or not within the limits, in one sentence; None if they can."""
    allowed = [device for device in devices if not resources.allowed or device.id in resources.allowed]
    suited = [device for device in allowed if suits(device, resources)]
    there = {device.id for device in suited}.issuperset(resources.required)
    if there and (resources.gpus <= min(1, len(suited)) or most_at_once(suited) >= resources.gpus):
        return _beyond_limits(resources.gpus, devices, max_use, min_free)
    ids = {device.id for device in devices}
    if unknown := [name for name in resources.allowed + resources.required if name not in ids]:
        return f"no device {', '.join(unknown)}; known devices: {_labels(devices)}"
    if allowed and not any(resources.model in device.model.lower() for device in allowed):
        models = sorted({device.model for device in allowed if device.model})
        return f"needs a GPU of type {resources.model!r}; available: {', '.join(models) or 'none of known type'}"
    if allowed and not suited:
        largest = max(device.memory or 0 for device in allowed)
        return f"needs {size_text(resources.memory)} on a GPU; the largest has {size_text(largest)}"
    return _too_few(resources, most_at_once(suited))


def _too_few(resources: Resources, there: int) -> str:
    size = f" of {size_text(resources.memory)}" if resources.memory is not None else ""
    has = "is allowed" if there == 1 else "are allowed"
    where = f"{there or 'none'} {has}" if resources.allowed else f"this machine has {there or 'none'}"
    return f"needs {count_text(resources.gpus, 'GPU')}{size}; {where}"


def _labels(devices: Sequence[Device]) -> str:
    return ", ".join(dict.fromkeys(device.label for device in devices)) or "none"


def _beyond_limits(gpus: int, devices: Sequence[Device], max_use: int | None, min_free: int) -> str | None:
    """Why a job can never start within --max-use and --min-free; None if it can."""
    if max_use is not None and gpus > max_use:
        return f"needs {gpus} GPUs; --max-use allows {max_use}"
    there = len({name for device in devices for name in device.claims})
    if min_free and 0 < there < gpus + min_free:
        return f"needs {gpus} of {there} GPUs; --min-free keeps {min_free} free"
    return None
