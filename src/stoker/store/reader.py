"""Read jobs, attempts, events and settings, for the engine and front ends."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from stoker.core.job import Differences, Event, Job, State, Waiting, part
from stoker.core.learning import Learnt, MeasuredUse, kind_of
from stoker.core.requests import Request
from stoker.core.spec import (
    Command,
    Dependency,
    HasWork,
    JobSpec,
    Member,
    Outcome,
    WorkKey,
    content_of,
    work_of,
)
from stoker.store.database import Database
from stoker.store.lines import StoredLines
from stoker.store.patterns import StoredPatterns
from stoker.store.schema import (
    ACTIVE,
    COVERING,
    FIRST_TASK,
    IN_ARRAY,
    IN_LINES,
    JOB,
    OF_SEVERAL,
    OPEN,
    AttemptRow,
    SubmitKey,
    attempt_of,
    decode,
    events,
    join,
    requests,
    split,
    states,
    text_of,
)

_REF = "json_extract(CAST(detail AS TEXT), '$.ref')"
_SLOT = f"substr({_REF}, 1, instr({_REF} || ' ', ' ') - 1)"  # as slot_of()


class _LastRow(msgspec.Struct):
    """The last job that was read. Most are like the one before and share its values, which saves time and memory."""

    batch: int = 0
    submitted: float = 0.0
    shell: str = ""
    work: tuple[Any, ...] = ()
    command: Command = Command(())
    kind: str = ""
    detail: bytes = b""
    state: State = Waiting(0.0)


class Reader:
    """Reads one user's queue. The functions in `queries` take one, too."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last = _LastRow()
        self._lines = StoredLines(self.rows)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._database.rows(query, *values)

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written, because the file system is read-only."""
        return self._database.read_only

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """One read transaction: all queries within see the same state."""
        return self._database.reading()

    def job(self, job_id: int) -> Job | None:
        """The job with this id, by itself."""
        rows = self.rows(JOB + COVERING, job_id, job_id)
        return part(self.job_of(rows[0]), job_id, job_id) if rows else None

    def shown_id(self, job_id: int) -> str:
        """The id as users type it: `12`, or `12.3` for a task of an array."""
        query = f"SELECT array, task - (id - ?) * step FROM jobs WHERE {COVERING} AND task IS NOT NULL"
        rows = self.rows(query, job_id, job_id, job_id)
        return f"{rows[0][0]}.{rows[0][1]}" if rows else str(job_id)

    def patterns(self, batch: int) -> StoredPatterns:
        """How members of a batch follow from their numbers."""
        return self._database.patterns(batch)

    def spec(self, spec_id: int) -> JobSpec:
        """The spec with this number in its table."""
        return self._database.spec(spec_id)

    def last_job(self) -> int | None:
        ((last,),) = self.rows("SELECT max(id) FROM jobs")
        return None if last is None else int(last)

    def open_jobs(self, engine: str, after: int, limit: int) -> list[Job]:
        """The engine's jobs that have not ended, by id, so many rows; one may stand for several jobs."""
        query = JOB + "engine = ? AND id > ? AND " + OPEN + " ORDER BY id LIMIT ?"
        return [self.job_of(row) for row in self.rows(query, engine, after, limit)]

    def engines_with_open_jobs(self) -> list[str]:
        return [engine for (engine,) in self.rows("SELECT DISTINCT engine FROM jobs WHERE " + OPEN)]

    def nested_jobs(self) -> list[tuple[str, Job]]:
        """Open jobs of runs inside jobs that no worker holds, each with its engine."""
        nested = "spec IN (SELECT id FROM specs WHERE coalesce(json_extract(body, '$.parent'), '') != '')"
        query = JOB.replace(" FROM jobs", ", engine FROM jobs") + f"{OPEN} AND NOT {ACTIVE} AND {nested} ORDER BY id"
        return [(row[-1], self.job_of(row[:-1])) for row in self.rows(query)]

    def active_jobs(self, engine: str) -> list[Job]:
        """The engine's jobs that workers hold, by id."""
        rows = self.rows(JOB + "engine = ? AND " + ACTIVE + " ORDER BY id", engine)
        return [self.job_of(row) for row in rows]

    def engines_with_active_jobs(self) -> list[str]:
        return [engine for (engine,) in self.rows("SELECT DISTINCT engine FROM jobs WHERE " + ACTIVE)]

    def is_batch_open(self, batch: int, ended: int) -> bool:
        """Whether the batch has open jobs. Checks the neighbouring ids first, which avoids the index scan."""
        near = f"SELECT 1 FROM jobs WHERE id IN (?, (SELECT min(id) FROM jobs WHERE id > ?)) AND batch = ? AND {OPEN}"
        anywhere = f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE batch = ? AND {OPEN} LIMIT 1"
        return bool(self.rows(near, ended - 1, ended, batch) or self.rows(anywhere, batch))

    def slots(self) -> set[str]:
        """Slots of the jobs that a site holds."""
        return {slot for (slot,) in self.rows(f"SELECT {_SLOT} FROM jobs WHERE {ACTIVE}")}

    def jobs_in_slot_of(self, job_id: int) -> list[int]:
        """All jobs in the slot of a job: the running one first, then by time of assignment."""
        same = f"{_SLOT} = (SELECT {_SLOT} FROM jobs WHERE id = ? AND {ACTIVE})"
        order = "ORDER BY state = 'starting', json_extract(CAST(detail AS TEXT), '$.since'), id"
        return [other_id for (other_id,) in self.rows(f"SELECT id FROM jobs WHERE {ACTIVE} AND {same} {order}", job_id)]

    def batch_label(self, batch: int) -> str:
        """The command that submitted a batch, as users see it."""
        rows = self.rows("SELECT label FROM batches WHERE id = ?", batch)
        return str(rows[0][0]) if rows else ""

    def times_done(self, work: WorkKey) -> int:
        """How many jobs that do this work have succeeded."""
        query = "SELECT count(*) FROM jobs WHERE content = ? AND (member IS NOT NULL OR task IS ?) AND state = 'done'"
        return int(self.rows(query, *work)[0][0])

    def times_open(self, job: HasWork, engine: str) -> int:
        """How many open jobs that do the work of a job other engines own."""
        work = work_of(job)
        among = f"size > 1 AND ? BETWEEN {FIRST_TASK} AND task AND (task - ?) % step = 0"
        same = f"content = ? AND (member IS NOT NULL OR task IS ? OR ({among}))"
        query = f"SELECT count(*) FROM jobs WHERE {same} AND engine != ? AND {OPEN}"
        alone = int(self.rows(query, *work, work.task, work.task, engine)[0][0])
        row = f"jobs.id = (SELECT min(id) FROM jobs WHERE id >= lines.id) AND {IN_LINES} AND content IS NULL"
        query = f"SELECT spec, shell FROM lines JOIN jobs ON {row} WHERE lines.words = ? AND engine != ? AND {OPEN}"
        alike = self.rows(query, join(job.command.words), engine) if job.task is None and job.member is None else []
        commands = [(Command(job.command.words, shell), self.spec(spec_id)) for spec_id, shell in alike]
        return alone + sum(content_of(command, spec) == work.content for command, spec in commands)

    def environment(self, digest: str) -> dict[str, str]:
        ((body,),) = self.rows("SELECT variables FROM environments WHERE digest = ?", digest)
        variables: dict[str, str] = json.loads(body)
        return variables

    def has_environment(self, digest: str) -> bool:
        return bool(self.rows("SELECT 1 FROM environments WHERE digest = ?", digest))

    def attempts(self, job_id: int) -> list[AttemptRow]:
        """The attempts of a job, oldest first."""
        return [attempt_of(row) for row in self.rows("SELECT * FROM attempts WHERE job = ? ORDER BY number", job_id)]

    def runs(self, job_id: int) -> list[AttemptRow]:
        """The attempts that ran, run 1 first. One that was returned before its start shares the files of the next."""
        return [attempt for attempt in self.attempts(job_id) if attempt.why != "returned"]

    def uses(self, job_id: int) -> dict[int, MeasuredUse]:
        """The measured GPU use of a job's attempts, by attempt number."""
        rows = self.rows("SELECT number, body FROM measures WHERE job = ?", job_id)
        return {number: msgspec.json.decode(body, type=MeasuredUse) for number, body in rows}

    def spent(self, after: float, engine: str, limit: int) -> list[tuple[str, str, float, float]]:
        """Ref, devices (as JSON), start and end of attempts whose jobs ended after a moment, without one engine's."""
        # By way of the jobs, whose ends have an index; an index on attempts would slow down every end of a job.
        rows = self.rows(
            "SELECT ref, devices, started, attempts.ended FROM jobs JOIN attempts ON attempts.job = jobs.id"
            " WHERE jobs.ended > ? AND engine != ? AND started IS NOT NULL AND attempts.ended IS NOT NULL"
            " ORDER BY jobs.ended DESC LIMIT ?",
            *(after, engine, limit),
        )
        return [(ref, devices, began, ended) for ref, devices, began, ended in rows]

    def events(self, job_id: int) -> list[Event]:
        """The events of a job, oldest first."""
        rows = self.rows(
            "SELECT id, body FROM events WHERE job = ? UNION SELECT id, body FROM events INDEXED BY events_of_several"
            f" WHERE {OF_SEVERAL} AND job < ? AND job + count > ? ORDER BY id",
            *(job_id, job_id, job_id),
        )
        return [decode(events(), body) for _, body in rows]

    def requests(self, engine: str) -> list[tuple[int, Request]]:
        """Numbered requests of front ends to an engine, oldest first."""
        rows = self.rows("SELECT id, body FROM requests WHERE engine = ? ORDER BY id", engine)
        return [(number, decode(requests(), body)) for number, body in rows]

    def settings(self) -> dict[str, Any]:
        """Settings that users made for all engines of this queue; each has a note."""
        return {key: _setting(value) for key, value in self.rows("SELECT key, value FROM settings")}

    def submit_key(self, key: str) -> SubmitKey | None:
        """The submit under a key; None if the key is new."""
        rows = self.rows("SELECT content, parts FROM keys WHERE key = ?", text_of(key))
        return SubmitKey(rows[0][0], [tuple(part) for part in json.loads(rows[0][1])]) if rows else None

    def has_learnt(self) -> bool:
        return bool(self.rows("SELECT 1 FROM learnt LIMIT 1"))

    def learnt(self, signature: str) -> Learnt:
        """Memory, load and durations of one kind of work, as learnt so far."""
        rows = self.rows("SELECT body FROM learnt WHERE signature = ?", signature)
        return msgspec.json.decode(rows[0][0], type=Learnt) if rows else Learnt()

    def version_of_data(self) -> int:
        """A number that changes when another connection has written."""
        ((number,),) = self.rows("PRAGMA data_version")
        return int(number)

    def owner(self, job_id: int) -> str:
        ((engine,),) = self.rows(f"SELECT engine FROM jobs WHERE {COVERING}", job_id, job_id)
        return str(engine)

    def outcome(self, dependency: Dependency) -> Outcome:
        """How the target of a dependency ended."""
        target = dependency.target
        if self._is_open(dependency):
            return "open"
        meant, values = (f"{IN_ARRAY} AND array = ?", [target]) if dependency.array else (COVERING, [target, target])
        failed = self.rows(f"SELECT 1 FROM jobs WHERE {meant} AND state != 'done' LIMIT 1", *values)
        return "notok" if failed else "ok"

    def job_of(self, row: tuple[Any, ...]) -> Job:
        """The job in a row of the columns of `JOB`; it may stand for several."""
        job_id, batch, name, words, shell, spec_id, submitted, detail, attempts, failures, losses, tries, *rest = row
        array, task, shared_failures, floor, number, params, size, step, preemptions, kept_seconds = rest
        if size > 1:
            job_id, task = job_id - size + 1, None if task is None else task - (size - 1) * step
        differences: Differences | None = None
        if words is None and number is not None:
            number -= size - 1
            differences = patterns = self._database.patterns(batch)
            own = patterns.at(number)
            words, params = own.words.encode(errors="surrogateescape"), own.params
            name = own.name if name is None else name
        elif words is None:
            differences, words = self._lines, self._lines.stored(job_id)
        spec = self._database.spec(spec_id)
        member = None if number is None else Member(number, params, *self._database.batch_name(batch))
        last = self._last
        if (batch, submitted, shell) != (last.batch, last.submitted, last.shell):
            last.batch, last.submitted, last.shell = batch, submitted, shell
        if (words, shell, spec, params) != last.work:
            last.work, last.command = (words, shell, spec, params), Command(split(words), last.shell)
            last.kind = kind_of(last.command, spec, member)
        if detail != last.detail:
            last.detail, last.state = detail, decode(states(), detail)
        return Job(
            id=job_id,
            batch=last.batch,
            command=last.command,
            spec=spec,
            state=last.state,
            submitted=last.submitted,
            name=name,
            attempts=attempts,
            failures=failures,
            losses=losses,
            tries=tries,
            preemptions=preemptions,
            kept_seconds=kept_seconds,
            array=array,
            task=task,
            kind=last.kind,
            shared_failures=shared_failures,
            floor=floor,
            member=member,
            count=size,
            step=step,
            differences=differences,
        )

    def is_array_open(self, array: int) -> bool:
        """Whether a task of the array has not ended."""
        # Tasks have one owner and consecutive ids, so the index of that owner's open jobs finds them at once.
        tasks = f"FROM jobs WHERE array = ? AND {IN_ARRAY}"
        return bool(
            self.rows(
                f"SELECT 1 FROM jobs INDEXED BY jobs_open WHERE engine = (SELECT engine {tasks} LIMIT 1)"
                f" AND id BETWEEN ? AND (SELECT max(id) {tasks}) AND {OPEN} LIMIT 1",
                *[array] * 3,
            )
        )

    def _is_open(self, dependency: Dependency) -> bool:
        if dependency.array:
            return self.is_array_open(dependency.target)
        target = dependency.target
        return bool(self.rows(f"SELECT 1 FROM jobs WHERE {COVERING} AND +{OPEN}", target, target))


def _setting(body: Any) -> dict[str, Any]:
    """An unreadable pause or drain stays in force: the user can end it, and nothing starts against his will."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict) and isinstance(value.get("note", ""), str):
            return value
    return {"note": "stopped by an unreadable setting"}
