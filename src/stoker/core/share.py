"""Who goes first when several users wait for the same machine: whoever has used least of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp2, log
from types import MappingProxyType

from msgspec import Struct

from stoker.core.reasons import GivesWay

HALF_LIFE = 3600.0
"""Seconds after which what somebody used counts half."""
GRAIN = 1.0
"""GPU-seconds by which two users must differ to count as unequal, or short jobs would change places all the time."""
GIVE_WAY = 5.0
"""Seconds for which a device is left to somebody who goes first; a live engine takes it in a fraction of that."""
ASSEMBLY = 120.0
"""The same for somebody who needs several devices at once and has to wait until they are together."""
REST = 60.0
"""Seconds after which somebody who did not take a device is offered it again."""


class Want(Struct, frozen=True):
    """What a waiting engine tells all others."""

    uid: int
    owner: str
    """The user's name; both from the owner of the file and never from its contents."""
    usage: float
    """GPU-seconds that the user has had, the older the less they count."""
    since: float
    """Since when the oldest of the engine's waiting jobs waits."""
    gpus: int = 1
    """How many devices it could use right now."""
    least: int = 1
    """How many of them it needs at once to start anything."""
    claims: tuple[str, ...] = ()
    """Names in the ledger of the devices that it would take; none stands for any."""
    pid: int = 0
    what: str = ""


Offers = Mapping[tuple[str, str], float]
"""A want and a device -> since when the device is left free for it."""
NO_OFFERS: Offers = MappingProxyType({})


class StepBack(Struct, frozen=True):
    """The devices to leave alone now, and what to remember until the next time."""

    left: Mapping[str, Want]
    """A device's name in the ledger -> the want for which it is left."""
    offers: Offers


def decayed(usage: float, seconds: float, half_life: float = HALF_LIFE) -> float:
    """What a usage counts some seconds later."""
    return usage * exp2(-max(0.0, seconds) / half_life)


def usage_of(runs: Iterable[tuple[int, float, float | None]], now: float, half_life: float = HALF_LIFE) -> float:
    """The GPU-seconds of runs (GPUs, beginning, end or None for one that goes on), each second decayed by its age."""
    return sum(
        gpus * _decayed_seconds(now - began, now - (now if ended is None else ended), half_life)
        for gpus, began, ended in runs
    )


def fair_order(wants: Mapping[str, Want]) -> list[str]:
    """The wants by name, first come first: users by usage, then by age; engines of one user by age alone."""
    users: dict[int, tuple[float, float, int]] = {}
    for want in wants.values():
        usage, since, _ = users.get(want.uid, (0.0, want.since, want.uid))
        # Engines of one user may know of different parts of what he used; the largest is nearest to all of it.
        users[want.uid] = max(usage, want.usage // GRAIN), min(since, want.since), want.uid
    return sorted(wants, key=lambda name: (users[wants[name].uid], wants[name].since, name))


def ahead_of_me(others: Mapping[str, Want], name: str, mine: Want) -> list[tuple[str, Want]]:
    """The wants of other engines that go before mine, in their order."""
    order = fair_order({**others, name: mine})
    return [(each, others[each]) for each in order[: order.index(name)]]


def steps_back(ahead: Sequence[tuple[str, Want]], free: Sequence[str], offers: Offers, now: float) -> StepBack:
    """Leave to those ahead as many free devices as they want, the ones I like least, for as long as they may take.

    `free` are names in the ledger, the ones I like best first; `offers` is what was remembered last time.
    """
    left: dict[str, Want] = {}
    remembered: dict[tuple[str, str], float] = {}
    for name, want in ahead:
        since = {device: offers.get((name, device), now) for device in free}
        missed = {device for device in free if now - since[device] > _patience(want)}
        suited = [device for device in reversed(free) if device not in left and _would_take(want, device)]
        chosen = [device for device in suited if device not in missed][: want.gpus]
        left.update(dict.fromkeys(chosen, want))
        remembered.update(((name, device), since[device]) for device in chosen)
    return StepBack(left, {**_missed(ahead, offers, now), **remembered})


def way_given(to: Want, mine: Want) -> GivesWay:
    """The words for stepping back."""
    if to.uid == mine.uid:
        return GivesWay("", "waited longer")
    return GivesWay(to.owner, "used less" if to.usage // GRAIN < mine.usage // GRAIN else "waited longer")


def _decayed_seconds(age_at_start: float, age_at_end: float, half_life: float) -> float:
    age_at_end = max(0.0, age_at_end)
    age_at_start = max(age_at_end, age_at_start)
    return half_life / log(2) * (exp2(-age_at_end / half_life) - exp2(-age_at_start / half_life))


def _would_take(want: Want, device: str) -> bool:
    return not want.claims or device in want.claims


def _patience(want: Want) -> float:
    return GIVE_WAY if want.least <= 1 else ASSEMBLY


def _missed(ahead: Sequence[tuple[str, Want]], offers: Offers, now: float) -> dict[tuple[str, str], float]:
    """The offers that nobody took in time: remembered for a while, so that they are not made again at once."""
    patience = {name: _patience(want) for name, want in ahead}
    return {
        (name, device): since
        for (name, device), since in offers.items()
        if name in patience and 0.0 <= now - since - patience[name] < REST
    }
