"""Jobs that were skipped because of others, and can go on when those run again."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.dependency import Dependency, Doomed, Outcome, judge
from stoker.core.job import Job
from stoker.store import Store, choosing


def skipped_because(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Jobs that were skipped because of these, or of others that were; but for those that would be skipped again."""
    ids = {job.id for job in jobs}
    again = {target for job in jobs for target in _as_targets(job)}
    along = []

    def outcome(dependency: Dependency) -> Outcome:
        return "open" if (dependency.target, dependency.array) in again else store.outcome(dependency)

    for job in choosing.skipped_after(store, min(ids, default=0)):  # nobody waits for a job that came later
        targets = {(one.target, one.array) for one in job.terms.after}
        if job.id not in ids and targets & again and not isinstance(judge(job.terms.after, outcome), Doomed):
            along.append(job)
            again |= _as_targets(job)
    return along


def _as_targets(job: Job) -> set[tuple[int, bool]]:
    """What others may wait for: the job, and the array that it is a task of."""
    return {(job.id, False), (job.array, True)} if job.array else {(job.id, False)}
