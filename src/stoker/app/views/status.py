"""Build the data of `stoker status`: jobs, devices, counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from stoker import __version__
from stoker.app.jobs.local_time import midnight, to_datetime, to_datetime_or_none
from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts, jobs_by_device
from stoker.app.views.job import JobLine, PastLine, job_line, past_line
from stoker.app.views.model import (
    BookedTime,
    Counts,
    DeviceLine,
    EngineLine,
    FailedJob,
    ForeignProcess,
    InterruptedRun,
    LeaseLine,
    Mark,
    OtherJob,
    Status,
)
from stoker.core.device import Device, Process, Reading, drained_for_all
from stoker.core.job import Ended, Job, Queued, id_text, is_delegated, resources_of, single
from stoker.core.outcomes import FAILURES, WAITING
from stoker.core.selectors import number_ranges
from stoker.core.spec import amount_on
from stoker.core.text import outcome
from stoker.core.units import duration_text
from stoker.store import past_jobs, queries
from stoker.store.engine_lock import QUEUE
from stoker.store.filters import NO_FILTER, Filter, Group, counts_of_open, ids_matching, queued_groups
from stoker.store.past_jobs import Period
from stoker.store.queries import Load, Owned, drained_key, paused_key

SCHEMA = "stoker.status/1"
RECENT_SECONDS = 3600.0
MOST_FAILURES = 5
LONGEST_IDS = 38
"""Characters of the ids in a command, which must fit on a narrow screen."""
_PAGE = 256


# -- jobs ----------------------------------------------------------------------------------------


def active_lines(facts: QueueFacts, *, on_finish_jobs: bool = False) -> list[JobLine]:
    active = [owned for owned in facts.active if not is_delegated(owned.job)]
    wanted = [owned for owned in active if on_finish_jobs or owned.job.spec.role != "hook"]
    return [job_line(job, engine, facts) for job, engine in wanted]


def queued_lines(
    facts: QueueFacts, limit: int | None, *, each_task: bool, on_finish_jobs: bool = False
) -> list[JobLine]:
    """The first queued jobs in the order in which they will start; those of interrupted runs come last.

    Tasks of an array that wait alike share a line unless `each_task`.
    """
    lines: list[tuple[tuple[bool, float, bool, int, int], JobLine]] = []
    for engine in facts.loads:
        queued = _queued_of(engine, facts, each_task=each_task, page=min(_PAGE, limit or _PAGE))
        shown = islice((line for line in queued if on_finish_jobs or not line.hook), limit)
        lines += [(_rank(line, interrupted=facts.is_interrupted(engine)), line) for line in shown]
    handed_over = _handed_over(facts, each_task=each_task)
    lines += [(_rank(line, interrupted=False), line) for line in islice(handed_over, limit)]
    lines.sort(key=lambda one: one[0])
    return [line for _, line in lines[:limit]]


def _rank(line: JobLine, *, interrupted: bool) -> tuple[bool, float, bool, int, int]:
    """Jobs that may start, by expected start, place, priority and age; then those that are blocked or held."""
    start = inf if line.expected_start is None else line.expected_start.timestamp()
    place = (0, line.place) if line.place is not None else (-line.priority, line.id)
    return interrupted, inf if line.state != "queued" else start, line.state != "queued" or line.place is None, *place


def _queued_of(engine: str, facts: QueueFacts, *, each_task: bool, page: int = _PAGE) -> Iterator[JobLine]:
    """The jobs whose place is known, then all others by id, read so many at a time."""
    store = facts.store
    order = facts.positions.first(engine)
    jobs = {job.id: job for job in single(queries.jobs_of(store, order))}
    listed: set[int] = set()
    for job in (jobs[job_id] for job_id in order if job_id in jobs):
        # Parts of an array that differ, as in priority, have places of their own.
        if isinstance(job.state, Queued) and not (job.array and each_task) and (job.array or job.id) not in listed:
            listed.add(job.array or job.id)
            yield from _lines_of(job, engine, facts, each_task=each_task)
    after = 0
    while jobs_after := queries.queued_jobs(store, engine, after, page):
        for job in (job for row in jobs_after for job in ([row] if row.array and not each_task else single([row]))):
            if job.id <= after:
                continue  # its line was part of that of its array
            after = queries.last_of_array(store, job.array) if job.array and not each_task else job.last
            if (job.array or job.id) not in listed:
                yield from _lines_of(job, engine, facts, each_task=each_task)


def _lines_of(job: Job, engine: str, facts: QueueFacts, *, each_task: bool) -> Iterator[JobLine]:
    """The line of a job; of an array, one for its waiting and one for its held tasks."""
    if not job.array or each_task:
        yield job_line(job, engine, facts)
        return
    tasks = queries.queued_tasks(facts.store, engine, job.array)
    lines = (job_line(task.first, engine, facts, task.indices) for task in tasks)
    yield from sorted(lines, key=lambda line: line.id)


def _handed_over(facts: QueueFacts, *, each_task: bool) -> Iterator[JobLine]:
    """Jobs that wait in the queue of a cluster; the tasks of an array share a line, with the reason of the first."""
    seen: dict[int, list[Owned]] = {}
    for owned in filter(lambda owned: is_delegated(owned.job), facts.active):
        seen.setdefault(owned.job.id if each_task or not owned.job.array else -owned.job.array, []).append(owned)
    for tasks in seen.values():
        yield job_line(*tasks[0], facts, [owned.job.task or 0 for owned in tasks])


# -- devices -------------------------------------------------------------------------------------


class Holders(NamedTuple):
    """Who is on a device."""

    jobs: Sequence[Job]
    leases: Sequence[LeaseLine]
    ours: Sequence[Process]
    strangers: Sequence[Process]
    measured: bool
    """Whether the driver tells how much memory each of the jobs uses."""


def device_lines(facts: QueueFacts, settling: Collection[str] = ()) -> list[DeviceLine]:
    """Every device that an engine knows; on `settling` ones the driver may still show a job that has just ended."""
    on = jobs_by_device(job for job, _ in facts.active)
    return [
        _device_line(device, on.get(device.id, []), facts, settling=device.id in settling)
        for device in facts.devices.values()
    ]


def mark_of(value: Any) -> Mark | None:
    """A setting that a user made, such as a drained device."""
    if not isinstance(value, dict):
        return None
    return Mark(str(value.get("note", "")), to_datetime_or_none(value.get("at")))


def _device_line(device: Device, jobs: Sequence[Job], facts: QueueFacts, *, settling: bool) -> DeviceLine:
    reading = facts.readings[device.id]
    holders = _holders(device, reading, jobs, facts)
    ours, others = memory_split(device, reading, holders, facts.statuses.tolerance(device.id), settling=settling)
    whole = device.memory or 0
    reserved = [amount_on(resources_of(job), device) for job in jobs if job.id not in facts.nested]
    return DeviceLine(
        id=device.id,
        label=device.label,
        model=device.model,
        kind=device.kind,
        memory_bytes=device.memory,
        used_bytes=reading.used,
        ours_bytes=ours,
        reserved_bytes=min(whole, sum(whole if amount is None else amount for amount in reserved)),
        others_bytes=others,
        utilisation_percent=reading.utilisation,
        temperature_celsius=reading.temperature,
        power_watts=reading.power,
        problem=reading.problem,
        drained=_drained(device, reading, facts),
        jobs=[id_text(job) for job in jobs],
        leases=list(holders.leases),
        strangers=[
            ForeignProcess(stranger.pid, stranger.owner, stranger.command, stranger.memory, stranger.graphics)
            for stranger in holders.strangers
        ],
        combined_speed=together(holders, facts.speeds) if len(jobs) > 1 else None,
        elsewhere=list(_elsewhere(device, facts)),
        bookings=list(booked_times(device, facts)),
    )


def _drained(device: Device, reading: Reading, facts: QueueFacts) -> Mark | None:
    if reading.drained_at is not None:
        return Mark(drained_for_all(reading), to_datetime(reading.drained_at))
    return mark_of(facts.settings.get(drained_key(device.id)))


def booked_times(device: Device, facts: QueueFacts) -> Iterator[BookedTime]:
    for booking in sorted(facts.statuses.bookings, key=lambda booking: booking.since):
        if not set(booking.claims).isdisjoint(device.claims) and booking.until > facts.now:
            begin, end = to_datetime(booking.since), to_datetime(booking.until)
            yield BookedTime(booking.owner, booking.owner == facts.user, begin, end, booking.why)


def _holders(device: Device, reading: Reading, jobs: Sequence[Job], facts: QueueFacts) -> Holders:
    whose = facts.jobs_by_process
    ids = {job.id for job in jobs}
    ours = [process for process in reading.processes if whose.get(process.pid) in ids]
    # A process of this user that is gone was probably one of our jobs, and is no stranger.
    living = [process for process in reading.processes if process.pid in whose or process.owner != facts.user]
    strangers = [process for process in living if process not in ours and whose.get(process.pid) is None]
    leases = [lease for lease in _leases(device, facts) if not (jobs and lease.owner == facts.user)]
    measured = ids <= {whose[process.pid] for process in ours if process.memory is not None}
    return Holders(jobs, leases, ours, strangers, measured)


def _leases(device: Device, facts: QueueFacts) -> Iterator[LeaseLine]:
    for lease in facts.statuses.leases:
        claim = next((claim for claim in lease.claims if claim.name in device.claims), None)
        if claim is not None:
            owner, what = lease.owner, lease.what
            yours = lease.owner == facts.user
            yield LeaseLine(
                owner,
                lease.process or lease.pid,
                what,
                claim.memory,
                to_datetime(lease.since),
                yours,
                lease.job if lease.process else "",
                to_datetime_or_none(lease.until),
                to_datetime_or_none(lease.expected),
            )


def _elsewhere(device: Device, facts: QueueFacts) -> Iterator[OtherJob]:
    if not any(lease.yours for lease in _leases(device, facts)):
        return  # a variable alone proves nothing: a shell may have it from a job that is over
    for pid, name, allocation in facts.elsewhere:
        gpu = next((gpu for gpu in allocation.gpus if gpu.claim in device.claims), None)
        if gpu is not None:
            yield OtherJob(allocation.job, name, pid, gpu.memory)


def memory_split(
    device: Device, reading: Reading, holders: Holders, tolerance: int, *, settling: bool = False
) -> tuple[int, int]:
    """Bytes that our jobs use, and bytes that others use or claim.

    Memory that no visible process holds is ours while the driver does not tell what our jobs use, and while a job of
    ours that ended may still be shown. Otherwise it is of others if it exceeds the planner's tolerance.
    """
    ours = sum(process.memory or 0 for process in holders.ours)
    theirs = sum(process.memory or 0 for process in holders.strangers)
    rest = max(0, (reading.used or 0) - ours - theirs)
    all_known = all(process.memory is not None for process in holders.strangers)
    if settling or rest <= tolerance or (holders.jobs and not holders.measured and all_known):
        ours += rest if holders.jobs else 0
    else:
        theirs += rest
    whole = device.memory or 0
    claimed = sum(whole if lease.memory_bytes is None else lease.memory_bytes for lease in holders.leases)
    return ours, max(theirs, min(claimed, whole))


def together(holders: Holders, speeds: Mapping[int, float]) -> float | None:
    """The combined speed of our jobs on a device; None if others compute there too, or not all speeds are known."""
    if holders.leases or not all(process.graphics for process in holders.strangers):
        return None
    ours = [speeds[job.id] for job in holders.jobs if job.id in speeds]
    return round(sum(ours), 2) if len(ours) == len(holders.jobs) > 1 else None


# -- the queue -----------------------------------------------------------------------------------


def status_of(
    facts: QueueFacts,
    host: str,
    limit: int | None,
    *,
    each_task: bool = False,
    on_finish_jobs: bool = False,
    chosen: Filter = NO_FILTER,
) -> Status:
    """The queue now, with all active jobs and the first of those that wait."""
    statuses = facts.statuses
    if chosen == NO_FILTER:
        active = active_lines(facts, on_finish_jobs=on_finish_jobs)
        queued = queued_lines(facts, limit, each_task=each_task, on_finish_jobs=on_finish_jobs)
        counts = _counts(facts, on_finish_jobs=on_finish_jobs)
    else:
        active, queued, counts = _matching(facts, chosen, limit, each_task=each_task)
    return Status(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host,
        version=__version__,
        simulated=facts.simulated,
        engine=engine_line(facts),
        devices=device_lines(facts),
        jobs=[*active, *queued],
        counts=counts,
        hidden=_hidden(counts, len(active), queued),
        today=past_jobs.past_counts(facts.store, Period(midnight(facts.now), on_finish_jobs=on_finish_jobs)),
        expected_empty=expected_empty(statuses, counts),
        notes=_notes(statuses, facts),
        interrupted=interrupted_runs(facts) if chosen == NO_FILTER else [],
        failures=recent_failures(facts) if chosen == NO_FILTER else [],
        filtered=chosen != NO_FILTER,
        total=None if chosen == NO_FILTER else _counts(facts, on_finish_jobs=on_finish_jobs),
    )


def expected_empty(statuses: EngineStatuses, counts: Counts) -> datetime | None:
    """When the queue will be empty; the engine's forecast may be older than the end of the last job."""
    if statuses.queue is None or not statuses.lives or not (counts.active or counts.waiting):
        return None
    return to_datetime_or_none(statuses.queue.empty)


