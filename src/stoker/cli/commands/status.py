"""`stoker status`: the GPUs, what runs on them, what waits and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import Screen, screen_options, write_json, write_plain
from stoker.core.text import printable
from stoker.queue.engine_status import revive
from stoker.queue.knowledge import known
from stoker.queue.view_builder import status_of
from stoker.queue.view_model import Status
from stoker.store.engine_lock import version_notice
from stoker.store.paths import Paths, host_name, paths_here

MOST_LINES = 200
"""How many waiting jobs are read without --all."""


@click.command(name="status")
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_jobs)
@click.option("-a", "--all", "everything", is_flag=True, help="Every job, and every task of an array.")
@click.option("--hooks", "on_finish_jobs", is_flag=True, help="Hook commands too.")
@click.option("--environment", is_flag=True, help="With ids: the variables that the jobs get, without secrets.")
@screen_options
def command(ids: tuple[str, ...], everything: bool, on_finish_jobs: bool, environment: bool, screen: Screen) -> int:
    """The GPUs, what runs on them, what waits and why; of jobs that are named, everything.

    \b
      stoker status          the first screen; so does stoker alone
      stoker status 12       everything about job 12
      stoker status --json   for programs
    """
    paths = paths_here(screen.sim)
    for notice in filter(None, (revive(paths, os.environ.get("STOKER_SIM")), version_notice(paths))):
        print(f"stoker: {printable(notice)}", file=sys.stderr)
    if ids:
        _show_jobs(paths, ids, screen, everything=everything, environment=environment)
    else:
        _show_queue(paths, screen, everything=everything, on_finish_jobs=on_finish_jobs)
    return 0


def _show_queue(paths: Paths, screen: Screen, *, everything: bool, on_finish_jobs: bool) -> None:
    """Each form of output loads only what it needs."""
    limit = None if everything else MOST_LINES
    with known(paths, simulated=screen.sim) as knowledge:
        status = status_of(knowledge, host_name(), limit, each_task=everything, on_finish_jobs=on_finish_jobs)
    if screen.form == "json":
        write_json(status)
    elif screen.form == "plain":
        _write_plain(status, screen)
    else:
        from stoker.cli.views.status import render_status
        from stoker.cli.views.text import terminal_size, write_lines

        width, height = terminal_size(os.environ)
        write_lines(render_status(status, width, None if everything else height, screen.typed), screen.color)


def _write_plain(status: Status, screen: Screen) -> None:
    """The lines are for a program, so notes on them go to standard error."""
    from stoker.cli.views.plain import JOB_COLUMNS, plain_lines

    write_plain(plain_lines(status.jobs, JOB_COLUMNS))
    if hidden := status.hidden.waiting + status.hidden.held:
        print(f"stoker: {hidden} more waiting (stoker status{screen.typed} -a)", file=sys.stderr)
    if status.engine.silence:
        print(f"stoker: {status.engine.silence}", file=sys.stderr)


def _show_jobs(paths: Paths, words: Sequence[str], screen: Screen, *, everything: bool, environment: bool) -> None:
    from stoker.queue.job_view import read_jobs

    chosen = read_jobs(paths, words, simulated=screen.sim, environment=environment)
    if screen.form == "json":
        write_json(chosen)
    elif screen.form == "plain":
        from stoker.cli.views.plain import JOB_COLUMNS, plain_lines

        write_plain(plain_lines(chosen.jobs, JOB_COLUMNS))
    else:
        from stoker.cli.views.job import render_jobs
        from stoker.cli.views.text import terminal_size, write_lines

        width, height = terminal_size(os.environ)
        write_lines(render_jobs(chosen, width, None if everything else height, screen.typed), screen.color)
