"""Measure GPU memory and load of attempts by the processes that devices show, record it, and learn from it.

Their progress tells when they will end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.device import Account, Device, Process, Reading, Snapshot
from stoker.core.job import Active, Ended, Job, Placed, Running, slot_of, state_word
from stoker.core.launch import attempt_key
from stoker.core.learning import Live, MeasuredUse, reached, seen
from stoker.core.logs.progress import read_pace
from stoker.core.outcomes import WHOLE_RESULTS
from stoker.core.planner.occupancy import Slot
from stoker.runner.interface import ProcessIds
from stoker.runner.processes import parent_of, stopped
from stoker.sites.interface import EngineJobs
from stoker.sites.machine.allocations import Allocation, Allocations
from stoker.store.history import RunHistory
from stoker.store.logs import read_tail
from stoker.store.reports import progress_of
from stoker.store.schema import Measured

YOUNG = 3.0
"""Seconds for which an attempt is young and its memory use changes fast."""
YOUNG_INTERVAL = 0.25
"""Seconds between two looks at a young attempt."""
GAP_SECONDS = 60.0
"""Seconds without a look after which it is unknown what an attempt did meanwhile, as while the machine slept."""
KEEP_INTERVAL = 60.0
"""Seconds between two records of a running attempt, which are all that is left if the engine dies."""
_LATE = 3.0
"""Seconds to wait for the driver's account of an attempt that is over."""
_DEEPEST = 64
"""Ancestors of a process that are checked at most."""
_MANY = 4096
"""Processes of one attempt after which the ended ones are forgotten."""


Closed = tuple[str, Account]
"""A device, and the driver's account of a process that ended."""


class WatchedAttempt(Struct):
    """The measurements of one attempt."""

    job: Job
    number: int
    devices: tuple[Device, ...]
    use: MeasuredUse
    log: str = ""
    void: frozenset[Closed] = frozenset()
    """Accounts that were closed before it began: the kernel may reuse their process ids."""
    memory: int = 0
    pids: set[int] = field(default_factory=set)
    """Its processes that were seen on its GPUs, and its first process."""
    together: dict[str, frozenset[int]] = field(default_factory=dict)
    """By device, the processes that ran on it at the same time when that was last seen."""
    idle_since: float | None = None
    """Since when its GPUs have shown no utilisation, by others neither if the driver does not tell who uses them."""
    seen_at: float = 0.0
    kept: float = 0.0
    ended: float | None = None
    shared: bool = False


