"""The jobs of an engine: waiting, blocked, active."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from stoker.core.device import Device
from stoker.core.job import (
    Active,
    Assigned,
    Ended,
    Event,
    Job,
    JobEvent,
    Queued,
    Resumed,
    Retried,
    Running,
    Skipped,
    Started,
    Starting,
    Waiting,
    is_delegated,
    part,
    slot_of,
    start_limit,
)
from stoker.core.jobs_by_id import JobsById
from stoker.core.launch import parse_key
from stoker.core.learning import Learnt
from stoker.core.planner.placement import waiting_since
from stoker.core.planner.queue import NotEligible, WaitingJobs, is_gated, why_not_eligible
from stoker.core.planner.reasons import Behind, NotBefore
from stoker.core.ranges import missing
from stoker.core.spec import Dependency, NeverSatisfied, Outcome, never_satisfied_text, target_text
from stoker.engine.recorder import FollowUp, Recorder
from stoker.store.queries import coordinator_of, has_open_members, jobs_of
from stoker.store.schema import Measured
from stoker.store.writer import Store

NONBLOCK_SECONDS = 1.0
"""A job that has to start at once may wait so long for an engine that looks at its devices."""


class BlockedJobs:
    """Jobs that wait for a time, another job or a user, each with its hindrance."""

    def __init__(self) -> None:
        self._jobs = JobsById()
        self._why: dict[int, NotEligible] = {}
        """By the first ids of entries, as below."""
        self._begins: list[tuple[float, int]] = []
        self._behind: dict[Dependency, set[int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def add(self, job: Job, why: NotEligible) -> None:
        """Add a job, or several that one entry stands for; it stays until it is removed."""
        self.remove(job.id, job.count)
        self._jobs.add(job)
        self._note(job, why)

    def _note(self, job: Job, why: NotEligible) -> None:
        self._why[job.id] = why
        if isinstance(why, NotBefore):
            heappush(self._begins, (why.at, job.id))
        elif isinstance(why, Behind):
            for dependency in why.dependencies:
                self._behind.setdefault(dependency, set()).add(job.id)

    def remove(self, job_id: int, count: int = 1) -> Job | None:
        """Remove a job and return it, if it is here, or so many of one entry."""
        removed = self._jobs.remove(job_id, count)
        if removed is None:
            return None
        entry, left = removed
        why = self._why.pop(entry.id)
        for dependency in why.dependencies if isinstance(why, Behind) else ():
            waiting = self._behind[dependency]
            waiting.discard(entry.id)
            if not waiting:
                del self._behind[dependency]
        for rest in left:
            self._note(rest, why)
        return part(entry, job_id, job_id + count - 1)

    def get(self, job_id: int) -> Job | None:
        return self._jobs.get(job_id)

    def between(self, first: int, last: int) -> list[Job]:
        """The jobs with ids in a range; one may stand for several."""
        return self._jobs.between(first, last)

    @property
    def first(self) -> Job | None:
        job = next(iter(self._jobs.entries.values()), None)
        return None if job is None else part(job, job.id, job.id)

    def reason(self, job_id: int) -> NotEligible | None:
        entry = self._jobs.entry(job_id)
        return None if entry is None else self._why[entry.id]

    @property
    def next_begin(self) -> float | None:
        """When the next job may begin that waits for a time."""
        while self._begins and not self._is_too_early(*self._begins[0]):
            heappop(self._begins)
        return self._begins[0][0] if self._begins else None

    def due(self, now: float) -> Iterator[Job]:
        """Jobs whose time has come; one may stand for several."""
        while (begin := self.next_begin) is not None and begin <= now:
            yield self._jobs.entries[heappop(self._begins)[1]]

    @property
    def targets(self) -> list[Dependency]:
        """All that jobs depend on."""
        return list(self._behind)

    def behind(self, dependency: Dependency) -> list[Job]:
        """The jobs that wait for this dependency, by their ids; one may stand for several."""
        return [self._jobs.entries[job_id] for job_id in sorted(self._behind.get(dependency, ()))]

    def _is_too_early(self, begin: float, job_id: int) -> bool:
        return self._why.get(job_id) == NotBefore(begin)


class _StartLimit(NamedTuple):
    """A time in which jobs have to start; it holds while they wait since the same moment with the same limit."""

    at: float
    first: int
    last: int
    seconds: float
    since: float

    def is_for(self, job: Job) -> bool:
        is_same = isinstance(job.state, Waiting) and job.state.since == self.since
        return start_limit(job) == self.seconds and (is_same or is_delegated(job))


class JobTable:
    """Jobs that wait, are blocked or active. Of adopted jobs only the end is recorded; they are not queued again."""

    def __init__(self) -> None:
        self.waiting = WaitingJobs()
        self.blocked = BlockedJobs()
        self._active: dict[int, Job] = {}
        self._adopted: set[int] = set()
        self.leaving: set[int] = set()
        """Running jobs that were asked to give way."""

    def place(self, job: Job) -> None:
        """Put a job where its state belongs; drop one that ended, and an adopted job that would wait."""
        self.withdraw(job.id, job.count)
        self.leaving.discard(job.id)
        if isinstance(job.state, Active):
            self._active[job.id] = job
            if isinstance(job.state, Running) and job.state.giving_way is not None:
                self.leaving.add(job.id)
            return
        self._active.pop(job.id, None)
        if isinstance(job.state, Waiting) and job.id not in self._adopted:
            self.waiting.add(job)
        self._adopted.discard(job.id)

    def block(self, job: Job, why: NotEligible) -> None:
        """Put a job aside that does not wait for a device; drop an adopted job."""
        self._active.pop(job.id, None)
        self.leaving.discard(job.id)
        self.withdraw(job.id, job.count)
        if job.id not in self._adopted:
            self.blocked.add(job, why)
        self._adopted.discard(job.id)

    def withdraw(self, job_id: int, count: int = 1) -> Job | None:
        """Remove a job from the queue, whatever it waits for, and return it; or so many of one entry."""
        return self.waiting.remove(job_id, count) or self.blocked.remove(job_id, count)

    def queued(self, job_id: int) -> Job | None:
        """A job that is not active, or None."""
        return self.waiting.get(job_id) or self.blocked.get(job_id)

    def get(self, job_id: int) -> Job | None:
        return self._active.get(job_id) or self.queued(job_id)

    def between(self, first: int, last: int) -> list[Job]:
        """The jobs here with ids in a range, sorted; one may stand for several."""
        if first == last:
            job = self.get(first)
            return [] if job is None else [job]
        active = [job for job in self._active.values() if first <= job.id <= last]
        queued = (*self.waiting.between(first, last), *self.blocked.between(first, last))
        return sorted((*active, *queued), key=lambda job: job.id)

    def knows(self, job_id: int) -> bool:
        """Whether a job is here and not over."""
        return job_id in self._active or job_id in self.waiting or job_id in self.blocked

    def adopt(self, job: Job) -> None:
        """Mark an active job as adopted."""
        self._adopted.add(job.id)

    def is_adopted(self, job_id: int) -> bool:
        return job_id in self._adopted

    def own(self, job_id: int, batch: int) -> bool:
        """Make an adopted job one of this engine's, in a batch of its; False if it is not active any more."""
        job = self._active.get(job_id)
        if job is None:
            return False
        self._adopted.discard(job_id)
        self._active[job_id] = msgspec.structs.replace(job, batch=batch)
        return True

    def active(self, job_id: int) -> Job | None:
        return self._active.get(job_id)

    def attempt(self, key: str) -> Job | None:
        """The job of an attempt, unless that attempt is known to be over (a journal may be read twice)."""
        job_id, number = parse_key(key)
        job = self._active.get(job_id)
        return job if job is not None and job.attempts == number else None

    @property
    def all_active(self) -> list[Job]:
        """Active jobs, ours and adopted ones."""
        return list(self._active.values())

    @property
    def ours(self) -> list[Job]:
        """Active jobs that are not adopted."""
        return [job for job in self._active.values() if job.id not in self._adopted]

    @property
    def heads(self) -> list[Job]:
        """Those of ours that are first in their slot: they run, or start next."""
        first: dict[str, Job] = {}
        for job in sorted(self.ours, key=order_of_running):
            assert isinstance(job.state, Active)
            first.setdefault(slot_of(job.state.ref), job)
        return list(first.values())

    @property
    def any_of_ours(self) -> bool:
        """Whether a job is active that is not adopted."""
        return len(self._active) > len(self._adopted)

    @property
    def waiting_since(self) -> float:
        """When the oldest waiting job began to wait."""
        return min(waiting_since(next(iter(group))) for group in self.waiting.groups())

    @property
    def next_waiting(self) -> Job | None:
        """The oldest of the waiting jobs with the highest priority."""
        heads = [next(iter(group)) for group in self.waiting.groups()]
        return min(heads, key=lambda job: (-job.spec.priority, job.id), default=None)


