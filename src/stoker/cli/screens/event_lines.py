"""What happened to a job and when, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.memory_words import sparing_text
from stoker.cli.screens.queue_scene import exactly
from stoker.cli.screens.set_aside import amount_now, needs_of_attempts
from stoker.core.job import (
    Assigned,
    Cancelled,
    Ended,
    Event,
    Exited,
    InvalidTransition,
    Job,
    Lost,
    OnHold,
    Paused,
    Resumed,
    Returned,
    Skipped,
    Waiting,
    advance,
    event_word,
    result_of,
)
from stoker.core.terms import Need
from stoker.core.units import size_text
from stoker.words import outcome, text_for_json


class EventLine(Struct, frozen=True):
    """Something that happened to a job."""

    at: datetime
    event: str
    detail: str


def event_lines(job: Job, events: Sequence[Event], knowledge: Knowledge) -> list[EventLine]:
    """All that happened since it was submitted."""
    needs = iter(needs_of_attempts(events, job.terms.need))
    return [
        EventLine(exactly(event.at), event_word(event), text_for_json(_detail(event, after, needs, knowledge)))
        for event, after in zip(events, _lived(job, events), strict=True)
    ]


def _lived(job: Job, events: Sequence[Event]) -> Iterator[Job | None]:
    """The job after each event; None from where on it is not known under which terms it ran."""
    turns = [event for event in events if isinstance(event, Assigned | Paused | Resumed)]
    held = bool(turns) and isinstance(turns[0], Resumed)
    begun = OnHold(job.submitted) if held else Waiting(job.submitted)
    after: Job | None = replace(job, state=begun, attempts=0, failures=0, losses=0, tries=0, shortages=0, floor=0)
    for event in events:
        try:
            after = None if after is None else advance(after, event)
        except InvalidTransition:
            after = None
        yield after


def _detail(event: Event, after: Job | None, needs: Iterator[Need | None], knowledge: Knowledge) -> str:
    match event:
        case Assigned():
            return _place(event, next(needs), knowledge)
        case Exited():
            return _end(event, after)
        case Cancelled() | Paused() | Skipped():
            return event.note
        case Returned():
            return "before it started"
        case Lost():
            return "its keeper was killed, or the machine went down"
        case _:
            return ""


def _place(event: Assigned, need: Need | None, knowledge: Knowledge) -> str:
    if not event.devices:
        return "no GPU"
    place = f"GPU {','.join(knowledge.labels(event.devices))}"
    amount = amount_now(need, knowledge.devices_of(event.devices))
    if amount is not None:
        return f"{place}, {size_text(amount)} set aside"
    return f"{place}, alone" if event.need is not None or (need is not None and need.auto) else place


def _end(event: Exited, after: Job | None) -> str:
    if after is not None and event.cause and event.company and isinstance(after.state, Waiting):
        return sparing_text(after, event)
    if after is not None and isinstance(after.state, Ended):
        return outcome(after.state)
    return outcome(Ended(result_of(event), event.at, event.code, event.signal))
