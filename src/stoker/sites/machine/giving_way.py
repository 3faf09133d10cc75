"""Running jobs that give way: what that costs, and the devices that they leave."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.job import Job, Running
from stoker.core.planner.displacement import Handover
from stoker.core.planner.occupancy import Preemption
from stoker.store.history import RunHistory

LEAST_SAVE_SECONDS = 1.0
START_SECONDS = 60.0
"""Seconds until a job works again after its start: programs load data and compile."""
UNKNOWN_SAVE_SECONDS = 60.0
STOP_SECONDS = 5.0
"""Seconds until a job has ended that need not save."""


def preemption_of(job: Job, history: RunHistory, now: float) -> Preemption | None:
    """How a running job gives way; None if it does not, or is about to."""
    state, spec = job.state, job.spec
    if not spec.preemptible or not isinstance(state, Running) or state.giving_way is not None:
        return None
    save = STOP_SECONDS
    if spec.preemptible == "save":
        learnt = history.save_seconds(job)
        save = min(spec.save_time, UNKNOWN_SAVE_SECONDS) if learnt is None else max(learnt, LEAST_SAVE_SECONDS)
    return Preemption(
        spec.preemptible,
        priority=spec.priority,
        times=job.preemptions,
        done=job.kept_seconds,
        remaining=history.remaining(job, job.kept_seconds + max(0.0, now - state.since)),
        save=save,
        start=START_SECONDS,
    )


def handed_over(leaving: Iterable[Job], before: Iterable[Handover]) -> list[Handover]:
    """The devices that jobs are leaving for others, and those of the last plan that were left for them."""
    ways = [job.state.giving_way for job in leaving if isinstance(job.state, Running)]
    handovers = [Handover(way.to, way.devices) for way in ways if way is not None and way.to]
    known = {handover.job for handover in before}
    return [*before, *(handover for handover in handovers if handover.job not in known)]
