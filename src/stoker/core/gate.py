"""What keeps a job in the queue however many devices are free: somebody's wish, a moment, other jobs."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.dependency import Blocked, Dependency, Doomed, Outcome, judge
from stoker.core.job import Job, OnHold
from stoker.core.reasons import Behind, HeldBack, NotBefore

Hindrance = HeldBack | NotBefore | Behind


def is_gated(job: Job) -> bool:
    """Whether a job may have to wait for something that is no device; most never do."""
    return bool(job.terms.after) or job.terms.begin is not None or isinstance(job.state, OnHold)


def hindrance(job: Job, now: float, outcome: Callable[[Dependency], Outcome]) -> Hindrance | Doomed | None:
    """What keeps a queued job from being planned; Doomed where nothing will ever let it start."""
    verdict = judge(job.terms.after, outcome)
    if isinstance(verdict, Doomed):
        return verdict
    if isinstance(job.state, OnHold):
        return HeldBack(job.state.note)
    if isinstance(verdict, Blocked):
        return Behind(verdict.dependencies)
    begin = job.terms.begin
    return NotBefore(begin) if begin is not None and begin > now else None
