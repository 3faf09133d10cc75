"""`stoker logs`: show the output of a job, or follow it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from stoker.cli.commands.wait import DETACHED, exit_code_of
from stoker.cli.completion import complete_jobs
from stoker.cli.sim_option import StokerCommand, sim_option
from stoker.cli.views.logs import Follower, Source, files_of, output_for, runs_of
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.job import Ended, Job, id_text
from stoker.core.text import outcome, printable, title
from stoker.core.units import count_text
from stoker.queue.control import Control, opened, warn
from stoker.queue.select import find, jobs_in_order
from stoker.store.logs import Tail, open_log
from stoker.store.schema import AttemptRow


@click.command(name="logs", cls=StokerCommand)
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Show what comes until the job is over, and exit with its code.")
@click.option("-n", "lines", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Its first, second... run; default the last.")
@click.option("--jsonl", "as_json", is_flag=True, help="Each line as a JSON value.")
@click.option("--path", "only_path", is_flag=True, help="Print the name of the log file instead.")
@sim_option
def command(
    *,
    job: str | None,
    follow: bool,
    lines: int | None,
    attempt: int | None,
    as_json: bool,
    only_path: bool,
    sim: str | None,
) -> int:
    """Show the output of a job, of the newest one where none is named.

    A terminal gets text and colours, and a progress bar as it stood in the end; a pipe gets the bytes as they are.

    \b
      stoker logs            the newest job's output
      stoker logs -f 12.3    that of a task, as it comes
      stoker logs 5 --path   where it is
    """
    with opened(sim) as control:
        found = _one_job(control, job)
        if follow:
            if attempt is not None or only_path:
                raise UsageError("-f follows the run that is going on", "leave out --attempt and --path")
            return _follow(control, found, lines, as_json=as_json)
        number, run = _run_of(control, found, attempt)
        files = _files(run, number, found)
        if only_path:
            sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\n" for path in files.values()))
        else:
            _show(found, files, lines, as_json=as_json)
        return 0


def _one_job(control: Control, word: str | None) -> Job:
    """The selected job; of the last array, the task that started last."""
    ids = find(control.store, [word or "last"])
    jobs = jobs_in_order(control.store, ids)
    if word in (None, "last"):
        job = max(jobs, key=lambda one: (one.attempts > 0, one.id))
        warn(f"{id_text(job)}: {title(job)}")
        return job
    if not jobs:
        raise NoSuchJob("no job is left that is not over", "stoker history shows those that are")
    if len(jobs) > 1:
        raise UsageError(f"{word} is {len(jobs)} jobs", f"name one of them, for example {id_text(jobs[-1])}")
    return jobs[0]


def _run_of(control: Control, job: Job, number: int | None) -> tuple[int, AttemptRow]:
    """A run and its number, default the last one."""
    runs = runs_of(control.store.attempts(job.id))
    shown = id_text(job)
    if not runs:
        if isinstance(job.state, Ended):
            raise NoSuchJob(f"{shown} never started ({outcome(job.state)})", f"see stoker status {shown}")
        raise NoSuchJob(f"{shown} has not started yet", f"stoker logs -f {shown} waits for it")
    if number is not None and number > len(runs):
        raise NoSuchJob(f"{shown} has no run {number}", f"it has {count_text(len(runs), 'run')} so far")
    number = number or len(runs)
    return number, runs[number - 1]


def _files(run: AttemptRow, number: int, job: Job) -> dict[Source, str]:
    files = files_of(run, number)
    if not files:
        raise NoSuchJob(f"{id_text(job)} wrote to the terminal it was started from", "there is no file of it")
    return files


def _show(job: Job, files: Mapping[Source, str], lines: int | None, *, as_json: bool) -> None:
    for source, path in files.items():
        try:
            open_log(path).close()
        except OSError as error:
            raise NoSuchJob(f"the log of {id_text(job)} cannot be read: {error.strerror}", printable(path)) from error
        if len(files) > 1 and not as_json:
            sys.stdout.flush()
            warn(f"{'errors' if source.stream == 'err' else 'output'} in {printable(path)}")
        output = output_for(job.id, id_text(job), as_json=as_json, follows=False)
        tail = Tail(path, lines)
        for block in tail.read():
            output.show(source, block)
        output.end()
        tail.close()


def _follow(control: Control, job: Job, lines: int | None, *, as_json: bool) -> int:
    if runs := runs_of(control.store.attempts(job.id)):
        _files(runs[-1], len(runs), job)
    try:
        output = output_for(job.id, id_text(job), as_json=as_json, follows=True)
        ended = Follower(control, job.id, lines, output).follow()
    except KeyboardInterrupt:
        warn(f"detached; {id_text(job)} goes on without you")
        return DETACHED
    assert isinstance(ended.state, Ended)
    if ended.state.result != "done":
        note = f": {printable(ended.state.note)}" if ended.state.note else ""
        warn(f"{id_text(ended)} {outcome(ended.state)}{note}")
    return exit_code_of(ended)
