"""How fast jobs that share a GPU go, as parts of their speed alone, by the progress lines of their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stoker.core.device import Device
from stoker.core.job import Job, Running
from stoker.core.memory import Learnt, usual_pace

MOST_LOGS = 64
"""Logs that are looked at for one screen: each takes about a millisecond."""


def speeds_of(jobs: Iterable[Job], devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> dict[int, float]:
    """The speed of every running job in company whose rate is known, both now and alone."""
    alone = [(job, pace) for job in in_company(jobs) if (pace := _pace_alone(job, devices, learnt))]
    return _compared(alone[:MOST_LOGS]) if alone else {}


def together(jobs: Sequence[Job], speeds: Mapping[int, float]) -> float | None:
    """What all jobs on a device do together, against one that is alone; None where not all are known."""
    known = [speeds[job.id] for job in jobs if job.id in speeds]
    return round(sum(known), 2) if len(known) == len(jobs) > 1 else None


def in_company(jobs: Iterable[Job]) -> list[Job]:
    """The running jobs that share a device with another of them."""
    on: dict[str, list[Job]] = {}
    running = [job for job in jobs if isinstance(job.state, Running)]
    for job in running:
        for device in _devices(job):
            on.setdefault(device, []).append(job)
    return [job for job in running if any(len(on[device]) > 1 for device in _devices(job))]


def _devices(job: Job) -> tuple[str, ...]:
    return job.state.devices if isinstance(job.state, Running) else ()


def _pace_alone(job: Job, devices: Mapping[str, Device], learnt: Callable[[str], Learnt]) -> float | None:
    models = {devices[device].model for device in _devices(job) if device in devices}
    return usual_pace(learnt(job.kind), models.pop()) if job.kind and len(models) == 1 else None


def _compared(alone: Sequence[tuple[Job, float]]) -> dict[int, float]:
    from stoker.core.progress import read_pace  # most screens have nothing to compare with, and do without
    from stoker.logtail import read_tail

    speeds = {}
    for job, pace in alone:
        assert isinstance(job.state, Running)
        now = read_pace(read_tail(job.state.log))
        if now is not None and now.per_second is not None:
            speeds[job.id] = round(now.per_second / pace, 2)
    return speeds
