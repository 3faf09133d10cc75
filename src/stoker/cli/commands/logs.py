"""`stoker logs`: show the output of jobs, or follow it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice

import click

from stoker.app.control.requests import Control, opened
from stoker.app.jobs.select import find, jobs_in_order
from stoker.app.views.log import run_of
from stoker.cli.commands.wait import DETACHED, end_text, exit_code_of
from stoker.cli.console import say
from stoker.cli.options import StokerCommand, complete_jobs, sim_option
from stoker.cli.screens.logs import MOST_FOLLOWED, Follower, LogStream, files_of, follow, output_for
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.job import Ended, Job, id_text, ids_of, part, single
from stoker.core.text import title
from stoker.core.units import count_text
from stoker.store.logs import Tail, open_log
from stoker.store.paths import Paths
from stoker.store.schema import AttemptRow


@click.command(name="logs", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option(
    "-f", "--follow", "follows", is_flag=True, help="Follow the output until the job ends; exit with its code."
)
@click.option("-n", "lines", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of the attempt (1 is the first); default the last.",
)
@click.option("--jsonl", "as_json", is_flag=True, help="Print each line as JSON.")
@click.option("--path", "only_path", is_flag=True, help="Print the path of the log file.")
@sim_option
def command(
    *,
    ids: tuple[str, ...],
    follows: bool,
    lines: int | None,
    attempt: int | None,
    as_json: bool,
    only_path: bool,
    paths: Paths,
) -> int:
    """Show the output of jobs, by default of the newest one.

    Several jobs are shown one after another; with -f their lines are merged, each with the job before it. A terminal
    gets text and colours, and a progress bar in its last state; a pipe gets the bytes as they are.

    \b
      stoker logs            the newest job's output
      stoker logs -f 12.3    follow a task
      stoker logs -f 12      follow all tasks of array 12
      stoker logs 5 --path   path of its log file
    """
    with opened(paths) as control:
        jobs = _jobs(control, ids)
        if follows:
            if attempt is not None or only_path:
                raise UsageError("-f follows the current attempt", "leave out --attempt and --path")
            return _follow(control, jobs, lines, as_json=as_json)
        started = [job for job in jobs if job.attempts] or list(islice(single(jobs), 1))
        for number, job in enumerate(started):
            title_line = (
                f"==> {id_text(job)} {title(job)} <==" if len(jobs) > 1 and not as_json and not only_path else ""
            )
            if title_line:
                print(f"\n{title_line}" if number else title_line, flush=True)
            _show_job(control, job, attempt, lines, as_json=as_json, only_path=only_path)
        if waiting := len(ids_of(jobs)) - len(started):
            say(f"{count_text(waiting, 'job')} without output yet")
        return 0


def _jobs(control: Control, words: Sequence[str]) -> list[Job]:
    """The selected jobs; without a word, or as `last`, of the last array the task that started last."""
    jobs = jobs_in_order(control.store, find(control.store, words or ["last"]))
    if tuple(words) in ((), ("last",)):
        newest = max(jobs, key=lambda job: (job.attempts > 0, job.id))
        job = part(newest, newest.last, newest.last)
        say(f"{id_text(job)}: {title(job)}")
        return [job]
    if not jobs:
        raise NoSuchJob("no open job", "stoker history shows those that have ended")
    return jobs


def _show_job(
    control: Control, job: Job, attempt: int | None, lines: int | None, *, as_json: bool, only_path: bool
) -> None:
    number, run = run_of(job, control.store.runs(job.id), attempt)
    files = _files(run, number, job)
    if only_path:
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\n" for path in files.values()))
    else:
        _show(job, files, lines, as_json=as_json)


def _files(run: AttemptRow, number: int, job: Job) -> dict[LogStream, str]:
    files = files_of(run, number)
    if not files:
        raise NoSuchJob(f"{id_text(job)} wrote its output to the terminal it was started from", "it has no log file")
    return files


def _show(job: Job, files: Mapping[LogStream, str], lines: int | None, *, as_json: bool) -> None:
    for source, path in files.items():
        try:
            open_log(path).close()
        except OSError as error:
            raise NoSuchJob(f"the log of {id_text(job)} cannot be read: {error.strerror}", path) from error
        if len(files) > 1 and not as_json:
            sys.stdout.flush()
            say(f"{'errors' if source.stream == 'err' else 'output'} in {path}")
        output = output_for(job.id, id_text(job), as_json=as_json, follows=False)
        tail = Tail(path, lines)
        for block in tail.read():
            output.show(source, block)
        output.end()
        tail.close()


def _follow(control: Control, jobs: Sequence[Job], lines: int | None, *, as_json: bool) -> int:
    if (count := len(ids_of(jobs))) > MOST_FOLLOWED:
        raise UsageError(f"{count} jobs are too many to follow", f"name at most {MOST_FOLLOWED}")
    jobs = list(single(jobs))
    if len(jobs) == 1 and (runs := control.store.runs(jobs[0].id)):
        _files(runs[-1], len(runs), jobs[0])
    wide = max(len(id_text(job)) for job in jobs)
    prefixes = [f"{id_text(job):{wide}} | " if len(jobs) > 1 else "" for job in jobs]
    outputs = [
        output_for(job.id, id_text(job), as_json=as_json, follows=True, prefix=prefix)
        for job, prefix in zip(jobs, prefixes, strict=True)
    ]
    followers = [Follower(control, job, lines, output) for job, output in zip(jobs, outputs, strict=True)]
    try:
        ended = follow(control, followers)
    except KeyboardInterrupt:
        say(f"detached; {f'{id_text(jobs[0])} continues' if len(jobs) == 1 else f'the {len(jobs)} jobs continue'}")
        return DETACHED
    for job in ended:
        if isinstance(job.state, Ended) and job.state.result != "done":
            say(f"{id_text(job)} {end_text(control.store, job)}")
    return exit_code_of(ended[0]) if len(ended) == 1 else int(any(map(exit_code_of, ended)))
