"""Starts that fail because the machine is short of something, and when to try again."""

from __future__ import annotations

import os

from msgspec import Struct, field
from msgspec.structs import replace

from stoker.core.job import Active, Job, Returned, slot_of
from stoker.core.launch import attempt_key
from stoker.core.planner.reasons import OutOfResources
from stoker.core.settings import Policy
from stoker.runner.interface import AttemptReturned, ProcessIds
from stoker.runner.spawn import is_machine_wide
from stoker.sites.interface import EngineJobs

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two tries; each pause is twice as long as the one before."""

EVERYWHERE = ""
"""The place of a shortage that concerns every start."""


class Pause(Struct):
    """A shortage at one place, from the first start that fails to the first that succeeds."""

    problem: str
    until: float = 0.0
    seconds: float = 0.0
    parked: dict[int, None] = field(default_factory=dict)
    """Jobs that could not be started, the one that failed last at the end."""
    candidate: int | None = None
    """The job whose start is tried next, or is under way."""
    attempt: str = ""
    """Its attempt that is under way."""
    worker: str = ""
    offered: bool = False
    """Whether the pause is over, and any job may try."""

    def fail(self, problem: str, now: float, attempt: str = "") -> None:
        """Pause for twice as long as before. Starts that were under way together fail as one."""
        self.problem = problem
        if now < self.until or (self.attempt and attempt != self.attempt):
            return
        self.candidate, self.attempt, self.offered = None, "", False
        self.seconds = min(LONGEST_PAUSE, 2 * self.seconds or FIRST_PAUSE)
        self.until = now + self.seconds

    @property
    def due_at(self) -> float:
        """When a job may try, or else one of those that failed."""
        return self.until + self.seconds if self.offered and self.parked and self.candidate is None else self.until

    def is_due(self, now: float) -> bool:
        """Whether a start may be tried."""
        return now >= self.until and not self.attempt


class ResourceBackoff:
    """Returns attempts that could not be started to the queue, and lets one start after another try again.

    A want of processes, memory or descriptors concerns all jobs, and so does a full state directory, where logs are.
    Elsewhere only those jobs pause that failed with an output in the same directory. A job that fails again while
    others can be started is alone with its problem.
    """

    def __init__(self, jobs: EngineJobs, processes: ProcessIds, state: str) -> None:
        """`state` is the state directory."""
        self._jobs = jobs
        self._processes = processes
        self._state = state
        self._pauses: dict[str, Pause] = {}
        self._failed: set[int] = set()
        """Jobs that failed before."""

    @property
    def trouble(self) -> str:
        """The shortage of the machine, for the user."""
        problems = dict.fromkeys(pause.problem for _, pause in sorted(self._pauses.items()))
        more = f", and {len(problems) - 1} more such problems" if len(problems) > 1 else ""
        return f"jobs wait: {next(iter(problems))}{more}" if problems else ""

    def due_in(self, now: float) -> float | None:
        """Seconds until the next try; None is never."""
        moments = [pause.due_at - now for pause in self._pauses.values() if now < pause.due_at or not pause.offered]
        return max(0.0, min(moments)) if moments else None

    def governed(self, policy: Policy, now: float) -> Policy:
        """The policy while there is a shortage everywhere: nothing may start, except for one job after the pause."""
        pause = self._pauses.get(EVERYWHERE)
        if pause is None:
            return policy
        return replace(policy, out_of_resources=OutOfResources(pause.problem), probe=pause.is_due(now))

    def return_attempt(self, job: Job, event: AttemptReturned) -> None:
        """A worker could not start an attempt: the job waits, and others too if they would fail as well."""
        place, problem = self._place_of(job, event.errno), event.note or os.strerror(event.errno)
        self._fail(place, problem, event.attempt)
        self._failed.add(job.id)
        self._jobs.apply(job, Returned(job.attempts, event.at, problem))
        self._pauses[place].parked[job.id] = None

    def no_worker(self, problem: str) -> None:
        """No worker could be started: no job can be."""
        self._fail(EVERYWHERE, problem)

    def assigned(self, job: Job) -> None:
        """A job was assigned: its start may tell whether a shortage is over."""
        assert isinstance(job.state, Active)
        for place, pause in self._pauses.items():
            if pause.candidate == job.id or (place == EVERYWHERE and not pause.attempt):
                pause.attempt, pause.worker = attempt_key(job.id, job.attempts), slot_of(job.state.ref)

    def check(self, now: float) -> None:
        """End the pauses of places at which a process could be started, and choose the next job to try at others."""
        for place, pause in list(self._pauses.items()):
            if pause.attempt:
                self._judge(place, pause)
            elif now >= pause.until:
                self._try_next(place, pause, now)

    def _judge(self, place: str, pause: Pause) -> None:
        if self._processes.process_of(pause.worker, pause.attempt) is not None:
            del self._pauses[place]
            self._jobs.plan_due = True
            for job_id in pause.parked:
                self._jobs.resume(job_id)
        elif self._jobs.attempt(pause.attempt) is None:  # ended without a process: that tells nothing
            pause.attempt, pause.candidate = "", None
            self._jobs.plan_due = True

    def _try_next(self, place: str, pause: Pause, now: float) -> None:
        """Resume the job that has not been tried for longest; if all are concerned, others may try before it."""
        if not pause.offered:
            pause.offered = self._jobs.plan_due = True
        if place == EVERYWHERE and self._jobs.waiting and now < pause.due_at:
            return
        while pause.candidate is None or not self._is_open(pause.candidate):
            pause.candidate = next(iter(pause.parked), None)
            if pause.candidate is None:
                if place != EVERYWHERE or not self._jobs.waiting:
                    del self._pauses[place]
                return
            del pause.parked[pause.candidate]
            self._jobs.resume(pause.candidate)

    def _is_open(self, job_id: int) -> bool:
        return job_id in self._jobs.waiting or self._jobs.active(job_id) is not None

    def _fail(self, place: str, problem: str, attempt: str = "") -> None:
        self._pauses.setdefault(place, Pause(problem)).fail(problem, self._jobs.clock(), attempt)
        self._jobs.plan_due = True

    def _place_of(self, job: Job, number: int) -> str:
        log = job.state.log if isinstance(job.state, Active) else ""
        if not is_machine_wide(number) and not log.startswith(f"{self._state}/"):
            return os.path.dirname(os.path.join(job.spec.cwd, log))
        if EVERYWHERE in self._pauses or job.id not in self._failed:
            return EVERYWHERE
        return f"job {job.id}"
