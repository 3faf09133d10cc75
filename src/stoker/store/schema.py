"""Tables and migrations, statements, and the conversion of jobs, attempts and events to rows."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from stoker.core.job import (
    Assigned,
    Edited,
    Ended,
    Event,
    Exited,
    Job,
    Lost,
    Returned,
    Started,
    State,
    Stayed,
    event_word,
    state_word,
)
from stoker.core.learning import MeasuredUse
from stoker.core.requests import Request
from stoker.core.spec import JobSpec, Member, NewJob, content_of

NO_ENGINE = "none"
"""Owner of jobs that an engine gave up; no engine has this name."""

OPEN = "ended IS NULL"
ACTIVE = "(state = 'starting' OR state = 'running' OR state = 'stopping')"
HELD = "state = 'held'"
IN_ARRAY = "array != 0"
IS_MEMBER = "member IS NOT NULL"
ENDED = "ended IS NOT NULL"
OF_SEVERAL = "count > 1"
IN_LINES = "(jobs.words IS NULL AND jobs.member IS NULL)"
"""True of lines of a list: the words of their commands are in `lines`. They have no content until they start."""
IN_PATTERN = "(jobs.words IS NULL AND jobs.member IS NOT NULL)"
"""True of members that follow from a pattern of their batch. Until they start, their row has nothing else; its number
is that of the last of them, and a name only if a user gave them one."""
OF_ON_FINISH_JOBS = "json_extract(body, '$.role') = 'hook'"
"""Conditions exactly as in the indexes: only then does SQLite use those."""
HAS_BATCH, HAS_SPEC = "batch > 0", "spec > 0"
"""True of all jobs. Only a search for batches and specs in use gives them: for all others, other indexes are better."""

_TABLES = f"""
CREATE TABLE batches (
  id INTEGER PRIMARY KEY AUTOINCREMENT, label TEXT NOT NULL, created REAL NOT NULL,
  kind TEXT, first_job INTEGER, name TEXT, coordinator INTEGER, spec INTEGER, record BLOB
) STRICT;
CREATE UNIQUE INDEX batches_first_job ON batches(first_job) WHERE first_job IS NOT NULL;
CREATE INDEX batches_spec ON batches(spec) WHERE spec IS NOT NULL;
CREATE TABLE member_records (
  batch INTEGER NOT NULL, number INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE patterns (batch INTEGER NOT NULL, start INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (batch, start))
  STRICT;
CREATE TABLE environments (digest TEXT PRIMARY KEY, variables TEXT NOT NULL) STRICT;
CREATE TABLE specs (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE INDEX specs_environment ON specs(json_extract(body, '$.environment'));
CREATE INDEX specs_of_on_finish_jobs ON specs(id) WHERE {OF_ON_FINISH_JOBS};
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, batch INTEGER NOT NULL, engine TEXT NOT NULL, content BLOB,
  name TEXT, words BLOB, shell TEXT NOT NULL, spec INTEGER NOT NULL, submitted REAL NOT NULL,
  state TEXT NOT NULL, detail BLOB NOT NULL, ended REAL,
  attempts INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
  tries INTEGER NOT NULL DEFAULT 0, shared_failures INTEGER NOT NULL DEFAULT 0, floor INTEGER NOT NULL DEFAULT 0,
  preemptions INTEGER NOT NULL DEFAULT 0, kept_seconds REAL NOT NULL DEFAULT 0,
  array INTEGER NOT NULL DEFAULT 0, task INTEGER, member INTEGER, params TEXT,
  size INTEGER NOT NULL DEFAULT 1, step INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX jobs_open ON jobs(engine, id, size) WHERE {OPEN};
CREATE INDEX jobs_active ON jobs(engine, id) WHERE {ACTIVE};
CREATE INDEX jobs_on_hold ON jobs(engine, id, size) WHERE {HELD};
CREATE INDEX jobs_ended ON jobs(ended, state, size) WHERE {ENDED};
CREATE INDEX jobs_content ON jobs(content, task);
CREATE INDEX jobs_batch ON jobs(batch) WHERE {HAS_BATCH};
CREATE INDEX jobs_spec ON jobs(spec) WHERE {HAS_SPEC};
CREATE INDEX jobs_array ON jobs(array, id) WHERE {IN_ARRAY};
CREATE UNIQUE INDEX jobs_member ON jobs(batch, member) WHERE {IS_MEMBER};
CREATE TABLE lines (id INTEGER PRIMARY KEY, words BLOB NOT NULL) STRICT;
CREATE INDEX lines_words ON lines(words);
CREATE TABLE attempts (
  job INTEGER NOT NULL, number INTEGER NOT NULL, ref TEXT NOT NULL, devices TEXT NOT NULL, log BLOB NOT NULL,
  errors BLOB NOT NULL, assigned REAL NOT NULL, started REAL, ended REAL, code INTEGER, signal INTEGER, why TEXT,
  peak_memory INTEGER, note TEXT, PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE measures (
  job INTEGER NOT NULL, number INTEGER NOT NULL, peak INTEGER NOT NULL, utilisation INTEGER, body TEXT NOT NULL,
  PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, job INTEGER NOT NULL, count INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX events_job ON events(job);
CREATE INDEX events_of_several ON events(job, count) WHERE {OF_SEVERAL};
CREATE TABLE keys (key TEXT PRIMARY KEY, job INTEGER NOT NULL, content TEXT NOT NULL, parts TEXT NOT NULL)
  STRICT, WITHOUT ROWID;
CREATE INDEX keys_job ON keys(job);
CREATE TABLE requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT, engine TEXT NOT NULL, job INTEGER NOT NULL, count INTEGER NOT NULL,
  at REAL NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE learnt (signature TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
CREATE TABLE samples (
  minute INTEGER NOT NULL, device TEXT NOT NULL, utilisation INTEGER, used INTEGER, reserved INTEGER NOT NULL,
  temperature INTEGER, power REAL, PRIMARY KEY (minute, device)
) STRICT, WITHOUT ROWID;
"""
MIGRATIONS = (_TABLES,)
"""Statements that lead from each version to the next; the first make an empty queue."""
VERSION = len(MIGRATIONS)

JOB = (
    "SELECT id, batch, name, words, shell, spec, submitted, detail, attempts, failures, losses, tries, array, task,"
    " shared_failures, floor, member, params, size, step, preemptions, kept_seconds"
    " FROM jobs WHERE "
)
FIRST, FIRST_TASK = "(jobs.id - jobs.size + 1)", "(jobs.task - (jobs.size - 1) * jobs.step)"
"""A row stands for `size` jobs (see `Job.count`) and has the id and the index of the last one. So the row of a waiting
array stays in place while its tasks get rows of their own, and the row of a job is the first whose id is not smaller.
"""
COVERING = "jobs.id = (SELECT min(id) FROM jobs WHERE id >= ?) AND jobs.id - jobs.size < ?"
"""The row that stands for a job; both values are its id. Numbered values would warn in Python 3.12.0 to 3.12.3."""

JOBS_AT_ONCE = 100
"""Rows per INSERT statement: each statement updates sqlite_sequence once."""
_INSERT_JOBS = (
    "INSERT INTO jobs (id, batch, engine, content, name, words, shell, spec, submitted, state, detail, array, task,"
    " member, params, size, step) VALUES "
)
_COPIED = (
    "batch, engine, shell, spec, submitted, state, detail, ended, attempts, failures, losses,"
    " tries, shared_failures, floor, array, step, preemptions, kept_seconds"
)
SPLIT_JOBS = (
    f"INSERT INTO jobs (id, task, size, member, content, words, name, params, {_COPIED})"
    " SELECT :last, task - (id - :last) * step, :last - id + size, member - (id - :last), coalesce(:content, content),"
    f" coalesce(:words, words), coalesce(:name, name), coalesce(:params, params), {_COPIED}"
    " FROM jobs WHERE id = :row"
)
"""Give the jobs of a row that come up to `last` a row of their own, with the columns of one that starts."""
_COPIED_AT_START = "batch, engine, shell, spec, submitted, array, step"
_STATE = "state, detail, attempts, failures, losses, tries, shared_failures, floor, preemptions, kept_seconds, ended"
START_JOB = (
    f"INSERT INTO jobs (content, words, name, params, {_STATE}, id, task, member, size, {_COPIED_AT_START})"
    " SELECT coalesce(?, content), coalesce(?, words), coalesce(?, name), coalesce(?, params),"
    f" {', '.join('?' * len(_STATE.split(',')))}, ?, task - (id - ?) * step, member - (id - ?), 1, {_COPIED_AT_START}"
    " FROM jobs WHERE id = ?"
)
"""Give a job of a row that starts a row of its own, in its new state."""
SHORTEN_JOBS = "UPDATE jobs SET size = id - :last WHERE id = :row"
NAME_BATCH = (
    "INSERT INTO batches (id, label, created, kind, first_job) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, first_job = excluded.first_job"
)
UPDATE_JOB = (
    "UPDATE jobs SET state = ?, detail = ?, attempts = ?, failures = ?, losses = ?, tries = ?, shared_failures = ?,"
    " floor = ?, preemptions = ?, kept_seconds = ?, ended = ? WHERE id BETWEEN ? AND ?"
)
EDIT_JOB = "UPDATE jobs SET name = coalesce(?, name), spec = ? WHERE id BETWEEN ? AND ?"
SET_CONTENT = "UPDATE jobs SET content = ? WHERE id BETWEEN ? AND ?"
_OWN_COLUMNS = ", ".join(f"{name} = coalesce(?, {name})" for name in ("content", "words", "name", "params"))
SET_OWN = f"UPDATE jobs SET {_OWN_COLUMNS} WHERE id = ?"
INSERT_ATTEMPT = "INSERT INTO attempts (ref, devices, log, errors, assigned, job, number) VALUES (?, ?, ?, ?, ?, ?, ?)"
START_ATTEMPT = "UPDATE attempts SET started = ?, devices = coalesce(?, devices) WHERE job = ? AND number = ?"
END_ATTEMPT = (
    "UPDATE attempts SET ended = ?, code = ?, signal = ?, why = ?, peak_memory = ?, note = ?"
    " WHERE job = ? AND number = ?"
)
MEASURE = "INSERT OR REPLACE INTO measures VALUES (?, ?, ?, ?, ?)"
LEAVE_ATTEMPT = "UPDATE attempts SET why = ? WHERE job = ? AND number = ?"

Kept = TypeVar("Kept")
_encoder = msgspec.json.Encoder()


class Change(Struct, frozen=True):
    """A job as it is now, and its events since the last write; it may stand for several jobs."""

    job: Job
    events: Sequence[tuple[int, Event]]
    """Each with the number of its attempt."""
    released: bool = False
    """Whether no engine owns the job from now on, so that another run can take it over."""


class SubmitKey(NamedTuple):
    """The submit under a key of the user's (`submit --key`)."""

    content: str
    """Digest of the command and the options."""
    parts: list[tuple[int, int, str]]
    """First id, number of jobs, and the indices as typed if they are an array."""


class Measured(NamedTuple):
    """The GPU use of an attempt."""

    job: int
    number: int
    use: MeasuredUse


class BatchRecord(NamedTuple):
    """A batch as the feature sees it that made it. The others know only how users name it."""

    kind: str
    """The name of the feature."""
    first_job: int
    """The id by which users name the batch."""
    name: str
    coordinator: int | None
    """The job that ends after all members, if there is one."""
    spec: JobSpec
    """That of members that are added later."""
    record: bytes
    """For the feature alone."""


class AfterBatch(NamedTuple):
    """A job to be added only if all jobs of a batch have ended."""

    batch: int
    ended: int
    """One of its jobs, which has ended."""
    job: NewJob


class FollowUps(Struct, frozen=True):
    """Jobs that the end of other jobs adds to the queue, in the same transaction."""

    engine: str
    jobs: Sequence[NewJob]
    at: float
    label: str = "on_finish"
    after_batches: Sequence[AfterBatch] = ()


class Adoption(Struct, frozen=True):
    """A job of a dead engine that another engine takes, with its new batch and spec."""

    job: int
    owner: str
    batch: int | None = None
    spec: JobSpec | None = None


class OwnColumns(NamedTuple):
    """The columns that a line of a list, or a member that follows from a pattern, gets when it first starts."""

    content: bytes | None = None
    words: bytes | None = None
    name: str | None = None
    params: str | None = None


class AttemptRow(Struct, frozen=True):
    """A row of `attempts`."""

    job: int
    number: int
    ref: str
    devices: tuple[str, ...]
    log: str
    errors: str
    """File of standard error, if it is separate from the log."""
    assigned: float
    started: float | None
    ended: float | None
    code: int | None
    signal: int | None
    why: str | None
    peak_memory: int | None
    note: str | None


@cache
def states() -> msgspec.json.Decoder[State]:
    """Made on first use: making a decoder takes longer than reading a thousand rows."""
    return msgspec.json.Decoder(State)


@cache
def requests() -> msgspec.json.Decoder[Request]:
    return msgspec.json.Decoder(Request)


@cache
def events() -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(Event)


def insert_jobs(count: int) -> str:
    """The statement that inserts `count` jobs."""
    return _INSERT_JOBS + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)


def job_row(job: Job) -> tuple[Any, ...]:
    ended = job.state.at if isinstance(job.state, Ended) else None
    counts = job.attempts, job.failures, job.losses, job.tries, job.shared_failures, job.floor, job.preemptions
    return state_word(job), encode(job.state), *counts, job.kept_seconds, ended, job.id, job.last


def member_columns(member: Member | None, count: int = 1) -> tuple[int | None, str | None]:
    """Number and parameters of a job; of several, the number of the last."""
    if member is None:
        return None, None
    return member.number + count - 1, member.params if count == 1 else None


def own_columns(job: Job) -> OwnColumns:
    """Of a job that starts for the first time, and shared its row with others."""
    content = content_of(job.command, job.spec, job.member)
    if job.member is None:
        return OwnColumns(content)
    return OwnColumns(content, join(job.command.words), text_of(job.name), job.member.params)


def new_name(change: Change) -> str | None:
    """The name that a user gave the job."""
    names = [event.name for _, event in change.events if isinstance(event, Edited) and event.name is not None]
    return text_of(names[-1]) if names else None


def edits(change: Change) -> bool:
    """Whether the change edits name or spec of the job."""
    return any(isinstance(event, Edited | Stayed) for _, event in change.events)


def may_share_row(change: Change) -> bool:
    """Whether the job may be in a row with others before its events: some are, until they start."""
    attempts = change.job.attempts - sum(isinstance(event, Assigned) for _, event in change.events)
    return (change.job.task is not None or change.job.differences is not None) and not attempts


def needs_content(change: Change) -> bool:
    """Whether the digest of the work of a job is new: after an edit, and when one that shared its row first starts."""
    if change.job.differences is None:
        return edits(change)
    return change.job.attempts > 0 and (edits(change) or may_share_row(change))


def attempt_row(event: Event) -> tuple[str, tuple[Any, ...]] | None:
    """The statement for the attempt of an event, and its values; job and number follow them."""
    match event:
        case Assigned():
            devices, log, errors = json.dumps(event.devices), os.fsencode(event.log), os.fsencode(event.errors)
            return INSERT_ATTEMPT, (event.ref, devices, log, errors, event.at)
        case Started():
            return START_ATTEMPT, (event.at, json.dumps(event.devices) if event.devices else None)
        case Exited():
            return END_ATTEMPT, (event.at, event.code, event.signal, event.why, event.peak_memory, text_of(event.note))
        case Returned() | Lost():
            return LEAVE_ATTEMPT, (event_word(event),)
        case _:
            return None


def measure_row(measured: Measured) -> tuple[Any, ...]:
    job, number, use = measured
    return job, number, use.peak, use.utilisation, _encoder.encode(use).decode()


def attempt_of(row: tuple[Any, ...]) -> AttemptRow:
    job, number, ref, devices, log, errors, *rest = row
    return AttemptRow(job, number, ref, tuple(json.loads(devices)), os.fsdecode(log), os.fsdecode(errors), *rest)


def encode(value: Struct) -> bytes:
    """JSON. Only the standard library escapes surrogates, which stand for bytes that are not UTF-8."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def decode(decoder: msgspec.json.Decoder[Kept], body: bytes) -> Kept:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(body), decoder.type)


def text_of(words: str) -> str:
    """Text without surrogates, which a TEXT column refuses."""
    return words.encode(errors="backslashreplace").decode()


def join(words: Sequence[str]) -> bytes:
    return "\0".join(words).encode(errors="surrogateescape")


def split(words: bytes) -> tuple[str, ...]:
    return tuple(words.decode(errors="surrogateescape").split("\0"))
