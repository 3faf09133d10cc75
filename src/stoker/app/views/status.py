"""Build the data of `stoker status`: jobs, devices, counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import msgspec

from stoker import __version__
from stoker.app.jobs.local_time import exactly, midnight, moment
from stoker.app.views.facts import EngineStatuses, Knowledge, jobs_by_device
from stoker.app.views.model import (
    Counts,
    DeviceLine,
    EngineLine,
    ForeignProcess,
    JobLine,
    LeaseLine,
    Mark,
    OtherJob,
    Status,
)
from stoker.app.views.notices import interrupted_runs, recent_failures
from stoker.core.amounts import mode_of
from stoker.core.device import DRAINED_FOR_ALL, Device, Process, Reading
from stoker.core.job import Active, Job, Queued, id_text, is_handed_over, resources_of, started_at
from stoker.core.launch import shown_command
from stoker.core.outcomes import WAITING, JobWord
from stoker.core.planner.order import times_waited
from stoker.core.selectors import tasks_text
from stoker.core.spec import amount_on
from stoker.core.text import text_for_json, title_text
from stoker.core.units import duration_text
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, is_background
from stoker.store.filters import NO_FILTER, Filter, Group, counts_of_open, ids_matching, queued_groups
from stoker.store.queries import Load, Owned, Period, Tasks, drained_key, paused_key

SCHEMA = "stoker.status/1"
_PAGE = 256


# -- jobs ----------------------------------------------------------------------------------------


def active_lines(knowledge: Knowledge, *, on_finish_jobs: bool = False) -> list[JobLine]:
    active = [one for one in knowledge.active if not is_handed_over(one.job)]
    wanted = [one for one in active if on_finish_jobs or one.job.spec.role != "hook"]
    return [job_line(job, engine, knowledge) for job, engine in wanted]


def queued_lines(
    knowledge: Knowledge, limit: int | None, *, each_task: bool, on_finish_jobs: bool = False
) -> list[JobLine]:
    """The first queued jobs in the order in which they will start; those of interrupted runs come last.

    Tasks of an array that wait alike share a line unless `each_task`.
    """
    lines: list[tuple[tuple[bool, float, bool, int, int], JobLine]] = []
    for engine in knowledge.loads:
        found = _queued_of(engine, knowledge, each_task=each_task, page=min(_PAGE, limit or _PAGE))
        shown = islice((line for line in found if on_finish_jobs or not line.hook), limit)
        lines += [(_rank(line, interrupted=knowledge.is_abandoned(engine)), line) for line in shown]
    handed_over = _handed_over(knowledge, each_task=each_task)
    lines += [(_rank(line, interrupted=False), line) for line in islice(handed_over, limit)]
    lines.sort(key=lambda one: one[0])
    return [line for _, line in lines[:limit]]


def _rank(line: JobLine, *, interrupted: bool) -> tuple[bool, float, bool, int, int]:
    """Jobs that may start, by expected start, place, priority and age; then those that are blocked or held."""
    start = inf if line.expected_start is None else line.expected_start.timestamp()
    place = (0, line.place) if line.place is not None else (-line.priority, line.id)
    return interrupted, inf if line.state != "queued" else start, line.state != "queued" or line.place is None, *place


def _queued_of(engine: str, knowledge: Knowledge, *, each_task: bool, page: int = _PAGE) -> Iterator[JobLine]:
    """The jobs whose place is known, then all others by id, read so many at a time."""
    store = knowledge.store
    order = knowledge.places.first(engine)
    jobs = {job.id: job for job in queries.jobs_of(store, order)}
    listed: set[int] = set()
    for job in (jobs[job_id] for job_id in order if job_id in jobs):
        if isinstance(job.state, Queued) and not (job.array and each_task):
            listed.add(job.array or job.id)
            yield from _lines_of(job, engine, knowledge, each_task=each_task)
    after = 0
    while jobs_after := queries.queued_jobs(store, engine, after, page):
        for job in jobs_after:
            if job.id <= after:
                continue  # its line was part of that of its array
            after = queries.last_of_array(store, job.array) if job.array and not each_task else job.id
            if (job.array or job.id) not in listed:
                yield from _lines_of(job, engine, knowledge, each_task=each_task)


def _lines_of(job: Job, engine: str, knowledge: Knowledge, *, each_task: bool) -> Iterator[JobLine]:
    """The line of a job; of an array, one for its waiting and one for its held tasks."""
    if not job.array or each_task:
        yield job_line(job, engine, knowledge)
        return
    tasks = queries.queued_tasks(knowledge.store, engine, job.array)
    yield from sorted((tasks_line(one, engine, knowledge) for one in tasks), key=lambda line: line.id)


def _handed_over(knowledge: Knowledge, *, each_task: bool) -> Iterator[JobLine]:
    """Jobs that wait in the queue of a cluster; the tasks of an array share a line, with the reason of the first."""
    seen: dict[int, list[Owned]] = {}
    for owned in filter(lambda owned: is_handed_over(owned.job), knowledge.active):
        seen.setdefault(owned.job.id if each_task or not owned.job.array else -owned.job.array, []).append(owned)
    for tasks in seen.values():
        indices = [owned.job.task or 0 for owned in tasks]
        yield tasks_line(Tasks(tasks[0].job, indices), tasks[0].engine, knowledge)


def tasks_line(tasks: Tasks, engine: str, knowledge: Knowledge) -> JobLine:
    """The line that several tasks of an array share."""
    line = job_line(tasks.first, engine, knowledge)
    if len(tasks.indices) == 1:
        return line
    first = tasks.first
    return msgspec.structs.replace(
        line,
        label=tasks_text(first.array, tasks.indices),
        tasks=len(tasks.indices),
        command=text_for_json(first.command.text),
        title=text_for_json(title_text(first, array=True)),
    )


def job_line(job: Job, engine: str, knowledge: Knowledge) -> JobLine:
    word, why = knowledge.situation(job, engine)
    spec, resources, started = job.spec, job.spec.resources, started_at(job)
    status = knowledge.statuses.of(engine)
    devices = job.state.devices if isinstance(job.state, Active) else ()
    live = knowledge.live(job.id) if devices else None
    seen = None if started is None else knowledge.last_seen(engine, started)
    forecast = status if status and knowledge.last_seen(engine, 0.0) is None else None
    progress = knowledge.progress(job) if word == "running" and seen is None else None
    end = forecast.ends.get(job.id) if forecast else None
    end = end if progress is None or progress.left is None else knowledge.now + progress.left
    end = None if end is not None and end <= knowledge.now else end  # it takes longer than expected
    return JobLine(
        id=job.id,
        label=id_text(job),
        tasks=1,
        name=text_for_json(job.name),
        command=text_for_json(shown_command(job).text),
        state=word,
        group=text_for_json(spec.group),
        priority=spec.priority,
        gpus=resources.gpus,
        devices=[text_for_json(label) for label in knowledge.labels(devices)],
        vram_bytes=resources.memory,
        used_bytes=knowledge.used_by(job.id),
        submitted=exactly(job.submitted),
        started=moment(started),
        seconds=None if started is None else round(max(0.0, (seen or knowledge.now) - started), 3),
        limit_seconds=spec.limit,
        expected_start=moment(forecast.starts.get(job.id)) if forecast else None,
        expected_end=moment(end),
        why=text_for_json(why),
        run="" if is_background(engine) else text_for_json(status.label if status else engine),
        hook=spec.role == "hook",
        vram_mode=mode_of(resources),
        reserved_bytes=knowledge.reserved(job, engine),
        held_bytes=live.memory if live else None,
        peak_vram_bytes=live.peak if live else None,
        utilisation_percent=live.utilisation if live else None,
        speed=knowledge.speeds.get(job.id) if devices else None,
        last_seen=moment(seen),
        title=text_for_json(title_text(job)),
        interrupted=knowledge.is_abandoned(engine),
        progress=None if progress is None else round(progress.fraction, 3),
        **_place(job, engine, knowledge, word),
    )


def _place(job: Job, engine: str, knowledge: Knowledge, word: JobWord) -> dict[str, Any]:
    """The place of a job that may start, and the figures that decide on it."""
    standing = knowledge.places.standing(job, engine) if word == "queued" else None
    if standing is None:
        return {}
    return {
        "place": knowledge.places.place(job, engine),
        "expected_seconds": standing.seconds if standing.known else None,
        "waited_ratio": round(times_waited(standing, knowledge.now), 2),
    }


# -- devices -------------------------------------------------------------------------------------


class Holders(NamedTuple):
    """Who is on a device."""

    jobs: Sequence[Job]
    leases: Sequence[LeaseLine]
    ours: Sequence[Process]
    strangers: Sequence[Process]
    measured: bool
    """Whether the driver tells how much memory each of the jobs uses."""


def device_lines(knowledge: Knowledge, settling: Collection[str] = ()) -> list[DeviceLine]:
    """Every device that an engine knows; on `settling` ones the driver may still show a job that has just ended."""
    on = jobs_by_device(job for job, _ in knowledge.active)
    return [
        _device_line(device, on.get(device.id, []), knowledge, settling=device.id in settling)
        for device in knowledge.devices.values()
    ]


def mark_of(value: Any) -> Mark | None:
    """A setting that a user made, such as a drained device."""
    if not isinstance(value, dict):
        return None
    return Mark(text_for_json(str(value.get("note", ""))), moment(value.get("at")))


def _device_line(device: Device, jobs: Sequence[Job], knowledge: Knowledge, *, settling: bool) -> DeviceLine:
    reading = knowledge.readings[device.id]
    holders = _holders(device, reading, jobs, knowledge)
    ours, others = memory_split(device, reading, holders, knowledge.tolerance(device.id), settling=settling)
    whole = device.memory or 0
    reserved = [amount_on(resources_of(job), device) for job in jobs if job.id not in knowledge.nested]
    return DeviceLine(
        id=text_for_json(device.id),
        label=text_for_json(device.label),
        model=text_for_json(device.model),
        kind=device.kind,
        memory_bytes=device.memory,
        used_bytes=reading.used,
        ours_bytes=ours,
        reserved_bytes=min(whole, sum(whole if amount is None else amount for amount in reserved)),
        others_bytes=others,
        utilisation_percent=reading.utilisation,
        temperature_celsius=reading.temperature,
        power_watts=reading.power,
        problem=text_for_json(reading.problem),
        drained=_drained(device, reading, knowledge),
        jobs=[id_text(job) for job in jobs],
        leases=list(holders.leases),
        strangers=[
            ForeignProcess(one.pid, text_for_json(one.owner), text_for_json(one.command), one.memory, one.graphics)
            for one in holders.strangers
        ],
        combined_speed=together(holders, knowledge.speeds) if len(jobs) > 1 else None,
        elsewhere=list(_elsewhere(device, knowledge)),
    )


def _drained(device: Device, reading: Reading, knowledge: Knowledge) -> Mark | None:
    if reading.drained_at is not None:
        return Mark(DRAINED_FOR_ALL, exactly(reading.drained_at))
    return mark_of(knowledge.settings.get(drained_key(device.id)))


def _holders(device: Device, reading: Reading, jobs: Sequence[Job], knowledge: Knowledge) -> Holders:
    whose = knowledge.jobs_by_process
    ids = {job.id for job in jobs}
    ours = [process for process in reading.processes if whose.get(process.pid) in ids]
    # A process of this user that is gone was probably one of our jobs, and is no stranger.
    living = [process for process in reading.processes if process.pid in whose or process.owner != knowledge.user]
    strangers = [process for process in living if process not in ours and whose.get(process.pid) is None]
    leases = [lease for lease in _leases(device, knowledge) if not (jobs and lease.owner == knowledge.user)]
    measured = ids <= {whose[process.pid] for process in ours if process.memory is not None}
    return Holders(jobs, leases, ours, strangers, measured)


def _leases(device: Device, knowledge: Knowledge) -> Iterator[LeaseLine]:
    for lease in knowledge.statuses.leases:
        claim = next((claim for claim in lease.claims if claim.name in device.claims), None)
        if claim is not None:
            owner, what = text_for_json(lease.owner), text_for_json(lease.what)
            yours = lease.owner == knowledge.user
            yield LeaseLine(
                owner,
                lease.process or lease.pid,
                what,
                claim.memory,
                exactly(lease.since),
                yours,
                lease.job if lease.process else "",
                moment(lease.until),
            )


def _elsewhere(device: Device, knowledge: Knowledge) -> Iterator[OtherJob]:
    if not any(lease.yours for lease in _leases(device, knowledge)):
        return  # a variable alone proves nothing: a shell may have it from a job that is over
    for pid, name, allocation in knowledge.elsewhere:
        gpu = next((gpu for gpu in allocation.gpus if gpu.claim in device.claims), None)
        if gpu is not None:
            yield OtherJob(text_for_json(allocation.job), text_for_json(name), pid, gpu.memory)


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
    known = [speeds[job.id] for job in holders.jobs if job.id in speeds]
    return round(sum(known), 2) if len(known) == len(holders.jobs) > 1 else None


# -- the queue -----------------------------------------------------------------------------------


def status_of(
    knowledge: Knowledge,
    host: str,
    limit: int | None,
    *,
    each_task: bool = False,
    on_finish_jobs: bool = False,
    chosen: Filter = NO_FILTER,
) -> Status:
    """The queue now, with all active jobs and the first of those that wait."""
    statuses = knowledge.statuses
    if chosen == NO_FILTER:
        active = active_lines(knowledge, on_finish_jobs=on_finish_jobs)
        queued = queued_lines(knowledge, limit, each_task=each_task, on_finish_jobs=on_finish_jobs)
        counts = _counts(knowledge, on_finish_jobs=on_finish_jobs)
    else:
        active, queued, counts = _matching(knowledge, chosen, limit, each_task=each_task)
    return Status(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host),
        version=__version__,
        simulated=knowledge.simulated,
        engine=engine_line(knowledge),
        devices=device_lines(knowledge),
        jobs=[*active, *queued],
        counts=counts,
        hidden=_hidden(counts, len(active), queued),
        today=queries.past_counts(knowledge.store, Period(midnight(knowledge.now), on_finish_jobs=on_finish_jobs)),
        expected_empty=expected_empty(statuses, counts),
        notes=[text_for_json(note) for note in _notes(statuses, knowledge)],
        interrupted=interrupted_runs(knowledge) if chosen == NO_FILTER else [],
        failures=recent_failures(knowledge) if chosen == NO_FILTER else [],
        filtered=chosen != NO_FILTER,
        total=None if chosen == NO_FILTER else _counts(knowledge, on_finish_jobs=on_finish_jobs),
    )


def expected_empty(statuses: EngineStatuses, counts: Counts) -> datetime | None:
    """When the queue will be empty; the engine's forecast may be older than the end of the last job."""
    if statuses.queue is None or not statuses.lives or not (counts.active or counts.waiting):
        return None
    return moment(statuses.queue.empty)