def _matching(
    facts: QueueFacts, chosen: Filter, limit: int | None, *, each_task: bool
) -> tuple[list[JobLine], list[JobLine], Counts]:
    """The active jobs that a filter chooses, the first of those that wait, and how many there are."""
    store, states = facts.store, chosen.states
    ids = set(ids_matching(store, chosen, "open", [job.id for job, _ in facts.active]))
    active = [job_line(job, engine, facts) for job, engine in facts.active if job.id in ids]
    partly = 0 < len(set(WAITING) & set(states)) < len(WAITING)  # SQL does not tell why a job waits
    groups = queued_groups(store, chosen, None if partly else limit, each_task=each_task)
    queued = [group_line(group, facts) for group in groups]
    stored = counts_of_open(store, chosen)
    held, waiting = stored.get("held", 0), stored.get("waiting", 0)
    if partly:
        queued = [line for line in queued if line.state in states]
        waiting = sum(line.tasks for line in queued) - held
    return active, queued[:limit], Counts(len(active), waiting, held)


def group_line(group: Group, facts: QueueFacts) -> JobLine:
    """The line of a job, or of tasks of an array that wait alike."""
    first = facts.store.job(group.first)
    assert first is not None
    return job_line(first, group.engine, facts, group.indices)


def engine_line(facts: QueueFacts) -> EngineLine:
    """The engine in the background now, or when it stopped."""
    status, lives = facts.statuses.queue, facts.statuses.lives
    paused = mark_of(facts.settings.get(paused_key(QUEUE)))
    seen = to_datetime_or_none(max((current.at for current in facts.statuses.current), default=None))
    if status is None:
        return EngineLine(lives, seen=seen, paused=paused)
    return EngineLine(
        running=lives,
        pid=status.pid if lives else None,
        version=status.version,
        since=to_datetime_or_none(status.since) if lives else None,
        seen=seen,
        trouble=status.trouble if lives else "",
        draining=status.draining and lives,
        paused=paused,
        silence=_silence(facts.statuses),
    )


