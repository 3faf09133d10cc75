"""Actions of the page on jobs; the queue does them as for the command line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.app.control.actions import cancel, hold, release
from stoker.app.control.edit import Rewriter, edit_jobs
from stoker.app.control.requests import Control
from stoker.app.control.retry import planned_retries, refuse_unfinished, retry
from stoker.app.control.sentences import SCHEMA, ChangeReport, ChangeResult
from stoker.app.jobs.select import find, jobs_in_order, tasks_of_line
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.pages import ids_of_pages
from stoker.core.errors import UsageError
from stoker.core.job import Job
from stoker.store.paths import Paths
from stoker.store.writer import open_store
from stoker.web.query import jobs_filter

Name = Literal["cancel", "retry", "hold", "release", "priority"]
VERBS: dict[Name, str] = {
    "cancel": "cancel",
    "retry": "retry",
    "hold": "pause",
    "release": "resume",
    "priority": "edit",
}
LARGEST = 2 * 2**20
"""Bytes of a request."""
MOST_JOBS = 2**53
"""More than any queue has."""
_LABEL = re.compile(r"(?a)\d{1,18}(\.\d{1,18})?")
_LABEL_OF_TASKS = re.compile(r"(?a)\d{1,18}\.\[[0-9,:…-]+\]")


class TasksLine(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks of an array that a list shows in one line."""

    label: str
    """Such as `12.[3-99]`; it may be shortened."""
    state: str
    """As the line shows it: `held` means tasks on hold, any other word those that wait."""


class Matching(Struct, frozen=True, forbid_unknown_fields=True):
    """All jobs that a list shows on its pages."""

    count: Annotated[int, Meta(ge=0, le=MOST_JOBS)]
    """How many there were when the user chose them; if there are more now, nothing is done."""
    state: str = ""
    group: str = ""
    search: str = ""
    array: str = ""


class Action(Struct, frozen=True, forbid_unknown_fields=True):
    """An action on jobs: `POST /api/v1/actions`."""

    action: Name
    jobs: list[str | TasksLine] = []
    """Labels such as `3` and `12.4`, and lines of several tasks."""
    value: int | None = None
    """The new priority."""
    matching: Matching | None = None
    """In place of labels, with the meaning that `GET /api/v1/jobs` gives to its fields."""


def parse_action(body: bytes) -> Action:
    try:
        return msgspec.json.decode(body, type=Action)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this is not an action: {error}", "see docs/schema/stoker.action-1.json") from error


def carry_out(paths: Paths, action: Action) -> ChangeReport:
    """Do it, and tell what became of each job."""
    with contextlib.closing(open_store(paths)) as store:
        control = Control(paths, store)
        jobs = [job for given in action.jobs for job in _jobs(control, given)]
        if action.matching is not None:
            with read_facts(paths) as facts:
                ids = _matching(facts, action.matching)
            jobs += jobs_in_order(store, ids)
        unique = list({job.id: job for job in jobs}.values())
        return ChangeReport(SCHEMA, VERBS[action.action], False, _done(control, action, unique), [])


def _matching(facts: QueueFacts, wanted: Matching) -> list[int]:
    """The jobs of a list, if they are not more than the user saw."""
    given = {"state": wanted.state, "group": wanted.group, "search": wanted.search, "array": wanted.array}
    ids = ids_of_pages(facts, *jobs_filter(given), wanted.count + 1)
    if len(ids) > wanted.count:
        raise UsageError(f"more than {wanted.count} jobs match by now", "look at the list, and choose them again")
    return ids


def _done(control: Control, action: Action, jobs: Sequence[Job]) -> list[ChangeResult]:
    match action.action:
        case "cancel":
            return cancel(control, jobs)
        case "hold":
            return hold(control, jobs)
        case "release":
            return release(control, jobs)
        case "retry":
            refuse_unfinished(jobs)
            return retry(control, planned_retries(control, jobs))
        case "priority":
            if action.value is None:
                raise UsageError("the new priority is missing", "give it as value")
            return edit_jobs(control, Rewriter(control), jobs, {"priority": action.value})


def _jobs(control: Control, given: str | TasksLine) -> list[Job]:
    label, form = (given, _LABEL) if isinstance(given, str) else (given.label, _LABEL_OF_TASKS)
    if not form.fullmatch(label):
        raise UsageError(f"{label[:40]!r} is not the label of a job", "give labels such as 3 or 12.4")
    if isinstance(given, TasksLine):
        return tasks_of_line(control.store, label, given.state)
    return jobs_in_order(control.store, find(control.store, [label]))
