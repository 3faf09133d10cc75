"""The jobs of an engine: waiting, blocked, active."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from types import UnionType
from typing import Any

import msgspec

from stoker.core.job import Active, Assigned, Ended, Event, Job, JobEvent, Queued, Skipped, Waiting
from stoker.core.launch import parse_key
from stoker.core.planner.queue import NotEligible, WaitingJobs, is_gated, why_not_eligible
from stoker.core.planner.reasons import Behind, NotBefore
from stoker.core.planner.reservation import waiting_since
from stoker.core.spec import Dependency, NeverSatisfied, Outcome, never_satisfied_text, target_text
from stoker.engine.recorder import FollowUp, Recorder
from stoker.sites.machine.observation import Observation
from stoker.store.writer import Store


class BlockedJobs:
    """Such jobs, each with what it waits for, found by that when it comes."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[Job, NotEligible]] = {}
        self._begins: list[tuple[float, int]] = []
        self._behind: dict[Dependency, set[int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def add(self, job: Job, why: NotEligible) -> None:
        """Park a job; it stays until it is removed."""
        self.remove(job.id)
        self._jobs[job.id] = job, why
        if isinstance(why, NotBefore):
            heappush(self._begins, (why.at, job.id))
        elif isinstance(why, Behind):
            for dependency in why.dependencies:
                self._behind.setdefault(dependency, set()).add(job.id)

    def remove(self, job_id: int) -> Job | None:
        """Take a job out, if it is parked here."""
        job, why = self._jobs.pop(job_id, (None, None))
        for dependency in why.dependencies if isinstance(why, Behind) else ():
            waiting = self._behind[dependency]
            waiting.discard(job_id)
            if not waiting:
                del self._behind[dependency]
        return job

    def get(self, job_id: int) -> Job | None:
        """A parked job, or None."""
        return self._jobs.get(job_id, (None, None))[0]

    def reason(self, job_id: int) -> NotEligible | None:
        """What a job waits for."""
        return self._jobs.get(job_id, (None, None))[1]

    @property
    def next_begin(self) -> float | None:
        """When the next job that was too early may begin."""
        while self._begins and not self._is_too_early(*self._begins[0]):
            heappop(self._begins)
        return self._begins[0][0] if self._begins else None

    def due(self, now: float) -> Iterator[Job]:
        """Jobs that are no longer too early."""
        while (begin := self.next_begin) is not None and begin <= now:
            yield self._jobs[heappop(self._begins)[1]][0]

    @property
    def targets(self) -> list[Dependency]:
        """All that jobs are behind of."""
        return list(self._behind)

    def behind(self, dependency: Dependency) -> list[Job]:
        """The jobs that wait for this, in the order of their ids."""
        return [self._jobs[job_id][0] for job_id in sorted(self._behind.get(dependency, ()))]

    def _is_too_early(self, begin: float, job_id: int) -> bool:
        return self._jobs.get(job_id, (None, None))[1] == NotBefore(begin)


class JobTable:
    """Jobs that wait, are parked or at work, and guests: jobs of dead engines, of which only the end matters."""

    def __init__(self) -> None:
        self.waiting = WaitingJobs()
        self.blocked = BlockedJobs()
        self._active: dict[int, Job] = {}
        self._adopted: set[int] = set()

    def place(self, job: Job) -> None:
        """Put a job where it now belongs; what is over is forgotten, and so is a guest that would wait."""
        if isinstance(job.state, Active):
            self._active[job.id] = job
            return
        self._active.pop(job.id, None)
        self.withdraw(job.id)
        if isinstance(job.state, Waiting) and job.id not in self._adopted:
            self.waiting.add(job)
        self._adopted.discard(job.id)

    def park(self, job: Job, why: NotEligible) -> None:
        """Put a job aside that waits for no device; a guest that would wait is forgotten."""
        self._active.pop(job.id, None)
        self.withdraw(job.id)
        if job.id not in self._adopted:
            self.blocked.add(job, why)
        self._adopted.discard(job.id)

    def withdraw(self, job_id: int) -> Job | None:
        """Take a job out of the queue, whatever it waits for."""
        return self.waiting.remove(job_id) or self.blocked.remove(job_id)

    def queued(self, job_id: int) -> Job | None:
        """A job that no worker holds, or None."""
        return self.waiting.get(job_id) or self.blocked.get(job_id)

    def knows(self, job_id: int) -> bool:
        """Whether a job is here and not over."""
        return job_id in self._active or job_id in self.waiting or job_id in self.blocked

    def adopt(self, job: Job) -> None:
        """From now on the job is a guest."""
        self._adopted.add(job.id)

    def own(self, job_id: int, batch: int) -> bool:
        """Make a guest one of ours, in a batch of ours; False where no worker holds it any more."""
        job = self._active.get(job_id)
        if job is None:
            return False
        self._adopted.discard(job_id)
        self._active[job_id] = msgspec.structs.replace(job, batch=batch)
        return True

    def is_adopted(self, job_id: int) -> bool:
        """Whether a job is not ours to start or stop."""
        return job_id in self._adopted

    def active(self, job_id: int) -> Job | None:
        """A job that a worker holds, or None."""
        return self._active.get(job_id)

    def attempt(self, key: str) -> Job | None:
        """The job of an attempt, unless that attempt is known to be over (a journal may be read twice)."""
        job_id, number = parse_key(key)
        job = self._active.get(job_id)
        return job if job is not None and job.attempts == number else None

    @property
    def ours(self) -> list[Job]:
        """Our jobs that workers hold."""
        return [job for job in self._active.values() if job.id not in self._adopted]

    @property
    def at_work(self) -> bool:
        """Whether a worker holds anything, be it a guest."""
        return bool(self._active)

    @property
    def at_our_work(self) -> bool:
        """Whether a worker holds a job of ours."""
        return len(self._active) > len(self._adopted)

    @property
    def waiting_since(self) -> float:
        """Since when the oldest waiting job waits."""
        return min(waiting_since(next(iter(group))) for group in self.waiting.groups())

    @property
    def next_waiting(self) -> Job | None:
        """The job that has waited longest among the most important ones."""
        heads = [next(iter(group)) for group in self.waiting.groups()]
        return min(heads, key=lambda job: (-job.spec.priority, job.id), default=None)


_SO = "; so "


class JobBook:
    """Every job in its place, and what happened to it, from the note to the record."""

    def __init__(
        self,
        store: Store,
        observation: Observation,
        clock: Callable[[], float],
        tell: Callable[[JobEvent], None],
        follow_up: FollowUp | None = None,
    ) -> None:
        self.clock = clock
        self.table = JobTable()
        self.changes = Recorder(store, self._recorded, follow_up)
        self.plan_due = True
        """Whether something happened since the last plan that may change it."""
        self._store = store
        self._observation = observation
        self._tell = tell
        self._ended: list[Job] = []
        """Jobs whose end is recorded, and for which others may have waited."""

    def apply(self, job: Job, event: Event) -> Job:
        """Note what happened, and put the job where it now belongs."""
        place = event if isinstance(event, Assigned) else job.state
        devices = self._observation.devices(place.devices) if isinstance(place, Assigned | Active) else ()
        after = self.changes.note(job, event, devices)
        self.settle(after)
        return after

    def settle(self, job: Job) -> None:
        """Put a job where it belongs: at work, in the queue, aside for a while, or nowhere any more."""
        why = None
        if isinstance(job.state, Queued):
            self.plan_due = True
            why = why_not_eligible(job, self.clock(), self._outcome) if is_gated(job) else None
        if isinstance(why, NeverSatisfied):
            self.table.withdraw(job.id)
            self.apply(job, Skipped(self.clock(), self._why_skipped(why)))
        elif why is not None:
            self.table.park(job, why)
        else:
            self.table.place(job)

    def change_queued(self, job_id: int, states: type[Any] | UnionType, event: Event) -> None:
        """Let something happen to a job that is in the queue, in one of these states; else it is too late for it."""
        job = self.table.queued(job_id)
        if job is not None and isinstance(job.state, states):
            self.apply(job, event)

    def stored(self, job_id: int) -> Job | None:
        """A job as it is by now, if it is none of those at hand; its end may not be recorded yet."""
        if self.table.knows(job_id):
            return None
        return self.changes.unwritten(job_id) or self._store.job(job_id)

    def free_those_due(self, now: float) -> None:
        """Let jobs go on whose moment has come."""
        for job in list(self.table.blocked.due(now)):
            self.settle(job)

    def free_those_behind_others(self) -> None:
        """Let jobs go on that were behind jobs of other engines which have ended."""
        self._free_those_behind(lambda dependency: not self.table.knows(dependency.target))

    def release(self) -> None:
        """Let jobs go on that were behind jobs of ours which have ended, now that the end is recorded."""
        ended, self._ended = self._ended, []
        if ended and self.table.blocked:
            targets = {job.id for job in ended} | {job.array for job in ended}
            self._free_those_behind(lambda dependency: dependency.target in targets)

    def _free_those_behind(self, which: Callable[[Dependency], bool]) -> None:
        blocked = self.table.blocked
        for dependency in [one for one in blocked.targets if which(one)]:
            if self._outcome(dependency) != "open":
                for job in blocked.behind(dependency):
                    self.settle(job)

    def _outcome(self, dependency: Dependency) -> Outcome:
        """What a target has come to; an end counts when it is recorded."""
        if self.table.knows(dependency.target) and not dependency.array:
            return "open"
        return self._store.outcome(dependency)

    def _why_skipped(self, doomed: NeverSatisfied) -> str:
        """What went wrong; at the end of a long chain that is what its first job came to."""
        before = None if doomed.dependency.array else self.stored(doomed.dependency.target)
        if before is None or not isinstance(before.state, Ended) or before.state.result != "skipped":
            return never_satisfied_text(doomed, self._store.shown_id)
        root = before.state.note.partition(_SO)[0]
        return f"{root}{_SO}{target_text(doomed.dependency, self._store.shown_id)} was skipped"

    def _recorded(self, job_event: JobEvent) -> None:
        if isinstance(job_event.job.state, Ended):
            self._ended.append(job_event.job)
        self._tell(job_event)
