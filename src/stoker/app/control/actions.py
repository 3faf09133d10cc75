"""Actions of users on jobs in the queue: cancel, hold and release them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from msgspec.structs import replace

from stoker.app.control.requests import Control, change, interrupted, spec_in_queue, start_expected
from stoker.app.control.sentences import Effect, effect
from stoker.app.jobs.option_values import signal_name
from stoker.core.job import Ended, Job, OnHold, Queued, Running, Waiting, ids_of, is_delegated
from stoker.core.requests import Cancel, Edit, Hold, Preempt, Release, Request
from stoker.features import batch_words
from stoker.store.queries import ids_of_batch
from stoker.store.writer import Store

CANCELLED = "cancelled by you"
HELD = "held by you"
PREEMPTED = "preempted by you"
CANCEL = Cancel(0, CANCELLED)
"""A cancel with the grace of the job."""


def cancel(control: Control, jobs: Sequence[Job], request: Cancel = CANCEL, *, dry_run: bool = False) -> list[Effect]:
    """Take jobs out of the queue, and stop those that run; the request is sent for each of them."""
    requests = [replace(request, job=job.id, count=job.count) for job in jobs if not isinstance(job.state, Ended)]
    pairs = [(job, job) for job in jobs] if dry_run else change(control, jobs, requests)
    verb = "cancel --dry-run" if dry_run else "cancel"
    return [effect(verb, before, after, how=_how(before, request, sent=not dry_run)) for before, after in pairs]


def _how(job: Job, request: Cancel, *, sent: bool) -> str:
    grace = job.spec.grace if request.grace is None else request.grace
    first = f"SIG{signal_name(request.signal or signal.SIGTERM)}"
    return f"{first}{' sent' if sent else ''}, SIGKILL in {grace:g}s"


def preempt(
    control: Control, jobs: Sequence[Job], to: int | None = None, note: str = PREEMPTED, *, dry_run: bool = False
) -> list[Effect]:
    """Let running jobs give way to the next that waits, to a certain one, or to none (0)."""
    running = [job for job in jobs if isinstance(job.state, Running) and job.spec.preemptible]
    requests = [Preempt(job.id, to, note) for job in running]
    pairs = [(job, job) for job in jobs] if dry_run else change(control, jobs, requests)
    return [_preempted(before, after, dry_run=dry_run) for before, after in pairs]


def _preempted(before: Job, after: Job, *, dry_run: bool) -> Effect:
    left = isinstance(before.state, Running) and after.preemptions > before.preemptions
    if isinstance(before.state, Running) and before.state.giving_way is not None:
        when = "already"
    elif left or (isinstance(after.state, Running) and after.state.giving_way is not None):
        when = "asked"
    elif before.spec.preemptible:
        when = "direct" if before.spec.cluster and isinstance(after.state, Running) and not dry_run else ""
    else:
        when = "never"
    how = "save and leave" if before.spec.preemptible == "save" else "stop and start again"
    return effect("preempt --dry-run" if dry_run else "preempt", before, after, when, how=how)


def hold(control: Control, jobs: Sequence[Job]) -> list[Effect]:
    """Keep waiting jobs from starting."""
    waiting = [job for job in jobs if isinstance(job.state, Waiting) or is_delegated(job)]
    requests = [Hold(job.id, HELD, count=job.count) for job in waiting]
    whole = _whole_batches(control.store, jobs)  # before the coordinator of one can add a job
    pairs = change(control, jobs, requests)
    paused = {after.batch: after.member.kind for _, after in pairs if after.member and isinstance(after.state, OnHold)}

    def said(before: Job, after: Job) -> Effect:
        if before.batch not in whole:
            return effect("pause", before, after)
        if before.member is not None:
            return effect("pause", before, after, "batch")
        if before.batch not in paused:  # without a held member, the coordinator goes on
            return effect("pause", before, after)
        words = batch_words(paused[before.batch])
        return effect("pause", before, after, "coordinator", role=words.coordinator, member=words.member)

    return [said(before, after) for before, after in pairs]


def release(control: Control, jobs: Sequence[Job], *, only_held: bool = False) -> list[Effect]:
    """Let held jobs start, and move those that a foreground run left into the queue."""
    left = interrupted(control, [job for job in jobs if isinstance(job.state, Queued)])
    ready = [job for job in jobs if isinstance(job.state, OnHold) or job.id in left]
    whole = _whole_batches(control.store, jobs)
    requests: list[Request] = []
    for job in ready:
        spec = spec_in_queue(control, job.spec) if job.id in left else job.spec
        requests += [Edit(job.id, spec, count=job.count)] if spec != job.spec else []
        requests.append(Release(job.id, count=job.count))
    results = [
        effect(
            "resume", before, after, "interrupted" if before.id in left else "batch" if before.batch in whole else ""
        )
        for before, after in change(control, ready if only_held else jobs, requests)
    ]
    start_expected(control, "the jobs are safe in the queue")
    return results


def _whole_batches(store: Store, jobs: Sequence[Job]) -> set[int]:
    """Batches with members that are all among these jobs: the user named the batch."""
    ids = set(ids_of(job for job in jobs if job.count == 1))
    return {batch for batch in {job.batch for job in jobs if job.member} if ids.issuperset(ids_of_batch(store, batch))}
