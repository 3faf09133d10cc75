"""Stop a sweep, let it go on, or give it more trials."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.control.requests import Control, carry_out, start_expected
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job
from stoker.core.requests import Again, Cancel, Request
from stoker.features.sweep.model.points import ADAPTIVE, size_of
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.store import StoredSweep, change_sweep, count_trials, open_trials, set_tuner, stop_sweep
from stoker.features.sweep.tuner_job import needs_tuner, tuner_job
from stoker.store.engine_lock import engine_of, wake

NOTE = "the sweep was stopped by you"
ARRAY_LOG = "(?<=/logs)/%A/%a.log"
"""End of the path of a log in the directory of an array."""
AT_ONCE = 10_000
"""Trials that are added in one piece."""


class SweepChange(Struct, frozen=True):
    """The result of `stoker sweep stop` or `extend`."""

    schema: str
    id: int
    withdrawn: int = 0
    """Waiting trials that will not run."""
    stopping: int = 0
    """Running trials that were asked to end."""
    running: int = 0
    """Running trials that continue."""
    added: int = 0
    """Trials that will run besides."""
    total: int = 0


SCHEMA = "stoker.sweep-change/1"


def stop(control: Control, stored: StoredSweep, *, now: bool) -> SweepChange:
    """Start no further trials; with `now`, stop those that run."""
    stop_sweep(control.store, stored.batch, time.time())
    waiting, running = open_trials(control.store, stored.batch)
    ended = [*waiting.parts, *(running.parts if now else [])]
    carry_out(control, [Cancel(part.start, note=NOTE, result="stopped", count=len(part)) for part in ended])
    kept = 0 if now else len(running)
    return SweepChange(SCHEMA, stored.id, len(waiting), len(running) - kept, kept, total=stored.sweep.trials)


def extend(control: Control, stored: StoredSweep, more: int) -> SweepChange:
    """Let a sweep have so many points more; a stopped one goes on."""
    sweep, points = stored.sweep, _points(control, stored)
    before = points if stored.stopped is not None or sweep.method not in ADAPTIVE else max(points, sweep.count or 0)
    longer = replace(sweep, count=before + more)
    _refuse_beyond_end(longer, before)
    _go_on(control, stored, longer)
    return SweepChange(SCHEMA, stored.id, added=(longer.trials - before * sweep.repeat), total=longer.trials)


def resume(control: Control, stored: StoredSweep, count: int) -> SweepChange:
    """Let an adaptive sweep go on until it has so many points; one that has or gets them stays as it is."""
    sweep, points = stored.sweep, _points(control, stored)
    tuner = control.store.job(stored.tuner) if stored.tuner is not None else None
    at_work = stored.stopped is None and tuner is not None and not isinstance(tuner.state, Ended)
    before = max(points, sweep.count or 0) if at_work else points
    if count <= before:
        return SweepChange(SCHEMA, stored.id, total=before * sweep.repeat)
    _go_on(control, stored, replace(sweep, count=count))
    return SweepChange(SCHEMA, stored.id, added=(count - before) * sweep.repeat, total=count * sweep.repeat)


def _points(control: Control, stored: StoredSweep) -> int:
    """How many points have trials in the queue."""
    return -(-count_trials(control.store, stored.batch) // stored.sweep.repeat)


def _go_on(control: Control, stored: StoredSweep, longer: SweepSpec) -> None:
    """Add the trials that a sweep lacks, or bring back the tuner that chooses them."""
    sweep, store, now = stored.sweep, control.store, time.time()
    first = _points(control, stored) * sweep.repeat
    with store.writing():
        change_sweep(store, stored.batch, longer)
        if sweep.method not in ADAPTIVE:
            # A late trial is a job of its own: tasks of an array have consecutive ids, and a directory for their logs.
            spec = replace(stored.spec, out=re.sub(f"{ARRAY_LOG}$", "/%j.log", stored.spec.out))
            jobs = [replace(job, task=None) for job in trial_jobs(longer, spec, first, longer.trials)]
            for place in range(0, len(jobs), AT_ONCE):
                store.add_jobs(stored.batch, engine_of(stored.spec.cluster), jobs[place : place + AT_ONCE], now)
        requests = _tuner_requests(control, stored, longer, now)
    carry_out(control, requests)
    start_expected(control, "the trials are in the queue")
    wake(control.paths, engine_of(stored.spec.cluster))


def _refuse_beyond_end(longer: SweepSpec, before: int) -> None:
    size = None if longer.method in ADAPTIVE or longer.method == "sobol" else size_of(longer.space)
    if size is not None and before >= size:
        raise UsageError(f"all {size} points of this sweep were visited", "start another sweep with a larger space")


def _tuner_requests(control: Control, stored: StoredSweep, sweep: SweepSpec, now: float) -> Sequence[Request]:
    """Requests that requeue a tuner that has ended; one that is gone from the history is made again."""
    if not needs_tuner(sweep):
        return []
    job: Job | None = control.store.job(stored.tuner) if stored.tuner is not None else None
    if job is None:
        made = tuner_job(control.paths, sweep, stored.spec)
        (tuner,) = control.store.add_jobs(stored.batch, engine_of(""), [made], now)
        set_tuner(control.store, stored.batch, tuner)
        return []
    return [Again(job.id)] if isinstance(job.state, Ended) else []
