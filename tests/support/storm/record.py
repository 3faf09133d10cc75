"""The contents of the database after a storm, read by plain SQL and no code of the program."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JobRow:
    """A job as it was left."""

    job: int
    number: int
    """Which of the storm's jobs it is, by its command."""
    state: str
    detail: dict[str, Any]
    engine: str
    resources: dict[str, Any] = field(default_factory=dict)
    """The resources of its spec."""
    task: int | None = None
    """Its index, if it is a task of an array."""


@dataclass(frozen=True)
class AttemptRow:
    """An attempt as it was left."""

    job: int
    number: int
    devices: tuple[str, ...]
    assigned: float
    started: float | None
    ended: float | None
    code: int | None
    signal: int | None
    why: str | None

    @property
    def key(self) -> str:
        """As workers' journals name it."""
        return f"{self.job}.{self.number}"


@dataclass(frozen=True)
class Record:
    """All of it."""

    integrity: list[str]
    jobs: dict[int, JobRow]
    attempts: dict[int, list[AttemptRow]]
    """Of each job, in their order."""
    events: dict[int, list[dict[str, Any]]]
    """Of each job, in their order."""
    requests: list[str]
    """Requests of clients that no engine has answered."""
    rows: list[range] = field(default_factory=list)
    """The ids of the jobs that each row stands for, in their order."""

    def runs(self) -> Iterator[tuple[int, int, AttemptRow]]:
        """Job, number of the run as the run itself sees it, and attempt: what was given back does not count."""
        for job, attempts in self.attempts.items():
            ran = [attempt for attempt in attempts if attempt.why != "returned"]
            yield from ((job, number, attempt) for number, attempt in enumerate(ran, 1))

    def lost(self) -> list[str]:
        """The attempts that are told as lost, each as often as that."""
        told = [(job, event) for job, events in self.events.items() for event in events]
        return [f"{job}.{event['attempt']}" for job, event in told if event["type"] == "lost"]


def read_record(state: Path) -> Record:
    """Read the state directory."""
    with contextlib.closing(sqlite3.connect(state / "queue.db")) as database:
        return Record(
            integrity=[row[0] for row in database.execute("PRAGMA integrity_check")],
            jobs=_jobs(database),
            attempts=_attempts(database),
            events=_events(database),
            requests=[body.decode() for (body,) in database.execute("SELECT body FROM requests")],
            rows=[_ids(*row) for row in database.execute("SELECT id, size FROM jobs ORDER BY id")],
        )


def open_jobs(state: Path) -> list[int]:
    """The jobs that are not over."""
    over = "('done', 'failed', 'oom', 'timeout', 'cancelled', 'skipped', 'lost')"
    with contextlib.closing(sqlite3.connect(state / "queue.db")) as database:
        rows = database.execute(f"SELECT id, size FROM jobs WHERE state NOT IN {over}")
        return [job for row in rows for job in _ids(*row)]


def _ids(last: int, size: int) -> range:
    """The jobs of a row, which has the id of the last one."""
    return range(last - size + 1, last + 1)


def _jobs(database: sqlite3.Connection) -> dict[int, JobRow]:
    lines: dict[int, bytes] = dict(database.execute("SELECT id, words FROM lines"))
    columns = "jobs.id, size, step, task, words, state, detail, engine, json_extract(body, '$.resources')"
    rows = database.execute(f"SELECT {columns} FROM jobs JOIN specs ON specs.id = jobs.spec")
    return {
        job: JobRow(
            job,
            int((lines[job] if words is None else words).split()[3]),
            state,
            json.loads(detail),
            engine,
            json.loads(resources or "{}"),
            None if task is None else task - (last - job) * step,
        )
        for last, size, step, task, words, state, detail, engine, resources in rows
        for job in _ids(last, size)
    }


def _attempts(database: sqlite3.Connection) -> dict[int, list[AttemptRow]]:
    attempts: dict[int, list[AttemptRow]] = defaultdict(list)
    columns = "job, number, devices, assigned, started, ended, code, signal, why"
    for job, number, devices, *rest in database.execute(f"SELECT {columns} FROM attempts ORDER BY job, number"):
        seen = tuple(device.removeprefix("SIM-") for device in json.loads(devices))  # as a run sees simulated ones
        attempts[job].append(AttemptRow(job, number, seen, *rest))
    return attempts


def _events(database: sqlite3.Connection) -> dict[int, list[dict[str, Any]]]:
    events: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for first, count, body in database.execute("SELECT job, count, body FROM events ORDER BY id"):
        for job in range(first, first + count):
            events[job].append(json.loads(body))
    return events
