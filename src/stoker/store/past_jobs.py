"""Ended jobs, and the attempts that ran in a period: what history, timelines and totals are made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from stoker.core.job import Active, Ended, Job, part
from stoker.core.outcomes import FAILURES
from stoker.core.ranges import Ranges, ranges_of
from stoker.store.filters import NO_FILTER, Filter, JobRows, rows_among, search
from stoker.store.queries import jobs_of, marks, on_finish_specs
from stoker.store.reader import Reader
from stoker.store.schema import ENDED, IN_ARRAY, JOB, OPEN, AttemptRow, attempt_of

_OPEN_JOBS = "jobs INDEXED BY jobs_open"
_COLUMNS = JOB.removeprefix("SELECT ").partition(" FROM")[0].split(", ")
_JOB_COLUMNS = len(_COLUMNS)
_GPU_SECONDS = "(attempts.ended - attempts.started) * json_array_length(attempts.devices)"
_PAST = (
    f"SELECT {', '.join(f'jobs.{column}' for column in _COLUMNS)},"
    f" (SELECT sum({_GPU_SECONDS}) FROM attempts WHERE attempts.job = jobs.id),"
    " measures.peak, measures.utilisation, last.*"
    " FROM jobs LEFT JOIN attempts AS last ON last.job = jobs.id AND last.number = jobs.attempts"
    " LEFT JOIN measures ON measures.job = jobs.id AND measures.number = jobs.attempts"
)


class Past(NamedTuple):
    """An ended job, its last attempt, and the GPU-seconds of all its attempts."""

    job: Job
    last: AttemptRow | None
    gpu_seconds: float
    peak: int | None = None
    """Most bytes that the last attempt held on a GPU, if measured."""
    utilisation: int | None = None
    """Percent, of the same attempt."""


class PastTasks(NamedTuple):
    """The ended tasks of an array that a period selects."""

    counts: dict[str, int]
    """By result."""
    indices: Sequence[int]
    telling: Past
    """The last one that failed, or else the last one."""
    started: float | None
    ended: float
    gpu_seconds: float
    peak: int | None


class Period(NamedTuple):
    """A selection of ended jobs."""

    since: float = 0.0
    chosen: Filter = NO_FILTER
    on_finish_jobs: bool = False
    only: Sequence[int] | None = None
    """Ids of the only jobs that are wanted."""


# -- ended jobs ----------------------------------------------------------------------------------


def past(reader: Reader, period: Period, limit: int, offset: int = 0) -> list[Past]:
    """The jobs that ended last, newest first, after the first `offset` of them."""
    rows, where, values = _in_period(reader, period)
    query = f"SELECT {rows.first}, {rows.last} FROM {rows.tables} WHERE {where}"
    # A row has at least one job, so that these are enough rows.
    ends = reader.rows(f"{query} ORDER BY jobs.ended DESC, jobs.id DESC LIMIT ?", *values, offset + limit)
    newest_first = Ranges(range(last, first - 1, -1) for first, last in ends)
    ids = list(newest_first[offset : offset + limit])
    ended = {over.job.id: over for over in past_of(reader, ids)}
    return [ended[job_id] for job_id in ids]


def past_of(reader: Reader, ids: Sequence[int]) -> list[Past]:
    """Those of the jobs that are over, each by itself."""
    rows = rows_among(ids)
    tables = _PAST.replace(" FROM jobs LEFT", f", {rows.first}, {rows.last} FROM {rows.tables} LEFT")
    ended = reader.rows(f"{tables} WHERE jobs.{ENDED}", *rows.values)
    return [_past(reader, row[:-2], job_id) for row in ended for job_id in range(row[-2], row[-1] + 1)]


def _past(reader: Reader, row: tuple[Any, ...], job_id: int) -> Past:
    gpu_seconds, peak, utilisation, *attempt = row[_JOB_COLUMNS:]
    last = None if attempt[0] is None else attempt_of(tuple(attempt))
    job = part(reader.job_of(row[:_JOB_COLUMNS]), job_id, job_id)
    return Past(job, last, float(gpu_seconds or 0.0), peak, utilisation)


def past_by_array(reader: Reader, period: Period, limit: int) -> list[Past | PastTasks]:
    """The jobs and arrays that ended last, newest first; an array counts as one, whose end is that of its last task."""
    rows, where, values = _in_period(reader, period)
    query = (
        f"SELECT array, {rows.total}, max({rows.last}) FROM {rows.tables} WHERE {where}"
        f" GROUP BY CASE WHEN array != 0 THEN -array ELSE {rows.first} END ORDER BY max(ended) DESC, 3 DESC LIMIT ?"
    )
    groups = reader.rows(query, *values, limit)
    # Of lines that share a row, each is listed by itself.
    shown = list(islice(chain.from_iterable(_each_line(*group) for group in groups), limit))
    single = [last for _, size, last in shown if size == 1]
    alone = {over.job.id: over for over in past_of(reader, single)}
    return [alone[last] if size == 1 else _past_tasks(reader, period, array) for array, size, last in shown]


def _each_line(array: int, size: int, last: int) -> Iterator[tuple[int, int, int]]:
    """The tasks of an array as one, or each of the lines that share a row, the newest first."""
    yield from [(array, size, last)] if array else ((0, 1, job_id) for job_id in range(last, last - size, -1))


def _past_tasks(reader: Reader, period: Period, array: int) -> PastTasks:
    rows, where, values = _in_period(reader, period)
    where, values = f"{where} AND jobs.array = ? AND {IN_ARRAY}", [*values, array]
    last_task = f"(jobs.task - (jobs.id - {rows.last}) * jobs.step)"
    columns = f"state, {rows.total}, min({rows.task}), max({last_task}), max({rows.last}), max(ended)"
    results = reader.rows(f"SELECT {columns} FROM {rows.tables} WHERE {where} GROUP BY state", *values)
    failed = [row for row in results if row[0] in FAILURES]
    (telling,) = past_of(reader, [max(row[4] for row in failed or results)])
    ((gpu_seconds, started, peak),) = reader.rows(
        f"SELECT sum({_GPU_SECONDS}), min(attempts.started), max(measures.peak)"
        f" FROM {rows.tables} JOIN attempts ON attempts.job = jobs.id LEFT JOIN measures"
        f" ON measures.job = jobs.id AND measures.number = attempts.number WHERE {where}",
        *values,
    )
    counts = {state: count for state, count, *_ in results}
    first, last = min(row[2] for row in results), max(row[3] for row in results)
    if last - first + 1 == sum(counts.values()):
        indices = Ranges([range(first, last + 1)])
    else:
        tasks = f"SELECT {rows.task}, {rows.size}, jobs.step FROM {rows.tables} WHERE {where} ORDER BY task"
        parts = reader.rows(tasks, *values)
        indices = Ranges(range(task, task + size * step, step) for task, size, step in parts)
    ended = max(row[5] for row in results)
    return PastTasks(counts, indices, telling, started, ended, float(gpu_seconds or 0.0), peak)


def past_counts(reader: Reader, period: Period) -> dict[str, int]:
    """How many jobs ended, by result."""
    rows, where, values = _in_period(reader, period)
    return dict(reader.rows(f"SELECT state, {rows.total} FROM {rows.tables} WHERE {where} GROUP BY state", *values))


def past_gpu_seconds(reader: Reader, period: Period) -> float:
    """GPU-seconds of all attempts of ended jobs."""
    rows, where, values = _in_period(reader, period)
    query = f"SELECT sum({_GPU_SECONDS}) FROM {rows.tables} JOIN attempts ON attempts.job = jobs.id WHERE {where}"
    return float(reader.rows(query, *values)[0][0] or 0.0)


def _in_period(reader: Reader, period: Period) -> tuple[JobRows, str, list[Any]]:
    """JobRows of ended jobs, the condition, and the values of both."""
    rows, where, values = search(reader, period.chosen, "ended", period.only)
    specs = [] if period.on_finish_jobs else on_finish_specs(reader)
    if specs:
        where += f" AND jobs.spec NOT IN ({marks(specs)})"
    return rows, f"{where} AND jobs.ended >= ?", [*values, *specs, period.since]


# -- attempts ------------------------------------------------------------------------------------


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
    rows, where, values = _in_period(reader, period)
    ran = f"FROM {rows.tables} WHERE {where} AND jobs.attempts > 0"
    query = f"SELECT jobs.id {ran} ORDER BY jobs.ended DESC LIMIT ?"
    ended = [job_id for (job_id,) in reader.rows(query, *values, limit + 1)]
    left_out = reader.rows(f"SELECT count(*) {ran}", *values)[0][0] - limit if len(ended) > limit else 0
    ids = [*ended[:limit], *_unfinished(reader)]
    attempts = [
        attempt
        for attempt in _ran(reader, ids)
        if attempt.started <= until and (attempt.ended or until) >= period.since
    ]
    return sorted(attempts, key=lambda attempt: (attempt.started, attempt.job.id)), left_out


def attempts_of_jobs(reader: Reader, ids: Collection[int]) -> list[Ran]:
    """The attempts of some jobs, by start."""
    return sorted(_ran(reader, list(ids)), key=lambda one: (one.started, one.job.id))


def _unfinished(reader: Reader) -> list[int]:
    """Open jobs that have started at least once."""
    return [job_id for (job_id,) in reader.rows(f"SELECT id FROM {_OPEN_JOBS} WHERE {OPEN} AND attempts > 0")]


def _ran(reader: Reader, ids: Sequence[int]) -> Iterator[Ran]:
    jobs = {job.id: job for job in jobs_of(reader, ranges_of(ids)) if job.attempts}
    rows = reader.rows(
        "SELECT measures.peak, attempts.* FROM json_each(?) JOIN attempts ON attempts.job = json_each.value"
        " LEFT JOIN measures ON measures.job = attempts.job AND measures.number = attempts.number"
        " ORDER BY attempts.job, attempts.number",
        json.dumps(list(jobs)),
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
    waited: float = 0.0
    """Seconds that its job had waited when this first attempt started, told with one of the GPUs; 0 for others."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)


