"""Fair share between users: the order of their demands, devices left or given up to others, limits of one user."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import exp2, log
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Job
from stoker.core.lease import Lease
from stoker.core.planner.occupancy import Occupancy
from stoker.core.planner.placement import waiting_since
from stoker.core.planner.reasons import Crowded, Draining, Leased, MaxUse, MinFree, Reason, Unclaimable, Yields
from stoker.core.settings import Policy
from stoker.core.spec import Resources, suits

HALF_LIFE_SECONDS = 3600.0
"""Seconds after which usage counts half."""
GRAIN_GPU_SECONDS = 1.0
"""GPU-seconds by which two users must differ to count as unequal; less would make short jobs alternate."""
YIELD_SECONDS = 5.0
"""How long a device is left free for a demand that goes first; a live engine takes it in a fraction of that."""
GATHER_SECONDS = 120.0
"""The same for a demand for several devices at once, which has to wait until enough are free."""
REOFFER_SECONDS = 60.0
"""How long a device that was not taken is not offered to the same demand again."""


class Demand(Struct, frozen=True):
    """The demand that a waiting engine publishes to all others."""

    uid: int
    owner: str
    """The user's name. Both come from the owner of the file, never from its contents."""
    usage: float
    """GPU-seconds of the user, decayed by age."""
    since: float
    """Since when the engine's oldest waiting job waits."""
    gpus: int = 1
    """How many devices the engine could use now."""
    least: int = 1
    """How many of them it needs at once to start a job."""
    claims: tuple[str, ...] = ()
    """Ledger names of the devices that it would take; empty is any."""
    pid: int = 0
    what: str = ""
    urgent: bool = False
    """Whether a person waits for it, or its user says so. It counts among the engines of one user only."""


Offers = Mapping[tuple[str, str], float]
"""Demand name and device -> since when the device is left free for that demand."""
NO_OFFERS: Offers = MappingProxyType({})


class Yielded(Struct, frozen=True):
    """The devices to leave free now, and the offers to pass to the next call."""

    left: Mapping[str, Demand]
    """Ledger name of a device -> the demand that it is left for."""
    offers: Offers


def decayed(usage: float, seconds: float, half_life: float = HALF_LIFE_SECONDS) -> float:
    """Weigh a usage by its age in seconds."""
    return usage * exp2(-max(0.0, seconds) / half_life)


def usage_of(
    runs: Iterable[tuple[int, float, float | None]], now: float, half_life: float = HALF_LIFE_SECONDS
) -> float:
    """GPU-seconds of runs (GPUs, start, end or None while running), each second decayed by its age."""
    return sum(
        gpus * _decayed_seconds(now - began, now - (now if ended is None else ended), half_life)
        for gpus, began, ended in runs
    )


