"""Everything about one job, as plain data: what it is, why it waits, each attempt, and what happened when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from stoker.cli.screens.attempt_lines import AttemptLine, attempt_lines
from stoker.cli.screens.event_lines import EventLine, event_lines
from stoker.cli.screens.job_lines import job_line
from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.memory_words import oom_advice
from stoker.cli.screens.queue_scene import JobLine, exactly, moment
from stoker.core.dependency import dependency_text
from stoker.core.job import Ended, Event, Exited, Job
from stoker.core.secrets import PATTERNS, shown_value
from stoker.reports import Latest
from stoker.words import id_text, text_for_json

SCHEMA = "stoker.jobs/1"


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
    advice: str = ""
    """What may help one that ran out of GPU memory."""
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
    happened = store.events(job.id)
    attempts = attempt_lines(job, happened, knowledge)
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
        events=[EventLine(exactly(job.submitted), "submitted", ""), *event_lines(job, happened, knowledge)],
        variables=_shown(dict(terms.extra_env), secrets),
        environment=_environment(job, knowledge, secrets) if environment else None,
        advice=text_for_json(_advice(job, happened, knowledge)),
    )


def known_line(job: Job, attempts: list[AttemptLine], knowledge: Knowledge) -> JobLine:
    """The line of a job; one that is over has what its last attempt knows."""
    line = job_line(job, knowledge.store.owner(job.id), knowledge)
    if not isinstance(job.state, Ended) or not attempts:
        return line
    last = attempts[-1]
    return msgspec.structs.replace(
        line,
        devices=last.devices,
        started=last.started,
        seconds=last.seconds,
        reserved_bytes=last.reserved_bytes,
        peak_vram_bytes=last.peak_vram_bytes,
        utilisation_percent=last.utilisation_percent,
    )


def _advice(job: Job, events: Sequence[Event], knowledge: Knowledge) -> str:
    """For one that ran out of GPU memory for good."""
    ends = [event for event in events if isinstance(event, Exited)]
    if not isinstance(job.state, Ended) or job.state.result != "oom" or not ends:
        return ""
    had = knowledge.devices_of(knowledge.store.attempts(job.id)[-1].devices)
    sim = " --sim" if knowledge.simulated else ""
    return oom_advice(job, ends[-1], had, knowledge.devices.values(), f"{sim} {id_text(job)}")


def _labels(ids: tuple[str, ...], knowledge: Knowledge) -> list[str]:
    return [text_for_json(label) for label in knowledge.labels(ids)]


def _environment(job: Job, knowledge: Knowledge, secrets: Sequence[str]) -> dict[str, str]:
    digest = job.terms.environment
    return _shown(knowledge.store.environment(digest), secrets) if digest else {}


def _shown(variables: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    return _texts({name: shown_value(name, value, secrets) for name, value in sorted(variables.items())})


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    return {text_for_json(name): text_for_json(value) for name, value in values.items()}
