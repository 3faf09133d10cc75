"""The queue as the live view reads it, in a thread of its own, and as its keys change it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, ParamSpec, TypeVar

from stoker.app.control.actions import cancel, hold, preempt, release
from stoker.app.control.edit import Rewriter, edit_jobs
from stoker.app.control.requests import Control, opened
from stoker.app.control.retry import planned_retries, refuse_unfinished, retry
from stoker.app.control.sentences import Effect
from stoker.app.jobs.select import find, jobs_in_order, tasks_of_line
from stoker.app.views.feed import Changes, Feed
from stoker.app.views.history import History, read_history
from stoker.app.views.job_details import JobDetails, read_jobs
from stoker.app.views.samples import GpuSamples, read_samples
from stoker.app.views.timeline import Timeline, read_timeline
from stoker.cli.screens.logs import Collapser
from stoker.cli.screens.text import clip, one_line
from stoker.core.errors import StokerError
from stoker.core.job import Ended, Job, OnHold, part
from stoker.core.logs.text import without_colours
from stoker.core.outcomes import RESULTS
from stoker.core.ranges import Ranges, distinct
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.logs import read_tail, size_of
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths

LOG_BYTES = 64 * 1024
"""Bytes from the end of a log that are shown."""
LINES = 60
"""Waiting jobs that are read at first, and how many more when the user has scrolled to the last."""
STATUS_SECONDS = 1.5
"""For how long readings of GPUs and jobs may be old; what happens to jobs is shown at the next look."""
MOST_LINES = 5000
CURVE_SECONDS = 3600.0
"""Length of the curves of GPUs."""
Verb = Literal["cancel", "retry", "preempt", "pause", "raise", "lower"]
ASKS: tuple[Verb, ...] = ("cancel", "retry", "preempt")
"""Actions that cannot be undone: the view asks once."""
_NAMED = 3
Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class QueueReader:
    """Reads the queue. SQLite connections belong to a thread, so all reading is done in one."""

    def __init__(self, paths: Paths, chosen: Filter = NO_FILTER) -> None:
        self.paths = paths
        self._thread = ThreadPoolExecutor(1, "stoker-top")
        self._feed = Feed(paths, lines=LINES, chosen=chosen, patience=STATUS_SECONDS)
        self._log = ("", -1)

    async def call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Value:
        """Call one of the functions below in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*arguments, **options))

    def start(self) -> None:
        """Look for the first time; raises what keeps the queue from being read."""
        self._thread.submit(self.look).result()

    def close(self) -> None:
        self._thread.submit(self._feed.close)
        self._thread.shutdown(wait=True)

    # -- in the thread ----------------------------------------------------------------------------

    @property
    def feed(self) -> Feed:
        return self._feed

    def look(self) -> Changes | None:
        return self._feed.changes()

    def choose(self, chosen: Filter) -> None:
        """List only these jobs."""
        self._feed.chosen, self._feed.lines = chosen, LINES

    def list_more(self) -> None:
        self._feed.lines = min(MOST_LINES, self._feed.lines + LINES)

    def expire(self) -> None:
        self._feed.expire()

    def samples(self) -> GpuSamples:
        return read_samples(self.paths, time.time() - CURVE_SECONDS)

    def timeline(self, since: float, until: float | None) -> Timeline:
        return read_timeline(self.paths, Period(since), until)

    def history(self, chosen: Filter, limit: int) -> History:
        period = Period(0.0, chosen)
        return read_history(self.paths, period, limit, time.time(), each_task=False)

    def details(self, label: str) -> JobDetails | None:
        """All about a job, or about the first task of several; None if it is gone."""
        word = label.partition("[")[0].rstrip(".") if "[" in label else label
        with contextlib.suppress(StokerError):
            jobs = read_jobs(self.paths, [word]).jobs
            return jobs[0] if jobs else None
        return None

    def log_lines(self, path: str, *, fresh: bool) -> list[str] | None:
        """The last lines of a log; None if it has not changed since the last call and is not to be read afresh."""
        size = size_of(path) if path else 0
        if (path, size) == self._log and not fresh:
            return None
        self._log = path, size
        return tail_lines(read_tail(path, LOG_BYTES), cut=size > LOG_BYTES)

    def act(self, verb: Verb, targets: Sequence[Target]) -> str:
        """Do something to jobs, and return what became of them in words."""
        with opened(self.paths) as control:
            ids = distinct(ids for target in targets for ids in _ids(control, target).parts)
            return summary(_effects(control, verb, jobs_in_order(control.store, ids)))


def tail_lines(text: str, *, cut: bool = False) -> list[str]:
    """The lines of a log without colours and overwritten progress bars; the first is left out if it is cut."""
    collapser = Collapser()
    data = without_colours(text).encode(errors="replace")
    shown = (collapser.feed(data) + collapser.end()).decode(errors="replace")
    lines = [printable(line.replace("\t", "    ")) for line in shown.split("\n")]
    lines = lines[1:] if cut and len(lines) > 1 else lines
    return lines[:-1] if lines and not lines[-1] else lines


class Freshness:
    """Tells what is to be read again: what may have changed, but not too often."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        """`seconds` has the least time between two reads of each thing."""
        self._seconds = seconds
        self._stale = set(seconds)
        self._read_at: dict[str, float] = {}

    def may_have_changed(self, *names: str) -> None:
        self._stale.update(names)

    def expire(self, name: str) -> None:
        """Let it be read at the next look, however new it is."""
        self._stale.add(name)
        self._read_at.pop(name, None)

    def is_due(self, name: str) -> bool:
        """Whether to read it now; the caller does."""
        now = time.monotonic()
        if name not in self._stale or now < self._read_at.get(name, 0.0) + self._seconds[name]:
            return False
        self._stale.discard(name)
        self._read_at[name] = now
        return True


# -- what keys do to jobs -----------------------------------------------------------------------------


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
    if verb == "preempt" and (waiting := [target for target in targets if target.state != "running"]):
        return f"{waiting[0].label} does not run ({waiting[0].state})"
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


def _ids(control: Control, target: Target) -> Ranges:
    if target.tasks > 1:
        return tasks_of_line(control.store, target.label, target.state)
    return find(control.store, [target.label])


def _effects(control: Control, verb: Verb, jobs: Sequence[Job]) -> list[Effect]:
    match verb:
        case "cancel":
            return cancel(control, jobs)
        case "preempt":
            return preempt(control, jobs)
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
    """The answer for one job; for several jobs the answer for the first, and the number of the others."""
    if not effects:
        return "no such job any more"
    first = next((effect for effect in effects if effect.refused), effects[0])
    others = sum(effect.job.count for effect in effects) - 1
    said = first._replace(job=part(first.job, first.job.id, first.job.id)).said
    return said if not others else f"{said} (and {count_text(others, 'more job')})"
