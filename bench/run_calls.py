"""Call an empty function through one library, and print the seconds; run by that library's Python."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

SLOTS = 4
Call = Callable[[int], Any]
"""Calls the function and waits for its result."""
CallMany = Callable[[int], list[Any]]
"""Calls it so many times, on all slots, and waits for the results."""


def nothing(number: int) -> int:
    """The function to call."""
    return number


@contextlib.contextmanager
def stoker_executor(_: str) -> Iterator[tuple[Call, CallMany]]:
    """A fresh process for each call, jobs on disk."""
    import stoker

    executor = stoker.Executor(gpus=1)
    yield (
        lambda number: executor.submit(nothing, number).result(),
        lambda calls: [job.result() for job in [executor.submit(nothing, number) for number in range(calls)]],
    )


@contextlib.contextmanager
def stoker_array(_: str) -> Iterator[tuple[Call, CallMany]]:
    """The same, with all calls submitted at once."""
    import stoker

    executor = stoker.Executor(gpus=1)
    yield (
        lambda number: executor.submit(nothing, number).result(),
        lambda calls: list(executor.map(nothing, range(calls))),
    )


@contextlib.contextmanager
def stoker_warm(_: str) -> Iterator[tuple[Call, CallMany]]:
    """A process for each call that is forked from one which has imported its modules; all calls submitted at once."""
    import stoker

    executor = stoker.Executor(gpus=1, warm=True)
    yield (
        lambda number: executor.submit(nothing, number).result(),
        lambda calls: list(executor.map(nothing, range(calls))),
    )


@contextlib.contextmanager
def loky(_: str) -> Iterator[tuple[Call, CallMany]]:
    """Four processes for all calls, without a queue on disk."""
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=SLOTS)
    yield (
        lambda number: executor.submit(nothing, number).result(),
        lambda calls: list(executor.map(nothing, range(calls))),
    )
    executor.shutdown()


@contextlib.contextmanager
def submitit(directory: str) -> Iterator[tuple[Call, CallMany]]:
    """A fresh process for each call, which starts at once: it has no queue, so never more than four are given to it."""
    from submitit import LocalExecutor  # type: ignore[import-not-found,unused-ignore]

    executor = LocalExecutor(directory)

    def many(calls: int) -> list[Any]:
        under_way: deque[Any] = deque()
        results = []
        for number in range(calls):
            if len(under_way) == SLOTS:
                results.append(under_way.popleft().result())
            under_way.append(executor.submit(nothing, number))
        return results + [job.result() for job in under_way]

    yield lambda number: executor.submit(nothing, number).result(), many


def ray(directory: str) -> contextlib.AbstractContextManager[tuple[Call, CallMany]]:
    """A fresh process for each call, as it does for functions that need a GPU."""
    return _ray(directory, num_gpus=1)


def ray_kept(directory: str) -> contextlib.AbstractContextManager[tuple[Call, CallMany]]:
    """Four processes for all calls."""
    return _ray(directory, num_gpus=1, max_calls=0)


@contextlib.contextmanager
def _ray(directory: str, **options: int) -> Iterator[tuple[Call, CallMany]]:
    import ray as library  # type: ignore[import-not-found,unused-ignore]

    library.init(
        num_cpus=SLOTS,
        num_gpus=SLOTS,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=os.path.join(directory, "r"),
    )
    remote = library.remote(**options)(nothing)
    yield (
        lambda number: library.get(remote.remote(number)),
        lambda calls: list(library.get([remote.remote(number) for number in range(calls)])),
    )
    library.shutdown()


@contextlib.contextmanager
def dask(_: str) -> Iterator[tuple[Call, CallMany]]:
    """Four processes for all calls, each with a GPU as a resource."""
    from distributed import Client, LocalCluster  # type: ignore[import-not-found,unused-ignore]

    settings = {"n_workers": SLOTS, "threads_per_worker": 1, "dashboard_address": None, "resources": {"GPU": 1}}
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        keywords = {"pure": False, "resources": {"GPU": 1}}
        yield (
            lambda number: client.submit(nothing, number, **keywords).result(),
            lambda calls: client.gather([client.submit(nothing, number, **keywords) for number in range(calls)]),
        )


WAYS = {way.__name__: way for way in (stoker_executor, stoker_array, stoker_warm, loky, submitit, ray, ray_kept, dask)}


def main() -> None:
    """`run_calls.py WAY DIRECTORY SINGLES CALLS`: seconds of each single call, and of all calls together."""
    way, directory, singles, calls = sys.argv[1:]
    with WAYS[way](directory) as (call, many):
        many(SLOTS)  # work that is done only once does not count
        seconds = [_timed(call, number) for number in range(int(singles))]
        together = _timed(many, int(calls))
    print(json.dumps({"single": seconds, "together": together}))


def _timed(work: Callable[[int], Any], number: int) -> float:
    began = time.perf_counter()
    result = work(number)
    seconds = time.perf_counter() - began
    assert result in (number, list(range(number)))
    return seconds


if __name__ == "__main__":
    main()
