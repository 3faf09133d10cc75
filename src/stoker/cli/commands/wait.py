"""`stoker wait`: block until jobs are over; the exit code tells how they ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import click
from msgspec import Struct

from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import controlling, wants_json, write_json
from stoker.cli.sim_option import StokerCommand
from stoker.core.job import Ended, Job, id_text
from stoker.core.text import outcome, printable, text_for_json, title
from stoker.core.units import parse_duration
from stoker.queue.control import Watch, opened, warn
from stoker.queue.select import find, find_last
from stoker.store import queries

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


class Waited(Struct, frozen=True):
    """How all of them ended: `stoker wait --json`."""

    schema: str
    jobs: list[WaitedJob]
    counts: dict[str, int]
    timed_out: bool


@click.command(name="wait", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--timeout", metavar="DUR", help="Give up after this time, with exit code 124; like -t.")
@controlling
def command(ids: tuple[str, ...], timeout: str | None, as_json: bool, sim: str | None) -> int:
    """Wait until jobs are over: by default the one submitted last; `all` is all that is not over yet.

    The exit code is that of the job where it is one, else 1 if any failed; what was over before counts only where
    it is named. Ctrl-C ends only the waiting.

    \b
      stoker wait && echo well done
      stoker wait 12 13.0-4 --timeout 2h
    """
    deadline = None if timeout is None else time.monotonic() + parse_duration(timeout)
    with opened(sim) as control:
        wanted = find(control.store, ids) if ids else find_last(control.store)
        try:
            if not ids and (job := control.store.job(wanted[0])):
                what = f"the {len(wanted)} tasks of {job.array}" if job.array else str(job.id)
                warn(f"waiting for {what}: {title(job)}")
            in_time = Watch(control, wanted).wait_over(deadline)
        except KeyboardInterrupt:
            warn(f"detached; {_those(wanted)} on without you")
            return DETACHED
        return _report(list(queries.jobs_of(control.store, wanted)), in_time=in_time, as_json=wants_json(as_json))


def exit_code_of(job: Job) -> int:
    """The job's own code as in a shell; 1 for an end without one."""
    if not isinstance(job.state, Ended) or job.state.result == "done":
        return 0
    return job.state.code or 1


def _those(wanted: Sequence[int]) -> str:
    return f"job {wanted[0]} goes" if len(wanted) == 1 else f"the {len(wanted)} jobs go"


def _report(jobs: Sequence[Job], *, in_time: bool, as_json: bool) -> int:
    counts: Counter[str] = Counter(job.state.result for job in jobs if isinstance(job.state, Ended))
    if as_json:
        write_json(Waited(SCHEMA, [_waited(job) for job in jobs], dict(counts), not in_time))
    elif in_time:
        _sum_up(jobs)
    if not in_time:
        left = [job for job in jobs if not isinstance(job.state, Ended)]
        warn(f"time is up; {_those([job.id for job in left])} on")
        return TIMED_OUT
    if len(jobs) == 1:
        return exit_code_of(jobs[0])
    return 1 if any(exit_code_of(job) for job in jobs) else 0


def _sum_up(jobs: Sequence[Job]) -> None:
    failed = [job for job in jobs if isinstance(job.state, Ended) and job.state.result != "done"]
    for job in failed[:NAMED_FAILURES]:
        assert isinstance(job.state, Ended)
        note = f": {printable(job.state.note)}" if job.state.note else ""
        warn(f"{id_text(job)} {outcome(job.state)}{note}")
    if len(jobs) > 1 and failed:
        warn(f"{len(failed)} of {len(jobs)} jobs did not succeed")


def _waited(job: Job) -> WaitedJob:
    name = text_for_json(job.name)
    state = job.state
    if not isinstance(state, Ended):
        return WaitedJob(job.id, id_text(job), name, None, None, 0, "")
    note = text_for_json(state.note)
    return WaitedJob(job.id, id_text(job), name, state.result, state.code, state.signal, note)