def _silence(statuses: EngineStatuses) -> str:
    if not statuses.silence:
        return ""
    old = duration_text(statuses.silence)
    if statuses.problem:
        return f"{statuses.problem}; the engine's last report is {old} old; no job starts until there is space"
    return f"the engine does not answer: its last report is {old} old; see stoker engine status"


def _counts(facts: QueueFacts, *, on_finish_jobs: bool) -> Counts:
    loads: list[Load] = list(facts.loads.values())
    running = 0 if on_finish_jobs else sum(owned.job.spec.role == "hook" for owned in facts.active)
    hooks = 0 if on_finish_jobs else queries.queued_on_finish_jobs(facts.store)
    handed_over = sum(is_delegated(owned.job) for owned in facts.active)
    waiting = sum(load.waiting for load in loads) - hooks + handed_over
    return Counts(len(facts.active) - running - handed_over, waiting, sum(load.held for load in loads))


def _hidden(counts: Counts, active: int, queued: list[JobLine]) -> Counts:
    held = sum(line.tasks for line in queued if line.state == "held")
    waiting = sum(line.tasks for line in queued) - held
    return Counts(counts.active - active, max(0, counts.waiting - waiting), max(0, counts.held - held))


READ_ONLY = "the file system of the queue is read-only: this is its last state; see dmesg"


