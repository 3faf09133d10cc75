"""Sharing the machine: GPU time used lately, whether this engine yields to others, and what it tells them."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, inf

from msgspec.structs import replace

from stoker import __version__
from stoker.core.booking import booked_now
from stoker.core.job import Job, Running, id_text, limit_of
from stoker.core.launch import attempt_key
from stoker.core.lease import Lease
from stoker.core.planner.displacement import may_leave_from
from stoker.core.planner.fairshare import (
    GRAIN_GPU_SECONDS,
    HALF_LIFE_SECONDS,
    NO_OFFERS,
    NO_OTHER_ENGINES,
    Demand,
    FairShare,
    Held,
    Offers,
    OwnDemand,
    decayed,
    demands_ahead,
    given_up,
    held_elsewhere,
    is_owed,
    spare_gpus,
    usage_of,
    yield_devices,
    yield_reason,
)
from stoker.core.planner.occupancy import Slot
from stoker.devices.detect import NO_GPU
from stoker.ledger import HeldNotice, Ledger, LedgerNotice, LedgerUnusable
from stoker.ledger.files import owner_name
from stoker.ledger.formats import MOST_LEASES, HeldDemand, LeaseJob
from stoker.runner.interface import ProcessIds
from stoker.sites.machine.allocations import Allocation, Allocations
from stoker.sites.machine.observation import Observation
from stoker.sites.machine.ref import is_nested
from stoker.store.writer import Store

MEMORY = 6 * HALF_LIFE_SECONDS
"""Seconds after which GPU time is forgotten."""

MOST_ROWS = 20_000
"""Attempts that are read at most, the newest ones, so that a long history does not slow the start."""

READ_INTERVAL = 5.0
"""Seconds between two reads of what other engines of the same user have recorded."""


class OwnUsage:
    """GPU-seconds used lately, decaying; attempts are added when they are over."""

    def __init__(self, store: Store, engine: str) -> None:
        self._store = store
        self._engine = engine
        self._total = 0.0
        self._at = 0.0
        self._read_at: float | None = None
        """When attempts of other engines were last read; None before the first read."""

    def spent(self, devices: tuple[str, ...], began: float, ended: float) -> None:
        """Add an attempt of this engine that is over."""
        if self._read_at is not None:
            self._age(max(self._at, ended))
            self._total += usage_of([(count_gpus(devices), began, ended)], self._at)

    def until(self, now: float, running: Iterable[tuple[tuple[str, ...], float]]) -> float:
        """GPU-seconds up to now, with those of running attempts (devices and start)."""
        self._read(now)
        self._age(now)
        return self._total + usage_of([(count_gpus(devices), began, None) for devices, began in running], now)

    def _read(self, now: float) -> None:
        if self._read_at is None:  # the first read includes those of this engine
            rows = self._store.spent(now - MEMORY, "", MOST_ROWS)
        elif now - self._read_at >= READ_INTERVAL:
            rows = self._store.spent(self._read_at, self._engine, MOST_ROWS)
        else:
            return
        self._read_at = now
        self._age(now)
        spent = [(written_gpus(text), began, ended) for ref, text, began, ended in rows if not is_nested(ref)]
        self._total += usage_of(spent, now)

    def _age(self, now: float) -> None:
        self._total, self._at = decayed(self._total, now - self._at), now


def count_gpus(devices: Iterable[str]) -> int:
    """Number of GPUs among the devices: users do not compete for slots without one."""
    return sum(device.partition("#")[0] != NO_GPU for device in devices)


@functools.lru_cache(maxsize=1024)
def written_gpus(text: str) -> int:
    return count_gpus(json.loads(text))


PUBLISH_INTERVAL = 0.25
"""Seconds between two changes of the published demand; other engines read it no more often."""

USER_RELIEF_SECONDS = 3600.0
"""Seconds until running jobs give way to the same other user again."""
RELIEF_SECONDS = 300.0
"""The same among the engines of one user: as long as jobs may save and a session start."""

REFRESH_INTERVAL = 60.0
"""Seconds after which a demand or notice is published again, in case a cleaner removed it from the ledger."""


class Sharing:
    """This engine's demand in the ledger, and the devices it leaves to engines that go first."""

    def __init__(self, ledger: Ledger, usage: OwnUsage, label: str) -> None:
        self._ledger = ledger
        self._usage = usage
        self._owner = owner_name(os.geteuid())
        self._label = label
        self._published: HeldDemand | None = None
        self._published_at = 0.0
        self._offers: Offers = NO_OFFERS
        self._promised: Collection[str] = ()
        """Names of devices that an engine which goes first would get if they were free."""
        self._booked: Collection[str] = ()
        """Names of devices that this user has booked for now: they are left to no other."""
        self._owed: list[tuple[Demand, int]] = []
        """Demands to which running jobs give way, and how many devices each gets anyway."""
        self._elsewhere: frozenset[str] = frozenset()
        """Names of devices that this user holds in other processes."""
        self._gpus = self._users = 1
        """How many devices there are, and users that hold some or wait for some."""
        self._given_up: dict[int, float] = {}
        """When jobs last gave way to a user."""

    @property
    def waits(self) -> bool:
        """Whether a demand is published."""
        return self._published is not None

    def is_promised(self, allocation: Allocation) -> bool:
        """Whether an engine that goes first waits for the devices of an allocation."""
        return any(name in self._promised for device in allocation.devices for name in device.claims)

    def consider(
        self, observation: Observation, allocations: Iterable[Allocation], since: Callable[[], float], now: float
    ) -> FairShare:
        """The fair share for the plan, by the demand of others; `since` is when our oldest job began to wait."""
        others = {name: demand for name, demand in observation.demands.items() if not self._is_ours(name)}
        self._promised, self._owed = (), []
        own = (booking for booking in observation.bookings if booking.uid == os.geteuid())
        self._booked = booked_now(own, now)
        elsewhere = held_elsewhere(observation.leases, self._owner)
        others_leases = [lease for lease in observation.leases if lease.pid != os.getpid()]  # one of ours may be old
        self._elsewhere = held_elsewhere(others_leases, self._owner)
        if not others:
            self._offers = NO_OFFERS
            return FairShare(elsewhere=elsewhere, shared=True) if observation.leases else NO_OTHER_ENGINES
        busy = [allocation for allocation in allocations if allocation.jobs]
        mine = self._mine(busy, since, now)
        ahead = demands_ahead(others, self._published.name if self._published else "", mine)
        names = [name for name in _all_names(observation) if name not in self._booked]
        self._gpus = len(_all_names(observation))
        holding = {lease.owner for lease in observation.leases}
        self._users = len({self._owner, *holding, *(demand.owner for demand in others.values())})
        step = yield_devices(ahead, _free(names, busy, observation.leases), self._offers, now)
        self._promised = yield_devices(ahead, names, step.offers, now).left.keys()
        self._offers = step.offers
        free = Counter(id(demand) for demand in step.left.values())
        self._owed = [(demand, free[id(demand)]) for _, demand in ahead if is_owed(demand, mine, now)]
        left = {name: yield_reason(demand, mine) for name, demand in step.left.items()}
        return FairShare(left, elsewhere, shared=True)

    def give_up(
        self, slots: Sequence[Slot], allocations: Allocations, leaving: Collection[int], now: float
    ) -> Iterator[tuple[int, str]]:
        """Running jobs that give way to other engines, each with the reason; only those that ran long enough.

        Jobs give way to another user once an hour: a demand that never uses what it gets costs no more than that. What
        its user does use then counts, so that the devices stay with it as long as its share lasts. All other users
        together get what is above our equal share. `leaving` are jobs that give way already.
        """
        staying = {slot.job: _names(allocations[slot.worker]) for slot in slots if slot.job not in leaving}
        for demand, free in self._owed:
            is_own = demand.uid == os.geteuid()
            if now - self._given_up.get(demand.uid, -inf) < (RELIEF_SECONDS if is_own else USER_RELIEF_SECONDS):
                continue
            held = [
                Held(slot.job, slot.since, staying[slot.job])
                for slot in slots
                if slot.job in staying and not any(name in self._booked for name in staying[slot.job])
                if slot.since is not None and (moment := may_leave_from(slot)) is not None and moment <= now
            ]
            victims = given_up(demand, free, held)
            after = {job: names for job, names in staying.items() if job not in victims}
            if victims and (is_own or self._may_shrink(staying, after)):
                self._given_up[demand.uid], staying = now, after
                whom = "your session" if is_own else f"{demand.owner}, who used less lately"
                yield from ((job_id, f"for {whom}") for job_id in victims)

    def _may_shrink(self, before: Mapping[int, tuple[str, ...]], after: Mapping[int, tuple[str, ...]]) -> bool:
        """Whether our jobs may hold only these devices, for other users; they are given by job."""
        held, left = (len(self._elsewhere.union(*names.values())) for names in (before, after))
        return held - left <= spare_gpus(self._gpus, held, self._users)

    def publish(self, own_demand: OwnDemand | None, allocations: Iterable[Allocation], now: float) -> None:
        """Publish what our jobs wait for, if that has changed."""
        if own_demand is None:
            self.withdraw()
        elif now - self._published_at >= PUBLISH_INTERVAL:
            usage = self._used([allocation for allocation in allocations if allocation.jobs], now)
            demand = Demand(
                0,
                "",
                usage,
                own_demand.since,
                own_demand.gpus,
                own_demand.least,
                own_demand.claims,
                what=self._label,
                urgent=own_demand.urgent,
            )
            if (
                self._published is None
                or now - self._published_at >= REFRESH_INTERVAL
                or _differ(demand, self._published.demand)
            ):
                self._published = self._ledger.demand(demand, self._published)
                self._published_at = now

    def withdraw(self) -> None:
        """Remove our demand from the ledger."""
        if self._published is not None:
            self._ledger.retract(self._published)
            self._published = None

    def _is_ours(self, name: str) -> bool:
        return self._published is not None and name == self._published.name

    def _mine(self, busy: Sequence[Allocation], since: Callable[[], float], now: float) -> Demand:
        """Our demand as others know it, or would if it were published."""
        if self._published is not None:
            return self._published.demand
        return Demand(os.geteuid(), self._owner, self._used(busy, now), since())

    def _used(self, busy: Sequence[Allocation], now: float) -> float:
        return self._usage.until(now, [(allocation.device_ids, allocation.head_since) for allocation in busy])


