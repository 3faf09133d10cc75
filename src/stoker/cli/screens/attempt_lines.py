"""The attempts of a job, as plain data: where, how long, how each ended, and what it used of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import exactly, moment
from stoker.cli.screens.set_aside import amount_now, needs_of_attempts
from stoker.core.attempt import INHERIT
from stoker.core.job import Active, Event, Job
from stoker.core.terms import Need
from stoker.core.use import MIB, Use, reached
from stoker.store import AttemptRow
from stoker.words import text_for_json


class AttemptLine(Struct, frozen=True):
    """One run of a job."""

    number: int
    devices: list[str]
    assigned: datetime
    started: datetime | None
    ended: datetime | None
    seconds: float | None
    exit_code: int | None
    signal: int | None
    why: str
    """How it came to its end: exited, timeout, stopped, refused, returned, lost."""
    peak_memory_bytes: int | None
    """Host memory of its largest process."""
    note: str
    log: str | None
    errors: str | None
    reserved_bytes: int | None = None
    """Set aside for it on each GPU; null is all of it."""
    peak_vram_bytes: int | None = None
    """The most that it held on one of its GPUs, where that was measured..."""
    utilisation_percent: int | None = None
    """... and how busy it kept them on average while it had them to itself."""
    vram_curve: list[tuple[float, int]] = []
    """Seconds since its start, and bytes on the GPU of which it held most."""


def attempt_lines(job: Job, events: Sequence[Event], knowledge: Knowledge) -> list[AttemptLine]:
    """All attempts, oldest first."""
    store = knowledge.store
    uses = store.uses(job.id)
    live = knowledge.live(job.id) if isinstance(job.state, Active) else None
    if live is not None:  # what is written down is up to a minute old
        uses[job.attempts] = reached(uses.get(job.attempts, Use()), live.peak)
    needs = dict(enumerate(needs_of_attempts(events, job.terms.need), 1))
    rows = store.attempts(job.id)
    return [_line(row, needs.get(row.number), uses.get(row.number), knowledge) for row in rows]


def _line(row: AttemptRow, need: Need | None, use: Use | None, knowledge: Knowledge) -> AttemptLine:
    return AttemptLine(
        number=row.number,
        devices=[text_for_json(label) for label in knowledge.labels(row.devices)],
        assigned=exactly(row.assigned),
        started=moment(row.started),
        ended=moment(row.ended),
        seconds=_seconds(row, knowledge.now),
        exit_code=None if row.signal else row.code,
        signal=row.signal or None,
        why=row.why or "",
        peak_memory_bytes=row.peak_memory or None,
        note=text_for_json(row.note or ""),
        log=_path(row.log),
        errors=_path(row.errors),
        reserved_bytes=amount_now(need, knowledge.devices_of(row.devices)) if row.devices else None,
        peak_vram_bytes=use.peak or None if use else None,
        utilisation_percent=use.utilisation if use else None,
        vram_curve=[(seconds, size * MIB) for seconds, size in use.curve] if use else [],
    )


def _seconds(row: AttemptRow, now: float) -> float | None:
    """How long it ran, or runs; None where it never did, or was lost or given back and nobody knows when."""
    if row.started is None or (row.ended is None and row.why is not None):
        return None
    return round(max(0.0, (row.ended or now) - row.started), 3)


def _path(path: str) -> str | None:
    return text_for_json(path) if path and path != INHERIT else None