def _matching(
    knowledge: Knowledge, chosen: Filter, limit: int | None, *, each_task: bool
) -> tuple[list[JobLine], list[JobLine], Counts]:
    """The active jobs that a filter chooses, the first of those that wait, and how many there are."""
    store, states = knowledge.store, chosen.states
    ids = set(ids_matching(store, chosen, "open", [job.id for job, _ in knowledge.active]))
    active = [job_line(job, engine, knowledge) for job, engine in knowledge.active if job.id in ids]
    partly = 0 < len(set(WAITING) & set(states)) < len(WAITING)  # SQL does not tell why a job waits
    groups = queued_groups(store, chosen, None if partly else limit, each_task=each_task)
    queued = [group_line(group, knowledge) for group in groups]
    stored = counts_of_open(store, chosen)
    held, waiting = stored.get("held", 0), stored.get("waiting", 0)
    if partly:
        queued = [line for line in queued if line.state in states]
        waiting = sum(line.tasks for line in queued) - held
    return active, queued[:limit], Counts(len(active), waiting, held)


def group_line(group: Group, knowledge: Knowledge) -> JobLine:
    """The line of a job, or of tasks of an array that wait alike."""
    first = knowledge.store.job(group.first)
    assert first is not None
    indices = [0] if group.size == 1 else sorted(msgspec.json.decode(group.tasks))
    return tasks_line(Tasks(first, indices), group.engine, knowledge)


