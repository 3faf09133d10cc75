"""Why a job waits, as data that every screen puts in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from stoker.core.spec import Dependency, Name, dependency_text
from stoker.core.units import count_text, size_text


class Crowded(Struct, frozen=True, tag="crowded"):
    """Fewer devices are free than the job needs."""

    needed: int
    free: int
    first_to_end: int | None = None
    """The running job whose end will come first, where that can be told."""
    unmeasured: bool = False
    """Whether it would share devices, but for that nobody knows yet how much memory it takes."""


class MemoryShort(Struct, frozen=True, tag="memory_short"):
    """No allowed device has as much memory free as the job reserves."""

    needed: int
    most_free: int
    device: str
    first_to_end: int | None = None


class TooBusy(Struct, frozen=True, tag="too_busy"):
    """There is memory enough, but the jobs together would keep the device busier than is good for them."""

    device: str
    load: int
    """Percent, with the job."""
    bound: int
    first_to_end: int | None = None


class KeptFree(Struct, frozen=True, tag="kept_free"):
    """Devices are free, but held for an older or more important job that would else starve."""

    job: int
    gpus: int


class Leased(Struct, frozen=True, tag="leased"):
    """Another engine, of this or another user, holds the devices."""

    device: str
    owner: str
    what: str = ""
    gpus: int = 1
    """How many devices the same owner holds, of those that would do."""
    short: MemoryShort | TooBusy | None = None
    """What a job is short of that could have a part of a device, where parts of it are held."""


class Occupied(Struct, frozen=True, tag="occupied"):
    """Somebody's process that no lease announced is on the device."""

    device: str
    who: str
    memory: int | None = None


class Draining(Struct, frozen=True, tag="draining"):
    """The last job has ended, but the driver has not yet given the memory back."""

    device: str


class Unusable(Struct, frozen=True, tag="unusable"):
    """The device is lost, forbidden, or cannot be asked."""

    device: str
    problem: str


class Yields(Struct, frozen=True, tag="gives_way"):
    """A device is free, but somebody waits for it who goes first."""

    owner: str
    """Empty where it is another engine of the same user."""
    why: Literal["used less", "waited longer"] = "used less"


class MaxUse(Struct, frozen=True, tag="max_use"):
    """The user has as many GPUs as he wants to have at once."""

    limit: int


class MinFree(Struct, frozen=True, tag="min_free"):
    """The user wants some GPUs left free for others."""

    limit: int


class AtLimit(Struct, frozen=True, tag="at_limit"):
    """As many jobs run as the user allowed at once."""

    limit: int


class CapFull(Struct, frozen=True, tag="cap_full"):
    """As many jobs of its group, array or kind run as may at once."""

    name: str
    limit: int


class QueuePaused(Struct, frozen=True, tag="queue_paused"):
    """Nothing of this queue starts until somebody resumes it."""

    note: str


class Drained(Struct, frozen=True, tag="drained"):
    """The user does not want the device used."""

    device: str
    note: str


class HeldBack(Struct, frozen=True, tag="held_back"):
    """Somebody does not want the job to start."""

    note: str


class NotBefore(Struct, frozen=True, tag="not_before"):
    """It begins at a moment of the user's choice (seconds since the epoch)."""

    at: float


class Behind(Struct, frozen=True, tag="behind"):
    """Other jobs have to end first."""

    dependencies: tuple[Dependency, ...]


class NeverFits(Struct, frozen=True, tag="never_fits"):
    """The machine does not have what the job asks for."""

    sentence: str


Reason = (
    Crowded
    | MemoryShort
    | TooBusy
    | KeptFree
    | Leased
    | Occupied
    | Draining
    | Drained
    | Unusable
    | Yields
    | MaxUse
    | MinFree
    | AtLimit
    | CapFull
    | QueuePaused
    | HeldBack
    | NotBefore
    | Behind
    | NeverFits
)


def sentence(reason: Reason, moment: Callable[[float], str] = str, name: Name = str) -> str:
    """The reason in plain words; `moment` says a time as the reader's clock shows it, `name` a job as it is typed."""
    match reason:
        case Crowded(needed, free, first, unmeasured):
            exclusive = " alone, to be measured" if unmeasured else ""
            return f"needs {count_text(needed, 'GPU')}{exclusive}; {free or 'none'} free{_ends_first(first, name)}"
        case MemoryShort(needed, most_free, device, first):
            most = f"most free is {size_text(most_free)} (GPU {device})"
            return f"needs {size_text(needed)}; {most}{_ends_first(first, name)}"
        case TooBusy(device, load, bound, first):
            return f"would keep GPU {device} {load}% busy; {bound}% is the most{_ends_first(first, name)}"
        case KeptFree(job, gpus):
            needs = f", which needs {gpus} GPUs" if gpus > 1 else ""
            return f"what is free is kept for #{name(job)}{needs}"
        case NeverFits(text):
            return text
        case Leased() | Occupied() | Draining() | Drained() | Unusable() | Yields():
            return _of_a_device(reason)
        case _:
            return _of_the_queue(reason, moment, name)


def _of_a_device(reason: Leased | Occupied | Draining | Drained | Unusable | Yields) -> str:
    match reason:
        case Leased(device, owner, what, gpus, short):
            held = f"{gpus} GPUs are" if gpus > 1 else f"GPU {device} is"
            words = f"{sentence(short)}; beside" if short else f"{held} held by"
            return f"{words} {owner}" + (f" ({what})" if what else "")
        case Occupied(device, who, memory):
            return f"GPU {device} is in use by {who}" + (f" ({size_text(memory)})" if memory else "")
        case Draining(device):
            return f"GPU {device} has not yet given back the memory of its last job"
        case Drained(device, note):
            return f"GPU {device} is {note}"
        case Unusable(device, problem):
            return f"GPU {device}: {problem}"
        case Yields(owner, why):
            return f"gives way to {owner}, who has {why}" if owner else "gives way to an older run of yours"


def _of_the_queue(
    reason: MaxUse | MinFree | AtLimit | CapFull | QueuePaused | HeldBack | NotBefore | Behind,
    moment: Callable[[float], str],
    name: Name,
) -> str:
    match reason:
        case MaxUse(limit):
            return f"{count_text(limit, 'GPU')} in use already, as many as --max-use allows"
        case MinFree(limit):
            return f"{count_text(limit, 'GPU')} left free for others, as --min-free asks"
        case AtLimit(limit):
            return f"{limit} jobs run already, as many as -j allows"
        case CapFull(kind, limit):
            return f"{limit} of {kind} run already, as many as may at once"
        case QueuePaused(note):
            return f"the queue is {note}"
        case HeldBack(note):
            return note or "held"
        case NotBefore(at):
            return f"begins {moment(at)}"
        case Behind(dependencies):
            return "after " + ", ".join(dependency_text(one, name) for one in dependencies)


def _ends_first(job: int | None, name: Name) -> str:
    return f"; #{name(job)} ends first" if job is not None else ""
