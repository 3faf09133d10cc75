"""Bookings: GPUs that all engines keep free for one user, from a time on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from stoker.core.units import DAY

LONGEST_SECONDS = 14 * DAY
"""A longer booking is void."""
FARTHEST_SECONDS = 31 * DAY
"""So is one that begins later than this after it was made."""
MOST_OF_ONE_USER = 32
"""Bookings of one user that count, the oldest ones."""
UNKNOWN_SECONDS = DAY
"""Duration of a job without limit and history, if it would start on a GPU that is booked for later."""

LEARNT_FACTOR, LEARNT_SECONDS = 2.0, 60.0
"""The duration of earlier runs counts so many times, and so much longer: a run may take longer than those before."""


class Booking(Struct, frozen=True):
    """GPUs that one user has booked."""

    owner: str
    """The user's name. Both come from the owner of the file, never from its contents."""
    uid: int
    claims: tuple[str, ...]
    """Ledger names of the devices."""
    since: float
    until: float
    why: str = ""
    made: float = 0.0
    """When its file was made, by the kernel's clock: of two bookings that meet, the older one counts."""

    def meets(self, other: Booking) -> bool:
        """Whether both have a device at the same time."""
        together = self.since < other.until and other.since < self.until
        return together and not set(self.claims).isdisjoint(other.claims)

    @property
    def gpu_seconds(self) -> float:
        return len(self.claims) * (self.until - self.since)


def standing(bookings: Mapping[str, Booking], now: float) -> dict[str, Booking]:
    """The bookings that count, by name: all engines find the same ones, whatever users have published."""
    counts: Counter[int] = Counter()
    taken: defaultdict[str, list[Booking]] = defaultdict(list)
    chosen = {}
    for name, booking in sorted(bookings.items(), key=lambda item: (item[1].made, item[0])):
        if booking.until <= now or booking.since - booking.made > FARTHEST_SECONDS:
            continue
        counts[booking.uid] += 1
        rivals = (other for claim in booking.claims for other in taken[claim])
        if counts[booking.uid] > MOST_OF_ONE_USER or any(map(booking.meets, rivals)):
            continue
        chosen[name] = booking
        for claim in booking.claims:
            taken[claim].append(booking)
    return chosen


def of_others(bookings: Iterable[Booking], uid: int) -> list[Booking]:
    return [booking for booking in bookings if booking.uid != uid]


def booked_now(bookings: Iterable[Booking], now: float) -> frozenset[str]:
    """Ledger names of the devices that these bookings keep at a moment."""
    return frozenset(claim for booking in bookings if booking.since <= now < booking.until for claim in booking.claims)


def bookings_by_device(bookings: Iterable[Booking]) -> dict[str, list[Booking]]:
    """The bookings of each device, by ledger name, in the order in which they begin."""
    by_device: defaultdict[str, list[Booking]] = defaultdict(list)
    for booking in sorted(bookings, key=lambda booking: booking.since):
        for claim in booking.claims:
            by_device[claim].append(booking)
    return dict(by_device)


def free_from(bookings: Sequence[Booking], moment: float, seconds: float) -> float:
    """The first moment from which a job that takes so long meets none of these, which are in order."""
    for booking in bookings:
        if moment + seconds <= booking.since:
            break
        moment = max(moment, booking.until)
    return moment
