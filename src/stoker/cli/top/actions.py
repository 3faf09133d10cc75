"""Actions of the keys of the live view, in words that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from stoker.app.control.actions import cancel, hold, release
from stoker.app.control.edit import Rewriter, edit_jobs
from stoker.app.control.requests import Control
from stoker.app.control.retry import planned_retries, refuse_unfinished, retry
from stoker.app.control.sentences import Effect
from stoker.app.jobs.select import find, jobs_in_order, tasks_of_line
from stoker.cli.screens.text import clip, one_line
from stoker.core.job import Ended, Job, OnHold, part
from stoker.core.outcomes import RESULTS
from stoker.core.ranges import Ranges, distinct
from stoker.core.units import count_text

Verb = Literal["cancel", "retry", "pause", "raise", "lower"]
ASKS: tuple[Verb, ...] = ("cancel", "retry")
"""Actions that cannot be undone: the view asks once."""
_NAMED = 3


class Target(NamedTuple):
    """A line of a table: a job, or waiting tasks of an array."""

    label: str
    title: str
    state: str
    tasks: int = 1


def refusal(verb: Verb, targets: Sequence[Target]) -> str:
    """Why something cannot be done to these jobs, before anything is asked; empty if it can."""
    ended = [target for target in targets if target.state in RESULTS]
    if verb == "retry" and len(ended) < len(targets):
        first = next(target for target in targets if target not in ended)
        return f"{first.label} has not finished: cancel it first (c), then retry it in the history (3)"
    if verb != "retry" and ended:
        return f"{ended[0].label} has already finished ({ended[0].state}); r runs it again"
    return ""


def question(verb: Verb, targets: Sequence[Target]) -> str:
    """`cancel 41 vit-b (running)?`; of many jobs the first are named."""
    named = ", ".join(_named(target) for target in targets[:_NAMED])
    jobs = sum(target.tasks for target in targets)
    if len(targets) == 1:
        return f"{verb} {named}?"
    more = ", …" if len(targets) > _NAMED else ""
    return f"{verb} {count_text(jobs, 'job')}: {named}{more}?"


def _named(target: Target) -> str:
    tasks = f", {count_text(target.tasks, 'task')}" if target.tasks > 1 else ""
    return f"{target.label} {clip(one_line(target.title), 30)} ({target.state}{tasks})"


def act(control: Control, verb: Verb, targets: Sequence[Target]) -> str:
    """Do it, and say what became of the jobs."""
    ids = distinct(ids for target in targets for ids in _ids(control, target).parts)
    return summary(_effects(control, verb, jobs_in_order(control.store, ids)))


def _ids(control: Control, target: Target) -> Ranges:
    if target.tasks > 1:
        return tasks_of_line(control.store, target.label, target.state)
    return find(control.store, [target.label])


def _effects(control: Control, verb: Verb, jobs: Sequence[Job]) -> list[Effect]:
    match verb:
        case "cancel":
            return cancel(control, jobs)
        case "retry":
            refuse_unfinished(jobs)
            return retry(control, planned_retries(control, jobs))
        case "pause":
            held = all(isinstance(job.state, OnHold) for job in jobs)
            return release(control, jobs) if held else hold(control, jobs)
        case _:
            step = 1 if verb == "raise" else -1
            return [effect for job in jobs for effect in _prioritise(control, job, step)]


def _prioritise(control: Control, job: Job, step: int) -> list[Effect]:
    if isinstance(job.state, Ended):
        return edit_jobs(control, Rewriter(control), [job], {})
    return edit_jobs(control, Rewriter(control), [job], {"priority": job.spec.priority + step})


def summary(effects: Sequence[Effect]) -> str:
    """What was said of one job; of several, what was said of the first, and of how many others."""
    if not effects:
        return "no such job any more"
    first = next((effect for effect in effects if effect.refused), effects[0])
    others = sum(effect.job.count for effect in effects) - 1
    said = first._replace(job=part(first.job, first.job.id, first.job.id)).said
    return said if not others else f"{said} (and {count_text(others, 'more job')})"
