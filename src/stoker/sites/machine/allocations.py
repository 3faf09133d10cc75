"""Allocations: workers with the devices and leases they hold."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field

from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Job, Running, limit_of, started_at
from stoker.core.lease import Claim, Lease
from stoker.core.planner.occupancy import Preemption, Slot, claims_on
from stoker.core.planner.queue import job_kind_of
from stoker.core.spec import Resources
from stoker.core.warm import Template
from stoker.ledger import HeldLease, Ledger
from stoker.runner.interface import Workers

AHEAD_SECONDS = 0.25
"""Seconds of work that are prefetched at most, by the duration of earlier attempts."""

AHEAD_LIMIT = 64
"""Attempts that are prefetched at most."""

OVERDUE = 0.5
"""Seconds after which attempts behind a running one are recalled, since other devices may be free."""

_WEIGHT_OF_NEWS = 0.2


class Allocation(Struct):
    """One worker, the devices it holds, and its jobs: the first runs, the others are prefetched."""

    worker: str
    resources: Resources
    devices: tuple[Device, ...]
    lease: str = ""
    """Path of the lease, empty if nothing had to be claimed."""
    adopted: bool = False
    """Whether another engine started the worker: what it inherited, such as a terminal, is not ours."""
    jobs: deque[int] = field(default_factory=deque)
    head_since: float = 0.0
    shared: bool = False
    """Whether another attempt was on its devices at any time since the running one began."""
    peak: int = 0
    """The most bytes that the running attempt was seen to use on one of them."""
    recalled: bool = False
    template: str = ""
    """The key of the template whose modules its worker has."""
    mps_member: bool = False
    """Whether the worker holds the lock that keeps the MPS daemon of its GPU from being stopped."""

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple([device.id for device in self.devices])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claim of its lease."""
        return _claims(self.devices, self.resources)

    @property
    def shares(self) -> bool:
        """Whether its lease leaves room for other attempts, which one on whole devices does not."""
        return any(claim.memory is not None for claim in self.claims)

    @property
    def capacities(self) -> Mapping[str, int | None]:
        """Bytes of memory behind each claim."""
        return _capacities(self.devices)

    @property
    def measured(self) -> bool:
        """Whether the driver shows if the memory of the last attempt has really been freed."""
        return any(device.measured for device in self.devices)

    @property
    def recognised(self) -> bool:
        """Whether all its devices are known: an engine may adopt an attempt before the driver shows them."""
        return len(self.devices) >= self.resources.gpus

    def recognise(self, devices: tuple[Device, ...]) -> None:
        """Set the devices of an attempt that another engine began; it may have shared them before."""
        self.devices = devices
        self.shared = self.shared or self.shares

    def suits(self, resources: Resources, device_ids: tuple[str, ...]) -> bool:
        """Whether the lease covers another job as it is."""
        return self.device_ids == device_ids and (
            self.resources == resources or _claims(self.devices, resources) == self.claims
        )

    def take(self, job: int, now: float) -> None:
        """Add an attempt behind the others."""
        if not self.jobs:
            self.head_since, self.shared, self.peak = now, False, 0
        self.jobs.append(job)

    def finish(self, job: int, now: float) -> None:
        """Remove an attempt that is over or was returned."""
        if self.jobs[0] == job:
            self.head_since, self.shared, self.peak = now, False, 0
        self.jobs.remove(job)
        if len(self.jobs) <= 1:
            self.recalled = False

    def overdue(self, now: float) -> bool:
        """Whether prefetched attempts wait behind one that turned out to be long."""
        return len(self.jobs) > 1 and not self.recalled and now - self.head_since > OVERDUE

    def room(self, pace: float | None, short: float, now: float) -> int:
        """How many more attempts may be prefetched: none if they take more seconds (`pace`) than `short`."""
        if pace is None or pace > short or now - self.head_since > OVERDUE:
            return 0
        if self.measured or not self.recognised:  # it would run without the devices that it asked for
            return 0
        depth = min(AHEAD_LIMIT, max(1, int(AHEAD_SECONDS / max(pace, 1e-6))))
        return max(0, depth - (len(self.jobs) - 1))


def _never(_: Allocation) -> bool:
    return False


