"""Jobs and changes for tests of the store."""

from __future__ import annotations

from stoker.core.job import (
    Assigned,
    Event,
    Exited,
    Job,
    Started,
    advance,
)
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.schema import Change
from stoker.store.writer import Store

TRUE = NewJob(Command(("true",)), JobSpec())
EVENTS: list[Event] = [
    Assigned("k1", ("GPU-1",), "/logs/1", 1.0),
    Started(1, 2.0),
    Exited(1, 3, 0, 4.0, peak_memory=4096, note="a note"),
]


def added(store: Store, *jobs: NewJob, engine: str = "e1") -> list[Job]:
    """The jobs as read back after submission."""
    return [wanted(store, job_id) for job_id in store.add_jobs(1, engine, jobs or (TRUE,), 10.0)]


def wanted(store: Store, job_id: int) -> Job:
    """A job that must exist."""
    job = store.job(job_id)
    assert job
    return job


def after(job: Job, events: list[Event]) -> Change:
    """A change of a job, as the engine records it."""
    numbered = []
    for event in events:
        job = advance(job, event)
        numbered.append((job.attempts, event))
    return Change(job, numbered)
