"""Collect job events and write them in one transaction per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field

from stoker.core.device import Device
from stoker.core.job import Active, Ended, Event, Job, JobEvent, advance, started_at
from stoker.core.learning import Learnt
from stoker.core.spec import NewJob
from stoker.store.schema import Change, FollowUps, Measured
from stoker.store.writer import Store


class FollowUp(NamedTuple):
    """What follows when a job ends."""

    engine: str
    """Who runs it."""
    make: Callable[[Job, str], NewJob | None]
    """From the job, and where its errors can be read."""


class _Pending(Struct):
    job: Job
    events: list[tuple[int, Event]] = field(default_factory=list)


class Recorder:
    """Gathers changes of jobs until they are written, all in one transaction, and only then tells of them."""

    def __init__(self, store: Store, tell: Callable[[JobEvent], None], follow_up: FollowUp | None = None) -> None:
        self.follow_ups_written = False
        """Whether jobs that follow from others were put into the queue, and nobody has looked there since."""
        self._store = store
        self._tell = tell
        self.follow_up = follow_up
        self._follow_ups: list[NewJob] = []
        self._follow_up_engine = ""
        """Who runs them."""
        self._pending: dict[int, _Pending] = {}
        self._job_events: list[JobEvent] = []
        self._answered: list[int] = []
        self._learnt: dict[str, Learnt] = {}
        self._measured: dict[tuple[int, int], Measured] = {}

    def __bool__(self) -> bool:
        return bool(self._pending or self._answered or self._measured)

    def note(self, job: Job, event: Event, devices: tuple[Device, ...]) -> Job:
        """The job after the event, which is remembered."""
        after = advance(job, event)
        pending = self._pending.get(job.id)
        if pending is None:
            pending = self._pending[job.id] = _Pending(after)
        pending.job = after
        pending.events.append((after.attempts, event))
        log = job.state.log if isinstance(job.state, Active) else ""
        self._job_events.append(JobEvent(after, event, devices, log, started_at(job)))
        if self.follow_up is not None and isinstance(after.state, Ended):
            self._follow(self.follow_up, after, log)
        return after

    def unwritten(self, job_id: int) -> Job | None:
        """The job as it is after what is not yet recorded of it; None where all of it is."""
        pending = self._pending.get(job_id)
        return pending.job if pending is not None else None

    def answer(self, request: int) -> None:
        """A request was obeyed by what has been noted; it is gone when that is recorded."""
        self._answered.append(request)

    def learn(self, news: tuple[str, Learnt] | None) -> None:
        """Something is known better by what has been noted."""
        if news is not None:
            self._learnt[news[0]] = news[1]

    def measure(self, measured: Measured) -> None:
        """Something is known of how an attempt uses its GPUs."""
        self._measured[measured.job, measured.number] = measured

    def write(self) -> None:
        """Record everything and tell of it; where writing fails, all of it is kept for another try."""
        if not self:
            return
        changes = [Change(pending.job, pending.events) for pending in self._pending.values()]
        self._store.record(changes, self._answered, self._learnt, self._gathered(), self._measured.values())
        self.follow_ups_written = self.follow_ups_written or bool(self._follow_ups)
        self._follow_ups.clear()
        self._pending.clear()
        self._learnt.clear()
        self._measured.clear()
        self._answered.clear()
        job_events, self._job_events = self._job_events, []
        for job_event in job_events:
            self._tell(job_event)

    def _follow(self, follow_up: FollowUp, ended: Job, log: str) -> None:
        if (new := follow_up.make(ended, log)) is not None:
            self._follow_ups.append(new)
            self._follow_up_engine = follow_up.engine

    def _gathered(self) -> FollowUps | None:
        if not self._follow_ups:
            return None
        return FollowUps(self._follow_up_engine, tuple(self._follow_ups), self._job_events[-1].event.at)