class Allocations:
    """All allocations of an engine, and its workers that have none at the moment."""

    def __init__(
        self,
        workers: Workers,
        ledger: Ledger,
        label: str,
        expects: Callable[[Job], float | None] = limit_of,
        gives_way: Callable[[Job, float], Preemption | None] = lambda job, now: None,
    ) -> None:
        """`expects` estimates how many seconds a job takes; `gives_way` how it gives way to others."""
        self._workers = workers
        self._expects = expects
        self._gives_way = gives_way
        self._ledger = ledger
        self._label = label
        self._allocations: dict[str, Allocation] = {}
        self._idle: dict[str, str] = {}
        """Workers without an allocation, with the keys of their templates."""
        self._paces: dict[Resources, float] = {}

    def __getitem__(self, worker: str) -> Allocation:
        return self._allocations[worker]

    def __contains__(self, worker: str) -> bool:
        return worker in self._allocations

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._allocations.values())

    @property
    def leases(self) -> set[str]:
        """Names of this engine's leases."""
        return {allocation.lease.rpartition("/")[2] for allocation in self}

    @property
    def adopted(self) -> list[Allocation]:
        """Those that other engines opened."""
        return [allocation for allocation in self if allocation.adopted]

    @property
    def any_busy(self) -> bool:
        return any(allocation.jobs for allocation in self)

    @property
    def any_prefetched(self) -> bool:
        """Whether attempts wait behind others."""
        return any(len(allocation.jobs) > 1 for allocation in self)

    def slots(
        self,
        held: Callable[[int], Job | None],
        short: float,
        now: float,
        promised: Callable[[Allocation], bool] = _never,
    ) -> list[Slot]:
        """The busy allocations as the plan sees them; attempts that take less than `short` may be prefetched.

        None are prefetched on devices that are promised to another engine.
        """
        heads = [(allocation, held(allocation.jobs[0])) for allocation in self if allocation.jobs]
        return [
            self._slot(allocation, head, 0.0 if promised(allocation) else short, now)
            for allocation, head in heads
            if head is not None
        ]

    def open(
        self, resources: Resources, devices: tuple[Device, ...], now: float, template: Template | None = None
    ) -> Allocation | None:
        """An allocation of just these devices; None if another engine was faster to claim them.

        Its worker has the modules of the template.
        """
        key = template.key if template else ""
        device_ids = tuple([device.id for device in devices])
        for allocation in self:
            if (
                not allocation.jobs
                and allocation.template == key
                and allocation.suits(resources, device_ids)
                and not self._workers.journal_is_full(allocation.worker)
            ):
                return allocation
        self._close_idle_on(device_ids)
        claims = _claims(devices, resources)
        held = self._ledger.claim(claims, self._label, now, _capacities(devices)) if claims else None
        if claims and held is None:
            return None
        allocation = Allocation(
            self._worker_for(held, template), resources, devices, lease=str(held.path) if held is not None else ""
        )
        allocation.template = key
        self._allocations[allocation.worker] = allocation
        return allocation

    def note_sharing(self, others: Iterable[Lease]) -> None:
        """Mark the allocations that share devices, with each other or with other engines."""
        foreign = {claim.name for lease in others for claim in lease.claims}
        busy = [allocation for allocation in self if allocation.jobs]
        held = Counter(claim.name for allocation in busy for claim in allocation.claims)
        for allocation in busy:
            names = {claim.name for claim in allocation.claims}
            allocation.shared = (
                allocation.shared or not names.isdisjoint(foreign) or any(held[name] > 1 for name in names)
            )

    def refresh_sharing(self) -> None:
        """Mark those that share devices by the ledger itself: the last observation may be a second old."""
        ours = self.leases
        self.note_sharing([lease for name, lease in self._ledger.live().leases.items() if name not in ours])

    def occupy(self, allocation: Allocation) -> None:
        """Add an allocation that another engine opened."""
        self._allocations[allocation.worker] = allocation

    def close_idle(self) -> None:
        """Release the devices of idle allocations; their workers wait for other attempts."""
        for allocation in [allocation for allocation in self if not allocation.jobs]:
            self._close(allocation)

    def spread(self, now: float, promised: Callable[[Allocation], bool] = _never) -> None:
        """Recall prefetched attempts behind a long one, or on devices that are promised to another engine."""
        for allocation in self:
            if allocation.overdue(now) or promised(allocation):
                self.recall(allocation)

    def recall(self, allocation: Allocation) -> None:
        """Ask for prefetched attempts back."""
        if len(allocation.jobs) > 1 and not allocation.recalled:
            allocation.recalled = True
            self._workers.recall(allocation.worker)

    def lose(self, worker: str) -> Allocation | None:
        """Forget a dead worker and return its allocation. Its lease stays as long as a process of the job lives."""
        self._idle.pop(worker, None)
        return self._allocations.pop(worker, None)

    def learn(self, resources: Resources, seconds: float) -> None:
        """Note how long an attempt took: what the next ones with the same resources may take."""
        before = self._paces.get(resources, seconds)
        self._paces[resources] = before + _WEIGHT_OF_NEWS * (seconds - before)

    def stop_idle_workers(self) -> set[str]:
        """Let idle workers exit and return their names; busy ones go on."""
        self.close_idle()
        for worker in self._idle:
            self._workers.stop_worker(worker)
        return set(self._idle)

    def _close_idle_on(self, device_ids: tuple[str, ...]) -> None:
        """Close idle allocations of devices that are needed for another one."""
        for allocation in [
            allocation
            for allocation in self
            if not allocation.jobs and not set(device_ids).isdisjoint(allocation.device_ids)
        ]:
            self._close(allocation)

    def _close(self, allocation: Allocation) -> None:
        del self._allocations[allocation.worker]
        self._withdraw(allocation)
        if allocation.adopted or self._workers.journal_is_full(allocation.worker):
            self._workers.stop_worker(allocation.worker)
        else:
            self._workers.release(allocation.worker)
            self._idle[allocation.worker] = allocation.template

    def _slot(self, allocation: Allocation, head: Job, short: float, now: float) -> Slot:
        pace = None if self._workers.journal_is_full(allocation.worker) else self._paces.get(allocation.resources)
        room = allocation.room(pace, short, now)
        until, caps, since = self._until(head), job_kind_of(head).caps, started_at(head)
        return Slot(
            allocation.worker,
            head.id,
            allocation.resources,
            allocation.device_ids,
            until,
            room,
            caps,
            since,
            allocation.peak,
            head.kind,
            self._gives_way(head, now),
        )

    def _until(self, head: Job) -> float | None:
        """When the running attempt will end, if its limit or history tells."""
        if not isinstance(head.state, Running) or (seconds := self._expects(head)) is None:
            return None
        return head.state.since + seconds

    def _worker_for(self, held: HeldLease | None, template: Template | None) -> str:
        """A worker for a lease that was just claimed; if none can be started, release the lease."""
        key = template.key if template else ""
        usable = (name for name, own in self._idle.items() if own == key and not self._workers.journal_is_full(name))
        try:
            worker = next(usable, None) or self._workers.start_worker(template)
            self._idle.pop(worker, None)
        except BaseException:
            if held is not None:
                self._ledger.release(held)
            raise
        if held is not None:
            self._workers.give_lease(worker, str(held.path), held.fd)
        return worker

    def _withdraw(self, allocation: Allocation) -> None:
        if allocation.lease:
            self._ledger.withdraw(allocation.lease)
            allocation.lease = ""