def order_of_running(job: Job) -> tuple[bool, float, int]:
    """Sorts active jobs of one slot: the one that runs, then those behind it."""
    assert isinstance(job.state, Active)
    return isinstance(job.state, Starting), job.state.since, job.id


def _is_short(job: Job) -> bool:
    return isinstance(job.state, Waiting) and bool(job.state.shortage)


_SO = "; so "


class Jobs:
    """The job table together with the recorder: applies events and moves each job to where it belongs."""

    def __init__(self, store: Store, clock: Callable[[], float], follow_up: FollowUp | None = None) -> None:
        self.clock = clock
        self.store = store
        self.table = JobTable()
        self.recorder = Recorder(store, follow_up)
        self.plan_due = True
        """Whether something happened since the last plan that may change it."""
        self.queues_again = True
        """Whether a job waits here for its next attempt; if not, it leaves with the end of this one."""
        self.find_devices: Callable[[Sequence[str]], tuple[Device, ...]] = lambda _: ()
        """The site's devices by their ids; set when the site is open."""
        self.accepted_at = 0.0
        """When the store was read last for new jobs: what is admitted now was submitted later, by whatever clock."""
        self._start_limits: list[_StartLimit] = []
        self._ended: list[Job] = []
        """Jobs whose end is recorded, and whose dependants have not been released yet."""

    # -- what sites use (EngineJobs) --------------------------------------------------------------

    @property
    def waiting(self) -> WaitingJobs:
        return self.table.waiting

    @property
    def leaving(self) -> Collection[int]:
        return self.table.leaving

    @property
    def waiting_since(self) -> float:
        return self.table.waiting_since

    def active(self, job_id: int) -> Job | None:
        return self.table.active(job_id)

    def attempt(self, key: str) -> Job | None:
        return self.table.attempt(key)

    def learn(self, news: tuple[str, Learnt] | None) -> None:
        self.recorder.learn(news)

    def measure(self, measured: Measured) -> None:
        self.recorder.measure(measured)

    def resume(self, job_id: int) -> None:
        job = self.table.blocked.get(job_id)
        if job is not None and _is_short(job):
            self.apply(job, Resumed(self.clock()))

    def apply(self, job: Job, event: Event) -> Job:
        """Record an event, and move the job to where it now belongs."""
        place = event if isinstance(event, Assigned) or (isinstance(event, Started) and event.devices) else job.state
        devices = self.find_devices(place.devices) if isinstance(place, Assigned | Started | Active) else ()
        after = self.recorder.add(job, event, devices)
        if not self.queues_again and isinstance(job.state, Active) and isinstance(after.state, Queued):
            self.table.adopt(after)
        if isinstance(after.state, Queued) and self.table.is_adopted(job.id):
            self.recorder.release(job.id)
        if isinstance(after.state, Ended) and self._is_needed(after, after.state):
            after = self.recorder.add(after, Retried(after.state.at), ())
        self._limit_start(after)
        self.settle(after)
        return after

    def _is_needed(self, job: Job, end: Ended) -> bool:
        """Whether the coordinator of a batch ended while a user retried one of its members."""
        if not job.spec.always_requeue or end.result != "done":
            return False
        return coordinator_of(self.store, job.batch) == job.id and has_open_members(self.store, job.batch)

    # -- what the engine uses ---------------------------------------------------------------------

    def admit(self, job: Job) -> None:
        """Take a job from the store. What an earlier engine's machine was short of says nothing now."""
        if _is_short(job):
            self.apply(job, Resumed(self.clock()))
        else:
            self._limit_start(job, self.accepted_at)
            self.settle(job)

    def _limit_start(self, job: Job, submitted_after: float = 0.0) -> None:
        """Note when a job is late. By a clock that was set it may have been submitted long ago, or in the future."""
        if (seconds := start_limit(job)) is not None and isinstance(job.state, Waiting):
            since = job.state.since
            began = max(min(max(since, submitted_after), self.clock()), job.spec.begin or 0.0)
            at = began + max(seconds, NONBLOCK_SECONDS)
            heappush(self._start_limits, _StartLimit(at, job.id, job.last, seconds, since))

    @property
    def next_start_limit(self) -> float | None:
        """When the next job may be late."""
        return self._start_limits[0].at if self._start_limits else None

    def late(self, now: float) -> Iterator[Job]:
        """The jobs that have not started in time; one may stand for several."""
        while self._start_limits and self._start_limits[0].at <= now:
            limit = heappop(self._start_limits)
            yield from filter(limit.is_for, self.table.between(limit.first, limit.last))

    def settle(self, job: Job) -> None:
        """Move a job to where it belongs: active, waiting, blocked, or forgotten."""
        why = None
        if isinstance(job.state, Queued):
            self.plan_due = True
            why = why_not_eligible(job, self.clock(), self._outcome) if is_gated(job) else None
        if isinstance(why, NeverSatisfied):
            self.table.withdraw(job.id, job.count)
            self.apply(job, Skipped(self.clock(), self._why_skipped(why)))
        elif why is not None:
            self.table.block(job, why)
        else:
            self.table.place(job)

    def between(self, first: int, last: int) -> list[Job]:
        """All jobs with ids in a range as they are now, sorted, also those that ended; one may stand for several."""
        here = self.table.between(first, last)
        gaps = missing(range(first, last + 1), [range(job.id, job.last + 1) for job in here])
        elsewhere = [now for job in jobs_of(self.store, gaps) for now in self.recorder.now(job)]
        return sorted([*here, *elsewhere], key=lambda job: job.id)

    def stored(self, job_id: int) -> Job | None:
        """A job that is not in the table, as it is now; its end may not be recorded yet."""
        return None if self.table.knows(job_id) else next(iter(self.between(job_id, job_id)), None)

    def record(self) -> Sequence[JobEvent]:
        """Write all events in one transaction and return them."""
        job_events = self.recorder.write()
        self._ended += [job_event.job for job_event in job_events if isinstance(job_event.job.state, Ended)]
        return job_events

    def unblock_due(self, now: float) -> None:
        """Settle the jobs whose time has come."""
        for job in list(self.table.blocked.due(now)):
            self.settle(job)

    def unblock_behind_others(self) -> None:
        """Settle the jobs that depend on ended jobs of other engines."""
        self._unblock(lambda dependency: not self.table.knows(dependency.target))

    def unblock_behind_ended(self) -> None:
        """Settle the jobs that depend on jobs of ours whose end is recorded."""
        ended, self._ended = self._ended, []
        if ended and self.table.blocked:
            targets = {job.id for job in ended} | {job.array for job in ended}
            several = [job for job in ended if job.count > 1]

            def has_ended(dependency: Dependency) -> bool:
                target = dependency.target
                return target in targets or any(job.id <= target <= job.last for job in several)

            self._unblock(has_ended)

    def _unblock(self, which: Callable[[Dependency], bool]) -> None:
        blocked = self.table.blocked
        for dependency in [target for target in blocked.targets if which(target)]:
            if self._outcome(dependency) != "open":
                for job in blocked.behind(dependency):
                    self.settle(job)

    def _outcome(self, dependency: Dependency) -> Outcome:
        """How a target ended; an end counts once it is recorded."""
        if self.table.knows(dependency.target) and not dependency.array:
            return "open"
        return self.store.outcome(dependency)

    def _why_skipped(self, doomed: NeverSatisfied) -> str:
        """Say what went wrong; at the end of a long chain, how its first job ended."""
        before = None if doomed.dependency.array else self.stored(doomed.dependency.target)
        if before is None or not isinstance(before.state, Ended) or before.state.result != "skipped":
            return never_satisfied_text(doomed, self.store.shown_id)
        root = before.state.note.partition(_SO)[0]
        return f"{root}{_SO}{target_text(doomed.dependency, self.store.shown_id)} was skipped"
