"""What a live display shows of a run at one moment, as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from stoker.cli.foreground.recent import Notice, Recent, expected_left
from stoker.core.device import Device, Reading
from stoker.core.job import Active, Job, Running, need_of, state_word
from stoker.core.reasons import sentence
from stoker.core.terms import amount_on
from stoker.core.units import count_text, size_text
from stoker.core.use import Live
from stoker.engine import Engine
from stoker.foreground import Foreground
from stoker.words import printable

SETTLING_SECONDS = 2.0
"""After the end of a job its process may still be in a snapshot, and is no stranger."""
NOBODYS = 512 * 2**20
"""Bytes that a driver keeps for itself, or that a process has beside what it is listed with."""
NOTHING_WAITS = ("no job waits", "no job waits, more may come")


class Occupant(Struct, frozen=True):
    """A job on a device."""

    id: int
    name: str
    seconds: float | None = None
    """How long it has been running; None where it is not."""
    word: str = ""
    """What it does where it is not simply running: `starting`, `stopping`."""
    gpus: int = 1
    expected: float | None = None
    """How long such jobs take in all, where that is known."""


class Row(Struct, frozen=True):
    """A device, or the processor for jobs that need no device."""

    label: str
    occupants: tuple[Occupant, ...] = ()
    used: int | None = None
    memory: int | None = None
    idle: str = ""
    """Why nothing of ours runs on it, in words."""
    reserved: int = 0
    """Set aside for our jobs, whether they use it or not."""
    others: int = 0
    """In use by anybody else."""


class Counts(Struct, frozen=True):
    """How many jobs are where."""

    total: int
    ok: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    open_ended: bool = False
    """Whether more jobs may come."""

    @property
    def ended(self) -> int:
        """Jobs that are over."""
        return self.ok + self.failed


class Scene(Struct, frozen=True):
    """Everything there is to draw."""

    heading: tuple[str, ...]
    """From the most to the least important part."""
    rows: tuple[Row, ...]
    counts: Counts
    elapsed: float
    simulated: bool = False
    left: float | None = None
    """Seconds until all is over, where that can be guessed."""
    waits: str = ""
    """The next job and why it waits, in words."""
    notices: tuple[Notice, ...] = ()
    successes: tuple[int, ...] = ()
    """Oldest first."""


def scene_of(run: Foreground, recent: Recent, now: float, *, expected: int | None, logs: str) -> Scene:
    """The run as it is now; `expected` is the number of its jobs where that is known."""
    engine = run.engine
    held = sorted(engine.held, key=lambda job: job.id)
    counts = counts_of(run, len(held), expected)
    waits = _waits(engine, counts)
    rows = _rows(engine, held, recent, waits, now)
    return Scene(
        heading=_heading(run, counts, logs),
        rows=rows,
        counts=counts,
        elapsed=now - run.started,
        simulated=any(device.kind == "simulated" for device in engine.snapshot.devices),
        left=None if counts.open_ended else _left(run, held, recent, counts.waiting, now),
        waits="" if waits in NOTHING_WAITS or any(row.idle.endswith(waits) for row in rows) else waits,
        notices=recent.notices(),
        successes=recent.successes(),
    )


def counts_of(run: Foreground, running: int, expected: int | None) -> Counts:
    """A list is fed in parts, so what has not been submitted yet counts as waiting."""
    tally = run.tally
    known = tally.given if expected is None else max(tally.given, expected - tally.skipped - tally.unusable)
    failed = tally.ended - tally.results["done"]
    waiting = max(0, known - tally.ended - running)
    return Counts(known, tally.results["done"], failed, running, waiting, open_ended=expected is None)


def _heading(run: Foreground, counts: Counts, logs: str) -> tuple[str, ...]:
    devices = run.engine.snapshot.devices
    jobs = f"{count_text(counts.total, 'job')} so far" if counts.open_ended else count_text(counts.total, "job")
    parts = [printable(run.setup.label), jobs]
    parts += [count_text(len(devices), "GPU")] if devices else []
    parts += [f"log dir {printable(_near(logs))}"] if logs else []
    return tuple(parts)


def _near(path: str) -> str:
    """The path as one would type it here."""
    here, home = os.getcwd(), os.path.expanduser("~")
    if path.startswith(here + "/"):
        return "." + path.removeprefix(here)
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path


# -- devices -------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """What all rows are about."""

    engine: Engine
    recent: Recent
    uses: Mapping[int, Live]
    waits: str
    now: float


def _rows(engine: Engine, held: list[Job], recent: Recent, waits: str, now: float) -> tuple[Row, ...]:
    on: dict[str, list[Job]] = {}
    for job in held:
        assert isinstance(job.state, Active)
        for device_id in job.state.devices or ("",):
            on.setdefault(device_id, []).append(job)
    moment = _Moment(engine, recent, engine.uses, waits, now)
    rows = [_row(device, on.get(device.id, []), moment) for device in engine.snapshot.devices]
    return (*rows, Row("CPU", _occupants(on[""], moment))) if "" in on else tuple(rows)


def _row(device: Device, jobs: Sequence[Job], moment: _Moment) -> Row:
    reading, taken = moment.engine.snapshot.reading(device.id), moment.engine.snapshot.at
    settled = taken > moment.recent.freed(device.id) + SETTLING_SECONDS
    return Row(
        label=_label(device),
        occupants=_occupants(jobs, moment),
        used=reading.used,
        memory=device.memory,
        idle="" if jobs else _why_idle(reading, moment.waits, settled=settled),
        reserved=_reserved(device, jobs),
        others=_used_by_others(reading.used or 0, jobs, moment.uses) if settled else 0,
    )


def _occupants(jobs: Sequence[Job], moment: _Moment) -> tuple[Occupant, ...]:
    return tuple(_occupant(job, moment.recent, moment.now) for job in jobs)


def _reserved(device: Device, jobs: Sequence[Job]) -> int:
    whole = device.memory or 0
    amounts = [amount_on(need_of(job), device) for job in jobs]
    return min(whole, sum(whole if amount is None else amount for amount in amounts))


def _used_by_others(used: int, jobs: Sequence[Job], uses: Mapping[int, Live]) -> int:
    """What none of our jobs holds; a little that no process has is ours too, and so is all until they are measured."""
    held = [uses[job.id].memory for job in jobs if job.id in uses]
    if len(held) < len(jobs):
        return 0
    rest = max(0, used - sum(held))
    return 0 if jobs and rest < NOBODYS else rest


def _label(device: Device) -> str:
    return f"GPU{device.label}" if device.label.isdecimal() else printable(device.label)


def _why_idle(reading: Reading, waits: str, *, settled: bool) -> str:
    if reading.problem:
        return f"not usable: {printable(reading.problem)}"
    owners = sorted({process.owner for process in reading.processes if process.owner})
    if reading.processes and settled:
        return f"not ours: {size_text(reading.used)} in use by {printable(', '.join(owners)) or 'somebody'}"
    return f"idle: {waits}"


def _occupant(job: Job, recent: Recent, now: float) -> Occupant:
    assert isinstance(job.state, Active)
    running = isinstance(job.state, Running)
    return Occupant(
        id=job.id,
        name=recent.short_name(job),
        seconds=max(0.0, now - job.state.since) if running else None,
        word="" if running else state_word(job),
        gpus=len(job.state.devices),
        expected=recent.expected_seconds(job) if running else None,
    )


# -- what is still to come -----------------------------------------------------------------------


def _waits(engine: Engine, counts: Counts) -> str:
    """Which job is next and why it waits, or why there is none."""
    if engine.draining:
        return "starting nothing more"
    job = engine.next_waiting
    if job is None:
        return NOTHING_WAITS[counts.open_ended]
    reason = engine.reason(job)
    return f"next (#{job.id}) {sentence(reason)}" if reason is not None else f"#{job.id} is about to start"


def _left(run: Foreground, held: list[Job], recent: Recent, waiting: int, now: float) -> float | None:
    ran = [now - job.state.since if isinstance(job.state, Running) else 0.0 for job in held]
    at_once = (recent.worked_seconds + sum(ran)) / max(1.0, now - run.started)
    return expected_left(recent.mean_seconds, ran, 0 if run.engine.draining else waiting, at_once)
