"""Displacement: which running jobs give way, so that jobs with less work left do not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.planner.occupancy import Occupancy, Slot
from stoker.core.planner.placement import reserve, waiting_since
from stoker.core.settings import Policy
from stoker.core.spec import Resources

MOST_PREEMPTIONS = 4
"""How often one job gives way; after that it runs to its end."""
LEAST_RUN_SECONDS = 300.0
"""Seconds that a job runs at least before it gives way for the first time."""
SWITCHES_PER_RUN = 10
"""How many times as long as its switch takes a job runs at least before it gives way."""
GROWTH = 2.0
"""By which factor that time grows each time."""
MARGIN = 2.0
"""How many times the work of the waiting job must be left of each job that gives way: estimates err."""
PRICE = 3.0
"""A job that gave way before does so again once the jobs that would profit have waited together for this many times
what is left of it, by the share of its preemptions that are used: the few that it has are for many waiting jobs."""
MOST_AT_ONCE = 8
"""Displacements of one plan, each of which needs a new view of the machine."""
RECHECK_SECONDS = 60.0
RECHECK_SHARE = 1 / 8
"""A job of unknown duration is estimated anew when it has run for this share longer."""


class Displacement(Struct, frozen=True):
    """Running jobs that give way to a waiting one."""

    victims: tuple[int, ...]
    """Their ids."""
    for_job: int
    devices: tuple[str, ...]
    """The devices that the waiting job will have."""
    saving: float
    """GPU-seconds of work that then wait for less work, minus what the switches cost."""


class Handover(Struct, frozen=True):
    """Devices that are kept for a waiting job, since others leave them, or have left them, for it."""

    job: int
    devices: tuple[str, ...]


class Waiter(NamedTuple):
    """A job that cannot start because of running ones."""

    job: Job
    resources: Resources
    seconds: float
    """How long it is expected to run."""
    is_first: bool
    """Whether it profits before all others: a person waits for it, or it is sure to be short."""

    @property
    def gpus(self) -> int:
        return self.resources.gpus

    @property
    def work(self) -> float:
        return self.seconds * self.gpus


class _Victim(NamedTuple):
    """A running job that may give way now."""

    slot: Slot
    priority: int
    work: float
    """GPU-seconds that it is expected to run on."""
    cost: float
    """GPU-seconds that are lost if it gives way."""

    @property
    def gpus(self) -> int:
        return len(self.slot.devices)

    @property
    def seconds(self) -> float:
        return self.work / self.gpus

    @property
    def times(self) -> int:
        return self.slot.preemption.times if self.slot.preemption else 0


View = Callable[[Sequence[Slot]], Occupancy]
"""The machine with these running jobs; their ends are as given, since no time passes."""
WaitersBelow = Callable[[float], Iterable[Waiter]]
"""The jobs that cannot start and need less work than this."""


def may_leave_from(slot: Slot) -> float | None:
    """When an attempt has run long enough to give way, longer each time; None if it never gives way."""
    preemption = slot.preemption
    if preemption is None or slot.since is None or preemption.times >= MOST_PREEMPTIONS:
        return None
    least = max(LEAST_RUN_SECONDS, SWITCHES_PER_RUN * (preemption.save + preemption.start))
    return slot.since + least * GROWTH**preemption.times


def next_look(slots: Sequence[Slot], now: float) -> float | None:
    """When the next attempt has run long enough to give way, or needs a new estimate; None if none ever does."""
    moments = []
    for slot in slots:
        if slot.since is not None and (moment := may_leave_from(slot)) is not None:
            later = now + max(RECHECK_SECONDS, (now - slot.since) * RECHECK_SHARE)
            moments.append(moment if moment > now else later)
    return min(moments, default=None)


def displace(
    waiters: WaitersBelow, slots: Sequence[Slot], view: View, policy: Policy, now: float
) -> list[Displacement]:
    """The displacements that save more than they cost: a job gives way to one with much less work left.

    For each waiting job, those with the least work first, the victims are the jobs with the most work left on the
    devices that it can have soonest if they leave in this order.
    """
    victims = [victim for slot in slots if (victim := _victim(slot, policy, now)) is not None]
    if not victims:
        return []
    victims.sort(key=lambda victim: (-victim.work, victim.slot.job))
    ordered = sorted(waiters(victims[0].work), key=lambda waiter: (not waiter.is_first, waiter.work, waiter.job.id))
    search = _Search(slots, view, ordered, now)
    refused: set[tuple[Resources, int, bool]] = set()
    """Those for which a job with less work has found nothing."""
    decided: list[Displacement] = []
    for waiter in ordered:
        want = waiter.resources, waiter.job.spec.priority, waiter.job.spec.urgent
        if want in refused:
            continue
        found = search.displacement(waiter, victims)
        if found is None:
            refused.add(want)
            continue
        decided.append(found)
        search.carry_out(found, waiter)
        victims = [victim for victim in victims if victim.slot.job not in found.victims]
        if not victims or len(decided) == MOST_AT_ONCE:
            break
    return decided


def _victim(slot: Slot, policy: Policy, now: float) -> _Victim | None:
    preemption, moment = slot.preemption, may_leave_from(slot)
    if preemption is None or slot.since is None or moment is None or now < moment:
        return None
    ran = now - slot.since
    lost = ran if preemption.mode == "restart" else 0.0
    lost = lost if preemption.unsaved is None else preemption.unsaved
    remaining = preemption.remaining
    if remaining is None:
        remaining = unknown_rest(preemption.done + ran, policy.unknown)
    gpus = len(slot.devices)
    return _Victim(slot, preemption.priority, remaining * gpus, (lost + preemption.save + preemption.start) * gpus)


def unknown_rest(ran: float, unknown: float) -> float:
    """Seconds that a job of unknown duration still needs: as long again as it has run, as run times spread widely."""
    return max(unknown - ran, ran)


class _Search:
    """Finds the victims for one waiting job after the other."""

    def __init__(self, slots: Sequence[Slot], view: View, waiters: Sequence[Waiter], now: float) -> None:
        self._slots = list(slots)
        self._view = view
        self._waiters = waiters
        self._now = now
        self._leaving: tuple[tuple[int, ...], Occupancy] | None = None

    def carry_out(self, displacement: Displacement, waiter: Waiter) -> None:
        """Go on as if the victims were gone and the waiting job ran."""
        self._slots = [slot for slot in self._slots if slot.job not in displacement.victims]
        self._slots.append(Slot("", waiter.job.id, waiter.resources, displacement.devices))
        self._leaving = None

    def displacement(self, waiter: Waiter, victims: Sequence[_Victim]) -> Displacement | None:
        """The victims for a waiting job; None if none help it, or too little is saved."""
        able = [victim for victim in victims if victim.priority <= waiter.job.spec.priority]
        reservation = reserve(waiter.job, waiter.resources, self._gone_by_turns([victim.slot.job for victim in able]))
        if reservation is None or reservation.moment is None:
            return None
        devices = reservation.claims.union(reservation.devices)
        last = round(reservation.moment)
        chosen = [victim for victim in able[:last] if not devices.isdisjoint(victim.slot.devices)]
        if len(chosen) > 1:
            chosen = self._least(chosen, waiter.resources, reservation.devices)
        savings = [
            victim.work - victim.cost - MARGIN * waiter.seconds * max(victim.gpus, waiter.gpus) for victim in chosen
        ]
        if not chosen or (min(savings) <= 0.0 and not waiter.job.spec.urgent):
            return None
        if not waiter.is_first and not self._is_worth_it(chosen):
            return None
        job_ids = tuple(sorted(victim.slot.job for victim in chosen))
        return Displacement(job_ids, waiter.job.id, reservation.devices, min(savings))

    def _is_worth_it(self, chosen: Sequence[_Victim]) -> bool:
        """Whether enough jobs have waited long enough, if some victims have given way before."""
        price = max(victim.times / MOST_PREEMPTIONS * victim.seconds for victim in chosen) * PRICE
        if not price:
            return True
        gpus, least = sum(victim.gpus for victim in chosen), min(victim.seconds for victim in chosen)
        profiting = [waiter for waiter in self._waiters if waiter.gpus <= gpus and MARGIN * waiter.seconds < least]
        return sum(self._now - waiting_since(waiter.job) for waiter in profiting) >= price

    def _gone_by_turns(self, job_ids: Sequence[int]) -> Occupancy:
        """The machine, on which the first of these jobs leaves at moment 1, the next at 2, and no other ever."""
        if self._leaving is None or self._leaving[0] != tuple(job_ids):
            turns = {job_id: float(turn) for turn, job_id in enumerate(job_ids, 1)}
            slots = [replace(slot, since=None, until=turns.get(slot.job)) for slot in self._slots]
            self._leaving = tuple(job_ids), self._view(slots)
        return self._leaving[1]

    def _least(self, chosen: Sequence[_Victim], resources: Resources, device_ids: Sequence[str]) -> list[_Victim]:
        """Those of the victims that are needed: jobs that share a device may leave room without all of them."""
        needed = list(chosen)
        for victim in reversed(chosen):
            rest = [other for other in needed if other is not victim]
            gone = {other.slot.job for other in rest}
            occupancy = self._view(
                [replace(slot, since=None, until=None) for slot in self._slots if slot.job not in gone]
            )
            if occupancy.are_open(device_ids, resources):
                needed = rest
        return needed