def gpu_spans(reader: Reader, period: Period, now: float, limit: int) -> list[GpuSpan]:
    """The GPU time of the newest ended jobs of a period, up to so many attempts, and of those that run."""
    chosen_rows, where, values = _in_period(reader, period)
    columns = (
        "SELECT jobs.spec, attempts.devices, attempts.started, coalesce(attempts.ended, jobs.ended, ?),"
        " (NOT EXISTS (SELECT 1 FROM attempts AS earlier WHERE earlier.job = attempts.job"
        " AND earlier.number < attempts.number AND earlier.started IS NOT NULL)) * (attempts.started - jobs.submitted)"
    )
    joined = "JOIN attempts ON attempts.job = jobs.id AND attempts.started IS NOT NULL"
    rows = reader.rows(
        f"{columns} FROM {chosen_rows.tables} {joined} WHERE {where} ORDER BY jobs.ended DESC LIMIT ?",
        *(now, *values, limit),
    )
    unfinished, matching, chosen = search(reader, period.chosen, "open", _unfinished(reader))
    ended_or_current = "(attempts.ended IS NOT NULL OR attempts.why IS NULL)"
    rows += reader.rows(
        f"{columns} FROM {unfinished.tables} {joined} WHERE {matching} AND {ended_or_current}", now, *chosen
    )
    groups = dict(reader.rows("SELECT id, coalesce(json_extract(body, '$.group'), '') FROM specs"))
    return [
        GpuSpan(
            groups.get(spec, ""),
            device,
            max(started, period.since),
            ended,
            0.0 if place or started < period.since else max(0.0, waited),
        )
        for spec, devices, started, ended, waited in rows
        for place, device in enumerate(json.loads(devices))
        if ended > period.since
    ]


def spans_of_jobs(reader: Reader, ids: Collection[int], now: float) -> list[GpuSpan]:
    """The GPU time of some jobs, up to now for those that run."""
    return [
        GpuSpan(attempt.job.spec.group, device, attempt.started, now if attempt.ended is None else attempt.ended)
        for attempt in _ran(reader, list(ids))
        for device in attempt.attempt.devices
    ]
