"""The feed of live screens: what changed since the last look, found without reading whole tables."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.engines import EngineStatuses, read_statuses
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import DeviceProbe
from stoker.app.views.job import JobLine
from stoker.app.views.model import Counts, DeviceLine, EngineLine, FailedJob, Status
from stoker.app.views.status import status_of
from stoker.core.errors import StokerError
from stoker.store.changes import Cursor, cursor_now, jobs_changed_since
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.paths import Paths, host_name
from stoker.store.queries import Load
from stoker.store.writer import Store, open_existing, open_store

SCHEMA = "stoker.changes/1"
LINES = 100
"""Waiting jobs that a feed watches, those that start first; it watches all active jobs."""
MOST_CHANGED = 1000
"""Changed jobs that are named at most."""
PROBE_SECONDS = 2.0
"""Time between two questions to the driver while no engine runs."""
PROBE_PAUSE_SECONDS = 60.0
"""Time until the next question after the driver had no answer."""
_GRAIN_SECONDS = 10
"""Seconds to which expected times are rounded before they are compared: estimates always move a little."""


class Changes(Struct, frozen=True):
    """Changes since the last look."""

    schema: str
    at: datetime
    jobs: list[JobLine]
    """Lines of `stoker status` that are new or differ from before."""
    gone: list[str]
    """Labels of the lines that it does not show any more."""
    devices: list[DeviceLine]
    """Those that differ from before."""
    changed: list[str]
    """Labels of all jobs with new events, and of new jobs, also of those that `stoker status` does not list."""
    more: bool
    """Whether further jobs changed, which are not named."""
    engine: EngineLine
    """This and the following are as they are now, changed or not."""
    counts: Counts
    hidden: Counts
    today: dict[str, int]
    expected_empty: datetime | None
    notes: list[str]
    failures: list[FailedJob]


class _EngineMark(NamedTuple):
    """A value that differs if an engine reported something new."""

    name: str
    lives: bool
    written: int
    """When its status file was written, in nanoseconds."""


class Feed:
    """Reads the store and the status files only if one of them has changed. Use it in one thread."""

    def __init__(
        self,
        paths: Paths,
        *,
        lines: int = LINES,
        chosen: Filter = NO_FILTER,
        each_task: bool = False,
        patience: float = 0.0,
    ) -> None:
        """`lines` is how many waiting jobs are listed; a change of it or of the filter shows at the next look.

        `patience` is for how many seconds a look may be too old for what only the status file tells, such as memory.
        """
        self.lines = lines
        self.chosen = chosen
        self.each_task = each_task
        self.status: Status | None = None
        """The queue as of the last change."""
        self.has_news = False
        """Whether more than the time was different at the last change."""
        self._paths = paths
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._cursor: Cursor | None = None
        self._seen: Hashable = None
        """A value that differs if something happened."""
        self._told: Hashable = None
        """A value that differs if an engine wrote a new status."""
        self._read_at = 0.0
        self._patience = patience
        self._engine_lives = False
        self._probe = DeviceProbe(paths)
        self._probe_after = 0.0
        self._loads: tuple[int, Mapping[str, Load]] | None = None
        """Counts of open jobs, and the version of the data that they belong to."""

    def changes(self) -> Changes | None:
        """The changes since the last call, or all in the first; None if nothing did."""
        store = self._opened()
        version = store.version_of_data()
        if not self._is_new(version):
            return None
        try:
            return self._read(store, version)
        except BaseException:
            self.expire()  # what could not be read is new the next time
            raise

    def _read(self, store: Store, version: int) -> Changes:
        before, cursor = self.status, self._cursor
        statuses = self._statuses(now := time.time())
        with store.reading():
            facts = QueueFacts(store, statuses, now, simulated=self._paths.is_simulated, paths=self._paths)
            if self._loads is not None and self._loads[0] == version:
                facts.loads = self._loads[1]  # counting a hundred thousand jobs takes longer than all the rest
            self._loads = version, facts.loads
            self.status = status_of(facts, host_name(), self.lines, each_task=self.each_task, chosen=self.chosen)
            self._cursor = cursor_now(store)
            moved = [] if cursor is None else jobs_changed_since(store, cursor, MOST_CHANGED + 1)
            labels = [store.shown_id(job_id) for job_id in moved[:MOST_CHANGED]]
        changes = differences(before, self.status, labels, more=len(moved) > MOST_CHANGED)
        self.has_news = is_news(before, self.status, changes)
        return changes

    def _is_new(self, version: int) -> bool:
        """Whether there is something to read. Called before reading: what is written meanwhile is new the next time."""
        engines = self._engines()
        living = tuple(engine.name for engine in engines if engine.lives)
        self._engine_lives = bool(living)
        seen = version, living, self.lines, self.chosen, self.each_task
        told = tuple(engines), None if living else int(time.time() // PROBE_SECONDS)
        if seen == self._seen and (told == self._told or time.monotonic() < self._read_at + self._patience):
            return False
        self._seen, self._told, self._read_at = seen, told, time.monotonic()
        return True

    def _statuses(self, now: float) -> EngineStatuses:
        """The status files; without an engine the driver is asked, but not before the first screen."""
        statuses = read_statuses(self._paths, now)
        if self._engine_lives or self.status is None or now < self._probe_after:
            return statuses
        try:
            return replace(statuses, queue=self._probe.status(statuses.queue, now))
        except StokerError:  # as on a machine without GPUs
            self._probe_after = now + PROBE_PAUSE_SECONDS
            return statuses

    def expire(self) -> None:
        """Read everything again at the next call, and report what differs."""
        self._seen = None

    def close(self) -> None:
        self._probe.close()
        self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> Store:
        """The store that is at its path now: users may delete or replace the state directory."""
        there = _identity(self._paths)
        if self._store is not None and there == self._file:
            return self._store
        self._close_store()
        if self._file is not None and there is None and not self._paths.state.is_dir():
            raise StokerError(
                f"the state directory is gone: {self._paths.state}",
                "the queue was removed; stoker submit creates a new one",
            )
        self._store = open_store(self._paths) if self._file is None else open_existing(self._paths)
        self._file, self._cursor, self._seen, self._loads = _identity(self._paths), None, None, None
        return self._store

    def _engines(self) -> list[_EngineMark]:
        names = sorted({QUEUE, *(path.stem for path in self._paths.engines.glob("*.lock"))})
        return [_EngineMark(name, engine_lives(self._paths, name), _written(self._paths, name)) for name in names]


def _identity(paths: Paths) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.stat(paths.database)
        return status.st_dev, status.st_ino
    return None


def _written(paths: Paths, engine: str) -> int:
    with contextlib.suppress(OSError):
        return paths.status_file(engine).stat().st_mtime_ns
    return 0


def differences(before: Status | None, now: Status, changed: list[str], *, more: bool = False) -> Changes:
    """The differences between two looks at the queue; everything is new in the first."""
    old_jobs = {} if before is None else {line.label: _essence(line) for line in before.jobs}
    old_devices = {} if before is None else {line.id: line for line in before.devices}
    labels = {line.label for line in now.jobs}
    return Changes(
        schema=SCHEMA,
        at=now.at,
        jobs=[line for line in now.jobs if old_jobs.get(line.label) != _essence(line)],
        gone=[label for label in old_jobs if label not in labels],
        devices=[line for line in now.devices if old_devices.get(line.id) != line],
        changed=changed,
        more=more,
        engine=now.engine,
        counts=now.counts,
        hidden=now.hidden,
        today=now.today,
        expected_empty=now.expected_empty,
        notes=now.notes,
        failures=now.failures,
    )


def is_news(before: Status | None, now: Status, changes: Changes) -> bool:
    """Whether more than the time differs between two looks at the queue."""
    if before is None or changes.jobs or changes.gone or changes.devices or changes.changed:
        return True
    return _standing(before) != _standing(now)


def _standing(status: Status) -> Status:
    """The part that every report of changes repeats, without the time."""
    return replace(
        status, at=None, web="", jobs=[], devices=[], interrupted=[], engine=replace(status.engine, seen=None)
    )


def _essence(line: JobLine) -> JobLine:
    """A line without what changes by itself as time passes."""
    return replace(
        line,
        seconds=None,
        waited_ratio=None,
        expected_start=_roughly(line.expected_start),
        expected_end=_roughly(line.expected_end),
    )


def _roughly(at: datetime | None) -> datetime | None:
    return None if at is None else to_datetime(at.timestamp() // _GRAIN_SECONDS * _GRAIN_SECONDS)
