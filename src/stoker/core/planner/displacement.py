"""Displacement: which running jobs give way, so that jobs with less work left do not wait for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
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
MOST_REFUSALS = 16
"""Searches of one plan that find nothing: where no job profits, a plan must not take long again and again."""
MOST_VIEWS = 32
"""Views of the machine that the searches of one plan may build before the last one begins."""
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


class VainSearch(NamedTuple):
    """A search that found no displacement: while nothing changes, it is not repeated soon."""

    situation: tuple[object, ...]
    """The running jobs and all else on which the answer depends, besides time and the waiting jobs."""
    since: float
    until: float

    def holds(self, situation: tuple[object, ...], now: float) -> bool:
        return self.since <= now < self.until and self.situation == situation


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


MayUse = Callable[[Waiter, Sequence[str], Occupancy, Collection[int]], bool]
"""Whether no limit keeps a waiting job from these devices once these running jobs have left."""
MayStart = Callable[[Waiter, Sequence[Waiter]], bool]
"""Whether a waiting job may start beside those for which others give way already."""


class StartLimits(NamedTuple):
    """Limits beside the devices themselves: no job gives way to one that would then not start."""

    may_start: MayStart
    may_use: MayUse


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


def displace(  # noqa: PLR0917 - as the plan
    waiters: WaitersBelow, slots: Sequence[Slot], view: View, limits: StartLimits, policy: Policy, now: float
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
    search = _Search(slots, view, limits, ordered, now)
    refused: set[tuple[Resources, int, bool]] = set()
    """Those for which a job with less work has found nothing."""
    decided: list[Displacement] = []
    served: list[Waiter] = []
    for waiter in ordered:
        want = waiter.resources, waiter.job.spec.priority, waiter.job.spec.urgent
        if want in refused or not limits.may_start(waiter, served):
            continue
        displacement = search.displacement(waiter, victims)
        if displacement is None:
            refused.add(want)
            if search.is_over:
                break
            continue
        decided.append(displacement)
        served.append(waiter)
        search.carry_out(displacement, waiter)
        victims = [victim for victim in victims if victim.slot.job not in displacement.victims]
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

    def __init__(
        self, slots: Sequence[Slot], view: View, limits: StartLimits, waiters: Sequence[Waiter], now: float
    ) -> None:
        self._slots = list(slots)
        self._view = view
        self._limits = limits
        self._waiters = waiters
        self._now = now
        self._leaving: tuple[tuple[int, ...], Occupancy] | None = None
        self._refusals = self._views = 0
        by_time = sorted(waiters, key=lambda waiter: waiter.seconds)
        self._seconds = [waiter.seconds for waiter in by_time]
        self._waited = list(accumulate((now - waiting_since(waiter.job) for waiter in by_time), initial=0.0))
        """How long the first of them, up to this number, have waited together."""

    @property
    def is_over(self) -> bool:
        """Whether this plan has searched enough in vain."""
        return self._refusals >= MOST_REFUSALS or self._views >= MOST_VIEWS

    def carry_out(self, displacement: Displacement, waiter: Waiter) -> None:
        """Go on as if the victims were gone and the waiting job ran."""
        self._slots = [slot for slot in self._slots if slot.job not in displacement.victims]
        self._slots.append(Slot("", waiter.job.id, waiter.resources, displacement.devices))
        self._leaving = None

    def displacement(self, waiter: Waiter, victims: Sequence[_Victim]) -> Displacement | None:
        """The victims for a waiting job; None if none help it, or too little is saved."""
        able = [victim for victim in victims if victim.priority <= waiter.job.spec.priority]
        if not self._may_help(waiter, able):
            return None
        displacement = self._searched(waiter, able)
        self._refusals += displacement is None
        return displacement

    def _may_help(self, waiter: Waiter, able: Sequence[_Victim]) -> bool:
        """Whether any of these victims could be worth it, wherever the waiting job would start."""
        if waiter.job.spec.urgent:
            return bool(able)
        promising = [victim for victim in able if _saving(victim, waiter) > 0.0]
        if waiter.is_first or not promising or not all(victim.times for victim in promising):
            return bool(promising)
        longest = max(victim.seconds for victim in promising)
        return self._waited[bisect_left(self._seconds, longest / MARGIN)] >= min(map(_price, promising))

    def _searched(self, waiter: Waiter, able: Sequence[_Victim]) -> Displacement | None:
        occupancy = self._gone_by_turns([victim.slot.job for victim in able])
        reservation = reserve(waiter.job, waiter.resources, occupancy)
        if reservation is None or reservation.moment is None:
            return None
        devices = reservation.claims.union(reservation.devices)
        last = round(reservation.moment)
        chosen = [victim for victim in able[:last] if not devices.isdisjoint(victim.slot.devices)]
        if len(chosen) > 1:
            chosen = self._least(chosen, waiter.resources, reservation.devices)
        savings = [_saving(victim, waiter) for victim in chosen]
        if not chosen or (min(savings) <= 0.0 and not waiter.job.spec.urgent):
            return None
        if not waiter.is_first and not self._is_worth_it(chosen):
            return None
        job_ids = tuple(sorted(victim.slot.job for victim in chosen))
        if not self._limits.may_use(waiter, reservation.devices, occupancy, job_ids):
            return None
        return Displacement(job_ids, waiter.job.id, reservation.devices, min(savings))

    def _is_worth_it(self, chosen: Sequence[_Victim]) -> bool:
        """Whether enough jobs have waited long enough, if some victims have given way before."""
        price = max(map(_price, chosen))
        if not price:
            return True
        gpus, least = sum(victim.gpus for victim in chosen), min(victim.seconds for victim in chosen)
        profiting = [waiter for waiter in self._waiters if waiter.gpus <= gpus and MARGIN * waiter.seconds < least]
        return sum(self._now - waiting_since(waiter.job) for waiter in profiting) >= price

    def _gone_by_turns(self, job_ids: Sequence[int]) -> Occupancy:
        """The machine, on which the first of these jobs leaves at moment 1, the next at 2, and no other ever."""
        if self._leaving is None or self._leaving[0] != tuple(job_ids):
            turns = {job_id: float(turn) for turn, job_id in enumerate(job_ids, 1)}
            self._leaving = tuple(job_ids), self._leaves_at(turns)
        return self._leaving[1]

    def _leaves_at(self, moments: Mapping[int, float]) -> Occupancy:
        """The machine, on which these jobs leave at these moments, and no other ever."""
        self._views += 1
        return self._view([replace(slot, since=None, until=moments.get(slot.job)) for slot in self._slots])

    def _least(self, chosen: Sequence[_Victim], resources: Resources, device_ids: Sequence[str]) -> list[_Victim]:
        """Those of the victims that are needed: jobs that share a device may leave room without all of them."""
        if not resources.shares and not any(set(device_ids).isdisjoint(victim.slot.devices) for victim in chosen):
            return list(chosen)  # a job that does not share needs its devices empty
        needed = list(chosen)
        for victim in reversed(chosen):
            rest = [other for other in needed if other is not victim]
            occupancy = self._leaves_at({other.slot.job: 0.0 for other in rest})
            if occupancy.are_open(device_ids, resources, 0.0):
                needed = rest
        return needed


def _saving(victim: _Victim, waiter: Waiter) -> float:
    """GPU-seconds of work that then wait for less work, minus what the switch costs."""
    return victim.work - victim.cost - MARGIN * waiter.seconds * max(victim.gpus, waiter.gpus)


def _price(victim: _Victim) -> float:
    """Seconds that jobs must have waited together before a victim gives way again; 0 for the first time."""
    return victim.times / MOST_PREEMPTIONS * victim.seconds * PRICE
