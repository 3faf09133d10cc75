"""`stoker wait`: block until jobs are over; the exit code tells how they ended."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import click
from msgspec import Struct

from stoker.app.control.requests import Control, opened
from stoker.app.jobs.select import find, find_last
from stoker.app.service.watch import Watch
from stoker.app.views.failure import failure_text
from stoker.app.views.model import RunCounts
from stoker.cli.console import say
from stoker.cli.options import StokerCommand, complete_jobs, controlling, wants_json, write_json
from stoker.core.job import Ended, Job, id_text, ids_of, single
from stoker.core.outcomes import ACTIVE, GOOD_RESULTS, RESULTS
from stoker.core.ranges import Ranges
from stoker.core.text import outcome, title
from stoker.core.units import parse_duration
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.queries import sorted_ids
from stoker.store.reader import Reader
from stoker.store.status_file import read_status

TIMED_OUT = 124
DETACHED = 130
SCHEMA = "stoker.wait/1"
NAMED_FAILURES = 20


class WaitedJob(Struct, frozen=True):
    """How one job ended."""

    id: int
    shown: str
    """The id as users type it: `12`, `12.3`."""
    name: str
    result: str | None
    """None if it is not over."""
    exit_code: int | None
    signal: int
    note: str
    failure: str = ""
    """Why it failed: the note, or the telling line of its log."""


class WaitResult(Struct, frozen=True):
    """How all of them ended: `stoker wait --json`."""

    schema: str
    jobs: list[WaitedJob]
    counts: dict[str, int]
    timed_out: bool


@click.command(name="wait", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--timeout", metavar="DUR", help="Stop waiting after this time, with exit code 124; same format as -t.")
@controlling
def command(ids: tuple[str, ...], timeout: str | None, as_json: bool, paths: Paths) -> int:
    """Wait until jobs have finished; default: the newest job. `all` means every unfinished job.

    For a single job, exits with its exit code; else with 1 if any job failed or was cancelled. Jobs that finished
    earlier count only if you name them. Ctrl-C stops waiting; the jobs continue.

    \b
      stoker wait && echo well done
      stoker wait 12 13.0-4 --timeout 2h
    """
    deadline = None if timeout is None else time.monotonic() + parse_duration(timeout)
    with opened(paths) as control:
        wanted = sorted_ids(find(control.store, ids) if ids else find_last(control.store))
        try:
            if not ids and (job := control.store.job(wanted[0])):
                what = f"the {len(wanted)} tasks of {job.array}" if job.array else str(job.id)
                say(f"waiting for {what}: {title(job)}")
            in_time = _wait(control, wanted, deadline)
        except KeyboardInterrupt:
            say(f"detached; {_those(control, wanted)}")
            return DETACHED
        return _report(control, wanted, ids, in_time=in_time, as_json=wants_json(as_json))


def _wait(control: Control, wanted: Sequence[int], deadline: float | None) -> bool:
    """Wait, with a progress line on a terminal; False if the deadline came first."""
    if not sys.stderr.isatty():
        return Watch(control, wanted, say).wait_over(deadline)
    from stoker.cli.screens.counts import ProgressLine

    def say_between(text: str) -> None:
        line.clear()
        say(text)

    progress = _Progress(control, wanted)
    line = ProgressLine(progress.look)
    try:
        return Watch(control, wanted, say_between).wait_over(deadline, line.show)
    finally:
        line.clear()


class _Progress:
    """Counts the jobs that are waited for."""

    def __init__(self, control: Control, wanted: Sequence[int]) -> None:
        self._control = control
        self._wanted = wanted
        self._began = time.monotonic()
        self._over: int | None = None
        """How many were over at the first look."""

    def look(self) -> tuple[RunCounts, float | None]:
        counted = queries.counts_among(self._control.store, self._wanted)
        done, cancelled = counted.get("done", 0), counted.get("cancelled", 0) + counted.get("stopped", 0)
        over = sum(count for state, count in counted.items() if state in RESULTS)
        running = sum(counted.get(state, 0) for state in ACTIVE)
        total, failed = len(self._wanted), over - done - cancelled
        counts = RunCounts(total, done, failed, running, total - over - running, cancelled=cancelled)
        self._over = over if self._over is None else self._over
        return counts, self._left(counts, over - self._over)

    def _left(self, counts: RunCounts, ended: int) -> float | None:
        """By the engine's forecast; where that does not know all of them, by the rate so far."""
        status = read_status(self._control.paths.status_file(QUEUE))
        expected = status.ends if status else {}
        still_open = queries.open_among(self._control.store, self._wanted)
        ends = [end for job_id, end in expected.items() if job_id in still_open]
        if ends and len(ends) == len(still_open):
            return max(0.0, max(ends) - time.time())
        elapsed = time.monotonic() - self._began
        return elapsed / ended * (counts.total - counts.ended) if ended else None


