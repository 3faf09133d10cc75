"""The joblib backend: parallel_config(backend="stoker", vram="auto"), after register()."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import BatchedCalls, Parallel, ParallelBackendBase

from stoker.core.errors import UsageError
from stoker.python.executor import Executor
from stoker.python.job import Job, cancel_all
from stoker.python.keywords import Keywords

MOST_AT_ONCE = 256
"""Jobs of a loop in the queue where n_jobs does not limit them."""
Future = concurrent.futures.Future[Any]
_Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


def register() -> None:
    """Register the backend "stoker" with joblib."""
    register_parallel_backend("stoker", StokerBackend)


class StokerBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no annotations
    """Runs each call of a loop as a job; keywords as for an Executor. joblib itself runs loops with n_jobs=1."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(
        self, nesting_level: int | None = None, inner_max_num_threads: int | None = None, **options: Any
    ) -> None:
        super().__init__(nesting_level, inner_max_num_threads)
        self._options = options
        self._open: set[Future] = set()

    def configure(self, n_jobs: int = 1, parallel: Parallel = None, prefer: Any = None, **more: Any) -> int:
        """Start a loop."""
        if given := more.keys() & Keywords.__annotations__.keys():
            hint = f'write parallel_config(backend="stoker", {given.pop()}=...) around it'
            raise UsageError("Parallel() takes no job options", hint)
        self._executor = Executor(**self._options)
        size = parallel.batch_size if isinstance(parallel.batch_size, int) else 1
        parallel.pre_dispatch = f"n_jobs*{size}"  # the default is twice as many, and no local workers limit them
        return super().configure(n_jobs, parallel)  # type: ignore[no-any-return]

    def effective_n_jobs(self, n_jobs: int) -> int:
        """How many jobs may be in the queue at once; the engine decides how many run."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return n_jobs if n_jobs > 0 else MOST_AT_ONCE

    def submit(self, func: BatchedCalls, callback: Callable[[Callable[[], list[Any]]], object]) -> Future:
        """Submit a call, or several as one job where a batch_size is given.

        A call that cannot be submitted fails as if it had run: joblib waits for the end of all submitted calls.
        """
        try:
            future: Future = self._submitted(func.items)
        except Exception as error:
            future = concurrent.futures.Future()
            future.set_exception(error)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        is_single = len(func.items) == 1
        future.add_done_callback(lambda job: callback(lambda: [job.result()] if is_single else job.result()))
        return future

    def _submitted(self, calls: Sequence[_Call]) -> Job:
        if len(calls) > 1:
            return self._executor.submit(run_all, calls)
        ((function, arguments, keywords),) = calls
        return self._executor.submit(function, *arguments, **keywords)

    def retrieve_result_callback(self, out: Callable[[], list[Any]]) -> list[Any]:
        """The results of the calls of a job; raises what a call raised."""
        return out()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the remaining jobs, after a failure or Ctrl-C."""
        if jobs := [job for job in list(self._open) if isinstance(job, Job)]:
            cancel_all(jobs[0].link, jobs)


def run_all(calls: Sequence[_Call]) -> list[Any]:
    return [function(*arguments, **keywords) for function, arguments, keywords in calls]
