"""Bookings as data: who has booked which GPUs, what is in the way of each, and which GPUs can be booked."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.local_time import clock_text, to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.core.booking import FARTHEST_SECONDS, LONGEST_SECONDS, Booking
from stoker.core.device import Device
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.lease import Lease
from stoker.core.settings import LockedLimits
from stoker.core.units import DAY, count_text
from stoker.ledger import LedgerView

SCHEMA = "stoker.bookings/1"
LATE_SECONDS = 60.0
"""How long ago a booking may begin: the user took so long to type it."""


class BookingLine(Struct, frozen=True):
    """One booking."""

    id: str
    """For `stoker book --cancel`."""
    user: str
    yours: bool
    gpus: list[str]
    """Labels of the GPUs, or ledger names of those that this machine does not show."""
    begin: datetime
    end: datetime
    why: str
    state: Literal["later", "now"]
    in_the_way: list[str]
    """Jobs of others on its GPUs that may still run when it begins; it begins there when they end."""


class Bookings(Struct, frozen=True):
    """All bookings that are not over: `stoker book --json`."""

    schema: str
    at: datetime
    bookings: list[BookingLine]


def bookings_of(view: LedgerView, facts: QueueFacts) -> Bookings:
    """The bookings of all users, the next first."""
    bookings = sorted(view.bookings.items(), key=lambda item: (item[1].since, item[0]))
    lines = [_line(name, booking, view, facts) for name, booking in bookings]
    return Bookings(SCHEMA, to_datetime(facts.now), lines)


def _line(name: str, booking: Booking, view: LedgerView, facts: QueueFacts) -> BookingLine:
    return BookingLine(
        id=short_id(name, view.bookings),
        user=booking.owner,
        yours=booking.uid == os.geteuid(),
        gpus=_labels(booking.claims, facts.devices),
        begin=to_datetime(booking.since),
        end=to_datetime(booking.until),
        why=booking.why,
        state="now" if booking.since <= facts.now else "later",
        in_the_way=list(_in_the_way(booking, view.leases.values(), facts)),
    )


def short_id(name: str, names: Collection[str]) -> str:
    """The first characters of a name that no other has."""
    word = name.split(".")[1]
    words = [other.split(".")[1] for other in names]
    return next(
        (word[:length] for length in range(4, 16) if sum(other.startswith(word[:length]) for other in words) <= 1), word
    )


def booking_named(word: str, view: LedgerView) -> str:
    """The name of the booking that a user means."""
    names = [name for name in view.bookings if word and name.split(".")[1].startswith(word)]
    if len(names) != 1:
        what = f"several bookings begin with {word!r}" if names else f"there is no booking {word!r}"
        raise UsageError(what, "stoker book --list shows all with their ids")
    owner = view.bookings[names[0]]
    if owner.uid != os.geteuid() and os.geteuid() != 0:
        raise StokerError(f"this is a booking of {owner.owner}", f"only {owner.owner} and root can cancel it")
    return names[0]


def _labels(claims: Sequence[str], devices: Mapping[str, Device]) -> list[str]:
    labels = {claim: device.label for device in devices.values() for claim in device.claims}
    return list(dict.fromkeys(labels.get(claim, claim) for claim in claims))


def _in_the_way(booking: Booking, leases: Collection[Lease], facts: QueueFacts) -> Iterator[str]:
    """The jobs of others that hold its GPUs and are not known to end before it begins."""
    for lease in leases:
        names = [claim.name for claim in lease.claims if claim.name in booking.claims]
        begun = max(booking.since, facts.now)
        if not names or lease.owner == booking.owner or (lease.until is not None and lease.until <= begun):
            continue
        job = f"job {lease.job}" if lease.job else "a job"
        expected = lease.expected if lease.expected is not None else lease.until
        end = "no known end" if expected is None else f"expected to end {clock_text(expected, facts.now)}"
        yield f"GPU {gpus_text(_labels(names, facts.devices))}: {job} of {lease.owner}, {end}"


def gpus_text(labels: Sequence[str]) -> str:
    """`0-3,6`, or the names with commas."""
    if not all(label.isdecimal() and len(label) < 6 for label in labels):
        return ",".join(labels)
    numbers = sorted(map(int, labels))
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# -- a new one -----------------------------------------------------------------------------------


def check_times(since: float, seconds: float, now: float) -> None:
    """Refuse times that no engine honours."""
    if since < now - LATE_SECONDS:
        raise UsageError(f"a booking cannot begin in the past ({clock_text(since, now)})", "begin it now or later")
    if since > now + FARTHEST_SECONDS - LATE_SECONDS:
        days = FARTHEST_SECONDS / DAY
        raise UsageError(f"a booking begins at most {days:.0f} days ahead", "book nearer to the time")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"a booking lasts at most {LONGEST_SECONDS / DAY:.0f} days", "book a shorter time")


def check_booked(wanted: Booking, gpus: int, view: LedgerView, limits: LockedLimits) -> None:
    """Refuse a booking beyond the limits of the administrator."""
    if limits.gpus is not None and gpus > limits.gpus:
        raise UsageError(f"{limits.named('gpus')} allows {limits.gpus} at once per user", "book fewer GPUs")
    if limits.booked is None:
        return
    own = (booking for booking in view.bookings.values() if booking.uid == os.geteuid())
    hours = sum(booking.gpu_seconds for booking in own) / 3600
    more = gpus * (wanted.until - wanted.since) / 3600
    if hours + more > limits.booked:
        left = max(0.0, limits.booked - hours)
        text = f"{limits.named('booked')} allows {limits.booked} GPU-hours per user: {left:.1f} are left, this needs"
        raise UsageError(f"{text} {more:.1f}", "book less, or cancel another booking")


def choose_devices(
    count: int, named: Sequence[Device], wanted: Booking, view: LedgerView, facts: QueueFacts
) -> tuple[Device, ...]:
    """The GPUs for a booking: those named, or those that are not booked then and will most likely be free."""
    devices = named or tuple(facts.devices.values())
    if len(devices) < count:
        raise Impossible(f"this machine has {count_text(len(devices), 'GPU')}; {count} cannot be booked", "")
    rivals = {device.id: _rival(device, wanted, view) for device in devices}
    free = [device for device in devices if rivals[device.id] is None]
    if len(free) < count:
        rival = next(rival for rival in rivals.values() if rival is not None)
        when = f"from {clock_text(rival.since, facts.now)} to {clock_text(rival.until, facts.now)}"
        whose = f"{rival.owner} has booked GPU {gpus_text(_labels(rival.claims, facts.devices))} {when}"
        some = f"only {len(free)} of {len(devices)} GPUs are" if free else "no such GPU is"
        raise StokerError(f"{some} free of bookings then: {whose}", "stoker book --list shows all bookings")
    held = {device.id: _held_beyond(device, wanted.since, view, facts) for device in free}
    return tuple(sorted(free, key=lambda device: held[device.id])[:count])


def _rival(device: Device, wanted: Booking, view: LedgerView) -> Booking | None:
    of_device = replace(wanted, claims=device.claims)
    return next((booking for booking in view.bookings.values() if of_device.meets(booking)), None)


def _held_beyond(device: Device, since: float, view: LedgerView, facts: QueueFacts) -> int:
    """How many jobs of others on a device are not known to end by then."""
    leases = [lease for lease in view.leases.values() if lease.owner != facts.user]
    late = [lease for lease in leases if lease.until is None or lease.until > since]
    return sum(claim.name in device.claims for lease in late for claim in lease.claims)
