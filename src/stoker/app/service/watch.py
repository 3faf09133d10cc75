"""Wait until jobs are over, and say why they do not start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from stoker.app.control.requests import Control, interrupted, start_for
from stoker.app.views.facts import read_facts
from stoker.app.views.job import situation
from stoker.core.job import Active, Ended, Job, OnHold, Waiting, id_text, part
from stoker.core.ranges import Ranges
from stoker.store import queries
from stoker.store.changes import StoreChanges
from stoker.store.engine_lock import QUEUE, cluster_of, engine_lives, is_background
from stoker.store.queries import sorted_ids

WARNINGS = 10
WHY_DELAY = 0.5
"""Seconds before the first message why jobs wait: most start at once."""
LOOKED_AT = 1000
ENGINE_INTERVAL = 1.0
"""Seconds between two checks that an engine works on the jobs."""


class Watch:
    """Jobs that are waited for."""

    def __init__(self, control: Control, ids: Sequence[int], say: Callable[[str], None]) -> None:
        """`say` tells the user why jobs wait or do not start."""
        self.left: Ranges = sorted_ids(ids)
        self._control = control
        self._say = say
        self._changes = StoreChanges(control.store)
        self._engine_at = 0.0
        self._warned = False
        self._why_at = time.monotonic() + WHY_DELAY

    def wait_over(self, deadline: float | None, show: Callable[[], None] = lambda: None) -> bool:
        """Wait until all are over; False if the deadline came first. `show` is called again and again meanwhile."""
        while self.look():
            show()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if time.monotonic() >= self._why_at:
                self._why_at = inf
                self._say_why()
            self.pause(deadline)
        return True

    def look(self) -> bool:
        """Whether any are not over yet; reads the jobs only if the store has changed."""
        if self._changes.look():
            before = len(self.left)
            self.left = queries.open_among(self._control.store, self.left)
            if len(self.left) < before:
                self.hurry()
        if self.left:
            self._ensure_engine()
        return bool(self.left)

    def pause(self, deadline: float | None = None) -> None:
        """Wait for the next look, longer each time until something happens to the jobs."""
        self._changes.wait(deadline)

    def hurry(self) -> None:
        self._changes.hurry()

    def _say_why(self) -> None:
        """Say what the first job waits for, if none of them runs."""
        jobs, left = self._jobs(LOOKED_AT)
        if jobs and not any(isinstance(job.state, Active | Ended) or _stuck(job, left) for job in jobs):
            self._say(why_waits(self._control, part(jobs[0], jobs[0].id, jobs[0].id)))

    def _ensure_engine(self) -> None:
        """Restart a dead engine; warn once of jobs that no engine would start."""
        now = time.monotonic()
        if now < self._engine_at:
            return
        self._engine_at = now + ENGINE_INTERVAL
        if not self._warned:
            self._warned = True
            jobs, left = self._jobs()
            stuck = [(job, words) for job in jobs if (words := _stuck(job, left))]
            rest = sum(job.count for job, _ in stuck[WARNINGS:])
            more = [f"and {rest} more like that"] if rest else []
            for words in (*(words for _, words in stuck[:WARNINGS]), *more):
                self._say(words)
        for cluster in self._needed_engines():
            start_for(self._control, "the jobs are safe in the queue", cluster)

    def _jobs(self, most: int | None = None) -> tuple[list[Job], Ranges]:
        """Jobs that are not over, and which of them were interrupted."""
        jobs = list(queries.jobs_of(self._control.store, self.left[:most]))
        return jobs, interrupted(self._control, jobs)

    def _needed_engines(self) -> set[str]:
        """The clusters, or this machine, whose engine must run some of them, or record their ends, and is dead."""
        engines = queries.owners_of(self._control.store, self.left)
        dead = [engine for engine in engines if is_background(engine) and not engine_lives(self._control.paths, engine)]
        if dead or engine_lives(self._control.paths, QUEUE):
            return {cluster_of(engine) for engine in dead}
        jobs, left = self._jobs()
        return {""} if any(job.id in left and isinstance(job.state, Active) for job in jobs) else set()


def why_waits(control: Control, job: Job) -> str:
    """The reason why a job waits, as screens show it."""
    with read_facts(control.paths) as facts:
        _, why = situation(job, control.store.owner(job.id), facts)
    return f"{id_text(job)} waits: {why}"


def _stuck(job: Job, left: Ranges) -> str:
    """Why a job will not start by itself, and what to type; empty if it will."""
    shown = id_text(job)
    if isinstance(job.state, OnHold):
        return f"{shown} is {job.state.note or 'held'}; to release it: stoker resume {shown}"
    if isinstance(job.state, Waiting) and job.id in left:
        return f"its 'stoker run' stopped; continue: stoker resume {shown}"
    return ""
