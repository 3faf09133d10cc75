"""Jobs that are over, as plain data: what `stoker history` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec import Struct

from stoker.cli.screens.queue_scene import exactly, moment
from stoker.core.attempt import INHERIT
from stoker.core.job import Ended, Result
from stoker.store.listing import Listing, Past, Period
from stoker.words import id_text, text_for_json

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
    """Reserved on each GPU; null is all of it."""
    submitted: datetime
    started: datetime | None
    """Its last attempt, as the following."""
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
    """Those of the counts that are older than the jobs."""
    gpu_hours: float


def past_lines(store: Listing, period: Period, limit: int, labels: Mapping[str, str]) -> Iterator[PastLine]:
    """The jobs that ended last, oldest of them first."""
    return (past_line(past, labels) for past in reversed(store.past(period, limit)))


def past_line(past: Past, labels: Mapping[str, str]) -> PastLine:
    """One job that is over."""
    job, last = past.job, past.last
    ended = job.state
    assert isinstance(ended, Ended)
    started = last.started if last else None
    terms = job.terms
    return PastLine(
        id=job.id,
        label=id_text(job),
        name=text_for_json(job.name),
        state=ended.result,
        exit_code=None if ended.signal else ended.code,
        signal=ended.signal or None,
        note=text_for_json(ended.note),
        group=text_for_json(terms.group),
        gpus=terms.need.gpus,
        devices=[text_for_json(labels.get(device, device)) for device in last.devices] if last else [],
        vram_bytes=terms.need.memory,
        submitted=exactly(job.submitted),
        started=moment(started),
        ended=exactly(ended.at),
        wait_seconds=None if started is None else _seconds(started - job.submitted),
        run_seconds=None if started is None else _seconds(ended.at - started),
        gpu_hours=round(past.gpu_seconds / 3600, 6),
        attempts=job.attempts,
        peak_memory_bytes=last.peak_memory or None if last else None,
        directory=text_for_json(terms.cwd),
        commit=text_for_json(terms.commit),
        tags={text_for_json(name): text_for_json(value) for name, value in terms.tags},
        log=text_for_json(last.log) if last and last.log and last.log != INHERIT else None,
        command=text_for_json(job.command.text),
    )


def _seconds(span: float) -> float:
    return round(max(0.0, span), 3)
