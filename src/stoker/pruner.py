"""Forgets jobs that ended long ago, with the logs that Stoker chose a place for, and what they told or returned."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from stoker.places import UNFINISHED, Places
from stoker.presence import QUEUE, living_engines
from stoker.store import Store
from stoker.store.pruning import Position, needed_jobs, prune, prune_unused

INTERVAL = 86_400.0
"""Seconds between two rounds."""
STEP = 200
"""Jobs looked at in one transaction."""
PAUSE = 0.05
"""Seconds between two transactions, so that everybody else has a turn."""


class Pruner:
    """Goes through the oldest jobs once a day, a few at a time."""

    def __init__(self, places: Places, store: Store, engine: str, keep: float | None) -> None:
        """`engine` is the name of the one that this belongs to; `keep` is for how many seconds jobs stay."""
        self._places = places
        self._store = store
        self._engine = engine
        self.keep = keep
        self._position: Position | None = None
        self._due = 0.0
        self._next = 0.0
        self._needed: set[int] = set()
        self._pruned = 0

    @property
    def busy(self) -> bool:
        """Whether a round is not over."""
        return self._position is not None and self.keep is not None

    def step(self, now: float) -> int:
        """Forget a few, if it is time; how many the whole round was, when it is over."""
        if self.keep is None or now < self._next or not self._begin(now):
            return 0
        assert self._position is not None
        self._next = now + PAUSE
        start, self._position = self._position, None  # what fails is not tried again before the next round
        before = now - self.keep
        found = prune(self._store, before, start, self._needed, STEP)
        self._remove(found.logs)
        self._remove_words(found.ids)
        self._pruned += found.jobs
        if found.position is not None:
            self._position = found.position
            return 0
        if self._pruned:
            prune_unused(self._store, before, self._alone)
        self._remove_unfinished(now)
        return self._pruned

    def _begin(self, now: float) -> bool:
        """Whether a round is under way, after beginning one if it is time."""
        if self._position is None and now >= self._due:
            self._due = now + INTERVAL
            self._position, self._pruned = Position(), 0
            self._needed = needed_jobs(self._store)
        return self._position is not None

    def _alone(self) -> bool:
        """Whether no run in the foreground is under way, which may need what no job has yet."""
        return set(living_engines(self._places)) <= {QUEUE, self._engine}

    def _remove_words(self, ids: Iterable[int]) -> None:
        """What the jobs told of themselves, and the functions they ran with all that these returned."""
        for job_id in ids:
            with contextlib.suppress(OSError):
                self._places.report(job_id).unlink()
            shutil.rmtree(self._places.function(job_id), ignore_errors=True)

    def _remove_unfinished(self, now: float) -> None:
        """Functions of programs that died before their jobs were in the queue."""
        for folder in self._places.functions.glob(f"{UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if now - folder.stat().st_mtime > INTERVAL:
                    shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, logs: Iterable[str]) -> None:
        """Only what is in the directory of logs: all others are files of the user's."""
        for path in map(Path, logs):
            if path.is_relative_to(self._places.logs) and ".." not in path.parts:
                with contextlib.suppress(OSError):
                    path.unlink()
                if path.parent != self._places.logs:
                    with contextlib.suppress(OSError):  # others of its array may still be there
                        path.parent.rmdir()
