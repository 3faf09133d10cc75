"""Displacement: which running jobs give way, so that jobs with less work left do not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.planner.occupancy import Occupancy, Preemption, Slot
from stoker.core.planner.placement import reserve
from stoker.core.settings import Policy
from stoker.core.spec import Resources

MOST_PREEMPTIONS = 4
"""How often one job gives way; after that it runs to its end."""
LEAST_RUN_SECONDS = 300.0
"""Seconds that a job runs before it gives way for the first time."""
SWITCHES_PER_RUN = 10
"""A job runs at least this many times as long as its switch costs."""
MOST_AT_ONCE = 8
"""Displacements of one plan: each needs a new view of the machine."""
EXAMINED = 32
"""Waiting jobs that one plan examines, those with the least work first."""
RECHECK_SECONDS = 60.0


class Displacement(Struct, frozen=True):
    """Running jobs that give way to a waiting one."""

    victims: tuple[int, ...]
    for_job: int
    devices: tuple[str, ...]
    """The devices that the waiting job will have."""
    saving: float
    """Seconds by which the jobs end sooner, all together, as far as is known."""


class Handover(Struct, frozen=True):
    """Devices that are kept for a waiting job, since others give way or gave way to it."""

    job: int
    devices: tuple[str, ...]


class Waiter(NamedTuple):
    """A job that no open device can take."""

    job: Job
    resources: Resources
    seconds: float
    """How long it is expected to run."""
    is_first: bool
    """Whether it is the first to profit: it is urgent, or known to be short."""

    @property
    def work(self) -> float:
        return self.seconds * self.resources.gpus


class _Victim(NamedTuple):
    slot: Slot
    remaining: float
    """Seconds that it is expected to run on."""
    cost: float
    """Seconds that it loses by giving way."""

    @property
    def work(self) -> float:
        return self.remaining * len(self.slot.devices)


View = Callable[[Sequence[Slot]], Occupancy]
"""The devices with these slots; those with `until` are about to leave, the smallest first."""


def run_before(preemption: Preemption) -> float:
    """Seconds that a job runs before it gives way: more each time."""
    least = max(LEAST_RUN_SECONDS, SWITCHES_PER_RUN * (preemption.save + preemption.start))
    return least * 2.0**preemption.times


def remaining_seconds(expected: float | None, ran: float, unknown: float) -> float:
    """Expected rest of a run. One that has outlived the expectation needs as long again: run times spread widely."""
    return max((unknown if expected is None else expected) - ran, ran)


def displace(
    waiters: Iterable[Waiter], slots: Sequence[Slot], view: View, *, policy: Policy, now: float
) -> list[Displacement]:
    """The displacements that save more time than they cost."""
    victims = [victim for slot in slots if (victim := _victim(slot, policy, now)) is not None]
    decided: list[Displacement] = []
    taken: list[Slot] = []
    ordered = sorted(waiters, key=lambda waiter: (not waiter.is_first, waiter.work, waiter.job.id))[:EXAMINED]
    occupancy: Occupancy | None = None
    for waiter in ordered:
        if not victims or len(decided) == MOST_AT_ONCE:
            break
        if occupancy is None:
            victims.sort(key=lambda victim: -victim.work)
            leaving = {victim.slot.job for victim in victims}
            gone = {job_id for displacement in decided for job_id in displacement.victims}
            staying = [slot for slot in slots if slot.job not in leaving and slot.job not in gone]
            occupancy = view(
                [
                    *(replace(slot, since=None, until=None) for slot in (*staying, *taken)),
                    *(replace(victim.slot, since=None, until=1.0 + rank) for rank, victim in enumerate(victims)),
                ]
            )
        found = _for(waiter, victims, occupancy, ordered)
        if found is None:
            continue
        decided.append(found)
        taken.append(Slot("", waiter.job.id, waiter.resources, found.devices))
        victims = [victim for victim in victims if victim.slot.job not in found.victims]
        occupancy = None
    return decided


def next_look(slots: Sequence[Slot], now: float) -> float | None:
    """When a job may have run long enough to give way, or its expected rest has grown."""
    moments = []
    for slot in slots:
        if slot.preemption is not None and slot.since is not None and slot.preemption.times < MOST_PREEMPTIONS:
            ripe = slot.since + run_before(slot.preemption)
            moments.append(ripe if ripe > now else now + max(RECHECK_SECONDS, (now - slot.since) / 8))
    return min(moments, default=None)


def _victim(slot: Slot, policy: Policy, now: float) -> _Victim | None:
    """A running job that may give way now."""
    preemption = slot.preemption
    if preemption is None or slot.since is None or preemption.times >= MOST_PREEMPTIONS:
        return None
    ran = now - slot.since
    if ran < run_before(preemption):
        return None
    lost = ran if preemption.mode == "restart" else 0.0
    cost = preemption.save + preemption.start + (lost if preemption.unsaved is None else preemption.unsaved)
    age = preemption.done + ran
    remaining = remaining_seconds(None, age, policy.unknown) if preemption.remaining is None else preemption.remaining
    return _Victim(slot, remaining, cost)


def _for(
    waiter: Waiter, victims: Sequence[_Victim], occupancy: Occupancy, waiters: Sequence[Waiter]
) -> Displacement | None:
    """The victims for a waiting job; None if they cannot help it, or lose more than is saved."""
    reservation = reserve(waiter.job, waiter.resources, occupancy)
    if reservation is None or reservation.moment is None:
        return None
    devices = set(reservation.claims) | set(reservation.devices)
    chosen = [
        victim
        for rank, victim in enumerate(victims)
        if 1.0 + rank <= reservation.moment and not devices.isdisjoint(victim.slot.devices)
    ]
    if not chosen:
        return None
    for victim in chosen:
        if 2 * waiter.work + victim.cost * len(victim.slot.devices) > victim.work:
            return None
    saving = max(victim.remaining for victim in chosen) - sum(waiter.seconds + victim.cost for victim in chosen)
    return Displacement(tuple(sorted(victim.slot.job for victim in chosen)), waiter.job.id, reservation.devices, saving)
