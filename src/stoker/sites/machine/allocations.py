"""Workers on their devices under leases."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field

from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Job, Running, limit_of, started_at
from stoker.core.lease import Claim, Lease
from stoker.core.planner.occupancy import Slot, claims_on
from stoker.core.planner.queue import shape_of
from stoker.core.spec import Resources
from stoker.ledger import HeldLease, Ledger
from stoker.runner.local import LocalBackend

AHEAD_SECONDS = 0.25
"""How much work is handed over ahead at most, by what attempts took so far..."""

AHEAD_LIMIT = 64
"""... and how many attempts."""

OVERDUE = 0.5
"""Seconds after which what waits behind a running attempt is asked back, since others may be free."""

_WEIGHT_OF_NEWS = 0.2


class Allocation(Struct):
    """One worker, the devices it holds, and the jobs it has: the first runs, the others wait behind it."""

    worker: str
    resources: Resources
    devices: tuple[Device, ...]
    lease: str = ""
    """Path of the lease, empty where nothing had to be claimed."""
    adopted: bool = False
    """Whether another engine hired the worker: what it inherited, such as a terminal, is not ours."""
    jobs: deque[int] = field(default_factory=deque)
    head_since: float = 0.0
    shared: bool = False
    """Whether somebody else was on its devices at any time since the running attempt began."""
    peak: int = 0
    """The most bytes that the running attempt was seen to hold on one of them."""
    recalled: bool = False
    attended: bool = False
    """Whether the worker holds what keeps the MPS daemon of its GPU from being stopped."""

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Ids of the devices held."""
        return tuple([device.id for device in self.devices])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What its lease claims."""
        return _claims(self.devices, self.resources)

    @property
    def shares(self) -> bool:
        """Whether its lease leaves room for others, which one on whole cards does not, whatever its need suffers."""
        return any(claim.memory is not None for claim in self.claims)

    @property
    def capacities(self) -> Mapping[str, int | None]:
        """How much memory there is behind each claim."""
        return _capacities(self.devices)

    @property
    def measured(self) -> bool:
        """Whether a driver has to be asked, before the next attempt, if the memory has really been given back."""
        return any(device.measured for device in self.devices)

    def recognise(self, devices: tuple[Device, ...]) -> None:
        """These are the devices of an attempt that another engine began; nobody knows who was there before."""
        self.devices = devices
        self.shared = self.shared or self.shares

    def suits(self, resources: Resources, device_ids: tuple[str, ...]) -> bool:
        """Whether the lease held covers another job as it is."""
        return self.device_ids == device_ids and (
            self.resources == resources or _claims(self.devices, resources) == self.claims
        )

    def take(self, job: int, now: float) -> None:
        """Another attempt was handed over."""
        if not self.jobs:
            self.head_since, self.shared, self.peak = now, False, 0
        self.jobs.append(job)

    def finish(self, job: int, now: float) -> None:
        """An attempt is over or came back."""
        if self.jobs[0] == job:
            self.head_since, self.shared, self.peak = now, False, 0
        self.jobs.remove(job)
        if len(self.jobs) <= 1:
            self.recalled = False

    def overdue(self, now: float) -> bool:
        """Whether attempts wait behind one that turned out to be long."""
        return len(self.jobs) > 1 and not self.recalled and now - self.head_since > OVERDUE

    def room(self, pace: float | None, short: float, now: float) -> int:
        """How many more attempts may be handed over ahead, where they take so long and less than that is short."""
        if pace is None or pace > short or self.measured or now - self.head_since > OVERDUE:
            return 0
        depth = min(AHEAD_LIMIT, max(1, int(AHEAD_SECONDS / max(pace, 1e-6))))
        return max(0, depth - (len(self.jobs) - 1))


def _to_nobody(_: Allocation) -> bool:
    return False


class Allocations:
    """All posts of an engine, and the workers that have none at the moment."""

    def __init__(
        self,
        backend: LocalBackend,
        ledger: Ledger,
        label: str,
        expects: Callable[[Job], float | None] = limit_of,
    ) -> None:
        """`expects` tells how many seconds a job takes."""
        self._backend = backend
        self._expects = expects
        self._ledger = ledger
        self._label = label
        self._allocations: dict[str, Allocation] = {}
        self._idle: list[str] = []
        self._paces: dict[Resources, float] = {}

    def __getitem__(self, worker: str) -> Allocation:
        return self._allocations[worker]

    def __contains__(self, worker: str) -> bool:
        return worker in self._allocations

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._allocations.values())

    @property
    def leases(self) -> set[str]:
        """Names of the leases that are ours."""
        return {allocation.lease.rpartition("/")[2] for allocation in self}

    @property
    def adopted(self) -> list[Allocation]:
        """Those that other engines had opened."""
        return [allocation for allocation in self if allocation.adopted]

    @property
    def ahead(self) -> bool:
        """Whether attempts wait behind others."""
        return any(len(allocation.jobs) > 1 for allocation in self)

    def slots(
        self,
        held: Callable[[int], Job | None],
        short: float,
        now: float,
        promised: Callable[[Allocation], bool] = _to_nobody,
    ) -> list[Slot]:
        """The busy posts as the plan sees them; attempts that take less than `short` may be handed over ahead.

        But none on devices that are promised to somebody who goes first.
        """
        heads = [(allocation, held(allocation.jobs[0])) for allocation in self if allocation.jobs]
        return [
            self._slot(allocation, head, 0.0 if promised(allocation) else short, now)
            for allocation, head in heads
            if head is not None
        ]

    def open(self, resources: Resources, devices: tuple[Device, ...], now: float) -> Allocation | None:
        """A post on just these devices; None where somebody else was faster to claim them."""
        device_ids = tuple([device.id for device in devices])
        for allocation in self:
            if (
                not allocation.jobs
                and allocation.suits(resources, device_ids)
                and not self._backend.journal_is_full(allocation.worker)
            ):
                return allocation
        self._make_way(device_ids)
        claims = _claims(devices, resources)
        held = self._ledger.claim(claims, self._label, now, _capacities(devices)) if claims else None
        if claims and held is None:
            return None
        allocation = Allocation(
            self._worker_for(held), resources, devices, lease=str(held.path) if held is not None else ""
        )
        self._allocations[allocation.worker] = allocation
        return allocation

    def note_sharing(self, others: Iterable[Lease]) -> None:
        """See who shares devices by now: attempts of ours with each other, and with those of other engines."""
        foreign = {claim.name for lease in others for claim in lease.claims}
        busy = [allocation for allocation in self if allocation.jobs]
        held = Counter(claim.name for allocation in busy for claim in allocation.claims)
        for allocation in busy:
            names = {claim.name for claim in allocation.claims}
            allocation.shared = (
                allocation.shared or not names.isdisjoint(foreign) or any(held[name] > 1 for name in names)
            )

    def meet(self) -> None:
        """See in the ledger itself who shares devices: the last look at it may be a second old."""
        ours = self.leases
        self.note_sharing([lease for name, lease in self._ledger.live().leases.items() if name not in ours])

    def occupy(self, allocation: Allocation) -> None:
        """Add a post that another engine had opened."""
        self._allocations[allocation.worker] = allocation

    def close_idle(self) -> None:
        """Give the devices of idle posts back to everybody; their workers wait for other work."""
        for allocation in [allocation for allocation in self if not allocation.jobs]:
            self._close(allocation)

    def spread(self, now: float, promised: Callable[[Allocation], bool] = _to_nobody) -> None:
        """Ask for what waits behind an attempt that turned out long, or before somebody who goes first."""
        for allocation in self:
            if allocation.overdue(now) or promised(allocation):
                self.recall(allocation)

    def recall(self, allocation: Allocation) -> None:
        """Ask for what was handed over ahead."""
        if len(allocation.jobs) > 1 and not allocation.recalled:
            allocation.recalled = True
            self._backend.recall(allocation.worker)

    def lose(self, worker: str) -> Allocation | None:
        """A worker died: its post is gone, if it had one. Its lease stays for as long as anything of the job lives."""
        if worker in self._idle:
            self._idle.remove(worker)
        return self._allocations.pop(worker, None)

    def learn(self, resources: Resources, seconds: float) -> None:
        """An attempt took so long: what the next ones with the same need may take."""
        before = self._paces.get(resources, seconds)
        self._paces[resources] = before + _WEIGHT_OF_NEWS * (seconds - before)

    def stop_idle_workers(self) -> set[str]:
        """Send idle workers away and return their names; busy ones go on."""
        self.close_idle()
        for worker in self._idle:
            self._backend.stop_worker(worker)
        return set(self._idle)

    def _make_way(self, device_ids: tuple[str, ...]) -> None:
        """Close idle posts of ours that stand on devices which are wanted in another way."""
        for allocation in [
            allocation
            for allocation in self
            if not allocation.jobs and not set(device_ids).isdisjoint(allocation.device_ids)
        ]:
            self._close(allocation)

    def _close(self, allocation: Allocation) -> None:
        del self._allocations[allocation.worker]
        self._withdraw(allocation)
        if allocation.adopted or self._backend.journal_is_full(allocation.worker):
            self._backend.stop_worker(allocation.worker)
        else:
            self._backend.release(allocation.worker)
            self._idle.append(allocation.worker)

    def _slot(self, allocation: Allocation, head: Job, short: float, now: float) -> Slot:
        pace = None if self._backend.journal_is_full(allocation.worker) else self._paces.get(allocation.resources)
        room = allocation.room(pace, short, now)
        until, caps, since = self._until(head), shape_of(head).caps, started_at(head)
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
        )

    def _until(self, head: Job) -> float | None:
        """When the running attempt will end, where a limit or experience tells."""
        if not isinstance(head.state, Running) or (seconds := self._expects(head)) is None:
            return None
        return head.state.since + seconds

    def _worker_for(self, held: HeldLease | None) -> str:
        """A worker for a lease that was just claimed; without a worker there shall be no lease."""
        try:
            worker = self._idle.pop() if self._idle else self._backend.start_worker()
        except BaseException:
            if held is not None:
                self._ledger.release(held)
            raise
        if held is not None:
            self._backend.give_lease(worker, str(held.path), held.fd)
        return worker

    def _withdraw(self, allocation: Allocation) -> None:
        if allocation.lease:
            self._ledger.withdraw(allocation.lease)
            allocation.lease = ""


def _claims(devices: tuple[Device, ...], resources: Resources) -> tuple[Claim, ...]:
    return tuple([claim for device in devices for claim in claims_on(device, resources)])


def _capacities(devices: tuple[Device, ...]) -> Mapping[str, int | None]:
    return {name: device.memory for device in devices for name in device.claims}


INTERVAL = 10.0
"""Seconds between two looks..."""

FRESH_SECONDS = 3600.0
"""... and between two touches, since cleaners of temporary files go by age."""


class LeaseCheck:
    """Looks after the leases of posts at work."""

    def __init__(self, allocations: Allocations, backend: LocalBackend, ledger: Ledger, label: str) -> None:
        self._allocations = allocations
        self._backend = backend
        self._ledger = ledger
        self._label = label
        self._look_at = 0.0
        self._touch_at = 0.0
        self.trouble = ""
        """What was wrong at the last look, in words."""

    def check(self, now: float) -> bool:
        """Look when it is time; whether there is other trouble than before."""
        if now < self._look_at:
            return False
        self._look_at = now + INTERVAL
        self._freshen(now)
        before, self.trouble = self.trouble, "; ".join(self._regain(now))
        return self.trouble != before

    def _freshen(self, now: float) -> None:
        if now >= self._touch_at:
            self._touch_at = now + FRESH_SECONDS
            for allocation in self._leased():
                self._ledger.freshen(allocation.lease)

    def _regain(self, now: float) -> Iterator[str]:
        for allocation in self._leased():
            if self._ledger.is_gone(allocation.lease) and not self._backend.is_dead(allocation.worker):
                labels = ", ".join(device.label for device in allocation.devices)
                yield f"the lease on GPU {labels} was removed by somebody{self._claimed_anew(allocation, now)}"

    def _claimed_anew(self, allocation: Allocation, now: float) -> str:
        """How it went, ready to end a sentence.

        From now on the worker alone holds the lease: what the job has started by then cannot inherit it any more.
        """
        try:
            held = self._ledger.claim(
                allocation.claims, self._label, now, allocation.capacities, allocation.lease.rpartition("/")[2]
            )
        except StokerError as error:
            return f" and cannot be claimed anew: {error.message}; {error.hint}"
        if held is None:
            return f", and {self._rival(allocation)} has it now"
        self._backend.give_lease(allocation.worker, allocation.lease, held.fd)
        return "; it was claimed anew"

    def _rival(self, allocation: Allocation) -> str:
        names = {claim.name for claim in allocation.claims}
        owners = [lease.owner for lease in self._ledger.live().leases.values() if _is_on(lease, names)]
        return " or ".join(sorted(set(owners))) or "somebody"

    def _leased(self) -> list[Allocation]:
        return [
            allocation for allocation in self._allocations if allocation.lease and allocation.jobs and allocation.claims
        ]


def _is_on(lease: Lease, names: set[str]) -> bool:
    return any(claim.name in names for claim in lease.claims)