def engine_line(knowledge: Knowledge) -> EngineLine:
    """The engine in the background now, or when it stopped."""
    status, lives = knowledge.statuses.queue, knowledge.statuses.lives
    paused = mark_of(knowledge.settings.get(paused_key(QUEUE)))
    seen = moment(max((one.at for one in knowledge.statuses.current), default=None))
    if status is None:
        return EngineLine(lives, seen=seen, paused=paused)
    return EngineLine(
        running=lives,
        pid=status.pid if lives else None,
        version=status.version,
        since=moment(status.since) if lives else None,
        seen=seen,
        trouble=text_for_json(status.trouble) if lives else "",
        draining=status.draining and lives,
        paused=paused,
        silence=_silence(knowledge.statuses),
    )


def _silence(statuses: EngineStatuses) -> str:
    if not statuses.silence:
        return ""
    old = duration_text(statuses.silence)
    if statuses.problem:
        return f"{statuses.problem}; the engine's last report is {old} old; no job starts until there is space"
    return f"the engine does not answer: its last report is {old} old; see stoker engine status"


def _counts(knowledge: Knowledge, *, on_finish_jobs: bool) -> Counts:
    loads: list[Load] = list(knowledge.loads.values())
    running = 0 if on_finish_jobs else sum(one.job.spec.role == "hook" for one in knowledge.active)
    hooks = 0 if on_finish_jobs else queries.queued_on_finish_jobs(knowledge.store)
    handed_over = sum(is_handed_over(one.job) for one in knowledge.active)
    waiting = sum(load.waiting for load in loads) - hooks + handed_over
    return Counts(len(knowledge.active) - running - handed_over, waiting, sum(load.held for load in loads))


def _hidden(counts: Counts, active: int, queued: list[JobLine]) -> Counts:
    held = sum(line.tasks for line in queued if line.state == "held")
    waiting = sum(line.tasks for line in queued) - held
    return Counts(counts.active - active, max(0, counts.waiting - waiting), max(0, counts.held - held))


READ_ONLY = "the file system of the queue is read-only: this is its last state; see dmesg"


def _notes(statuses: EngineStatuses, knowledge: Knowledge) -> list[str]:
    notes = [status.note for status in statuses.current]
    troubles = [status.trouble for status in statuses.current if statuses.lives or status.engine != QUEUE]
    return list(
        dict.fromkeys(
            filter(None, [READ_ONLY if knowledge.store.read_only else "", _silence(statuses), *notes, *troubles])
        )
    )
