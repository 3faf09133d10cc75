"""Everything that can be asked of the queue's file, and nothing that changes it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import StokerError
from stoker.core.job import Event, Job
from stoker.core.learning import Learnt, Use, kind_of
from stoker.core.requests import Request
from stoker.core.spec import Command, Dependency, JobSpec, Outcome
from stoker.store.damage import DAMAGED_HINT, is_damage, preserve
from stoker.store.schema import (
    ACTIVE,
    IN_ARRAY,
    JOB,
    OPEN,
    AttemptRow,
    attempt_of,
    decode,
    events,
    requests,
    split,
    states,
)

_REF = "json_extract(CAST(detail AS TEXT), '$.ref')"
_SLOT = f"substr({_REF}, 1, instr({_REF} || ' ', ' ') - 1)"  # as slot_of()
_ANOTHER_PROGRAM = "another program keeps it locked: end that one; nothing was written"
_YOURS = "see whether the file and its directory are yours to write"
_HINTS = {
    sqlite3.SQLITE_FULL: "nothing was written; free some space on its file system",
    sqlite3.SQLITE_IOERR: "see whether its disk is full or failing",
    sqlite3.SQLITE_BUSY: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_LOCKED: _ANOTHER_PROGRAM,
    sqlite3.SQLITE_CANTOPEN: _YOURS,
    sqlite3.SQLITE_READONLY: _YOURS,
    sqlite3.SQLITE_PERM: _YOURS,
}


class Reading:
    """One user's queue on one host, to be read."""

    def __init__(self, path: Path, patience: float = 30.0) -> None:
        """`patience` is how many seconds it waits for a lock of SQLite's own."""
        self._path = path
        self._specs_by_id: dict[int, JobSpec] = {}
        self._ids_by_spec: dict[JobSpec, int] = {}
        self._preserving = contextlib.ExitStack()
        self._preserved = False
        with self._explained("open"):
            self._database = sqlite3.connect(path, isolation_level=None, timeout=patience, cached_statements=64)

    def job(self, job_id: int) -> Job | None:
        """One job, or None."""
        rows = self._rows(JOB + "id = ?", job_id)
        return self._job_of(rows[0]) if rows else None

    def shown_id(self, job_id: int) -> str:
        """The id as people type it: `12`, or `12.3` for a task of an array."""
        rows = self._rows("SELECT array, task FROM jobs WHERE id = ? AND task IS NOT NULL", job_id)
        return f"{rows[0][0]}.{rows[0][1]}" if rows else str(job_id)

    def last_job(self) -> int | None:
        """The newest job's id."""
        ((last,),) = self._rows("SELECT max(id) FROM jobs")
        return None if last is None else int(last)

    def open_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that are not over, in the order of their ids."""
        query = JOB + "engine = ? AND id > ? AND " + OPEN + " ORDER BY id LIMIT ?"
        return [self._job_of(row) for row in self._rows(query, engine, after, limit)]

    def engines_with_open_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which are not over."""
        return [engine for (engine,) in self._rows("SELECT DISTINCT engine FROM jobs WHERE " + OPEN)]

    def active_jobs(self, engine: str) -> list[Job]:
        """The engine's jobs that were given to workers and are not over, in the order of their ids."""
        rows = self._rows(JOB + "engine = ? AND " + ACTIVE + " ORDER BY id", engine)
        return [self._job_of(row) for row in rows]

    def engines_with_active_jobs(self) -> list[str]:
        """Ids of the engines that own jobs which workers hold."""
        return [engine for (engine,) in self._rows("SELECT DISTINCT engine FROM jobs WHERE " + ACTIVE)]

    def slots(self) -> set[str]:
        """Slots of the jobs that a site holds."""
        return {slot for (slot,) in self._rows(f"SELECT {_SLOT} FROM jobs WHERE {ACTIVE}")}

    def jobs_in_slot_of(self, job_id: int) -> list[int]:
        """All jobs in the slot of a job, the running one first, then in the order of assignment."""
        same = f"{_SLOT} = (SELECT {_SLOT} FROM jobs WHERE id = ? AND {ACTIVE})"
        order = "ORDER BY state = 'starting', json_extract(CAST(detail AS TEXT), '$.since'), id"
        return [found for (found,) in self._rows(f"SELECT id FROM jobs WHERE {ACTIVE} AND {same} {order}", job_id)]

    def times_done(self, content: bytes) -> int:
        """How often this very work has succeeded."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND state = 'done'"
        ((count,),) = self._rows(query, content)
        return int(count)

    def times_open(self, content: bytes, engine: str) -> int:
        """How often this very work is in the hands of other engines."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND engine != ? AND " + OPEN
        return int(self._rows(query, content, engine)[0][0])

    def environment(self, digest: str) -> dict[str, str]:
        """The variables kept under a digest."""
        ((body,),) = self._rows("SELECT variables FROM environments WHERE digest = ?", digest)
        variables: dict[str, str] = json.loads(body)
        return variables

    def attempts(self, job_id: int) -> list[AttemptRow]:
        """A job's attempts, oldest first."""
        rows = self._rows("SELECT * FROM attempts WHERE job = ? ORDER BY number", job_id)
        return [attempt_of(row) for row in rows]

    def uses(self, job_id: int) -> dict[int, Use]:
        """What was seen of a job's attempts on their GPUs, by their numbers."""
        rows = self._rows("SELECT number, body FROM measures WHERE job = ?", job_id)
        return {number: msgspec.json.decode(body, type=Use) for number, body in rows}

    def spent(self, after: float, engine: str, limit: int) -> list[tuple[str, float, float]]:
        """Devices (as JSON), beginning and end of attempts whose jobs ended after a moment, but for one engine's."""
        # By way of the jobs, whose ends have an index; one on attempts would slow every end down.
        rows = self._rows(
            "SELECT devices, started, attempts.ended FROM jobs JOIN attempts ON attempts.job = jobs.id"
            " WHERE jobs.ended > ? AND engine != ? AND started IS NOT NULL AND attempts.ended IS NOT NULL"
            " ORDER BY jobs.ended DESC LIMIT ?",
            *(after, engine, limit),
        )
        return [(devices, began, ended) for devices, began, ended in rows]

    def events(self, job_id: int) -> list[Event]:
        """A job's story, oldest first."""
        rows = self._rows("SELECT body FROM events WHERE job = ? ORDER BY id", job_id)
        return [decode(events(), body) for (body,) in rows]

    def requests(self, engine: str) -> list[tuple[int, Request]]:
        """What doors want of the engine's jobs, oldest first."""
        rows = self._rows("SELECT id, body FROM requests WHERE engine = ? ORDER BY id", engine)
        return [(number, decode(requests(), body)) for number, body in rows]

    def is_asked(self, number: int) -> bool:
        """Whether a request has not been answered yet."""
        return bool(self._rows("SELECT 1 FROM requests WHERE id = ?", number))

    def settings(self) -> dict[str, Any]:
        """What users have set for all engines of this queue."""
        return {key: json.loads(value) for key, value in self._rows("SELECT key, value FROM settings")}

    def has_learnt(self) -> bool:
        """Whether anything is known from earlier runs."""
        return bool(self._rows("SELECT 1 FROM learnt LIMIT 1"))

    def learnt(self, signature: str) -> Learnt:
        """What is known of one kind of work."""
        rows = self._rows("SELECT body FROM learnt WHERE signature = ?", signature)
        return msgspec.json.decode(rows[0][0], type=Learnt) if rows else Learnt()

    def version_of_data(self) -> int:
        """A number that changes when somebody else has written."""
        ((number,),) = self._rows("PRAGMA data_version")
        return int(number)

    def owner(self, job_id: int) -> str:
        """The engine that a job belongs to."""
        ((engine,),) = self._rows("SELECT engine FROM jobs WHERE id = ?", job_id)
        return str(engine)

    def outcome(self, dependency: Dependency) -> Outcome:
        """What the target of a dependency has come to."""
        target = dependency.target
        if self._is_open(dependency):
            return "open"
        meant = f"{IN_ARRAY} AND array = ?" if dependency.array else "id = ?"
        failed = self._rows(f"SELECT 1 FROM jobs WHERE {meant} AND state != 'done' LIMIT 1", target)
        return "notok" if failed else "ok"

    # -- inside ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Whatever SQLite has to complain of becomes an error that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(_kind(error)):
                self._preserve()
            raise _explanation(doing, self._path, error) from error

    def _preserve(self) -> None:
        """From here on the files are not changed, not even by closing them."""
        if not self._preserved:
            self._preserving.callback(preserve(self._database, self._path).close)
            self._preserved = True

    def _close_files(self) -> None:
        with self._preserving:
            self._database.close()

    def _is_open(self, dependency: Dependency) -> bool:
        """Tasks have one owner and consecutive ids; so neither what has ended nor other open jobs are gone through."""
        if not dependency.array:
            return bool(self._rows(f"SELECT 1 FROM jobs WHERE id = ? AND +{OPEN}", dependency.target))
        tasks = f"FROM jobs WHERE array = ? AND {IN_ARRAY}"
        return bool(
            self._rows(
                f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE engine = (SELECT engine {tasks} LIMIT 1)"
                f" AND id BETWEEN ? AND (SELECT max(id) {tasks}) AND {OPEN} LIMIT 1",
                *[dependency.target] * 3,
            )
        )

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._database.execute(query, values).fetchall()

    def _spec(self, spec_id: int) -> JobSpec:
        known = self._specs_by_id.get(spec_id)
        if known is None:
            ((body,),) = self._rows("SELECT body FROM specs WHERE id = ?", spec_id)
            known = msgspec.convert(json.loads(body), JobSpec)
            self._remember_spec(spec_id, known)
        return known

    def _remember_spec(self, spec_id: int, spec: JobSpec) -> None:
        self._specs_by_id[spec_id] = spec
        self._ids_by_spec[spec] = spec_id

    def _job_of(self, row: tuple[Any, ...]) -> Job:
        job_id, batch, name, words, shell, number, submitted, detail, attempts, failures, losses, tries, *rest = row
        array, task, shared_failures, floor = rest
        command, spec = Command(split(words), shell), self._spec(number)
        return Job(
            id=job_id,
            batch=batch,
            command=command,
            spec=spec,
            state=decode(states(), detail),
            submitted=submitted,
            name=name,
            attempts=attempts,
            failures=failures,
            losses=losses,
            tries=tries,
            array=array,
            task=task,
            kind=kind_of(command, spec),
            shared_failures=shared_failures,
            floor=floor,
        )


def _explanation(doing: str, path: Path, error: sqlite3.Error) -> StokerError:
    kind = _kind(error)
    if is_damage(kind):
        return StokerError(f"{path} is damaged, or not a queue of Stoker: {error}", DAMAGED_HINT)
    hint = _HINTS.get(kind, "try again; if it stays so, move the file aside and report this")
    return StokerError(f"cannot {doing} {path}: {error}", hint)


def _kind(error: sqlite3.Error) -> int:
    """Errors of the module itself have no code; the lower byte is the kind, the rest tells where it came up."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
