"""Which engine owns which jobs, and the jobs of dead engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stoker.core.job import Job
from stoker.store.engine_lock import QUEUE, engine_lives, process_of, sweep_engine, sweep_unfinished
from stoker.store.paths import Paths
from stoker.store.writer import Store

_PAGE = 10_000


def is_served(paths: Paths, engine: str) -> bool:
    """Whether an engine handles requests for these jobs, now or when it starts again.

    The background engine owns adopted jobs under a second name; of those it only records the end.
    """
    if engine == QUEUE:
        return True
    pid = process_of(paths, engine)
    return pid is not None and pid != process_of(paths, QUEUE)


class Orphan(NamedTuple):
    """An open job and the dead engine that owns it."""

    job: Job
    engine: str


def orphans(paths: Paths, store: Store) -> Iterator[Orphan]:
    """Open jobs of dead foreground runs. Submitted jobs are none: they wait for the next background engine."""
    for engine in [engine for engine in store.engines_with_open_jobs() if not is_served(paths, engine)]:
        yield from (Orphan(job, engine) for job in _all_open(store, engine))


def held_orphans(paths: Paths, store: Store) -> list[Orphan]:
    """Jobs of dead foreground runs that workers still hold; waiting jobs are not read."""
    dead = _dead_runs(paths, store.engines_with_active_jobs())
    return [Orphan(job, engine) for engine in dead for job in store.active_jobs(engine)]


def sweep_locks(paths: Paths, store: Store) -> None:
    """Remove the locks of dead engines that own no open job, and unfinished files."""
    owners = {QUEUE, *store.engines_with_open_jobs()}
    for path in paths.engines.glob("*.lock"):
        if path.stem not in owners and not engine_lives(paths, path.stem):
            sweep_engine(paths, path.stem)
    sweep_unfinished(paths)


def leftover_workers(paths: Paths, store: Store) -> list[str]:
    """Folders of workers whose engine is dead and that hold no open job."""
    names = [folder.name for folder in paths.workers.iterdir()]
    dead = [name for name in names if not engine_lives(paths, name.rpartition("-")[0])]
    needed = store.slots() if dead else set()
    return [name for name in dead if name not in needed]


def _dead_runs(paths: Paths, engines: Iterable[str]) -> list[str]:
    return [engine for engine in engines if engine != QUEUE and not engine_lives(paths, engine)]


def _all_open(store: Store, engine: str) -> Iterator[Job]:
    last = 0
    while jobs := store.open_jobs(engine, last, _PAGE):
        yield from jobs
        last = jobs[-1].id