class Telemetry:
    """The watched attempts: those that run, and those that ended and whose driver account is not final yet."""

    def __init__(
        self,
        allocations: Allocations,
        processes: ProcessIds,
        active: Callable[[int], Job | None],
        recorded: Callable[[int], Mapping[int, MeasuredUse]],
    ) -> None:
        """`active` finds an active job; `recorded` is what was recorded of a job's attempts, by their numbers."""
        self._allocations = allocations
        self._processes = processes
        self._active = active
        self._recorded = recorded
        self._watched: dict[str, WatchedAttempt] = {}
        self._late: list[WatchedAttempt] = []
        self._seen_at = 0.0
        self._workers: dict[int, str] = {}
        """Process -> its worker, empty if it is a foreign process."""
        self._roots: dict[int, str] = {}
        """Process of a worker -> the worker's name."""
        self._closed: frozenset[Closed] = frozenset()
        """Accounts that were closed in the last snapshot."""

    @property
    def waits(self) -> bool:
        """Whether the driver's account of an ended attempt is not final yet."""
        return bool(self._late)

    def interval(self, now: float, usual: float) -> float:
        """Seconds between two snapshots of the devices."""
        young = (
            allocation.jobs and allocation.measured and now - allocation.head_since < YOUNG
            for allocation in self._allocations
        )
        return min(YOUNG_INTERVAL, usual) if self.waits or any(young) else usual

    def refresh(self, snapshot: Snapshot, now: float) -> None:
        """Measure the attempts by a snapshot, unless it is the same as before."""
        if snapshot.at == self._seen_at:
            return
        self._seen_at = snapshot.at
        self._identify(snapshot)
        heads = [
            (allocation, self._active(allocation.jobs[0]))
            for allocation in self._allocations
            if allocation.jobs and allocation.measured
        ]
        for allocation, job in heads:
            if job is not None:
                self._measure(allocation, job, snapshot, now)
        self._closed = frozenset(_closed(snapshot))
        running = {attempt_key(job.id, job.attempts) for _, job in heads if job is not None}
        self._watched = {key: attempt for key, attempt in self._watched.items() if key in running}  # without those lost

    def live(self) -> dict[int, Live]:
        """Memory and load of the running attempts, by job."""
        return {
            attempt.job.id: Live(attempt.memory, attempt.use.peak, attempt.use.utilisation)
            for attempt in self._watched.values()
        }

    def idle_since(self) -> dict[int, float | None]:
        """Since when the GPUs of each running job have shown no utilisation; None if they are used."""
        return {attempt.job.id: attempt.idle_since for attempt in self._watched.values() if attempt.seen_at}

    def peak(self, job: Job) -> int | None:
        """The most bytes that a running attempt has used so far, if it was seen at all."""
        watched = self._watched.get(attempt_key(job.id, job.attempts))
        return watched.use.peak or None if watched is not None else None

    def processes(self, job: Job) -> set[int]:
        """The processes of a running attempt that were seen on its GPUs, and its first process."""
        watched = self._watched.get(attempt_key(job.id, job.attempts))
        return watched.pids if watched is not None else set()

    def running(self) -> list[WatchedAttempt]:
        """The running attempts that were seen."""
        return [attempt for attempt in self._watched.values() if attempt.use.looks]

    def end(self, job: Job, after: Job, shared: bool, now: float) -> None:
        """An attempt is over; `finished` returns it once the driver had the time to close its account.

        For a very short attempt that account may be all that is known.
        """
        key = attempt_key(job.id, job.attempts)
        allocation = self._allocations[slot_of(job.state.ref)] if isinstance(job.state, Active) else None
        if allocation is not None and allocation.measured:
            self._watch(allocation, job, now)
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.job, watched.ended, watched.shared = after, now, shared
            self._late.append(watched)

    def finished(self, snapshot: Snapshot, now: float) -> Iterator[WatchedAttempt]:
        """The ended attempts whose accounts are final; each is returned once."""
        late, self._late = self._late, []
        for attempt in late:
            assert attempt.ended is not None
            accounts = [snapshot.reading(device.id).accounts for device in attempt.devices]
            if snapshot.at > attempt.ended:
                self._account(attempt, snapshot)
            elif any(account is not None for account in accounts) and now - attempt.ended < _LATE:
                self._late.append(attempt)
                continue
            yield attempt

    def left(self) -> list[WatchedAttempt]:
        """All ended attempts, whether or not their accounts are final."""
        late, self._late = self._late, []
        return late

    def overdue(self, now: float) -> Iterator[WatchedAttempt]:
        """Running attempts that are due to be recorded."""
        for attempt in self._watched.values():
            if now - attempt.kept >= KEEP_INTERVAL and attempt.use.looks:
                attempt.kept = now
                yield attempt

    def _measure(self, allocation: Allocation, job: Job, snapshot: Snapshot, now: float) -> None:
        shown = [snapshot.readings.get(device.id) for device in allocation.devices]
        if not isinstance(job.state, Running):
            return
        attempt = self._watch(allocation, job, now)
        readings = [reading for reading in shown if reading is not None and not reading.problem]
        if len(readings) < len(shown):  # one of its GPUs has vanished or cannot be read
            return
        attempt.memory = max((self._held(allocation, reading, attempt) for reading in readings), default=0)
        load = self._load(allocation, readings)
        is_gap = now - (attempt.seen_at or job.state.since) > GAP_SECONDS
        attempt.use = seen(attempt.use, max(0.0, now - job.state.since), attempt.memory, load, is_gap=is_gap)
        self._account(attempt, snapshot)
        _note_idleness(attempt, [self._own_load(allocation, reading) for reading in readings], now)
        allocation.peak = attempt.use.peak

    def _watch(self, allocation: Allocation, job: Job, now: float) -> WatchedAttempt:
        """The record of an attempt; another engine may have begun to measure it."""
        key = attempt_key(job.id, job.attempts)
        attempt = self._watched.get(key)
        if attempt is None:
            use = self._recorded(job.id).get(job.attempts, MeasuredUse()) if allocation.adopted else MeasuredUse()
            log = job.state.log if isinstance(job.state, Placed) else ""
            attempt = self._watched[key] = WatchedAttempt(
                job, job.attempts, allocation.devices, use, log, self._closed, kept=now
            )
        if len(attempt.pids) > _MANY:
            attempt.pids &= self._workers.keys()
        if born := self._processes.process_of(allocation.worker, key):  # known a moment after the start
            attempt.pids.add(born)
        return attempt

    def _held(self, allocation: Allocation, reading: Reading, attempt: WatchedAttempt) -> int:
        """Bytes that an attempt uses on a device: those of its processes, else the rest that no other process uses."""
        ours = [process for process in reading.processes if self._is_of(allocation, process)]
        others = [process for process in reading.processes if not self._is_of(allocation, process)]
        attempt.pids.difference_update(process.pid for process in others)  # the kernel may reuse an id
        attempt.pids.update(process.pid for process in ours)
        if any(process.memory is None for process in ours) or (not reading.processes and reading.used):
            return 0 if allocation.shared else _rest(reading, others)
        return sum(process.memory or 0 for process in ours)

    def _load(self, allocation: Allocation, readings: list[Reading]) -> int | None:
        """Mean load of its GPUs, if no other process computes on them."""
        loads = [reading.utilisation for reading in readings if reading.utilisation is not None]
        computing = (process for reading in readings for process in reading.processes if not process.graphics)
        if not loads or allocation.shared or not all(self._is_of(allocation, process) for process in computing):
            return None
        return round(sum(loads) / len(loads))

    def _own_load(self, allocation: Allocation, reading: Reading) -> int | None:
        """The load of a device by an attempt alone if the driver tells that of its processes, else by all together."""
        computing = [process for process in reading.processes if not process.graphics]
        ours = [process.load for process in computing if self._is_of(allocation, process)]
        loads = [load for load in ours if load is not None]
        if not ours or len(ours) == len(computing) or len(loads) < len(ours):
            return reading.utilisation
        return max(loads)

    def _is_of(self, allocation: Allocation, process: Process) -> bool:
        return self._workers.get(process.pid) == allocation.worker

    def _account(self, attempt: WatchedAttempt, snapshot: Snapshot) -> None:
        """Take the peaks of the driver's accounts: the sum of processes that ran together, the largest of others."""
        for device in attempt.devices:
            accounts = snapshot.reading(device.id).accounts or ()
            ours = (account for account in accounts if account.pid in attempt.pids)
            own = {account.pid: account for account in ours if (device.id, account) not in attempt.void}
            if running := frozenset(pid for pid, account in own.items() if account.running):
                attempt.together[device.id] = running
            together = sum(own[pid].peak for pid in attempt.together.get(device.id, ()) if pid in own)
            attempt.use = reached(attempt.use, max([together, *(account.peak for account in own.values())]))

    def _identify(self, snapshot: Snapshot) -> None:
        """Find the worker of every new process; forget the processes that ended."""
        roots = {
            root: allocation.worker
            for allocation in self._allocations
            if (root := self._processes.root_of(allocation.worker))
        }
        shown = {process.pid for process in _processes(snapshot)}
        # A foreign process may turn out to belong to a worker that is known only now.
        believed = {*roots.values(), *([""] if roots == self._roots else [])}
        kept = {pid: worker for pid, worker in self._workers.items() if pid in shown and worker in believed}
        self._workers = kept | {pid: _worker_of(pid, roots) for pid in shown - kept.keys()}
        self._roots = roots


