"""Estimate the cost of a sweep: trials, GPU-hours and the expected end, by what was learnt of earlier runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from itertools import islice
from statistics import fmean

from msgspec import Struct

from stoker.app.jobs.config import Config, config_here
from stoker.app.jobs.dry_run import expected_end
from stoker.app.jobs.local_time import clock_text, to_datetime
from stoker.cli.console import say
from stoker.cli.options import write_json
from stoker.core.job import Job, Waiting
from stoker.core.learning import kind_of
from stoker.core.spec import JobSpec, NewJob
from stoker.core.units import duration_text
from stoker.features.sweep.model.points import ADAPTIVE
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.submit import SweepPlan, SweepSubmission
from stoker.store.engine_lock import QUEUE
from stoker.store.history import RunHistory
from stoker.store.paths import Paths
from stoker.store.status_file import read_machine, read_status
from stoker.store.writer import Store, open_store

MOST_EXAMINED = 5_000
"""Trials whose kinds of work are examined; the others are assumed to be like these."""


class Estimate(Struct, frozen=True):
    """The cost of a sweep: `stoker sweep --estimate`."""

    schema: str
    trials: int
    gpus_per_trial: int
    kinds: int
    """Kinds of work, which differ in parameters that change the memory, such as the batch size."""
    kinds_known: int
    """Of those, how many ran before."""
    seconds_per_trial: float | None
    """Mean of what was learnt, or the time limit; null if nothing is known."""
    from_limit: bool
    """Whether the time is the limit (-t), since no such run has ended yet."""
    gpu_hours: float | None
    """Each trial counts the GPUs that it runs on, shared or not."""
    end: datetime | None
    """When all would have ended, behind the jobs that are in the queue; null if that is unknown."""
    why_no_end: str
    """Why the end is unknown; empty if it is known."""


def estimate_sweep(paths: Paths, config: Config, prepared: SweepPlan, store: Store) -> Estimate:
    """The cost of a sweep, before anything is submitted."""
    submission = SweepSubmission(paths, config, prepared, os.environ)
    spec = submission.resolve(store, read_machine(paths.status_file(QUEUE)))
    now, sweep = time.time(), submission.sweep
    jobs = list(_jobs(sweep, spec, (store.last_job() or 0) + 1, now))
    history = RunHistory(store)
    by_kind = {job.kind or job.name: job for job in jobs}
    expected = {kind: history.expected(job) for kind, job in by_kind.items()}
    learnt = {kind for kind, job in by_kind.items() if history.knows(job)}
    durations = [seconds for seconds in expected.values() if seconds is not None]
    times = [seconds for job in jobs if (seconds := expected[job.kind or job.name]) is not None]
    mean = fmean(times) if times else None
    gpus = spec.resources.gpus
    end, why = _end(paths, store, jobs, mean, now)
    end = None if end is None else now + (end - now) * max(1.0, sweep.trials / len(jobs))
    return Estimate(
        schema="stoker.sweep-estimate/1",
        trials=sweep.trials,
        gpus_per_trial=gpus,
        kinds=len(by_kind),
        kinds_known=len(learnt),
        seconds_per_trial=mean,
        from_limit=bool(durations) and not learnt,
        gpu_hours=None if mean is None else mean * gpus * sweep.trials / 3600,
        end=None if end is None else to_datetime(round(end)),
        why_no_end=why,
    )


def _jobs(sweep: SweepSpec, spec: JobSpec, first: int, now: float) -> Iterator[Job]:
    """The first trials as jobs; for an adaptive method, as many random ones."""
    if sweep.method in ADAPTIVE:
        from msgspec.structs import replace

        sweep = replace(sweep, method="random")
    for job_id, new in enumerate(islice(trial_jobs(sweep, spec), MOST_EXAMINED), first):
        yield _job(job_id, first, new, now)


def _job(job_id: int, array: int, new: NewJob, now: float) -> Job:
    kind = kind_of(new.command, new.spec, new.member)
    return Job(
        id=job_id,
        batch=0,
        command=new.command,
        spec=new.spec,
        state=Waiting(now),
        submitted=now,
        name=new.name,
        array=array,
        task=new.task,
        kind=kind,
        member=new.member,
    )


def _end(paths: Paths, store: Store, jobs: Sequence[Job], mean: float | None, now: float) -> tuple[float | None, str]:
    """When these jobs would have ended, or why that is unknown."""
    status = read_status(paths.status_file(QUEUE))
    if mean is None:
        return None, "no such job has ended yet: run one first (-N 1), or give a time limit (-t)"
    if jobs[0].spec.cluster:
        return None, "the trials wait in the queue of a cluster"
    if status is None:
        return None, "the engine has not run here yet, so the GPUs are unknown: stoker engine start"
    end = expected_end(jobs, status, store, now, mean)
    return end, "" if end is not None else "the durations of jobs in the queue are unknown"


# -- text ------------------------------------------------------------------------------------------


def show_estimate(prepared: SweepPlan, paths: Paths, *, as_json: bool) -> int:
    """Print the cost of a sweep as lines or as JSON."""
    with closing(open_store(paths)) as store:
        estimate = estimate_sweep(paths, config_here(say), prepared, store)
    if as_json:
        write_json(estimate)
    else:
        print("\n".join(_lines(estimate)))
    return 0


def _lines(estimate: Estimate) -> Iterator[str]:
    yield f"trials        {estimate.trials:,}"
    if estimate.kinds > 1:
        yield f"kinds         {estimate.kinds:,} that may differ in memory and time; {estimate.kinds_known:,} known"
    if estimate.seconds_per_trial is None:
        yield "run time      unknown"
        yield "GPU-hours     unknown"
    else:
        source = "the time limit" if estimate.from_limit else "earlier runs"
        yield f"run time      {duration_text(estimate.seconds_per_trial)} per trial, from {source}"
        yield f"GPU-hours     {estimate.gpu_hours:,.1f}"
    now = time.time()
    end = "unknown" if estimate.end is None else f"about {clock_text(estimate.end.timestamp(), now)}"
    yield f"expected end  {end}{f': {estimate.why_no_end}' if estimate.why_no_end else ''}"
