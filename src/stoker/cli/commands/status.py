"""`stoker status`: the GPUs, what runs on them, what waits and why."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import click
from msgspec.structs import replace

from stoker.app.views.engines import EngineStatuses, read_statuses
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.job import JobLine
from stoker.app.views.model import FEW, Status
from stoker.app.views.status import READ_ONLY, status_of
from stoker.cli.console import say
from stoker.cli.options import (
    Screen,
    StokerCommand,
    complete_jobs,
    filter_options,
    refuse_states,
    refuse_view,
    screen_options,
    show_view,
    view_options,
    write_json,
    write_plain,
)
from stoker.core.errors import StokerError, UsageError
from stoker.core.outcomes import OPEN
from stoker.core.units import count_text
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.filters import NO_FILTER, Filter, counts_of_open
from stoker.store.paths import Paths, host_name

MOST_LINES = 200
"""How many waiting jobs are read without --all, and lines of jobs that were named."""
AROUND_TABLE_LINES = 4
"""Lines of a screen for the heading, the titles of a table, the note below it and the prompt."""


@click.command(name="status", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_jobs)
@click.option("-a", "--all", "everything", is_flag=True, help="Show every job, and every task of an array.")
@click.option("--hooks", "on_finish_jobs", is_flag=True, help="Also jobs of on_finish and --notify.")
@click.option(
    "--environment", is_flag=True, help="With ids: show the environment variables of the jobs, without secrets."
)
@view_options
@click.option("-w", "--watch", is_flag=True, help="Follow the queue live on a full screen; same as: stoker top.")
@click.option("--by-group", "by", flag_value="group", help="Show job and GPU counts per group.")
@click.option("--by-user", "by", flag_value="user", help="Show job and GPU counts per user of this machine.")
@filter_options
@screen_options
def command(
    *,
    ids: tuple[str, ...],
    everything: bool,
    on_finish_jobs: bool,
    environment: bool,
    watch: bool,
    by: str | None,
    chosen: Filter,
    screen: Screen,
    view: str | None = None,
) -> int:
    """Show GPUs, running and waiting jobs (default command); with ids, all details of a few jobs, or a table of many.

    \b
      stoker status                   GPUs and jobs; same as: stoker
      stoker status 12                everything about job 12
      stoker status --tag sweep=3 --state running
      stoker status --json            for programs
    """
    if by and (ids or (by == "user" and chosen != NO_FILTER)):
        raise UsageError(f"--by-{by} counts all jobs", "leave out the ids" if ids else "leave out the filters")
    if view:
        refuse_view(view, ids, others=watch or by is not None or chosen != NO_FILTER)
    if watch:
        return _watch(ids, by, chosen, screen)
    paths = screen.paths
    if not engine_lives(paths, QUEUE) or len(paths.everywhere) > 1:
        _revive(paths)
    if view:
        return show_view(view, _chosen_ids(paths, ids, chosen) if ids else [], screen, everything=everything)
    if ids:
        _show_jobs(paths, ids, chosen, screen, everything=everything, environment=environment)
        return 0
    refuse_states(chosen, OPEN, "stoker history")
    with read_facts(paths, _statuses(paths)) as facts:
        limit = None if everything else MOST_LINES
        status = status_of(
            facts, host_name(), limit, each_task=everything, on_finish_jobs=on_finish_jobs, chosen=chosen
        )
        if paths.page_server("web").exists():
            from stoker.store.web_server import web_address

            status = replace(status, web=web_address(paths))
        if by:
            status = _with_summary(status, facts, paths, by, chosen)
    _show_queue(paths, status, screen, by, everything=everything)
    return 0


def _chosen_ids(paths: Paths, words: Sequence[str], chosen: Filter) -> Sequence[int]:
    from stoker.app.views.job_details import selected_ids

    with read_facts(paths) as facts:
        return selected_ids(facts, words, chosen)


def _revive(paths: Paths) -> None:
    from stoker.app.service.engine_status import revive  # it loads what starts engines

    if notice := revive(paths):
        say(notice)


def _statuses(paths: Paths) -> EngineStatuses:
    """Those of the engines; without one, GPUs and their holders as driver and ledger show them."""
    now = time.time()
    statuses = read_statuses(paths, now)
    if statuses.lives or statuses.runs:
        return statuses
    from stoker.app.views.gpus import probed

    return replace(statuses, probe=probed(paths, statuses, now))


def _watch(ids: Sequence[str], by: str | None, chosen: Filter, screen: Screen) -> int:
    if ids or by:
        raise UsageError("-w follows the whole queue", f"leave out {'the ids' if ids else f'--by-{by}'}")
    from stoker.cli.top import show_top

    return show_top(screen.paths, chosen=chosen)


def _with_summary(status: Status, facts: QueueFacts, paths: Paths, by: str, chosen: Filter) -> Status:
    from stoker.app.views.summary import group_lines, ledger_here, user_lines

    if by == "group":
        return replace(status, groups=group_lines(facts, chosen))
    return replace(status, users=user_lines(facts, ledger_here(paths).live()))


def _show_queue(paths: Paths, status: Status, screen: Screen, by: str | None, *, everything: bool) -> None:
    """Each form of output loads only what it needs."""
    if screen.form == "json":
        write_json(status)
    elif screen.form == "plain":
        _write_plain(status, screen, by)
    else:
        from stoker.cli.screens.status import render_status
        from stoker.cli.screens.text import write_lines

        width, height = screen.size
        write_lines(render_status(status, width, None if everything else height, screen.typed), screen.color)
        if not status.jobs and not paths.is_simulated and (count := _open_jobs(paths.other)):
            say(f"{count_text(count, 'job')} in the queue of the simulated GPUs: stoker --sim")


def _open_jobs(paths: Paths) -> int:
    """How many jobs of a queue are not over; 0 where it does not exist or cannot be read."""
    from stoker.store.writer import open_store

    with contextlib.suppress(StokerError, OSError):
        if paths.database.exists():
            with contextlib.closing(open_store(paths)) as store:
                return sum(counts_of_open(store, NO_FILTER).values())
    return 0


def _write_plain(status: Status, screen: Screen, by: str | None) -> None:
    """The lines are for a program, so notes on them go to standard error."""
    from stoker.cli.screens.plain import GROUP_COLUMNS, JOB_COLUMNS, USER_COLUMNS, plain_lines

    if by:
        summary = (status.groups, GROUP_COLUMNS) if by == "group" else (status.users, USER_COLUMNS)
        write_plain(plain_lines(*summary))
        return
    write_plain(plain_lines(status.jobs, JOB_COLUMNS))
    if hidden := status.hidden.waiting + status.hidden.held:
        say(f"{hidden} more waiting (stoker status{screen.typed} -a)")
    if READ_ONLY in status.notes:
        say(READ_ONLY)
    if status.engine.silence:
        say(status.engine.silence)


def _show_jobs(
    paths: Paths, words: Sequence[str], chosen: Filter, screen: Screen, *, everything: bool, environment: bool
) -> None:
    from stoker.app.views.job_details import SelectedJobs, details_of_all, selected_ids
    from stoker.app.views.pages import SelectedLines, first_lines_of, lines_of, selected_lines

    width, height = screen.size
    with read_facts(paths) as facts:
        ids = selected_ids(facts, words, chosen)
        selected: SelectedJobs | SelectedLines | list[JobLine]
        if screen.form == "plain":
            is_long = len(ids) > MOST_LINES and not everything
            selected = first_lines_of(facts, ids, MOST_LINES) if is_long else lines_of(facts, ids)
        elif screen.form == "json" or len(ids) <= FEW:
            selected = details_of_all(facts, paths, ids, environment=environment, compare=True)
        else:
            room = None if everything else max(1, height - AROUND_TABLE_LINES)
            selected = selected_lines(facts, ids, room, each_task=everything)
    # The queue is closed: a reader that is slow to read the output must not keep it open.
    if isinstance(selected, list):
        from stoker.cli.screens.plain import JOB_COLUMNS, plain_lines

        write_plain(plain_lines(selected, JOB_COLUMNS))
        if hidden := len(ids) - sum(line.tasks for line in selected):
            say(f"{count_text(hidden, 'more job')} of {len(ids)} (stoker status{screen.typed} -a ID...)")
    elif screen.form == "json":
        write_json(selected)
    else:
        from stoker.cli.screens.job import render_jobs, render_selected
        from stoker.cli.screens.text import write_lines

        if isinstance(selected, SelectedJobs):
            lines = render_jobs(selected, width, screen.typed)
        else:
            lines = render_selected(selected, width, screen.typed, simulated=paths.is_simulated)
        write_lines(lines, screen.color)
