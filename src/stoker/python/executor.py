"""concurrent.futures on the queue: each call is a job in its own process with its own GPUs."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stoker.app.jobs.options import JobOptions
from stoker.core.errors import UsageError
from stoker.core.units import count_text
from stoker.python import submitting
from stoker.python.calls import Call
from stoker.python.connection import find_link
from stoker.python.function_child import Prepared, run_chunk
from stoker.python.job import Job, cancel_all, handles_of
from stoker.python.keywords import read_keywords, takes_job_options

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.python.keywords import Keywords

Value = TypeVar("Value")


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs of the queue; the keywords are the job options of the command line.

    The jobs outlive this program: stoker.job(id) finds one again.
    """

    @takes_job_options
    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Unpack[Keywords],
    ) -> None:
        """Nothing is submitted yet. `max_workers` is how many of its jobs may run at a time.

        Each job calls the `initializer` first, since it has a process of its own.
        """
        self._options = read_keywords(options)
        self._pool = _pool(max_workers, self._options.cluster)
        self._prepared = partial(Prepared, initializer=initializer, initargs=initargs) if initializer else None
        if self._options.array is not None:
            raise UsageError("an Executor takes no array option", "use map_array()")
        self._link = find_link()
        submitting.check(self._link, self._options)
        self._modules: list[str] = []
        """Modules that jobs import before they are forked; empty before the first call, or if jobs start cold."""
        self._lock = threading.Lock()
        self._open: set[Job] = set()
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
        """One call as one job; on disk when this returns."""
        return self._submit(fn, [Call(args, kwargs)], None)[0]

    def map_array(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], at_once: int | None = None, **constants: Any
    ) -> list[Job]:
        """A job for each set of arguments, as the tasks of one array; `at_once` is how many may run at a time.

        All calls get the `constants` as keyword arguments.
        """
        calls = [Call(arguments, constants) for arguments in zip(*iterables, strict=False)]
        if not calls:
            return []
        limit = "" if at_once is None else f"%{at_once}"
        return self._submit(fn, calls, f"0-{len(calls) - 1}{limit}")

    def map(
        self, fn: Callable[..., Value], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Value]:
        """The results in the order of the arguments; `chunksize` calls share a job, one after the other."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        deadline = None if timeout is None else time.monotonic() + timeout
        if chunksize == 1:
            return _results(self.map_array(fn, *iterables), deadline)
        jobs = self.map_array(run_chunk, itertools.repeat(fn), _chunks(zip(*iterables, strict=False), chunksize))
        return itertools.chain.from_iterable(_results(jobs, deadline))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls, cancel those not started if asked, and wait for the rest if asked."""
        with self._lock:
            self._is_shut = True
            left = list(self._open)
        if cancel_futures and left:
            cancel_all(self._link, left, only_waiting=True)
        if wait:
            concurrent.futures.wait(left)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        """Wait for all jobs, unless the program is interrupted: then they go on without it."""
        self.shutdown(wait=exc_type is None or issubclass(exc_type, Exception))
        return None

    def __repr__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name, value in msgspec.structs.asdict(self._options).items()
            if value not in (None, {})
        ]
        with self._lock:
            count = len(self._open)
        return f"<stoker.Executor({', '.join(given)}): {count_text(count, 'open job')}{', shut down' * self._is_shut}>"

    def _submit(self, fn: Callable[..., Any], calls: Sequence[Call], array: str | None) -> list[Job]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        function = self._prepared(fn) if self._prepared else fn
        options = self._warm_options(function, calls[0]) if self._options.warm else self._options
        ids = submitting.submit_calls(self._link, function, calls, options, array, pool=self._pool)
        jobs = handles_of(self._link, ids)
        with self._lock:
            self._open.update(jobs)
        for job in jobs:
            job.add_done_callback(self._forget)
        return jobs

    def _warm_options(self, function: Callable[..., Any], call: Call) -> JobOptions:
        """The options with the modules of a template: all calls share one, so they are those of the first call."""
        if not self._modules:
            from stoker.python.modules import modules_of

            self._modules = modules_of(function, call, self._options.warm)
        return msgspec.structs.replace(self._options, warm=",".join(self._modules) or None)

    def _forget(self, job: concurrent.futures.Future[Any]) -> None:
        assert isinstance(job, Job)
        with self._lock:
            self._open.discard(job)


def _pool(max_workers: int | None, cluster: str | None) -> submitting.Pool | None:
    if max_workers is None:
        return None
    if max_workers < 1:
        raise ValueError("max_workers must be greater than 0")
    if cluster:
        raise UsageError("max_workers does not work on a cluster", "limit an array there: map_array(..., at_once=4)")
    return submitting.Pool(f"{os.getpid()}-{os.urandom(2).hex()}", max_workers)


def _chunks(calls: Iterable[tuple[Any, ...]], size: int) -> Iterator[tuple[tuple[Any, ...], ...]]:
    taken = iter(calls)
    while chunk := tuple(itertools.islice(taken, size)):
        yield chunk


def _results(jobs: list[Job], deadline: float | None) -> Iterator[Any]:
    """Results one by one; a caller that stops early cancels the calls not started."""
    left = list(reversed(jobs))
    try:
        while left:
            yield left.pop().result(None if deadline is None else deadline - time.monotonic())
    finally:
        if left:
            cancel_all(left[0].link, left, only_waiting=True)