def exit_code_of(job: Job) -> int:
    """The job's own code as in a shell; 1 for an end without one. A job that was stopped early did not fail."""
    if not isinstance(job.state, Ended) or job.state.result in GOOD_RESULTS:
        return 0
    return job.state.code or 1


def _those(control: Control, wanted: Sequence[int]) -> str:
    if len(wanted) == 1:
        return f"job {control.store.shown_id(wanted[0])} continues"
    return f"the {len(wanted)} jobs continue"


def _report(control: Control, wanted: Ranges, words: Sequence[str], *, in_time: bool, as_json: bool) -> int:
    """Say how they ended; of many jobs only those are read that did not succeed, unless all are to be printed."""
    store = control.store
    bad = list(queries.jobs_of(store, queries.unsuccessful_among(store, wanted)))
    if as_json:
        waited = [_waited(job, failure_text(store, job)) for job in single(queries.jobs_of(store, wanted))]
        counts = Counter(job.result for job in waited if job.result is not None)
        write_json(WaitResult(SCHEMA, waited, dict(counts), not in_time))
    elif in_time:
        _sum_up(control, bad, len(wanted), words)
    if not in_time:
        say(f"timed out; {_those(control, queries.open_among(store, wanted))}")
        return TIMED_OUT
    if len(wanted) == 1:
        return exit_code_of(bad[0]) if bad else 0
    return 1 if bad else 0


def _sum_up(control: Control, bad: Sequence[Job], total: int, words: Sequence[str]) -> None:
    """Name the failures, and count all jobs that did not succeed; of several jobs, no cancelled one is named."""
    by_result: dict[str, list[Job]] = {}
    for job in bad:
        assert isinstance(job.state, Ended)
        by_result.setdefault(job.state.result, []).append(job)
    results = sorted(by_result, key=lambda result: (result == "cancelled", result == "skipped"))
    failures = [result for result in results if result != "cancelled" or total == 1]
    named = [job for result in failures for job in by_result[result]]
    for job in islice(single(named), NAMED_FAILURES):
        say(f"{id_text(job)} {end_text(control.store, job)}")
    if (more := len(ids_of(named)) - NAMED_FAILURES) > 0:
        chosen = shlex.join(["stoker", "history", *(word for word in words if word != "all")])
        say(f"… and {more} more: {chosen} --state {','.join(failures)}")
    if total > 1 and results:
        among = f"the {total} jobs that were open" if "all" in words else f"{total} jobs"
        counts = [f"{len(ids_of(by_result[result]))} {result}" for result in results]
        say(f"of {among}: {', '.join(counts)}")


def end_text(store: Reader, job: Job) -> str:
    """How a job ended, and why it failed: `exit 1: RuntimeError: loss is nan`."""
    assert isinstance(job.state, Ended)
    why = failure_text(store, job) or job.state.note
    return outcome(job.state) + (f": {why}" if why else "")


def _waited(job: Job, failure: str) -> WaitedJob:
    state = job.state
    if not isinstance(state, Ended):
        return WaitedJob(job.id, id_text(job), job.name, None, None, 0, "")
    return WaitedJob(job.id, id_text(job), job.name, state.result, state.code, state.signal, state.note, failure)
