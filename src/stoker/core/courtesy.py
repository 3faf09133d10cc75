"""Consideration for others on the machine: what is left to them, and what we tell them that we wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from stoker.core.device import Device
from stoker.core.fit import suits
from stoker.core.job import Job
from stoker.core.lease import Lease
from stoker.core.occupancy import Occupancy
from stoker.core.policy import Policy
from stoker.core.reasons import Crowded, Draining, GivesWay, Leased, MaxUse, MinFree, Reason
from stoker.core.reservation import waiting_since
from stoker.core.terms import Need

WORTH_TELLING = Crowded | Leased | GivesWay | Draining
"""Reasons for waiting that end when somebody leaves a device to us."""


class Courtesy(Struct, frozen=True):
    """What a plan has to know of the other engines on the machine."""

    left: Mapping[str, GivesWay] = {}
    """Names of devices in the ledger that are left free, and for whom: somebody who goes first."""
    elsewhere: frozenset[str] = frozenset()
    """Names of the devices that other engines of this user hold."""
    company: bool = False
    """Whether there is anybody else to tell what we wait for."""


ALONE = Courtesy()


class Longing(Struct, frozen=True):
    """What the jobs that found no place would take, if others left it to them."""

    since: float
    gpus: int
    least: int
    claims: tuple[str, ...]


class Unserved(Struct, frozen=True):
    """Waiting jobs of one need, the oldest of them, and why they wait."""

    head: Job
    need: Need
    count: int
    reason: Reason


def held_elsewhere(leases: Iterable[Lease], owner: str) -> frozenset[str]:
    """The devices that a user holds in other engines."""
    return frozenset(claim.name for lease in leases if lease.owner == owner for claim in lease.claims)


def longing(unserved: Iterable[Unserved], occupancy: Occupancy, policy: Policy, courtesy: Courtesy) -> Longing | None:
    """What to tell others that we wait for; None where nothing that they do would help."""
    helped = [one for one in unserved if one.need.gpus and isinstance(one.reason, WORTH_TELLING)]
    claims = _within_reach([one.need for one in helped], occupancy)
    wanted = sum(one.count * one.need.gpus for one in helped)
    gpus = min(wanted, len(claims), _allowance(len(claims), occupancy, policy, courtesy))
    if gpus <= 0:
        return None
    least = min(one.need.gpus for one in helped)
    return Longing(min(waiting_since(one.head) for one in helped), gpus, least, claims)


def immodest(
    devices: Sequence[Device], occupancy: Occupancy, policy: Policy, courtesy: Courtesy
) -> MaxUse | MinFree | None:
    """Why these devices are more than the user wants to have of the machine."""
    names = {name for device in devices for name in device.claims}
    used = occupancy.names_in_use | courtesy.elsewhere
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


def _within_reach(needs: Sequence[Need], occupancy: Occupancy) -> tuple[str, ...]:
    """The names of the devices that some of the needs could be met on, once others leave them."""
    names = {
        name
        for view in occupancy.views
        if view.closed is None or isinstance(view.closed, GivesWay | Draining)
        if any(suits(view.device, need) for need in needs)
        for name in view.device.claims
    }
    return tuple(sorted(names))


def _allowance(there: int, occupancy: Occupancy, policy: Policy, courtesy: Courtesy) -> int:
    allowed = there - policy.min_free
    if policy.max_use is not None:
        allowed = min(allowed, policy.max_use - len(occupancy.names_in_use | courtesy.elsewhere))
    return allowed
