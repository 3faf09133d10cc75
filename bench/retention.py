"""Measures what `keep` costs the engine: the longest step while a million ended jobs are removed, and the file."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

from bars import Bar, bars_shown, table
from machine import exit_code, parser, say, workshop
from stoker.core.job import Assigned, Event, Exited, Job, Started, advance
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.core.units import DAY
from stoker.engine.pruner import PAUSE, Pruner
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.schema import Change
from stoker.store.writer import Store

NOW, OLD = 1_000 * DAY, 800 * DAY
KEEP = 90 * DAY
FIRST = 10_000
"""Jobs that are added one by one; the others are copies of their rows."""
AT_ONCE = 5_000
LOGS = 10
"""One of so many jobs has a log file."""
SPECS = 1_000
"""Different specs of the single jobs."""
LONGEST = 50.0
"""Most milliseconds of a turn."""


def main() -> None:
    """Measure and print."""
    options = _options()
    rows, bars = [], []
    with workshop(options.directory) as directory:
        for kind in options.kinds:
            paths = Paths(directory / kind)
            for folder in (paths.logs, paths.state / "engines"):
                folder.mkdir(parents=True)
            with contextlib.closing(Store(paths.database, durable=False)) as store:
                _fill(paths, store, min(options.jobs, FIRST), array=kind == "array")
                _multiply(store, options.jobs, array=kind == "array")
            row, longest = _measured(paths, options.jobs, options.steps)
            rows.append([kind, *row])
            bars.append(Bar(f"longest step in ms, {kind}", longest, LONGEST, at_most=True))
    print(f"\n{options.jobs:,} jobs that ended long ago, each with one attempt and three events")
    head = [
        "jobs",
        "removed",
        "steps",
        "longest ms",
        "most CPU ms",
        "over 50 ms",
        "step s",
        "CPU s",
        "MB before",
        "MB after",
        "free MB",
    ]
    print(table(head, rows))
    print("\nbars")
    print(bars_shown(bars))


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=1_000_000, help="default %(default)s")
    options.add_argument("--kinds", nargs="+", default=["array", "single"], help="default: both")
    options.add_argument("--steps", type=int, default=10**9, help="most steps; default: a whole round")
    return options.parse_args()


def _fill(paths: Paths, store: Store, count: int, *, array: bool) -> None:
    """Add jobs that have ended."""
    began = time.perf_counter()
    specs = [JobSpec(priority=number) for number in range(1 if array else SPECS)]
    batch, arrays = store.add_batch("array", OLD) if array else 0, dict[int, int]()
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        with store.writing():
            ids = (
                store.add_jobs(batch, QUEUE, [_task(number, specs[0]) for number in numbers], OLD, arrays=arrays)
                if array
                else [_single(store, number, specs[number % SPECS]) for number in numbers]
            )
            store.record(_ended(paths, store, list(ids)))
    say(f"{count:,} jobs in {time.perf_counter() - began:.0f} s")


def _multiply(store: Store, count: int, *, array: bool) -> None:
    """Copy the rows of all jobs until there are so many; each single job has its batch."""
    began, there = time.perf_counter(), store.last_job() or 0
    batch = "" if array else "batch"
    tables = {"jobs": ("id", "task", batch), "attempts": ("job",), "events": ("job",), "batches": ("id",)}
    while there < count:
        some = min(there, count - there)
        with store.writing() as connection:
            for table, shifted in tables.items():
                names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
                names = [name for name in names if (table, name) != ("events", "id")]
                values = [f"{name} + {there}" if name in shifted else name for name in names]
                which = f"{'id' if table in ('jobs', 'batches') else 'job'} <= {some}"
                if table != "batches" or not array:
                    query = f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table}"
                    connection.execute(f"{query} WHERE {which}")
        there += some
    say(f"{count:,} jobs after {time.perf_counter() - began:.0f} s more")


def _task(number: int, spec: JobSpec) -> NewJob:
    return NewJob(Command(("train", "--seed", str(number)), ""), spec, "", number, array=1)


def _single(store: Store, number: int, spec: JobSpec) -> int:
    job = NewJob(Command(("train", "--seed", str(number)), ""), spec)
    return store.add_jobs(store.add_batch("single", OLD), QUEUE, [job], OLD)[0]


def _ended(paths: Paths, store: Store, ids: list[int]) -> Iterator[Change]:
    jobs = {job.id: job for job in store.open_jobs(QUEUE, ids[0] - 1, len(ids))}
    for job_id in ids:
        job: Job = jobs[job_id]
        at = OLD + job_id % 1_000
        log = paths.logs / f"{job_id % 100}" / f"{job_id}.log"
        if job_id % LOGS == 0:
            log.parent.mkdir(exist_ok=True)
            log.write_text("output\n")
        events: list[Event] = [Assigned("worker 1", ("0",), str(log), at), Started(1, at), Exited(1, 0, 0, at + 60)]
        for event in events:
            job = advance(job, event)
        yield Change(job, [(1, event) for event in events])


def _measured(paths: Paths, count: int, most: int) -> tuple[list[str], float]:
    """A row of the table, and the milliseconds of the longest step."""
    before, cpu, took = paths.database.stat().st_size, time.process_time(), list[float]()
    busy = list[float]()
    with contextlib.closing(Store(paths.database)) as store:
        pruner, now = Pruner(paths, store, "me", KEEP), NOW
        while len(took) < most and (not took or pruner.busy):
            began, used = time.perf_counter(), time.process_time()
            pruner.step(now)
            busy.append(1000 * (time.process_time() - used))
            took.append(1000 * (time.perf_counter() - began))
            now += PAUSE
        seconds = time.process_time() - cpu
        ((left,),) = store.rows("SELECT count(*) FROM jobs")
        ((free,),) = store.rows("PRAGMA freelist_count")
    sizes = [f"{size / 1e6:.0f}" for size in (before, paths.database.stat().st_size, free * 4096)]
    over = sum(one > LONGEST for one in took)
    figures = (
        f"{count - left:,}",
        f"{len(took):,}",
        f"{max(took):.1f}",
        f"{max(busy):.1f}",
        f"{over}",
        f"{sum(took) / 1000:.1f}",
        f"{seconds:.1f}",
    )
    return [*figures, *sizes], max(took)


if __name__ == "__main__":
    sys.exit(exit_code(main))
