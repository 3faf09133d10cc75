"""Build the data of `stoker history`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.local_time import exactly, moment
from stoker.app.views.failure import said_at_end
from stoker.core.amounts import VramMode, amount_now, mode_of, resources_of_attempts
from stoker.core.device import Device
from stoker.core.job import Ended, id_text
from stoker.core.launch import INHERIT, shown_command
from stoker.core.outcomes import FAILURES, Result
from stoker.core.selectors import tasks_text
from stoker.core.text import title_text
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name
from stoker.store.queries import Past, PastTasks, Period
from stoker.store.reader import Reader
from stoker.store.schema import AttemptRow
from stoker.store.status_file import read_status
from stoker.store.writer import open_store

SCHEMA = "stoker.history/1"


class PastLine(Struct, frozen=True):
    """A job that is over."""

    id: int
    label: str
    name: str
    state: Result
    exit_code: int | None
    signal: int | None
    note: str
    group: str
    gpus: int
    devices: list[str]
    vram_bytes: int | None
    """Requested on each GPU; null is all of it, or auto."""
    submitted: datetime
    started: datetime | None
    """Of its last attempt, as are the following."""
    ended: datetime
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
    command: str
    vram_mode: VramMode = "all"
    """What was requested on each GPU: a size, the whole card, or auto."""
    reserved_bytes: int | None = None
    """Reserved on each GPU for its last attempt; null is all of it."""
    peak_vram_bytes: int | None = None
    """The most that its last attempt held on one of its GPUs, if measured..."""
    utilisation_percent: int | None = None
    """... and how busy it kept them on average while it had them to itself."""
    title: str = ""
    """What screens call it: its name, its command, or its Python call with arguments."""
    tasks: int = 1
    """How many tasks of an array the line stands for; they ran from `started` to `ended`."""
    counts: dict[str, int] = {}
    """How they ended, if the line stands for several."""


class History(Struct, frozen=True):
    """Jobs that are over: `stoker history --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    since: datetime | None
    jobs: list[PastLine]
    """Newest last."""
    counts: dict[str, int]
    hidden: int
    """How many of the counted jobs are not listed, since they are older."""
    gpu_hours: float


def read_history(
    paths: Paths, period: Period, limit: int, now: float, *, simulated: bool, each_task: bool = True
) -> History:
    """The jobs that ended last, and the totals of all; the tasks of an array share a line unless `each_task`."""
    with _opened(paths) as (store, devices):
        found: Sequence[Past | PastTasks] = (
            queries.past(store, period, limit) if each_task else queries.past_by_array(store, period, limit)
        )
        jobs = [_line(one, store, devices) for one in reversed(found)]
        counts = queries.past_counts(store, period)
        hours = queries.past_gpu_seconds(store, period) / 3600
    return History(
        schema=SCHEMA,
        at=exactly(now),
        host=host_name(),
        simulated=simulated,
        since=moment(period.since or None),
        jobs=jobs,
        counts=counts,
        hidden=sum(counts.values()) - sum(job.tasks for job in jobs),
        gpu_hours=round(hours, 6),
    )


def read_past_page(
    paths: Paths, period: Period, limit: int, offset: int
) -> tuple[list[PastLine], dict[str, int], float]:
    """Some of the jobs that are over, the newest first; how all of them ended, and their GPU-hours."""
    with _opened(paths) as (store, devices):
        lines = [past_line(one, store, devices) for one in queries.past(store, period, limit, offset)]
        return lines, queries.past_counts(store, period), queries.past_gpu_seconds(store, period) / 3600


@contextlib.contextmanager
def past_jobs(paths: Paths, period: Period, limit: int) -> Iterator[Iterator[PastLine]]:
    """The jobs that ended last, one by one."""
    with _opened(paths) as (store, devices):
        yield (past_line(past, store, devices) for past in reversed(queries.past(store, period, limit)))


@contextlib.contextmanager
def _opened(paths: Paths) -> Iterator[tuple[Reader, Mapping[str, Device]]]:
    """The store, and the devices that the engine saw last by their ids."""
    status = read_status(paths.status_file(QUEUE))
    with contextlib.closing(open_store(paths)) as store, store.reading():
        yield store, {device.id: device for device in status.devices} if status else {}


def _line(one: Past | PastTasks, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    return past_line(one, store, devices) if isinstance(one, Past) else _tasks_line(one, store, devices)


def _tasks_line(tasks: PastTasks, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    """One line for many tasks, with the name and the failure of the most telling one."""
    line = past_line(tasks.telling, store, devices)
    job = tasks.telling.job
    ended, began = exactly(tasks.ended), moment(tasks.started)
    return replace(
        line,
        id=job.array,
        label=tasks_text(job.array, tasks.indices),
        exit_code=line.exit_code if len(tasks.counts) == 1 else None,
        signal=line.signal if len(tasks.counts) == 1 else None,
        devices=[],
        title="",
        started=began,
        ended=ended,
        wait_seconds=None,
        run_seconds=None if began is None else round(max(0.0, (ended - began).total_seconds()), 3),
        gpu_hours=round(tasks.gpu_seconds / 3600, 6),
        peak_vram_bytes=tasks.peak or None,
        utilisation_percent=None,
        tasks=sum(tasks.counts.values()),
        counts=tasks.counts,
    )


def past_line(past: Past, store: Reader, devices: Mapping[str, Device]) -> PastLine:
    job, last = past.job, past.last
    ended = job.state
    assert isinstance(ended, Ended)
    started, had = (last.started, last.devices) if last else (None, ())
    spec = job.spec
    return PastLine(
        id=job.id,
        label=id_text(job),
        name=job.name,
        state=ended.result,
        exit_code=None if ended.signal else ended.code,
        signal=ended.signal or None,
        note=_note(ended, last),
        group=spec.group,
        gpus=spec.resources.gpus,
        devices=[devices[one].label if one in devices else one for one in had],
        vram_bytes=spec.resources.memory,
        submitted=exactly(job.submitted),
        started=moment(started),
        ended=exactly(ended.at),
        wait_seconds=None if started is None else round(max(0.0, started - job.submitted), 3),
        run_seconds=None if started is None else round(max(0.0, ended.at - started), 3),
        gpu_hours=round(past.gpu_seconds / 3600, 6),
        attempts=job.run,
        peak_memory_bytes=last.peak_memory or None if last else None,
        directory=spec.cwd,
        commit=spec.commit,
        tags=dict(spec.tags),
        log=last.log if last and last.log and last.log != INHERIT else None,
        command=shown_command(job).text,
        vram_mode=mode_of(spec.resources),
        reserved_bytes=_reserved(past, store, devices),
        peak_vram_bytes=past.peak or None,
        utilisation_percent=past.utilisation,
        title=title_text(job),
    )


def _note(ended: Ended, last: AttemptRow | None) -> str:
    """What is known of the end; of a failure that nobody noted, the telling line of the log."""
    if last is None or ended.result not in FAILURES:
        return ended.note
    log = last.errors or last.log
    return said_at_end(ended.note or ended.said, "" if log == INHERIT else log)


def _reserved(past: Past, store: Reader, devices: Mapping[str, Device]) -> int | None:
    """What its last attempt had; only events tell that of a job whose memory was learnt or raised."""
    job, had = past.job, past.last.devices if past.last else ()
    asked = job.spec.resources
    if not had or not asked.shares:
        return None
    changed = asked.auto or job.floor or job.shared_failures
    resources = resources_of_attempts(store.events(job.id), asked)[-1] if changed else asked
    return amount_now(resources, [devices[one] for one in had if one in devices])
