"""Collect job events and write them in one transaction per turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from stoker.core.device import Device
from stoker.core.job import Active, Ended, Event, Idled, Job, JobEvent, advance, part, started_at
from stoker.core.learning import Learnt
from stoker.core.ranges import missing
from stoker.core.requests import Request
from stoker.core.spec import NewJob
from stoker.store.samples import Sample
from stoker.store.schema import AfterBatch, Change, FollowUps, Measured
from stoker.store.writer import Store

WAITING_SAMPLES = 1000
"""Samples that are kept until a transaction takes them along; the oldest are dropped first."""


class FollowUp(NamedTuple):
    """The job that follows when a job ends."""

    engine: str
    """Name of the engine that runs it."""
    make: Callable[[Job, str], NewJob | None] | None
    """From the ended job and the path of its log; None if nothing follows a single job."""
    announce: Callable[[Job], NewJob] | None = None
    """From a job to be notified of: the job that follows when all of its batch have ended."""
    tell: Callable[[Job, str], NewJob] | None = None
    """From a running job to be notified of, and a sentence about it: the job that tells it."""


class _Pending(Struct):
    job: Job
    events: list[tuple[int, Event]] = field(default_factory=list)
    released: bool = False


def _overlaps(job: Job, ids: range) -> bool:
    return job.id <= ids[-1] and ids[0] <= job.last


class Recorder:
    """Collects changes of jobs until they are written, all in one transaction."""

    def __init__(self, store: Store, follow_up: FollowUp | None = None) -> None:
        self.follow_ups_written = False
        """Whether follow-up jobs are in the store that the engine has not accepted yet."""
        self.follow_up = follow_up
        self._store = store
        self._follow_ups: list[NewJob] = []
        self._follow_up_engine = ""
        self._after_batches: dict[int, AfterBatch] = {}
        self._pending: dict[tuple[int, int], _Pending] = {}
        """By first and last id. What changed together may then change in part, which follows it here."""
        self._several: list[tuple[int, int]] = []
        """Of those, the ones that are about several jobs."""
        self._job_events: list[JobEvent] = []
        self._handled: dict[int, Request | None] = {}
        self._learnt: dict[str, Learnt] = {}
        self._measured: dict[tuple[int, int], Measured] = {}
        self._samples: deque[Sample] = deque(maxlen=WAITING_SAMPLES)

    def __bool__(self) -> bool:
        """Whether there is something to write. What was learnt comes with an event or a measurement; samples wait."""
        return bool(self._pending or self._handled or self._measured)

    def add(self, job: Job, event: Event, devices: tuple[Device, ...]) -> Job:
        """The job after the event, which will be written."""
        after = advance(job, event)
        pending = self._pending.get((job.id, job.last))
        if pending is None:
            pending = self._pending[job.id, job.last] = _Pending(after)
            self._several += [(job.id, job.last)] if job.count > 1 else []
        pending.job = after
        pending.events.append((after.attempts, event))
        log = job.state.log if isinstance(job.state, Active) else ""
        self._job_events.append(JobEvent(after, event, devices, log, started_at(job)))
        if self.follow_up is not None and isinstance(after.state, Ended):
            self._follow(self.follow_up, after, log)
        if isinstance(event, Idled) and event.note and self.follow_up is not None and self.follow_up.tell is not None:
            self._follow_up_engine = self.follow_up.engine
            self._follow_ups += [self.follow_up.tell(after, event.note)] if after.spec.notify else []
        return after

    def release(self, job_id: int) -> None:
        """Give up a job together with writing its events."""
        self._pending[job_id, job_id].released = True

    def now(self, job: Job) -> list[Job]:
        """A job from the store after its unwritten events; if it stands for several, parts of it may differ."""
        if job.count == 1:
            alone = (job.id, job.id)
            covering = ((first, last) for first, last in reversed(self._several) if first <= job.id <= last)
            ids = alone if alone in self._pending else next(covering, None)
            return [job if ids is None else part(self._pending[ids].job, job.id, job.id)]
        jobs = [job]
        for first, last in [ids for ids in self._pending if ids[0] <= job.last and ids[1] >= job.id]:
            rest = missing(range(job.id, job.last + 1), [range(first, last + 1)])
            kept = [part(old, ids[0], ids[-1]) for ids in rest.parts for old in jobs if _overlaps(old, ids)]
            jobs = [*kept, part(self._pending[first, last].job, job.id, job.last)]
        return jobs

    def handled(self, number: int, rest: Request | None = None) -> None:
        """Remove a request from the store, or all but its rest, together with writing the events that it caused."""
        self._handled[number] = rest

    def learn(self, news: tuple[str, Learnt] | None) -> None:
        """Write what is now known of a kind of work."""
        if news is not None:
            self._learnt[news[0]] = news[1]

    def measure(self, measured: Measured) -> None:
        """Write how an attempt uses its GPUs."""
        self._measured[measured.job, measured.number] = measured

    def sample(self, samples: Iterable[Sample]) -> None:
        """Write samples of GPUs with the next transaction that something else needs."""
        self._samples.extend(samples)

    def write(self) -> Sequence[JobEvent]:
        """Write everything and return the events; if that fails, keep all of it for another try."""
        if not self:
            return ()
        changes = [Change(pending.job, pending.events, pending.released) for pending in self._pending.values()]
        self._store.record(
            changes, self._handled, self._learnt, self._gathered(), self._measured.values(), samples=self._samples
        )
        self.follow_ups_written = self.follow_ups_written or bool(self._follow_ups or self._after_batches)
        self._follow_ups.clear()
        self._after_batches.clear()
        self._pending.clear()
        self._several.clear()
        self._learnt.clear()
        self._measured.clear()
        self._samples.clear()
        self._handled.clear()
        job_events, self._job_events = self._job_events, []
        return job_events

    def _follow(self, follow_up: FollowUp, ended: Job, log: str) -> None:
        self._follow_up_engine = follow_up.engine
        if follow_up.make is not None:
            self._follow_ups += [new] if (new := follow_up.make(ended, log)) is not None else []
        if ended.spec.notify and follow_up.announce is not None:
            self._after_batches[ended.batch] = AfterBatch(ended.batch, ended.id, follow_up.announce(ended))

    def _gathered(self) -> FollowUps | None:
        if not self._follow_ups and not self._after_batches:
            return None
        at, after_batches = self._job_events[-1].event.at, tuple(self._after_batches.values())
        return FollowUps(self._follow_up_engine, tuple(self._follow_ups), at, after_batches=after_batches)
