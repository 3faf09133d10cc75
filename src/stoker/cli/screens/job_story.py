"""Everything about one job, as plain data: what it is, why it waits, each attempt, and what happened when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from stoker.cli.screens.job_lines import job_line
from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import JobLine, exactly, moment
from stoker.core.attempt import INHERIT
from stoker.core.dependency import dependency_text
from stoker.core.job import (
    Assigned,
    Cancelled,
    Ended,
    Event,
    Exited,
    Job,
    Lost,
    Paused,
    Returned,
    Skipped,
    event_word,
    result_of,
)
from stoker.core.secrets import PATTERNS, shown_value
from stoker.reports import Latest
from stoker.store import AttemptRow
from stoker.words import outcome, text_for_json

SCHEMA = "stoker.jobs/1"


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


class EventLine(Struct, frozen=True):
    """Something that happened to a job."""

    at: datetime
    event: str
    detail: str


class Story(JobLine, frozen=True, kw_only=True):
    """A job with all that is known of it."""

    directory: str
    shell: str
    tags: dict[str, str]
    allowed: list[str]
    preferred: list[str]
    gpu_type: str
    after: list[str]
    begin: datetime | None
    grace_seconds: float
    retries: int
    retry_on: list[str]
    requeue: bool
    at_once: int | None
    commit: str
    ended: datetime | None
    exit_code: int | None
    signal: int | None
    note: str
    attempts: list[AttemptLine]
    events: list[EventLine]
    variables: dict[str, str]
    """Those given with --env; what looks like a secret is hidden."""
    environment: dict[str, str] | None = None
    """All others, where somebody asked for them."""
    reported: Latest | None = None
    """What its last run has told of itself by `stoker.report()`, where it did."""


class Stories(Struct, frozen=True):
    """Some jobs: `stoker status ID... --json`."""

    schema: str
    at: datetime
    simulated: bool
    jobs: list[Story]


def story_of(job: Job, knowledge: Knowledge, secrets: Sequence[str] = PATTERNS, *, environment: bool = False) -> Story:
    """The whole story of a job."""
    terms, store = job.terms, knowledge.store
    attempts = [_attempt_line(row, knowledge) for row in store.attempts(job.id)]
    ended = job.state if isinstance(job.state, Ended) else None
    return Story(
        **msgspec.structs.asdict(known_line(job, attempts, knowledge)),
        directory=text_for_json(terms.cwd),
        shell=job.command.shell,
        tags=_texts(dict(terms.tags)),
        allowed=_labels(terms.need.allowed + terms.need.required, knowledge),
        preferred=_labels(terms.need.preferred, knowledge),
        gpu_type=text_for_json(terms.need.model),
        after=[dependency_text(one, store.shown_id) for one in terms.after],
        begin=moment(terms.begin),
        grace_seconds=terms.grace,
        retries=terms.retries,
        retry_on=list(terms.retry_on),
        requeue=terms.requeue,
        at_once=terms.at_once,
        commit=text_for_json(terms.commit),
        ended=moment(ended.at) if ended else None,
        exit_code=ended.code if ended else None,
        signal=(ended.signal or None) if ended else None,
        note=text_for_json(ended.note) if ended else "",
        attempts=attempts,
        events=[EventLine(exactly(job.submitted), "submitted", ""), *_events(job, knowledge)],
        variables=_shown(dict(terms.extra_env), secrets),
        environment=_environment(job, knowledge, secrets) if environment else None,
    )


def known_line(job: Job, attempts: list[AttemptLine], knowledge: Knowledge) -> JobLine:
    """The line of a job; one that is over has what its last attempt knows."""
    line = job_line(job, knowledge.store.owner(job.id), knowledge)
    if not isinstance(job.state, Ended) or not attempts:
        return line
    last = attempts[-1]
    return msgspec.structs.replace(line, devices=last.devices, started=last.started, seconds=last.seconds)


def _attempt_line(row: AttemptRow, knowledge: Knowledge) -> AttemptLine:
    ran = None if row.started is None else (row.ended or knowledge.now) - row.started
    if row.ended is None and row.why is not None:  # lost or given back: nobody knows when it ended
        ran = None
    return AttemptLine(
        number=row.number,
        devices=_labels(row.devices, knowledge),
        assigned=exactly(row.assigned),
        started=moment(row.started),
        ended=moment(row.ended),
        seconds=None if ran is None else round(max(0.0, ran), 3),
        exit_code=None if row.signal else row.code,
        signal=row.signal or None,
        why=row.why or "",
        peak_memory_bytes=row.peak_memory or None,
        note=text_for_json(row.note or ""),
        log=_path(row.log),
        errors=_path(row.errors),
    )


def _path(path: str) -> str | None:
    return text_for_json(path) if path and path != INHERIT else None


def _labels(ids: tuple[str, ...], knowledge: Knowledge) -> list[str]:
    return [text_for_json(label) for label in knowledge.labels(ids)]


def _events(job: Job, knowledge: Knowledge) -> list[EventLine]:
    return [
        EventLine(exactly(event.at), event_word(event), text_for_json(_detail(event, knowledge)))
        for event in knowledge.store.events(job.id)
    ]


def _detail(event: Event, knowledge: Knowledge) -> str:
    match event:
        case Assigned():
            return f"GPU {','.join(knowledge.labels(event.devices))}" if event.devices else "no GPU"
        case Exited():
            return outcome(Ended(result_of(event), event.at, event.code, event.signal))
        case Cancelled() | Paused() | Skipped():
            return event.note
        case Returned():
            return "before it started"
        case Lost():
            return "its keeper was killed, or the machine went down"
        case _:
            return ""


def _environment(job: Job, knowledge: Knowledge, secrets: Sequence[str]) -> dict[str, str]:
    digest = job.terms.environment
    return _shown(knowledge.store.environment(digest), secrets) if digest else {}


def _shown(variables: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    return _texts({name: shown_value(name, value, secrets) for name, value in sorted(variables.items())})


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    return {text_for_json(name): text_for_json(value) for name, value in values.items()}
