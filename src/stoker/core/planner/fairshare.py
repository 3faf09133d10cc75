"""Fair order between users, and how many devices an engine must leave to others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp2, log
from types import MappingProxyType

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Job
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Occupancy
from stoker.core.planner.placement import suits
from stoker.core.planner.policy import Policy
from stoker.core.planner.reasons import Crowded, Draining, Leased, MaxUse, MinFree, Reason, Yields
from stoker.core.planner.reservation import waiting_since
from stoker.core.spec import Resources

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


class Demand(Struct, frozen=True):
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

    left: Mapping[str, Demand]
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


def fair_order(demands: Mapping[str, Demand]) -> list[str]:
    """The wants by name, first come first: users by usage, then by age; engines of one user by age alone."""
    users: dict[int, tuple[float, float, int]] = {}
    for demand in demands.values():
        usage, since, _ = users.get(demand.uid, (0.0, demand.since, demand.uid))
        # Engines of one user may know of different parts of what he used; the largest is nearest to all of it.
        users[demand.uid] = max(usage, demand.usage // GRAIN), min(since, demand.since), demand.uid
    return sorted(demands, key=lambda name: (users[demands[name].uid], demands[name].since, name))


def ahead_of_me(others: Mapping[str, Demand], name: str, mine: Demand) -> list[tuple[str, Demand]]:
    """The wants of other engines that go before mine, in their order."""
    order = fair_order({**others, name: mine})
    return [(each, others[each]) for each in order[: order.index(name)]]


def steps_back(ahead: Sequence[tuple[str, Demand]], free: Sequence[str], offers: Offers, now: float) -> StepBack:
    """Leave to those ahead as many free devices as they want, the ones I like least, for as long as they may take.

    `free` are names in the ledger, the ones I like best first; `offers` is what was remembered last time.
    """
    left: dict[str, Demand] = {}
    remembered: dict[tuple[str, str], float] = {}
    for name, demand in ahead:
        since = {device: offers.get((name, device), now) for device in free}
        missed = {device for device in free if now - since[device] > _patience(demand)}
        suited = [device for device in reversed(free) if device not in left and _would_take(demand, device)]
        chosen = [device for device in suited if device not in missed][: demand.gpus]
        left.update(dict.fromkeys(chosen, demand))
        remembered.update(((name, device), since[device]) for device in chosen)
    return StepBack(left, {**_missed(ahead, offers, now), **remembered})


def way_given(to: Demand, mine: Demand) -> Yields:
    """The words for stepping back."""
    if to.uid == mine.uid:
        return Yields("", "waited longer")
    return Yields(to.owner, "used less" if to.usage // GRAIN < mine.usage // GRAIN else "waited longer")


def _decayed_seconds(age_at_start: float, age_at_end: float, half_life: float) -> float:
    age_at_end = max(0.0, age_at_end)
    age_at_start = max(age_at_end, age_at_start)
    return half_life / log(2) * (exp2(-age_at_end / half_life) - exp2(-age_at_start / half_life))


def _would_take(demand: Demand, device: str) -> bool:
    return not demand.claims or device in demand.claims


def _patience(demand: Demand) -> float:
    return GIVE_WAY if demand.least <= 1 else ASSEMBLY


def _missed(ahead: Sequence[tuple[str, Demand]], offers: Offers, now: float) -> dict[tuple[str, str], float]:
    """The offers that nobody took in time: remembered for a while, so that they are not made again at once."""
    patience = {name: _patience(demand) for name, demand in ahead}
    return {
        (name, device): since
        for (name, device), since in offers.items()
        if name in patience and 0.0 <= now - since - patience[name] < REST
    }


WORTH_TELLING = Crowded | Leased | Yields | Draining
"""Reasons for waiting that end when somebody leaves a device to us."""


class FairShare(Struct, frozen=True):
    """What a plan has to know of the other engines on the machine."""

    left: Mapping[str, Yields] = {}
    """Names of devices in the ledger that are left free, and for whom: somebody who goes first."""
    elsewhere: frozenset[str] = frozenset()
    """Names of the devices that other engines of this user hold."""
    shared: bool = False
    """Whether there is anybody else to tell what we wait for."""


ALONE = FairShare()


class OwnDemand(Struct, frozen=True):
    """What the jobs that found no place would take, if others left it to them."""

    since: float
    gpus: int
    least: int
    claims: tuple[str, ...]


class Unserved(Struct, frozen=True):
    """Waiting jobs of one need, the oldest of them, and why they wait."""

    head: Job
    resources: Resources
    count: int
    reason: Reason


def held_elsewhere(leases: Iterable[Lease], owner: str) -> frozenset[str]:
    """The devices that a user holds in other engines."""
    return frozenset(claim.name for lease in leases if lease.owner == owner for claim in lease.claims)


def own_demand(
    unserved: Iterable[Unserved], occupancy: Occupancy, policy: Policy, fair_share: FairShare
) -> OwnDemand | None:
    """What to tell others that we wait for; None where nothing that they do would help."""
    helped = [one for one in unserved if one.resources.gpus and isinstance(one.reason, WORTH_TELLING)]
    claims = _within_reach([one.resources for one in helped], occupancy)
    wanted = sum(one.count * one.resources.gpus for one in helped)
    gpus = min(wanted, len(claims), _allowance(len(claims), occupancy, policy, fair_share))
    if gpus <= 0:
        return None
    least = min(one.resources.gpus for one in helped)
    return OwnDemand(min(waiting_since(one.head) for one in helped), gpus, least, claims)


def immodest(
    devices: Sequence[Device], occupancy: Occupancy, policy: Policy, fair_share: FairShare
) -> MaxUse | MinFree | None:
    """Why these devices are more than the user wants to have of the machine."""
    names = {name for device in devices for name in device.claims}
    used = occupancy.names_in_use | fair_share.elsewhere
    if policy.max_use is not None and not names <= used and len(names | used) > policy.max_use:
        return MaxUse(policy.max_use)
    untouched = occupancy.untouched
    if policy.min_free and not names.isdisjoint(untouched) and len(untouched - names) < policy.min_free:
        return MinFree(policy.min_free)
    return None


def never_modest(gpus: int, devices: Sequence[Device], policy: Policy) -> str | None:
    """Why a job can never start within what the user wants to have of the machine; None when it can."""
    if policy.max_use is not None and gpus > policy.max_use:
        return f"needs {gpus} GPUs; --max-use allows {policy.max_use}"
    there = len({name for device in devices for name in device.claims})
    if policy.min_free and 0 < there < gpus + policy.min_free:
        return f"needs {gpus} of {there} GPUs; --min-free keeps {policy.min_free} free"
    return None


def _within_reach(needs: Sequence[Resources], occupancy: Occupancy) -> tuple[str, ...]:
    """The names of the devices that some of the needs could be met on, once others leave them."""
    names = {
        name
        for view in occupancy.views
        if view.closed is None or isinstance(view.closed, Yields | Draining)
        if any(suits(view.device, resources) for resources in needs)
        for name in view.device.claims
    }
    return tuple(sorted(names))


def _allowance(there: int, occupancy: Occupancy, policy: Policy, fair_share: FairShare) -> int:
    allowed = there - policy.min_free
    if policy.max_use is not None:
        allowed = min(allowed, policy.max_use - len(occupancy.names_in_use | fair_share.elsewhere))
    return allowed
