"""The queue of a Python program, opened for each operation, and one thread per queue that reads the ends of jobs."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from stoker.core.errors import NoSuchJob, StokerError
from stoker.core.job import Job, single
from stoker.store import queries
from stoker.store.changes import StoreChanges
from stoker.store.decoders import prepare_decoders
from stoker.store.engine_lock import cluster_of, engine_lives, is_background
from stoker.store.paths import Paths, paths_for
from stoker.store.waiting import Backoff
from stoker.store.writer import Store, open_store


class Link(NamedTuple):
    """A queue."""

    paths: Paths

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """The store, open until the end of the block."""
        with contextlib.closing(open_store(self.paths)) as store:
            yield store

    def job(self, job_id: int) -> Job:
        with self.opened() as store:
            return known(store.job(job_id), job_id)


def find_link() -> Link:
    """The queue that the environment names. From here on, several threads may read it."""
    with _no_fork:
        prepare_decoders()
    return Link(paths_for())


def known(job: Job | None, job_id: int) -> Job:
    """The job; an error where it does not exist."""
    if job is None:
        raise NoSuchJob(f"there is no job {job_id}", "list jobs with: stoker status, stoker history")
    return job


TROUBLE_PAUSE = 0.5
"""Seconds between two tries to read an unreadable queue."""
LATENESS = 0.05
"""Most delay of an end, as a fraction of the time since the last end."""
SHARE = 0.1
"""Most time for queries, as a fraction of all time."""
ENGINE_INTERVAL = 1.0
"""Seconds between two checks whether the engine lives."""
TROUBLE_SECONDS = 60.0
"""How long an unreadable queue is tried again before the handles fail."""


class WaitingHandle(Protocol):
    """A handle that waits for the end of a job."""

    @property
    def id(self) -> int:
        """The job's number."""

    def mark_ended(self, job: Job | None) -> None:
        """The job has ended; None where it is not in the queue any more."""

    def mark_unreadable(self, error: StokerError) -> None:
        """The end of the job cannot be read."""


class Watcher:
    """The handles of open jobs. The thread lives as long as there are any."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._waiting: dict[int, list[WaitingHandle]] = {}
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._read_at = 0.0
        """When the queue was read last."""

    def watch(self, handles: Sequence[WaitingHandle]) -> None:
        """Call the handles once when their jobs have ended."""
        with self._lock:
            for handle in handles:
                self._waiting.setdefault(handle.id, []).append(handle)
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._run, name="stoker-watcher", daemon=True)
                self._thread.start()
            self._news.set()

    def leave(self) -> None:
        """End the thread. The jobs continue."""
        self._leaving = True
        self._news.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        self._read_at = time.monotonic()
        while True:
            try:
                with _opened(self._link) as store:
                    return self._watch(store)
            except StokerError as error:
                if self._leaving or time.monotonic() > self._read_at + TROUBLE_SECONDS:
                    return self._give_up(error)
            except Exception as error:  # a bug, which must not let handles wait for ever
                self._give_up(StokerError(f"the watcher of the jobs has failed: {error!r}", "report this"))
                raise
            time.sleep(TROUBLE_PAUSE)

    def _give_up(self, error: StokerError) -> None:
        with self._lock:
            handles = [handle for some in self._waiting.values() for handle in some]
            self._waiting.clear()
            self._thread = None
        for handle in handles:
            handle.mark_unreadable(error)

    def _watch(self, store: Store) -> None:
        """Query only when the data version has changed, and rarely while no job ends; return when no handle waits."""
        changes, pauses, took = StoreChanges(store), Backoff(shortest=0.004, growth=1 + LATENESS), 0.0
        engine_at = time.monotonic() + ENGINE_INTERVAL
        while True:
            ids, news = self._awaited()
            if not ids:
                return
            began = time.monotonic()
            with _no_fork:
                changed = changes.look() or news
                unfinished = set(queries.open_among(store, ids)) if changed else set(ids)
            ended = [job_id for job_id in ids if job_id not in unfinished]
            self._notify(ended, store)
            now = time.monotonic()
            if changed:
                took = now - began
            if ended or news:
                pauses.reset()
            if now >= engine_at:
                engine_at = self._keep_engines_alive(store)
            self._news.wait(max(pauses.next(), took / SHARE))

    def _awaited(self) -> tuple[list[int], bool]:
        """The awaited jobs, and whether some are new. Without any, the thread must end."""
        with self._lock:
            self._read_at = time.monotonic()
            news = self._news.is_set()
            self._news.clear()
            if not self._waiting or self._leaving:
                self._thread = None
                return [], news
            return list(self._waiting), news

    def _notify(self, ended: Sequence[int], store: Store) -> None:
        with _no_fork:
            jobs = {job.id: job for job in single(queries.jobs_of(store, ended))}
        for job_id in ended:
            with self._lock:
                handles = self._waiting.pop(job_id, [])
            for handle in handles:
                handle.mark_ended(jobs.get(job_id))

    def _keep_engines_alive(self, store: Store) -> float:
        """Start dead engines again, and return when to check next. Where that fails, the jobs are safe."""
        with _no_fork:
            expected = [engine for engine in queries.expected_engines(store) if is_background(engine)]
        dead = [engine for engine in expected if not engine_lives(self._link.paths, engine)]
        if not dead:
            return time.monotonic() + ENGINE_INTERVAL
        from stoker.app.control.engine_process import start_engine

        for engine in dead:
            with contextlib.suppress(StokerError, OSError):
                start_engine(self._link.paths, cluster_of(engine))
        return time.monotonic() + 10 * ENGINE_INTERVAL


_no_fork = threading.Lock()
"""Held by a watcher that uses SQLite, and by a thread that forks: else a lock of SQLite stays taken in the child.

Also held by a thread that prepares the decoders, of which there may be one at a time."""
_watchers: dict[Link, Watcher] = {}
_of_parent: list[object] = []
"""Watchers of the parent process after a fork; kept, because only the parent may close their stores."""


def watch(link: Link, handles: Sequence[WaitingHandle]) -> None:
    """Call the handles once when their jobs have ended."""
    _watchers.setdefault(link, Watcher(link)).watch(handles)


def leave_all() -> None:
    """End all watchers. The jobs continue."""
    while _watchers:
        _watchers.popitem()[1].leave()


@contextlib.contextmanager
def _opened(link: Link) -> Iterator[Store]:
    """The store of a watcher, opened and closed while no thread forks."""
    with _no_fork:
        store = open_store(link.paths)
    try:
        yield store
    finally:
        with _no_fork:
            store.close()


def _forget_all() -> None:
    _no_fork.release()
    _of_parent.append(dict(_watchers))
    _watchers.clear()


atexit.register(leave_all)
os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_forget_all)