def _notes(statuses: EngineStatuses, facts: QueueFacts) -> list[str]:
    notes = [status.note for status in statuses.current]
    troubles = [status.trouble for status in statuses.current if statuses.lives or status.engine != QUEUE]
    return list(
        dict.fromkeys(filter(None, [READ_ONLY if facts.store.read_only else "", _silence(statuses), *notes, *troubles]))
    )


# -- notices -------------------------------------------------------------------------------------


def interrupted_runs(facts: QueueFacts) -> list[InterruptedRun]:
    """Foreground runs that ended before all their jobs had started, with the command that continues each."""
    return [run for engine in facts.loads if facts.is_interrupted(engine) for run in _runs_of(engine, facts)]


def _runs_of(engine: str, facts: QueueFacts) -> Iterator[InterruptedRun]:
    """Several runs may have left jobs without an owner, each in a batch of its own."""
    for batch, submitted, ids in queries.queued_by_batch(facts.store, engine):
        label = facts.store.batch_label(batch) or "a run"
        listed = ranges_text(ids)
        commands = f"stoker resume {listed}", f"stoker cancel {listed}"
        yield InterruptedRun(label, len(ids), to_datetime(submitted), *commands)


def ranges_text(ids: Sequence[int]) -> str:
    """`3-5,9`; where that is long, only the first ranges."""
    text, *more = number_ranges(ids)
    for part in more:
        if len(text) + len(part) >= LONGEST_IDS:
            break
        text += f",{part}"
    return text


def recent_failures(facts: QueueFacts) -> list[FailedJob]:
    """The jobs that failed within the last hour, the newest first."""
    store = facts.store
    past = past_jobs.past(store, Period(facts.now - RECENT_SECONDS, Filter(states=FAILURES)), MOST_FAILURES)
    return [_failed(past_line(failure, store, facts.devices), failure.job) for failure in past]


def _failed(line: PastLine, job: Job) -> FailedJob:
    assert isinstance(job.state, Ended)
    return FailedJob(line.id, line.label, line.title, line.state, outcome(job.state), line.ended, line.note)
