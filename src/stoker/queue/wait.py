"""Looks at jobs until they are over, rarely when nothing happens, and sees to it that an engine is there for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

from stoker.core.job import Active, Ended, Job, OnHold, Waiting, id_text
from stoker.core.text import printable
from stoker.queue.control import Control, abandoned, start_for, warn
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, engine_lives

SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
WARNINGS = 10
WHY_DELAY = 0.5
"""Seconds before it is told why jobs wait: most start at once, and the engine needs a moment to tell."""
LOOKED_AT = 1000
ENGINE_INTERVAL = 1.0
"""Seconds between two looks whether an engine lives that works on the jobs."""


class Watch:
    """Some jobs that are not over, fewer with every look."""

    def __init__(self, control: Control, ids: Sequence[int]) -> None:
        self.left = list(ids)
        self._control = control
        self._version = -1
        self._pause = SHORTEST_PAUSE
        self._engine_at = 0.0
        self._warned = False
        self._why_at = time.monotonic() + WHY_DELAY

    def wait_over(self, deadline: float | None) -> bool:
        """Wait until all are over; False where time was up before."""
        while self.look():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if time.monotonic() >= self._why_at:
                self._why_at = inf
                self._say_why()
            self.sleep(deadline)
        return True

    def look(self) -> bool:
        """Whether any are not over yet; asks for them only where somebody has written since the last look."""
        version, self._version = self._version, self._control.store.version_of_data()
        if version != self._version:
            before = len(self.left)
            self.left = queries.open_among(self._control.store, self.left)
            if len(self.left) < before:
                self._pause = SHORTEST_PAUSE
        if self.left:
            self._see_to_engine()
        return bool(self.left)

    def sleep(self, deadline: float | None = None) -> None:
        """Wait a little, each time longer until something happens to the jobs."""
        left = LONGEST_PAUSE if deadline is None else max(0.0, deadline - time.monotonic())
        time.sleep(min(self._pause, left))
        self._pause = min(1.5 * self._pause, LONGEST_PAUSE)

    def hurry(self) -> None:
        """Something has happened: look again soon."""
        self._pause = SHORTEST_PAUSE

    def _say_why(self) -> None:
        """Once, where none of the jobs runs, what the first of them waits for."""
        jobs = list(queries.jobs_of(self._control.store, self.left[:LOOKED_AT]))
        left = abandoned(self._control, jobs)
        if jobs and not any(isinstance(job.state, Active | Ended) or _stuck(job, left) for job in jobs):
            warn(printable(why_waits(self._control, jobs[0])))

    def _see_to_engine(self) -> None:
        """An engine that died is started again; what no engine would ever start is told once."""
        now = time.monotonic()
        if now < self._engine_at:
            return
        self._engine_at = now + ENGINE_INTERVAL
        if not self._warned:
            self._warned = True
            self._warn_of_the_stuck()
        if not engine_lives(self._control.paths, QUEUE) and self._need_engine():
            start_for(self._control, "the jobs are safe in the queue")

    def _need_engine(self) -> bool:
        """Whether only the engine of the queue could bring them to an end, or record one that has come."""
        jobs = list(queries.jobs_of(self._control.store, self.left))
        left = abandoned(self._control, jobs)
        return any(job.id not in left or isinstance(job.state, Active) for job in jobs)

    def _warn_of_the_stuck(self) -> None:
        """Of some of them; a thousand warnings would be none."""
        jobs = list(queries.jobs_of(self._control.store, self.left))
        left = abandoned(self._control, jobs)
        stuck = [words for job in jobs if (words := _stuck(job, left))]
        for words in stuck[:WARNINGS]:
            warn(words)
        if len(stuck) > WARNINGS:
            warn(f"and {len(stuck) - WARNINGS} more like that")


def why_waits(control: Control, job: Job) -> str:
    """What a job in the queue waits for, as screens tell it."""
    from stoker.queue.knowledge import known

    with known(control.paths, simulated=control.sim is not None) as knowledge:
        _, why = knowledge.situation(job, control.store.owner(job.id))
    return f"{id_text(job)} waits: {why}"


def _stuck(job: Job, left: set[int]) -> str:
    """Why a job will not start by itself, and what to type."""
    shown = id_text(job)
    if isinstance(job.state, OnHold):
        return f"{shown} is {printable(job.state.note) or 'held'}; stoker resume {shown} lets it go"
    if isinstance(job.state, Waiting) and job.id in left:
        return f"{shown} was left by a run that is gone; stoker resume {shown} goes on with it"
    return ""
