"""Run jobs again that are over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import msgspec

from stoker.app.control.edit import Changes, Rewriter, changed_resources, last_attempt
from stoker.app.control.requests import (
    Control,
    Unanswered,
    ask,
    before_and_after,
    carry_out,
    interrupted,
    skipped_because,
    spec_in_queue,
)
from stoker.app.control.sentences import Effect, effect
from stoker.app.jobs.preflight import Checkouts
from stoker.app.jobs.preparation import PreparationContext, Preparations
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, id_text
from stoker.core.jobs_by_id import JobsById
from stoker.core.launch import shown_command
from stoker.core.outcomes import GOOD_RESULTS
from stoker.core.requests import Again
from stoker.core.spec import JobSpec
from stoker.core.text import outcome
from stoker.store import queries
from stoker.store.queries import is_coordinator
from stoker.store.writer import Store


class Retry(NamedTuple):
    """A job that is to run again, and what is new, in words."""

    job: Job
    request: Again
    memory: str = ""


class PresentCode:
    """Prepares jobs that were submitted before with the code that is there now."""

    def __init__(self, control: Control, say: Callable[[str], None]) -> None:
        self._paths = control.paths
        self._checkouts = Checkouts(os.environ)
        self._preparations = Preparations(PreparationContext(control.paths.on, os.environ, say))

    def spec(self, job: Job, spec: JobSpec) -> JobSpec:
        """The spec with the present code; refuses a job whose script was copied, since its command is the copy."""
        if any(word.startswith(f"{self._paths.on(spec.cluster).scripts}/") for word in job.command.words):
            raise UsageError(f"{id_text(job)} runs a copy of its script", "submit it again, to run the present one")
        prepared = self._preparations.prepare(job.command, msgspec.structs.replace(spec, code="")).spec
        return msgspec.structs.replace(prepared, commit=self._checkouts.commit(spec.cwd))

    def keep(self) -> None:
        """Make sure that the jobs find it."""
        self._preparations.keep()


def refuse_unfinished(jobs: Sequence[Job]) -> None:
    """Only a job that is over can run again."""
    for job in (job for job in jobs if not isinstance(job.state, Ended)):
        shown = id_text(job)
        hint = f"cancel it first: stoker cancel {shown}; or use --failed to retry only the jobs that did not succeed"
        raise UsageError(f"{shown} has not finished", hint)


def without_good_members(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Leave out members that succeeded or were stopped early, if users name their batch by its coordinator.

    The user may then have meant the coordinator, which is among the jobs.
    """
    batches = {job.batch for job in jobs if is_coordinator(store, job.id)}
    return [job for job in jobs if not (job.member and job.batch in batches and _went_well(job))]


def _went_well(job: Job) -> bool:
    return isinstance(job.state, Ended) and job.state.result in GOOD_RESULTS


def planned_retries(
    control: Control,
    jobs: Sequence[Job],
    vram: str | None = None,
    changes: Changes | None = None,
    *,
    only: bool = False,
    fresh: PresentCode | None = None,
) -> list[Retry]:
    """How ended jobs, and those that were skipped because of them unless `only`, will run again; checked.

    They run the code that was prepared for them before, or the present code if that is given.
    """
    along = [] if only else skipped_because(control.store, jobs)
    return [*_retries(control, jobs, vram, changes or {}, fresh), *_retries(control, along, None, {}, fresh)]


def _retries(
    control: Control, jobs: Sequence[Job], vram: str | None, changes: Changes, fresh: PresentCode | None
) -> list[Retry]:
    rewriter, left = Rewriter(control), interrupted(control, jobs)
    retries = []
    for job in jobs:
        spec, memory = spec_in_queue(control, job.spec) if job.id in left else job.spec, ""
        if vram is not None:
            before = last_attempt(control.store, job, rewriter.devices)
            resources, words = changed_resources(spec.resources, vram, before)
            spec, memory = msgspec.structs.replace(spec, resources=resources), f"; {words}"
        if changes:
            spec = rewriter.spec(msgspec.structs.replace(job, spec=spec), changes)
            memory += "".join(f"; {name} {value or 'none'}" for name, value in changes.items())
        if fresh is not None:
            spec, memory = fresh.spec(job, spec), f"{memory}; with the present code"
        if job.id in left or vram is not None:
            rewriter.refuse_impossible(job, spec.resources)
        retries.append(Retry(job, Again(job.id, spec if spec != job.spec else None, count=job.count), memory))
    return retries


def retry(control: Control, retries: Sequence[Retry], *, dry_run: bool = False) -> list[Effect]:
    """Run jobs again as planned."""
    jobs = [planned.job for planned in retries]
    if dry_run:
        return [_retried("retry --dry-run", planned, planned.job, planned.job) for planned in retries]
    if not retries:
        return []
    _retry(control, retries)
    planned = retries[0]
    by_job = {planned.job.id: planned for planned in retries}
    effects = []
    for before, after in before_and_after(control.store, jobs):
        planned = by_job.get(before.id, planned)  # what stood for several jobs may be in parts now
        effects.append(_retried("retry", planned, before, after))
    return effects


def _retry(control: Control, retries: Sequence[Retry]) -> None:
    """Send the requests."""
    requests = {planned.job.id: planned.request for planned in retries}
    left = [
        [*(requests[job.id] for job in round_), *_for_coordinators(control.store, round_)]
        for round_ in rounds([planned.job for planned in retries])
    ]
    while left:
        try:
            carry_out(control, left.pop(0))
        except Unanswered:  # the next engine must find the later rounds, too
            ask(control.paths, control.store, list(chain(*left)), time.time())
            raise


def _for_coordinators(store: Store, members: Sequence[Job]) -> list[Again]:
    """Requests that requeue the coordinators of finished batches; a running one ignores its request."""
    requests = []
    for batch in sorted({job.batch for job in members if job.member is not None}):
        job_id = queries.coordinator_of(store, batch)
        coordinator = None if job_id is None else store.job(job_id)
        if coordinator and not (isinstance(coordinator.state, Ended) and coordinator.state.result != "done"):
            requests.append(Again(coordinator.id))
    return requests


def rounds(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs by id, in rounds: a job that depends on an array comes after all its tasks."""
    levels: dict[int, int] = {}
    earlier = JobsById()
    of_arrays: dict[int, int] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        behind = [
            of_arrays.get(dependency.target, -1) + 1
            if dependency.array
            else levels[before.id]
            if (before := earlier.entry(dependency.target))
            else 0
            for dependency in job.spec.after
        ]
        levels[job.id] = max(behind, default=0)
        earlier.add(job)
        if job.array:
            of_arrays[job.array] = max(levels[job.id], of_arrays.get(job.array, 0))
    ordered = sorted(jobs, key=lambda job: (levels[job.id], job.id))
    for _, members in groupby(ordered, key=lambda job: levels[job.id]):
        yield list(members)


def _retried(verb: str, retried: Retry, before: Job, after: Job) -> Effect:
    state = after.state
    assert isinstance(before.state, Ended)
    again = isinstance(state, Ended) and after.attempts == before.attempts
    return effect(
        verb,
        before,
        after,
        when="ended again" if again else "",
        how=outcome(before.state),
        memory=retried.memory,
        command=shown_command(before).text,
        outcome=outcome(state) if isinstance(state, Ended) else "",
        note=f": {state.note}" if isinstance(state, Ended) and state.note else "",
    )
