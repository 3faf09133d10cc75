"""One job as a record: its facts, its state with the reason, and the lines of open and of ended jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from stoker.app.jobs.local_time import clock_text, to_datetime, to_datetime_or_none
from stoker.app.views.facts import QueueFacts, device_labels
from stoker.core.amounts import VramMode, amount_now, mode_of, resources_of_attempts
from stoker.core.device import Device
from stoker.core.idleness import idle_text
from stoker.core.job import (
    Active,
    Ended,
    Event,
    Exited,
    GivingWay,
    Job,
    Running,
    Starting,
    Stopping,
    Waiting,
    id_text,
    is_delegated,
    needs_exclusive,
    resources_of,
    slot_of,
    started_at,
)
from stoker.core.launch import INHERIT, shown_command
from stoker.core.outcomes import FAILURES, JobStateName, Result
from stoker.core.planner.order import times_waited
from stoker.core.planner.queue import is_gated, queued_word, why_not_eligible
from stoker.core.planner.reasons import CapFull
from stoker.core.selectors import tasks_text
from stoker.core.spec import NeverSatisfied, Preemptible, never_satisfied_text
from stoker.core.text import title_text
from stoker.core.units import size_text
from stoker.store.engine_lock import is_background
from stoker.store.past_jobs import Past, PastTasks
from stoker.store.reader import Reader

NO_ENGINE = "engine not running (stoker engine start)"


class JobFacts(Struct, frozen=True, kw_only=True):
    """The facts of a job that every list of jobs has."""

    id: int
    label: str
    """As users type it: `3`, `12.3`; `12.[3-59,100-199]` stands for several tasks."""
    tasks: int
    """How many tasks of an array the line stands for."""
    name: str
    command: str
    state: JobStateName
    group: str
    gpus: int
    devices: list[str]
    vram_bytes: int | None
    """Requested on each GPU; null is all of it, or auto."""
    submitted: datetime
    started: datetime | None
    """Start of the attempt that runs, or of the last one."""
    ended: datetime | None = None
    """When the job ended; null for an open job."""
    vram_mode: VramMode = "all"
    """The request on each GPU: a size, the whole card, or auto."""
    reserved_bytes: int | None = None
    """Reserved on each GPU, or to be reserved if it started now; null is all of it."""
    peak_vram_bytes: int | None = None
    """The most that the attempt held on one of its GPUs, if measured."""
    utilisation_percent: int | None = None
    """How busy the attempt kept its GPUs on average while it had them to itself."""
    title: str = ""
    """Its title on screens: its name, its command, or its Python call with arguments."""


class JobLine(JobFacts, frozen=True, kw_only=True):
    """A job, or several tasks of an array that wait alike."""

    priority: int
    used_bytes: int | None
    """In use on all its GPUs together, if known."""
    seconds: float | None
    """How long it has been running, or ran."""
    limit_seconds: float | None
    expected_start: datetime | None
    expected_end: datetime | None
    why: str
    """Why it waits, or how it ended, in words."""
    run: str
    """The foreground run that owns it; empty for a job of the queue."""
    hook: bool = False
    held_bytes: int | None = None
    """In use now on the GPU of which it holds most."""
    speed: float | None = None
    """As a part of its speed alone, if it shares a GPU and its log tells the rate."""
    last_seen: datetime | None = None
    """When an engine last confirmed that it runs; null while one watches it. `seconds` counts until then."""
    progress: float | None = None
    """How much of a running job is done, from 0 to 1: what it reported, else what its log shows."""
    interrupted: bool = False
    """Whether it belongs to a foreground run that ended, so that no engine has it."""
    place: int | None = None
    """Its place among the waiting jobs in the order in which they will start, as far as is known; 1 is the next."""
    expected_seconds: float | None = None
    """How long a waiting job will run, by its limit or by earlier runs."""
    waited_ratio: float | None = None
    """How long it has waited, as a multiple of its expected work; the fair order compares this."""
    preemptible: Preemptible = ""
    """How it gives way to others; empty if it does not."""


class PastLine(JobFacts, frozen=True, kw_only=True):
    """A job that is over, or several tasks of an array, which ran from `started` to `ended`."""

    state: Result
    ended: datetime
    exit_code: int | None
    signal: int | None
    note: str
    wait_seconds: float | None
    run_seconds: float | None
    gpu_hours: float
    """Of all attempts."""
    attempts: int
    peak_memory_bytes: int | None
    """Host memory of the largest process."""
    directory: str
    commit: str
    tags: dict[str, str]
    log: str | None
    counts: dict[str, int] = {}
    """How the tasks ended, if the line stands for several."""


# -- facts ---------------------------------------------------------------------------------------


class LastRun(NamedTuple):
    """Where a job runs, or ran last, and what it used there."""

    devices: Sequence[str] = ()
    started: float | None = None
    reserved: int | None = None
    peak: int | None = None
    utilisation: int | None = None


def job_facts(
    job: Job, state: JobStateName, run: LastRun, devices: Mapping[str, Device], indices: Sequence[int] = ()
) -> JobFacts:
    """Build the facts of a job; with the indices of several tasks, those that the tasks share."""
    is_array, resources = len(indices) > 1, job.spec.resources
    return JobFacts(
        id=job.id,
        label=tasks_text(job.array, indices) if is_array else id_text(job),
        tasks=len(indices) if is_array else 1,
        name=job.name,
        command=(job.command if is_array else shown_command(job)).text,
        state=state,
        group=job.spec.group,
        gpus=resources.gpus,
        devices=device_labels(run.devices, devices),
        vram_bytes=resources.memory,
        submitted=to_datetime(job.submitted),
        started=to_datetime_or_none(run.started),
        ended=to_datetime(job.state.at) if isinstance(job.state, Ended) else None,
        vram_mode=mode_of(resources),
        reserved_bytes=run.reserved,
        peak_vram_bytes=run.peak,
        utilisation_percent=run.utilisation,
        title=title_text(job, array=is_array),
    )


# -- open jobs -----------------------------------------------------------------------------------


def job_line(job: Job, engine: str, facts: QueueFacts, indices: Sequence[int] = ()) -> JobLine:
    """The line of an open job, or of several tasks of an array of which `job` is the first."""
    state, why = situation(job, engine, facts)
    devices = job.state.devices if isinstance(job.state, Active) else ()
    live = facts.statuses.live(job.id) if devices else None
    peak, utilisation = (live.peak, live.utilisation) if live else (None, None)
    run = LastRun(devices, started_at(job), facts.reserved(job, engine), peak, utilisation)
    seen = None if run.started is None else facts.last_seen(engine, run.started)
    return _line(
        job_facts(job, state, run, facts.devices, indices),
        job,
        engine,
        facts,
        why=why,
        seconds=None if run.started is None else round(max(0.0, (seen or facts.now) - run.started), 3),
        held_bytes=live.memory if live else None,
        speed=facts.speeds.get(job.id) if devices else None,
        last_seen=to_datetime_or_none(seen),
        interrupted=facts.is_interrupted(engine),
        **_forecast(job, engine, facts, is_watched=state == "running" and seen is None),
        **(_position(job, engine, facts) if state == "queued" else {}),
    )


def ended_line(past: Past, engine: str, facts: QueueFacts) -> JobLine:
    """The line of a job that is over, with values of its last attempt."""
    line = past_line(past, facts.store, facts.devices)
    record = JobFacts(**{name: getattr(line, name) for name in JobFacts.__struct_fields__})
    ahead = {"expected_start": None, "expected_end": None}
    return _line(record, past.job, engine, facts, why=line.note, seconds=line.run_seconds, **ahead)


def _line(record: JobFacts, job: Job, engine: str, facts: QueueFacts, **more: Any) -> JobLine:
    status = facts.statuses.of(engine)
    return JobLine(
        **asdict(record),
        priority=job.spec.priority,
        preemptible=job.spec.preemptible,
        used_bytes=facts.used_bytes.get(job.id),
        limit_seconds=job.spec.limit,
        run="" if is_background(engine) else status.label if status else engine,
        hook=job.spec.role == "hook",
        **more,
    )


def _forecast(job: Job, engine: str, facts: QueueFacts, *, is_watched: bool) -> dict[str, Any]:
    """When a job will start and end, by the engine's forecast or by the progress of a job that is watched."""
    status = facts.statuses.of(engine)
    forecast = status if status and facts.last_seen(engine, 0.0) is None else None
    progress = facts.progress(job) if is_watched else None
    end = forecast.ends.get(job.id) if forecast else None
    end = end if progress is None or progress.left is None else facts.now + progress.left
    end = None if end is not None and end <= facts.now else end  # it takes longer than expected
    return {
        "expected_start": to_datetime_or_none(forecast.starts.get(job.id)) if forecast else None,
        "expected_end": to_datetime_or_none(end),
        "progress": None if progress is None else round(progress.fraction, 3),
    }


