"""`stoker cancel`: take jobs out of the queue, and stop those that run."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import click

from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import controlling, wants_json
from stoker.cli.views.plain import Deed, deed, report_of, tell, word
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, Queued, Stopping, id_text
from stoker.core.requests import Cancel
from stoker.queue.control import Control, carry_out, opened, warn
from stoker.queue.options import parse_grace
from stoker.queue.select import find, jobs_in_order

NOTE = "cancelled by you"


@click.command(name="cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_jobs)
@click.option("--signal", "number", metavar="NAME", help="Send this first in place of TERM, for example INT.")
@click.option("--grace", metavar="DUR", help="Time until KILL, in place of the job's own; like -t.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@controlling
def command(
    *, ids: tuple[str, ...], number: str | None, grace: str | None, dry_run: bool, as_json: bool, sim: bool
) -> int:
    """Take jobs out of the queue; those that run get TERM, and KILL after their grace.

    `all` is all that is not over, whoever runs it. A second cancel may shorten the grace.

    \b
      stoker cancel 12            job 12, or all tasks of array 12
      stoker cancel 12.3-7 vit-*  tasks, and jobs by their name
      stoker cancel last --signal INT --grace 2m
    """
    wish = Cancel(0, NOTE, None if grace is None else parse_grace(grace), parse_signal(number))
    with opened(sim) as control:
        found = jobs_in_order(control.store, find(control.store, ids))
        if not found:
            warn("nothing is left to cancel")
        deeds = [_forecast(job, wish) for job in found] if dry_run else _cancel(control, found, wish)
        return tell(report_of("cancel", deeds, dry_run=dry_run), as_json=wants_json(as_json))


def parse_signal(text: str | None) -> int:
    """The number of INT, SIGINT or 2; 0 where none is given."""
    if text is None:
        return 0
    name = text.upper().removeprefix("SIG")
    known = {each.name.removeprefix("SIG"): each.value for each in signal.Signals}
    known |= {str(value): value for value in known.values()}
    if name not in known:
        raise UsageError(f"--signal {text!r} is not a signal", "write it as INT, TERM, USR1 or a number")
    return known[name]


def _cancel(control: Control, found: Sequence[Job], wish: Cancel) -> list[Deed]:
    wishes = [Cancel(job.id, wish.note, wish.grace, wish.signal) for job in found if not isinstance(job.state, Ended)]
    carry_out(control, wishes)
    after = jobs_in_order(control.store, [job.id for job in found])
    return [_result(before, now, wish) for before, now in zip(found, after, strict=True)]


def _forecast(job: Job, wish: Cancel) -> Deed:
    if isinstance(job.state, Ended):
        return deed(job, job, _over(job))
    if isinstance(job.state, Queued):
        return deed(job, job, f"would cancel {id_text(job)} ({word(job)})")
    return deed(job, job, f"would stop {id_text(job)} ({word(job)}; {_how(job, wish)})")


def _result(before: Job, after: Job, wish: Cancel) -> Deed:
    shown = id_text(before)
    match before.state, after.state:
        case Ended(), _:
            said = _over(before)
        case _, Ended(result="cancelled"):
            said = f"cancelled {shown} (was {word(before)})"
        case _, Ended():
            said = f"{shown} ended by itself ({word(after)})"
        case Stopping(), _:
            said = f"{shown} is being stopped already; {_how(before, wish)}"
        case _:
            said = f"stopping {shown} (was {word(before)}; {_how(before, wish)})"
    return deed(before, after, said)


def _over(job: Job) -> str:
    return f"{id_text(job)} is over already ({word(job)})"


def _how(job: Job, wish: Cancel) -> str:
    grace = job.spec.grace if wish.grace is None else wish.grace
    first = signal.Signals(wish.signal).name.removeprefix("SIG") + " now, " if wish.signal else ""
    return f"{first}KILL after {grace:g}s"
