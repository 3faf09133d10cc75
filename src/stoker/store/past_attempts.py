"""Read the attempts that ran in a period: what timelines and totals are made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from stoker.core.job import Active, Ended, Job
from stoker.store.filters import condition
from stoker.store.queries import Period, in_period
from stoker.store.reader import Reader
from stoker.store.schema import JOB, OPEN, AttemptRow, attempt_of

_OPEN_JOBS = "jobs INDEXED BY jobs_open"


class Ran(NamedTuple):
    """An attempt that started, and its job."""

    job: Job
    attempt: AttemptRow
    started: float
    ended: float | None
    """None while it runs. The end of a lost attempt is unknown: it is the start of the next one, or the job's end."""
    peak: int | None
    """Most bytes that it held on a GPU, if measured."""


def attempts_between(reader: Reader, period: Period, until: float, limit: int) -> tuple[list[Ran], int]:
    """The attempts of a period by start, and how many jobs were left out, which ended before the others.

    They are found by way of their jobs: ended, active, or queued again after an attempt.
    """
    where, values = in_period(reader, period)
    query = f"SELECT jobs.id FROM jobs WHERE {where} AND jobs.attempts > 0 ORDER BY jobs.ended DESC LIMIT ?"
    ended = [job_id for (job_id,) in reader.rows(query, *values, limit + 1)]
    left_out = _count(reader, where, values) - limit if len(ended) > limit else 0
    ids = [*ended[:limit], *_unfinished(reader)]
    attempts = [one for one in _ran(reader, ids) if one.started <= until and (one.ended or until) >= period.since]
    return sorted(attempts, key=lambda one: (one.started, one.job.id)), left_out


def attempts_of_jobs(reader: Reader, ids: Collection[int]) -> list[Ran]:
    """The attempts of some jobs, by start."""
    return sorted(_ran(reader, list(ids)), key=lambda one: (one.started, one.job.id))


def _count(reader: Reader, where: str, values: Sequence[Any]) -> int:
    return int(reader.rows(f"SELECT count(*) FROM jobs WHERE {where} AND jobs.attempts > 0", *values)[0][0])


def _unfinished(reader: Reader) -> list[int]:
    """Open jobs that have started at least once."""
    return [job_id for (job_id,) in reader.rows(f"SELECT id FROM {_OPEN_JOBS} WHERE {OPEN} AND attempts > 0")]


def _ran(reader: Reader, ids: Sequence[int]) -> Iterator[Ran]:
    body = json.dumps(list(ids))
    jobs = {row[0]: reader.job_of(row) for row in reader.rows(f"{JOB}id IN (SELECT value FROM json_each(?))", body)}
    rows = reader.rows(
        "SELECT measures.peak, attempts.* FROM json_each(?) JOIN attempts ON attempts.job = json_each.value"
        " LEFT JOIN measures ON measures.job = attempts.job AND measures.number = attempts.number"
        " ORDER BY attempts.job, attempts.number",
        body,
    )
    attempts = [(row[0], attempt_of(row[1:])) for row in rows]
    for (peak, attempt), after in zip_longest(attempts, [after for _, after in attempts[1:]]):
        if attempt.started is not None and (job := jobs.get(attempt.job)) is not None:
            yield Ran(job, attempt, attempt.started, _end(attempt, after, job), peak)


def _end(attempt: AttemptRow, after: AttemptRow | None, job: Job) -> float | None:
    if attempt.ended is not None:
        return attempt.ended
    if after is not None and after.job == attempt.job:
        return after.assigned
    if isinstance(job.state, Active):
        return None
    return job.state.at if isinstance(job.state, Ended) else job.state.since


class GpuSpan(NamedTuple):
    """The time that one attempt had one GPU."""

    group: str
    device: str
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)


def gpu_spans(reader: Reader, period: Period, now: float, limit: int) -> list[GpuSpan]:
    """The GPU time of the newest ended jobs of a period, up to so many attempts, and of those that run."""
    where, values = in_period(reader, period)
    columns = "SELECT jobs.spec, attempts.devices, attempts.started, coalesce(attempts.ended, jobs.ended, ?)"
    joined = "JOIN attempts ON attempts.job = jobs.id AND attempts.started IS NOT NULL"
    rows = reader.rows(
        f"{columns} FROM jobs {joined} WHERE {where} ORDER BY jobs.ended DESC LIMIT ?", now, *values, limit
    )
    ids = json.dumps(_unfinished(reader))
    matching, chosen = condition(period.chosen)
    open_jobs = f"jobs.id IN (SELECT value FROM json_each(?)) AND {matching}"
    ended_or_current = "(attempts.ended IS NOT NULL OR attempts.why IS NULL)"
    rows += reader.rows(f"{columns} FROM jobs {joined} WHERE {open_jobs} AND {ended_or_current}", now, ids, *chosen)
    groups = dict(reader.rows("SELECT id, coalesce(json_extract(body, '$.group'), '') FROM specs"))
    return [
        GpuSpan(groups.get(spec, ""), device, max(started, period.since), ended)
        for spec, devices, started, ended in rows
        for device in json.loads(devices)
        if ended > period.since
    ]


def spans_of_jobs(reader: Reader, ids: Collection[int], now: float) -> list[GpuSpan]:
    """The GPU time of some jobs, up to now for those that run."""
    return [
        GpuSpan(one.job.spec.group, device, one.started, now if one.ended is None else one.ended)
        for one in _ran(reader, list(ids))
        for device in one.attempt.devices
    ]