def _position(job: Job, engine: str, facts: QueueFacts) -> dict[str, Any]:
    """The place of a job that may start, and the figures that decide on it."""
    position = facts.positions.position(job, engine)
    if position is None:
        return {}
    return {
        "place": facts.positions.place(job, engine),
        "expected_seconds": position.seconds if position.is_expected else None,
        "waited_ratio": round(times_waited(position, facts.now), 2),
    }


# -- ended jobs ----------------------------------------------------------------------------------


def past_line(past: Past | PastTasks, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    """The line of a job that is over; of several tasks, with the name and the failure of the most telling one."""
    return _past_line(past, store, devices) if isinstance(past, Past) else _past_tasks_line(past, store, devices)


def _past_line(past: Past, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    job, last, ended = past.job, past.last, past.job.state
    assert isinstance(ended, Ended)
    started, had = (last.started, last.devices) if last else (None, ())
    run = LastRun(had, started, _reserved(past, store, devices), past.peak or None, past.utilisation)
    return PastLine(
        **asdict(job_facts(job, ended.result, run, devices)),
        **_end_of(past),
        wait_seconds=None if started is None else round(max(0.0, started - job.submitted), 3),
        run_seconds=None if started is None else round(max(0.0, ended.at - started), 3),
        gpu_hours=round(past.gpu_seconds / 3600, 6),
    )


def _past_tasks_line(tasks: PastTasks, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    job, alike = tasks.telling.job, len(tasks.counts) == 1
    assert isinstance(job.state, Ended)
    run = LastRun((), tasks.started, _reserved(tasks.telling, store, devices), tasks.peak or None)
    end, shared = _end_of(tasks.telling), job_facts(job, job.state.result, run, devices, tasks.indices)
    if not alike:
        end |= {"exit_code": None, "signal": None}
    seconds = None if tasks.started is None else round(max(0.0, tasks.ended - tasks.started), 3)
    return PastLine(
        **asdict(shared) | {"id": job.array, "ended": to_datetime(tasks.ended)},
        **end,
        wait_seconds=None,
        run_seconds=seconds,
        gpu_hours=round(tasks.gpu_seconds / 3600, 6),
        counts=tasks.counts,
    )


def _end_of(past: Past) -> dict[str, Any]:
    """How a job ended, and what it left."""
    job, last, ended = past.job, past.last, past.job.state
    assert isinstance(ended, Ended)
    return {
        "exit_code": None if ended.signal else ended.code,
        "signal": ended.signal or None,
        "note": _note(past),
        "attempts": job.run,
        "peak_memory_bytes": last.peak_memory or None if last else None,
        "directory": job.spec.cwd,
        "commit": job.spec.commit,
        "tags": dict(job.spec.tags),
        "log": last.log if last and last.log and last.log != INHERIT else None,
    }


def _note(past: Past) -> str:
    """The note about an end; of a failure without one, the telling line of the log."""
    last, ended = past.last, past.job.state
    assert isinstance(ended, Ended)
    if last is None or ended.result not in FAILURES:
        return ended.note
    from stoker.app.views.failure import said_at_end  # it reads logs, which most screens do not need

    log = last.errors or last.log
    return said_at_end(ended.note or ended.said, "" if log == INHERIT else log)


def _reserved(past: Past, store: Reader, devices: Mapping[str, Device]) -> int | None:
    """Bytes that the last attempt had on each GPU; only events tell that of a job whose memory was learnt or raised."""
    job, had = past.job, past.last.devices if past.last else ()
    asked = job.spec.resources
    if not had or not asked.shares:
        return None
    changed = asked.auto or job.floor or job.shared_failures
    resources = resources_of_attempts(store.events(job.id), asked)[-1] if changed else asked
    return amount_now(resources, [devices[device_id] for device_id in had if device_id in devices])


# -- states --------------------------------------------------------------------------------------


def situation(job: Job, engine: str, facts: QueueFacts) -> tuple[JobStateName, str]:
    """A job's state in the words of the screens, and why it is not further."""
    if isinstance(job.state, Ended):
        return job.state.result, job.state.note
    if isinstance(job.state, Active):
        if is_delegated(job):
            return "queued", _about_delegated(job, engine, facts)
        unseen = _unseen(job, engine, facts)
        return _active_state(job), "; ".join(filter(None, (unseen, _about_active(job, engine, facts))))
    state, why = _about_queued(job, engine, facts)
    if facts.is_interrupted(engine):
        return state, f"{facts.run_label(job.batch)} was interrupted; continue: stoker resume {id_text(job)}"
    return state, why


def _active_state(job: Job) -> JobStateName:
    if isinstance(job.state, Running):
        return "running"
    return "stopping" if isinstance(job.state, Stopping) else "starting"


def _about_delegated(job: Job, engine: str, facts: QueueFacts) -> str:
    """Why a job that was handed over to a cluster has not started."""
    if is_background(engine) and not facts.lives(engine):
        return "handed over to the cluster; no engine runs that could tell more (stoker status starts it)"
    assert isinstance(job.state, Starting)
    status = facts.statuses.of(engine)
    reason = status.handed_over.get(slot_of(job.state.ref).rpartition(".")[0]) if status else None
    return facts.sentence(reason) if reason else "about to be handed over"


def _unseen(job: Job, engine: str, facts: QueueFacts) -> str:
    seen = facts.last_seen(engine, started_at(job) or 0.0)
    if seen is None:
        return ""
    return f"last seen {clock_text(seen, facts.now)}" if seen else "not confirmed by an engine"


def _about_active(job: Job, engine: str, facts: QueueFacts) -> str:
    if survivors := next((status.survivors[job.id] for status in facts.statuses if job.id in status.survivors), ""):
        return survivors
    if isinstance(job.state, Stopping) and job.state.note:
        return job.state.note
    if isinstance(job.state, Running) and (way := job.state.giving_way) is not None:
        return _giving_way(job, way, facts)
    if isinstance(job.state, Running) and job.state.idle_since is not None:
        return idle_text(facts.now - job.state.idle_since, device_labels(job.state.devices, facts.devices))
    if facts.is_interrupted(engine):
        return "its run was interrupted" + ("" if _unseen(job, engine, facts) else "; the job continues")
    if isinstance(job.state, Starting) and resources_of(job).mps is not None:
        return "waiting for the MPS daemon of its GPU"
    return _shared_failure(job, facts)


def _giving_way(job: Job, way: GivingWay, facts: QueueFacts) -> str:
    saves, until = job.spec.preemptible == "save", way.since + job.spec.save_time
    doing = f"has until {clock_text(until, facts.now)} to save" if saves else "stopping"
    return f"{_way_text('gives way', way, facts)}; {doing}"


def _way_text(verb: str, way: GivingWay, facts: QueueFacts) -> str:
    to = f" to job {facts.store.shown_id(way.to)}" if way.to else ""
    return f"{verb}{to}" + (f" ({way.note})" if way.note else "")


def _about_queued(job: Job, engine: str, facts: QueueFacts) -> tuple[JobStateName, str]:
    """The state of a job in the queue, and why it waits; first that it was preempted."""
    state, why = _why_queued(job, engine, facts)
    way = job.state.gave_way if isinstance(job.state, Waiting) else None
    return state, why if way is None else f"{_way_text('preempted: gave way', way, facts)}; {why}"


def _why_queued(job: Job, engine: str, facts: QueueFacts) -> tuple[JobStateName, str]:
    hindered = why_not_eligible(job, facts.now, facts.outcome) if is_gated(job) else None
    if isinstance(hindered, NeverSatisfied):
        why = f"{never_satisfied_text(hindered, facts.store.shown_id)}; it will be skipped"
        return queued_word(job, hindered), why
    if hindered is not None:
        return queued_word(job, hindered), facts.sentence(hindered)
    if is_background(engine) and not facts.lives(engine):
        return "queued", NO_ENGINE
    reason = facts.reason(job, engine)
    if reason is None:
        return "queued", "; ".join(filter(None, ("about to start", _shared_failure(job, facts))))
    # At the limit of its own array or group it waits for that, whichever job goes first.
    overtaken = "" if isinstance(reason, CapFull) else _overtaken(job, engine, facts)
    return "queued", "; ".join(filter(None, (facts.sentence(reason), overtaken, _shared_failure(job, facts))))


def _overtaken(job: Job, engine: str, facts: QueueFacts) -> str:
    """Which younger job goes first, and why; empty if the first one is older, as users expect."""
    first = facts.positions.overtaken_by(job, engine)
    return facts.sentence(first) if first and first.job > job.id and first.by != "priority" else ""


def _shared_failure(job: Job, facts: QueueFacts) -> str:
    """The last attempt that an unfinished job lost on a shared GPU."""
    event = last_shared_failure(facts.store.events(job.id)) if job.shared_failures else None
    return shared_failure_text(job, event) if event else ""


def shared_failure_text(job: Job, event: Exited) -> str:
    """Why a job lost an attempt on a shared GPU, and what is different in the next one."""
    return f"{_failure_words(event)}; {_next_try(job, event)}"


def retry_text(job: Job, event: Exited) -> str:
    """The same, with what is different first: narrow screens cut the end off."""
    return f"{_next_try(job, event)}; {_failure_words(event)}"


def last_shared_failure(events: Iterable[Event]) -> Exited | None:
    """The last attempt that the job lost because it shared a GPU."""
    failures = [event for event in events if isinstance(event, Exited) and event.cause and event.shared]
    return failures[-1] if failures else None


def _failure_words(event: Exited) -> str:
    if event.cause == "fault":
        return "killed by an MPS fault of a job on the same GPU"
    return "out of GPU memory while sharing" if event.floor else "GPU memory was taken by others"


def _next_try(job: Job, event: Exited) -> str:
    runs = isinstance(job.state, Active)
    if needs_exclusive(job):
        return "now exclusive" if runs else "retrying exclusive"
    again = "now" if runs else "retrying"
    if not event.floor:
        return f"{again} with the same memory reserved"
    return f"{again} with {size_text(max(job.floor, job.spec.resources.memory or 0))} reserved"