def _note_idleness(attempt: WatchedAttempt, loads: Sequence[int | None], now: float) -> None:
    """An attempt begins to be idle anew after a time in which nobody looked, or in which it was stopped.

    GPUs with an unknown load change nothing.
    """
    gap, attempt.seen_at = now - attempt.seen_at, now
    if None in loads or not loads:
        return
    if any(loads) or any(stopped(pid) for pid in attempt.pids):
        attempt.idle_since = None
    elif attempt.idle_since is None or gap > GAP_SECONDS:
        attempt.idle_since = now


def _processes(snapshot: Snapshot) -> Iterable[Process]:
    return (process for reading in snapshot.readings.values() for process in reading.processes)


def _closed(snapshot: Snapshot) -> Iterator[Closed]:
    for device, reading in snapshot.readings.items():
        yield from ((device, account) for account in reading.accounts or () if not account.running)


def _rest(reading: Reading, others: list[Process]) -> int:
    """Bytes in use on a device beyond those of other processes, 0 if theirs are not all known."""
    amounts = [process.memory for process in others if process.memory is not None]
    return max(0, (reading.used or 0) - sum(amounts)) if len(amounts) == len(others) else 0


def _worker_of(pid: int, roots: dict[int, str]) -> str:
    for _ in range(_DEEPEST):
        if pid in roots:
            return roots[pid]
        parent = parent_of(pid)
        if not parent:
            return ""
        pid = parent
    return ""


