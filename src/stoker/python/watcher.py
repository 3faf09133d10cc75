"""One thread that learns of the ends of jobs, for all handles of a process that wait for one."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from stoker.core.errors import StokerError
from stoker.core.job import Job
from stoker.python.connection import Link
from stoker.store import queries
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.writer import Store, open_store

SHORTEST_PAUSE = 0.004
LONGEST_PAUSE = 0.5
LATENESS = 0.05
"""How late an end may be seen, as a part of the time since something happened last..."""
SHARE = 0.1
"""... and which part of the time may go into looking."""
ENGINE_INTERVAL = 1.0
"""Seconds between two looks whether an engine lives that works on the jobs."""
TROUBLE_SECONDS = 60.0
"""For how long a queue that cannot be read is tried again before those who wait are told."""


class Watched(Protocol):
    """Somebody who wants to know of the end of a job."""

    @property
    def id(self) -> int:
        """The job's number."""

    def is_over(self, job: Job | None) -> None:
        """It has ended; None where it is not in the queue any more."""

    def is_unknown(self, error: StokerError) -> None:
        """Nobody can tell what became of it."""


class Watcher:
    """Handles of jobs that are not over; the thread lives as long as there are any."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Watched]] = {}
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._well = 0.0
        """When the queue could be read last."""

    def watch(self, handles: Sequence[Watched]) -> None:
        """Tell the handles once, when their jobs are over."""
        with self._lock:
            for handle in handles:
                self._waiting.setdefault(handle.id, []).append(handle)
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._run, name="stoker-watcher", daemon=True)
                self._thread.start()
            self._news.set()

    def leave(self) -> None:
        """Let the thread end, whatever it waits for: the jobs go on without us."""
        self._leaving = True
        self._news.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        self._well = time.monotonic()
        while True:
            try:
                with _opened(self._link) as store:
                    return _Round(self._link, store, self).go_on()
            except StokerError as error:
                if self._leaving or time.monotonic() > self._well + TROUBLE_SECONDS:
                    return self._give_up(error)
            except Exception as error:  # a bug, which must leave nobody waiting for ever
                self._give_up(StokerError(f"whoever watched the jobs has failed: {error!r}", "report this"))
                raise
            time.sleep(LONGEST_PAUSE)

    def _give_up(self, error: StokerError) -> None:
        with self._lock:
            handles = [handle for some in self._waiting.values() for handle in some]
            self._waiting.clear()
            self._thread = None
        for handle in handles:
            handle.is_unknown(error)

    # -- for the round -----------------------------------------------------------------------------

    def ids(self) -> tuple[list[int], bool]:
        """What is waited for, and whether some of it is new; where it is nothing, the thread is no longer ours."""
        with self._lock:
            self._well = time.monotonic()
            news = self._news.is_set()
            self._news.clear()
            if not self._waiting or self._leaving:
                self._thread = None
                return [], news
            return list(self._waiting), news

    def tell(self, ended: Sequence[int], store: Store) -> None:
        """Tell those who wait for these."""
        with _no_fork:
            jobs = {job.id: job for job in queries.jobs_of(store, ended)}
        for job_id in ended:
            with self._lock:
                handles = self._waiting.pop(job_id, [])
            for handle in handles:
                handle.is_over(jobs.get(job_id))

    def sleep(self, seconds: float) -> None:
        """Wait, or less where there is somebody new, or all of it is to end."""
        self._news.wait(seconds)


class _Round:
    """Looks into the queue until nothing is left to wait for."""

    def __init__(self, link: Link, store: Store, watcher: Watcher) -> None:
        self._link = link
        self._store = store
        self._watcher = watcher
        self._happened = time.monotonic()
        self._version = -1
        self._engine_at = time.monotonic() + ENGINE_INTERVAL
        self._took = 0.0

    def go_on(self) -> None:
        """Asks only where somebody has written since the last look, and rarely where nothing happens."""
        while True:
            ids, news = self._watcher.ids()
            if not ids:
                return
            if news:
                self._version = -1
            if self._look(ids) or news:
                self._happened = time.monotonic()
            self._see_to_engine()
            self._watcher.sleep(self._pause())

    def _pause(self) -> float:
        idle = LATENESS * (time.monotonic() - self._happened)
        return max(min(max(idle, SHORTEST_PAUSE), LONGEST_PAUSE), self._took / SHARE)

    def _look(self, ids: Sequence[int]) -> bool:
        version, began = self._version, time.monotonic()
        with _no_fork:
            self._version = self._store.version_of_data()
            if version == self._version:
                return False
            still = set(queries.open_among(self._store, ids))
        ended = [job_id for job_id in ids if job_id not in still]
        self._watcher.tell(ended, self._store)
        self._took = time.monotonic() - began
        return bool(ended)

    def _see_to_engine(self) -> None:
        """One that died is started again; where that fails, the jobs are safe, and it is tried again."""
        now = time.monotonic()
        if now < self._engine_at:
            return
        self._engine_at = now + ENGINE_INTERVAL
        if engine_lives(self._link.paths, QUEUE):
            return
        from stoker.queue.engine_process import start_engine

        with contextlib.suppress(StokerError, OSError):
            start_engine(self._link.paths, self._link.sim)
        self._engine_at = time.monotonic() + 10 * ENGINE_INTERVAL


_no_fork = threading.Lock()
"""Held by a watcher that uses the queue, and by whoever forks: SQLite's own locks would stay shut in the child."""
_watchers: dict[Link, Watcher] = {}
_left_behind: list[object] = []
"""Watchers of the process that we were forked from: closing what they have open is that one's matter."""


def watch(link: Link, handles: Sequence[Watched]) -> None:
    """Tell the handles once, when their jobs are over."""
    _watchers.setdefault(link, Watcher(link)).watch(handles)


def leave_all() -> None:
    """Watch nothing any more: the jobs go on alone."""
    while _watchers:
        _watchers.popitem()[1].leave()


@contextlib.contextmanager
def _opened(link: Link) -> Iterator[Store]:
    """The queue's file; a watcher has it open all the time, and uses it where nobody forks."""
    with _no_fork:
        store = open_store(link.paths)
    try:
        yield store
    finally:
        with _no_fork:
            store.close()


def _forget_all() -> None:
    _no_fork.release()
    _left_behind.append(dict(_watchers))
    _watchers.clear()


atexit.register(leave_all)
os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_forget_all)
