"""Build the data of `stoker history`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.views.job import PastLine, past_line
from stoker.core.device import Device
from stoker.store import past_jobs
from stoker.store.engine_lock import QUEUE
from stoker.store.past_jobs import Past, PastTasks, Period
from stoker.store.paths import Paths, host_name
from stoker.store.reader import Reader
from stoker.store.status_file import read_status
from stoker.store.writer import open_store

SCHEMA = "stoker.history/1"


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


def read_history(paths: Paths, period: Period, limit: int, now: float, *, each_task: bool = True) -> History:
    """The jobs that ended last, and the totals of all; the tasks of an array share a line unless `each_task`."""
    with _opened(paths) as (store, devices):
        ended: Sequence[Past | PastTasks] = (
            past_jobs.past(store, period, limit) if each_task else past_jobs.past_by_array(store, period, limit)
        )
        jobs = [past_line(past, store, devices) for past in reversed(ended)]
        counts = past_jobs.past_counts(store, period)
        hours = past_jobs.past_gpu_seconds(store, period) / 3600
    return History(
        schema=SCHEMA,
        at=to_datetime(now),
        host=host_name(),
        simulated=paths.is_simulated,
        since=to_datetime_or_none(period.since or None),
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
        lines = [past_line(past, store, devices) for past in past_jobs.past(store, period, limit, offset)]
        return lines, past_jobs.past_counts(store, period), past_jobs.past_gpu_seconds(store, period) / 3600


@contextlib.contextmanager
def past_lines(paths: Paths, period: Period, limit: int) -> Iterator[Iterator[PastLine]]:
    """The jobs that ended last, one by one."""
    with _opened(paths) as (store, devices):
        yield (past_line(past, store, devices) for past in reversed(past_jobs.past(store, period, limit)))


@contextlib.contextmanager
def _opened(paths: Paths) -> Iterator[tuple[Reader, Mapping[str, Device]]]:
    """The store, and the devices that the engine saw last by their ids."""
    status = read_status(paths.status_file(QUEUE))
    with contextlib.closing(open_store(paths)) as store, store.reading():
        yield store, {device.id: device for device in status.devices} if status else {}
