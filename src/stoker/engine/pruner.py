"""Remove old jobs from the history (setting keep), in steps that fit into a turn of the engine."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

from stoker.features import FEATURES, load
from stoker.store.engine_lock import background_processes, is_background, living_engines, process_of
from stoker.store.paths import UNFINISHED, Paths
from stoker.store.prune import (
    UNUSED,
    NeededJobs,
    OldRow,
    Position,
    last_lines,
    last_tasks,
    logs_of,
    old_rows,
    prune,
    prune_member_records,
    prune_unused,
    used_scripts,
    young_among,
)
from stoker.store.queries import batch_by_id
from stoker.store.writer import Store

INTERVAL = 86_400.0
"""Seconds between two rounds of pruning."""

STEP = 100
"""Jobs and attempts removed in one transaction."""

LINES = 2000
"""Lines of a list that share a row removed in one transaction."""

READ = 500
"""Rows read in one step."""

SCRIPTS = 20
"""Copies of scripts removed in one step."""

PAUSE = 0.05
"""Seconds between two transactions, so that other writers have a turn."""

FILES_SECONDS = 0.01
"""Time after which a step removes no further files: a network file system takes milliseconds for each."""


class Pruner:
    """Removes old jobs from the history once a day, a few at a time."""

    def __init__(self, paths: Paths, store: Store, engine: str, keep: float | None) -> None:
        """`engine` is the name of this engine; `keep` is for how many seconds ended jobs stay; None is for ever."""
        self._paths = paths
        self._store = store
        self._engine = engine
        self.keep = keep
        self._round: Generator[None, None, int] | None = None
        self._due = 0.0
        self._next = 0.0

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self._round is not None

    def step(self, now: float) -> int:
        """Remove a few, if it is time; at the end of a round, return how many it removed."""
        if now < self._next or (self._round is None and now < self._due):
            return 0
        if self._round is None:
            self._due = now + INTERVAL
            before = -math.inf if self.keep is None else now - self.keep
            self._round = _Round(self._paths, self._store, self._engine, now, before).steps()
        self._next = now + PAUSE
        steps, self._round = self._round, None  # after a failure the next try is the next round
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)
        self._round = steps
        return 0


class _Round:
    """One search through the history. Each step leaves a state in which the next round can go on after a crash."""

    def __init__(self, paths: Paths, store: Store, engine: str, now: float, before: float) -> None:
        self._paths = paths
        self._places = paths.everywhere
        self._logs = [str(place.logs) for place in self._places]
        self._places_with_reports = [
            place for place in self._places if place.reports.exists() or place.functions.exists()
        ]
        self._store = store
        self._engine = engine
        self._now = now
        self._before = before
        self._needed = NeededJobs(store)
        self._pruned = 0

    def steps(self) -> Generator[None, None, int]:
        while not self._needed.read(READ):
            yield
        yield from self._remove_jobs()
        if self._pruned:
            yield from self._remove_unused()
        for place in self._places:
            yield from self._remove_unfinished(place.functions)
            yield from self._remove_scripts(place.scripts)
        yield from self._remove_batches()
        for feature in FEATURES.values():
            if feature.forgets:
                yield from load(feature.forgets)(self._paths, self._store, self._now)
        return self._pruned

    # -- jobs --------------------------------------------------------------------------------------

    def _remove_jobs(self) -> Iterator[None]:
        position, kept = Position(), set[int]()
        rows: list[OldRow] | None = None
        removed: Sequence[OldRow] = ()
        while rows is None or rows:
            array, limit = 0, STEP if removed else READ
            with self._store.writing():
                all_read = self._needed.read(READ)  # in the transaction: no job is added between this and the removal
                rows = old_rows(self._store, self._before, position, limit) if all_read else None
                here = list(takewhile(lambda row: not row.array or row.array in kept, rows or ()))
                old = [row for row in here if not row.array and not self._needed.among(row.ids)]
                removed = self._remove_first(old)
                if removed and removed[-1] not in old:  # a part of its row: the rest is earlier in the index
                    position = Position(removed[-1].position.ended)
                elif len(removed) < len(old):
                    position = removed[-1].position
                elif here:
                    position = here[-1].position
                elif rows:
                    array = rows[0].array
            yield
            if array and not (yield from self._remove_array(array)):
                kept.add(array)

    def _remove_array(self, array: int) -> Generator[None, None, bool]:
        """Remove an array if it is old as a whole, and return whether it was.

        Its last tasks go first, so that those that are left have all their events, and the id of the array.
        """
        after: int | None = 0
        while after is not None:
            if self._is_in_use(array):
                return False
            is_young, after = young_among(self._store, array, self._before, after, READ)
            if is_young:
                return False
            yield
        while True:
            with self._store.writing():
                all_read = self._needed.read(READ)
                rows = last_tasks(self._store, array, self._before, STEP)
                if rows is None or self._is_in_use(array):  # a user has retried a task, or made a job wait for it
                    return False
                if all_read:
                    self._remove_first(rows)
            if not rows:
                return True
            yield

    def _is_in_use(self, array: int) -> bool:
        return array in self._needed or self._store.is_array_open(array)

    def _remove_first(self, rows: Sequence[OldRow]) -> Sequence[OldRow]:
        """Remove the first of these rows, as many as a step has time for, and return them.

        Files go before their rows, so that after a crash the next round finds both.
        """
        deadline, weight, folders = time.monotonic() + FILES_SECONDS, 0, set[str]()
        removed: list[OldRow] = []
        for whole in rows:
            row = whole if whole.array else last_lines(self._store, whole, LINES)
            folders.update(self._remove_logs(row))
            self._remove_reports(row)
            removed.append(row)
            weight += 1 + row.attempts + len(row.ids) * STEP // LINES
            if weight >= STEP or row is not whole or time.monotonic() > deadline:
                break
        for folder in folders:
            with contextlib.suppress(OSError):  # others of its array may still be there
                Path(folder).rmdir()
        self._pruned += prune(self._store, removed)
        return removed

    def _remove_logs(self, row: OldRow) -> Iterator[str]:
        """Only logs in our own directory: all others are the user's files. Return folders that may be empty now."""
        for path in logs_of(self._store, row.ids):
            home = next((home for home in self._logs if path.startswith(f"{home}/")), None)
            if home is not None and ".." not in path.split("/"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                if (folder := os.path.dirname(path)) != home:
                    yield folder

    def _remove_reports(self, row: OldRow) -> None:
        """Reports of a job, and the functions it ran with their results; jobs that share a row never started."""
        job_id = row.position.job
        for place in self._places_with_reports if len(row.ids) == 1 else ():
            with contextlib.suppress(OSError):
                place.report(job_id).unlink()
            shutil.rmtree(place.function(job_id), ignore_errors=True)

    # -- what no job refers to ---------------------------------------------------------------------

    def _remove_unused(self) -> Iterator[None]:
        after: int | None
        for table in UNUSED:
            after = 0
            while after is not None:
                after = prune_unused(self._store, table, after, READ, before=self._before, allowed=self._exclusive)
                yield
        after = 0
        while after is not None:
            after = prune_member_records(self._store, after, READ)
            yield

    def _exclusive(self) -> bool:
        """Whether no foreground run is under way: it may need scripts and environments that no job has yet."""
        others = [name for name in living_engines(self._paths) if name != self._engine]
        runs = [name for name in others if not is_background(name)]
        background = background_processes(self._paths)
        return all(process_of(self._paths, name) in background for name in runs)

    def _remove_unfinished(self, functions: Path) -> Iterator[None]:
        """Functions of programs that died before their jobs were in the queue."""
        for name in _names(functions):
            if not name:
                yield
            elif name.startswith(UNFINISHED):
                with contextlib.suppress(OSError):
                    if self._now - (functions / name).stat().st_mtime > INTERVAL:
                        shutil.rmtree(functions / name, ignore_errors=True)

    def _remove_scripts(self, scripts: Path) -> Iterator[None]:
        """Copies that no job runs; no job can be added while the store is being written."""
        used, last, names = set[str](), 0, _names(scripts)
        while some := list(filter(None, islice(names, SCRIPTS))):
            all_known = False
            while not all_known:
                with self._store.writing():
                    newly_used, last, all_known = used_scripts(self._store, str(scripts), last, READ)
                    used |= newly_used
                    if all_known and self._exclusive():
                        for name in some:
                            if name not in used:
                                shutil.rmtree(scripts / name, ignore_errors=True)
                yield

    def _remove_batches(self) -> Iterator[None]:
        """Folders of batches that are gone; a batch is in the store before its feature makes a file."""
        for name in _names(self._paths.batches):
            if not name:
                yield
            elif not name.isdecimal() or batch_by_id(self._store, int(name)) is None:
                shutil.rmtree(self._paths.batches / name, ignore_errors=True)


def _names(folder: Path) -> Iterator[str]:
    """The names in a folder, if it exists, and an empty one whenever a step should end."""
    deadline = time.monotonic() + FILES_SECONDS
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name
            if time.monotonic() > deadline:
                yield ""
                deadline = time.monotonic() + FILES_SECONDS