def _all_names(observation: Observation) -> list[str]:
    return list(dict.fromkeys(name for device in observation.snapshot.devices for name in device.claims))


def _names(allocation: Allocation) -> tuple[str, ...]:
    return tuple(name for device in allocation.devices for name in device.claims)


def _free(names: Iterable[str], busy: Sequence[Allocation], leases: Sequence[Lease]) -> list[str]:
    """The names of devices without any lease."""
    taken = {name for allocation in busy for device in allocation.devices for name in device.claims}
    taken.update(claim.name for lease in leases for claim in lease.claims)
    return [name for name in names if name not in taken]


def _differ(demand: Demand, published: Demand) -> bool:
    """Whether two demands differ in what matters to other engines."""
    return _essence(demand) != _essence(published)


def _essence(demand: Demand) -> Demand:
    return replace(demand, uid=0, owner="", pid=0, what="", usage=demand.usage // GRAIN_GPU_SECONDS)


EXPECTED_GRAIN = 60.0
"""Seconds to which expected ends are rounded, so that a slightly different forecast changes no notice."""


class Notices:
    """This engine's notice in the ledger; screens of other users show it."""

    def __init__(self, ledger: Ledger, processes: ProcessIds, job_of: Callable[[int], Job | None]) -> None:
        self._ledger = ledger
        self._processes = processes
        self._job_of = job_of
        self._published: HeldNotice | None = None
        self._published_at = 0.0

    def publish(
        self, allocations: Iterable[Allocation], waiting: int, now: float, expected: Mapping[int, float] = {}
    ) -> None:
        """Publish it if it has changed. A ledger that cannot be used is reported where a claim fails.

        `expected` are the ends by job, as far as they can be told.
        """
        leased = [allocation for allocation in allocations if allocation.lease and allocation.jobs][:MOST_LEASES]
        told = ((allocation, self._job_of(allocation.jobs[0])) for allocation in leased)
        leases = {
            allocation.lease.rpartition("/")[2]: self._lease_job(allocation.worker, job, expected.get(job.id))
            for allocation, job in told
            if job
        }
        notice = LedgerNotice(program=__version__, waiting=waiting, leases=leases)
        before = self._published
        if before is not None and before.notice == notice and now - self._published_at < REFRESH_INTERVAL:
            return
        with suppress(LedgerUnusable):
            self._published = self._ledger.notify(notice, before)
            self._published_at = now

    def withdraw(self) -> None:
        if self._published is not None:
            self._ledger.retract(self._published)
            self._published = None

    def _lease_job(self, worker: str, job: Job, expected: float | None) -> LeaseJob:
        limit = limit_of(job)
        until = job.state.since + limit if isinstance(job.state, Running) and limit is not None else None
        pid = self._processes.process_of(worker, attempt_key(job.id, job.attempts))
        rounded = inf if expected is None else ceil(expected / EXPECTED_GRAIN) * EXPECTED_GRAIN
        return LeaseJob(id_text(job), pid or 0, until, rounded if rounded < (until or inf) else None)