def fair_order(demands: Mapping[str, Demand]) -> list[str]:
    """Names of the demands in their order: users by usage, then by age; of one user urgent ones first, then by age."""
    users: dict[int, tuple[float, float, int]] = {}
    for demand in demands.values():
        usage, since, _ = users.get(demand.uid, (0.0, demand.since, demand.uid))
        # Engines of one user may know different parts of the usage; the largest is the best estimate of all of it.
        users[demand.uid] = max(usage, demand.usage // GRAIN_GPU_SECONDS), min(since, demand.since), demand.uid
    return sorted(
        demands, key=lambda name: (users[demands[name].uid], not demands[name].urgent, demands[name].since, name)
    )


def demands_ahead(others: Mapping[str, Demand], name: str, mine: Demand) -> list[tuple[str, Demand]]:
    """The demands of other engines that go before mine, in their order."""
    order = fair_order({**others, name: mine})
    return [(other, others[other]) for other in order[: order.index(name)]]


def yield_devices(ahead: Sequence[tuple[str, Demand]], free: Sequence[str], offers: Offers, now: float) -> Yielded:
    """Leave free devices to the demands ahead: as many as they ask for, our least preferred first, for a limited time.

    `free` are ledger names, our most preferred first. `offers` comes from the previous call.
    """
    left: dict[str, Demand] = {}
    remembered: dict[tuple[str, str], float] = {}
    for name, demand in ahead:
        since = {device: offers.get((name, device), now) for device in free}
        missed = {device for device in free if now - since[device] > _patience(demand)}
        suited = [
            device for device in reversed(free) if device not in left and (not demand.claims or device in demand.claims)
        ]
        chosen = [device for device in suited if device not in missed][: demand.gpus]
        left.update(dict.fromkeys(chosen, demand))
        remembered.update(((name, device), since[device]) for device in chosen)
    return Yielded(left, {**_missed(ahead, offers, now), **remembered})


def yield_reason(to: Demand, mine: Demand) -> Yields:
    if to.uid == mine.uid:
        return Yields("", "waited longer")
    return Yields(
        to.owner, "used less" if to.usage // GRAIN_GPU_SECONDS < mine.usage // GRAIN_GPU_SECONDS else "waited longer"
    )


def _decayed_seconds(age_at_start: float, age_at_end: float, half_life: float) -> float:
    age_at_end = max(0.0, age_at_end)
    age_at_start = max(age_at_end, age_at_start)
    return half_life / log(2) * (exp2(-age_at_end / half_life) - exp2(-age_at_start / half_life))


def _patience(demand: Demand) -> float:
    return YIELD_SECONDS if demand.least <= 1 else GATHER_SECONDS


def _missed(ahead: Sequence[tuple[str, Demand]], offers: Offers, now: float) -> dict[tuple[str, str], float]:
    """Offers that were not taken in time: kept for a while, so that they are not repeated at once."""
    patience = {name: _patience(demand) for name, demand in ahead}
    return {
        (name, device): since
        for (name, device), since in offers.items()
        if name in patience and 0.0 <= now - since - patience[name] < REOFFER_SECONDS
    }


DEMAND_SECONDS = 120.0
"""How long a demand of another user waits before running jobs give way to it."""
LEAD_GPU_SECONDS = 600.0
"""GPU-seconds by which its user must have used less: a switch costs some itself."""


def is_owed(demand: Demand, mine: Demand, now: float) -> bool:
    """Whether running jobs of ours give way to a demand that goes before mine."""
    if demand.uid == mine.uid:
        return demand.urgent
    return now - demand.since >= DEMAND_SECONDS and demand.usage + LEAD_GPU_SECONDS <= mine.usage


class Held(NamedTuple):
    """A running job that may give way, and the ledger names of its devices."""

    job: int
    since: float
    names: tuple[str, ...]


def given_up(demand: Demand, coming: int, held: Iterable[Held]) -> list[int]:
    """The jobs that give way to a demand, the newest first; none if that would not let it start a job.

    `coming` is how many devices it gets anyway. Only what it needs to start one job is given up.
    """
    wanted, chosen = demand.least - coming, []
    for job in sorted(held, key=lambda job: (-job.since, -job.job)):
        if wanted <= 0:
            break
        if not demand.claims or not set(demand.claims).isdisjoint(job.names):
            chosen.append(job.job)
            wanted -= len(job.names)
    return [] if wanted > 0 else chosen


def spare_gpus(gpus: int, held: int, users: int) -> int:
    """How many of the GPUs that a user holds may go to other users: none of its equal share of the machine.

    Demands tell what they like, and several users may act together; how many GPUs there are, and who holds them, they
    cannot lie about. So all of them together get no more than that.
    """
    return max(0, held - gpus // users)


_ENDED_BY_OTHERS = Crowded | Leased | Yields | Draining
"""Reasons that end when another engine leaves a device to us."""


class FairShare(Struct, frozen=True):
    """The facts about other engines on the machine that a plan needs."""

    left: Mapping[str, Yields] = {}
    """Ledger names of devices that are left to demands ahead, and why."""
    elsewhere: frozenset[str] = frozenset()
    """Ledger names of devices that other engines of this user hold."""
    shared: bool = False
    """Whether other engines exist that should learn of our demand."""
    unclaimable: Unclaimable | None = None
    """Why no device can be claimed at the moment."""


NO_OTHER_ENGINES = FairShare()


class OwnDemand(Struct, frozen=True):
    """The devices that our blocked jobs would take if other engines left them."""

    since: float
    gpus: int
    least: int
    claims: tuple[str, ...]
    urgent: bool = False


class Unserved(Struct, frozen=True):
    """A group of blocked jobs: its oldest job, its size, and why they wait."""

    head: Job
    resources: Resources
    count: int
    reason: Reason


def held_elsewhere(leases: Iterable[Lease], owner: str) -> frozenset[str]:
    """Ledger names of the devices that a user holds in other engines."""
    return frozenset(claim.name for lease in leases if lease.owner == owner for claim in lease.claims)


def own_demand(
    unserved: Iterable[Unserved], occupancy: Occupancy, policy: Policy, fair_share: FairShare
) -> OwnDemand | None:
    """The demand to publish to other engines; None if they cannot help."""
    helped = [group for group in unserved if group.resources.gpus and isinstance(group.reason, _ENDED_BY_OTHERS)]
    claims = _within_reach([group.resources for group in helped], occupancy)
    wanted = sum(group.count * group.resources.gpus for group in helped)
    gpus = min(wanted, len(claims), _allowance(len(claims), occupancy, policy, fair_share))
    if gpus <= 0:
        return None
    least = min(group.resources.gpus for group in helped)
    urgent = any(group.head.spec.urgent or group.head.spec.terminal for group in helped)
    return OwnDemand(min(waiting_since(group.head) for group in helped), gpus, least, claims, urgent)


def exceeds_limits(
    devices: Sequence[Device],
    occupancy: Occupancy,
    policy: Policy,
    fair_share: FairShare,
    leaving: Collection[int] = (),
) -> MaxUse | MinFree | None:
    """Why these devices exceed --max-use or --min-free once some jobs have left; None when they do not."""
    names = {name for device in devices for name in device.claims}
    used = occupancy.names_in_use(leaving) | fair_share.elsewhere
    for limit, rule in ((policy.max_use, ""), (policy.locked.gpus, policy.locked.named("gpus"))):
        if limit is not None and not names <= used and len(names | used) > limit:
            return MaxUse(limit, rule)
    untouched = occupancy.untouched(leaving)
    if policy.min_free and not names.isdisjoint(untouched) and len(untouched - names) < policy.min_free:
        return MinFree(policy.min_free)
    return None


def _within_reach(needed: Sequence[Resources], occupancy: Occupancy) -> tuple[str, ...]:
    """Ledger names of devices that some of the jobs could use once others leave them."""
    names = {
        name
        for view in occupancy.views
        if view.closed is None or isinstance(view.closed, Yields | Draining)
        if any(suits(view.device, resources) for resources in needed)
        for name in view.device.claims
    }
    return tuple(sorted(names))


def _allowance(there: int, occupancy: Occupancy, policy: Policy, fair_share: FairShare) -> int:
    allowed = there - policy.min_free
    most = min((most for most in (policy.max_use, policy.locked.gpus) if most is not None), default=None)
    if most is not None:
        allowed = min(allowed, most - len(occupancy.names_in_use() | fair_share.elsewhere))
    return allowed