def _claims(devices: tuple[Device, ...], resources: Resources) -> tuple[Claim, ...]:
    return tuple([claim for device in devices for claim in claims_on(device, resources)])


def _capacities(devices: tuple[Device, ...]) -> Mapping[str, int | None]:
    return {name: device.memory for device in devices for name in device.claims}


INTERVAL = 0.9
"""Seconds between two checks of leases: each look at the devices, which is made every second."""

TOLD_SECONDS = 60.0
"""Seconds for which the user is told of a removed lease."""

FRESH_SECONDS = 3600.0
"""Seconds between two updates of the times of leases, since cleaners of temporary files go by age."""


class LeaseCheck:
    """Keeps the leases of busy allocations in the ledger."""

    def __init__(self, allocations: Allocations, workers: Workers, ledger: Ledger, label: str) -> None:
        self._allocations = allocations
        self._workers = workers
        self._ledger = ledger
        self._label = label
        self._check_at = 0.0
        self._touch_at = 0.0
        self._told_until = 0.0
        self.trouble = ""
        """The problem that is there, or was lately, in words for the user."""

    def check(self, now: float) -> bool:
        """Check if it is time; return whether the trouble has changed."""
        if now < self._check_at:
            return False
        self._check_at = now + INTERVAL
        self._freshen(now)
        before, trouble = self.trouble, "; ".join(self._regain(now))
        if trouble:
            self._told_until = now + TOLD_SECONDS
        if trouble or now >= self._told_until:
            self.trouble = trouble
        return self.trouble != before

    def _freshen(self, now: float) -> None:
        if now >= self._touch_at:
            self._touch_at = now + FRESH_SECONDS
            for allocation in self._leased():
                self._ledger.freshen(allocation.lease)

    def _regain(self, now: float) -> Iterator[str]:
        for allocation in self._leased():
            if self._ledger.is_gone(allocation.lease) and not self._workers.is_dead(allocation.worker):
                labels = ", ".join(device.label for device in allocation.devices)
                yield f"the lease on GPU {labels} was removed{self._claimed_anew(allocation, now)}"

    def _claimed_anew(self, allocation: Allocation, now: float) -> str:
        """Claim a lease again and return how that went, as the end of a sentence.

        From now on only the worker holds the lease: processes of the job that exist already do not inherit it.
        """
        try:
            held = self._ledger.claim(
                allocation.claims, self._label, now, allocation.capacities, allocation.lease.rpartition("/")[2]
            )
        except StokerError as error:
            return f" and cannot be reclaimed: {error}"
        if held is None:
            if rival := self._rival(allocation):
                return f", and {rival} has it now"
            self._check_at = now  # another process claims at this moment
            return " and is not reclaimed yet"
        self._workers.give_lease(allocation.worker, allocation.lease, held.fd)
        return "; it was reclaimed"

    def _rival(self, allocation: Allocation) -> str:
        names = {claim.name for claim in allocation.claims}
        owners = [lease.owner for lease in self._ledger.live().leases.values() if _is_on(lease, names)]
        return " or ".join(sorted(set(owners)))

    def _leased(self) -> list[Allocation]:
        return [
            allocation for allocation in self._allocations if allocation.lease and allocation.jobs and allocation.claims
        ]


def _is_on(lease: Lease, names: set[str]) -> bool:
    return any(claim.name in names for claim in lease.claims)