# -- the record and the history ----------------------------------------------------------------

LOOKS_ENOUGH = 3
"""Snapshots after which the mean load of a GPU is meaningful, and a peak of 0."""


class Learning:
    """Takes measurements to the record and to the history."""

    def __init__(self, telemetry: Telemetry, history: RunHistory, jobs: EngineJobs) -> None:
        self._telemetry = telemetry
        self._history = history
        self._jobs = jobs

    def learn(self, snapshot: Snapshot, now: float) -> None:
        """Record ended attempts, and running ones from time to time."""
        for attempt in self._telemetry.overdue(now):
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))
        for attempt in self._telemetry.finished(snapshot, now):
            self._finished(attempt)

    def finish(self) -> None:
        """Record all attempts before the engine leaves; another engine may go on with the running ones."""
        for attempt in self._telemetry.left():
            self._finished(attempt)
        for attempt in self._telemetry.running():
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))

    def _finished(self, attempt: WatchedAttempt) -> None:
        if attempt.use.looks or attempt.use.peak:
            self._jobs.measure(Measured(attempt.job.id, attempt.number, attempt.use))
            self._learn(attempt)

    def _learn(self, attempt: WatchedAttempt) -> None:
        """Of a run that was cut short only its start counts, and a peak that is higher than any before."""
        if attempt.use.began:
            self._jobs.learn(self._history.learn_start(attempt.job, attempt.use.began))
        models = [device.model for device in attempt.devices]
        peak = attempt.use.peak or (0 if _shows_no_memory(attempt.use) else None)
        if _result(attempt.job) not in WHOLE_RESULTS:
            if peak and self._history.knows_less(attempt.job, models, peak):
                self._jobs.learn(self._history.learn_use(attempt.job, models, peak=peak))
            return
        load = attempt.use.utilisation if attempt.use.busy >= LOOKS_ENOUGH else None
        pace = None if attempt.shared else _pace(attempt.log)
        self._jobs.learn(self._history.learn_use(attempt.job, models, peak=peak, load=load, pace=pace))


def _shows_no_memory(use: MeasuredUse) -> bool:
    """Whether a peak of 0 is a fact: no other process was on its GPUs, such as one that a container started for it."""
    return use.peak == 0 and use.looks == use.busy >= LOOKS_ENOUGH


def _result(after: Job) -> str:
    return state_word(after) if isinstance(after.state, Ended) else ""


def _pace(log: str) -> float | None:
    pace = read_pace(read_tail(log)) if log else None
    return pace.per_second if pace is not None else None


PROGRESS_INTERVAL = 10.0
"""Seconds between two looks at the log of a job: each takes about a millisecond."""
MOST_LOGS = 64
"""Logs that are read for one forecast."""


class _Seen(NamedTuple):
    at: float
    until: float | None


class ExpectedEnds:
    """Ends of running attempts for the forecast. The plan does not use them: logs are only a hint."""

    def __init__(self, active: Callable[[int], Job | None], report_of: Callable[[int], Path]) -> None:
        self._active = active
        self._report_of = report_of
        self._seen: dict[int, _Seen] = {}

    def applied(self, slots: Sequence[Slot], now: float) -> list[Slot]:
        """The slots with the ends that progress tells, in place of those by limit and history."""
        self._seen = {slot.job: self._looked(slot.job, now) for slot in slots[:MOST_LOGS]}
        ends = {job: seen.until for job, seen in self._seen.items() if seen.until is not None}
        return [replace(slot, until=max(now, ends[slot.job])) if slot.job in ends else slot for slot in slots]

    def _looked(self, job_id: int, now: float) -> _Seen:
        seen, job = self._seen.get(job_id), self._active(job_id)
        if seen is not None and now - seen.at < PROGRESS_INTERVAL:
            return seen
        progress = None if job is None else progress_of(job, self._report_of(job_id), now)
        return _Seen(now, None if progress is None or progress.left is None else now + progress.left)
