"""`stoker retry`: run jobs again that are over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import click
import msgspec

from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import controlling, wants_json
from stoker.cli.views.plain import Deed, deed, report_of, tell
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, id_text
from stoker.core.requests import Again
from stoker.core.text import outcome, printable
from stoker.core.units import count_text, parse_since
from stoker.queue.control import (
    Control,
    Unheard,
    abandoned,
    ask,
    carry_out,
    opened,
    skipped_because,
    specs_in_the_queue,
    warn,
)
from stoker.queue.edit import Rewriter, changed_resources, last_time
from stoker.queue.local_time import LocalZone
from stoker.queue.select import find, jobs_in_order
from stoker.store import queries
from stoker.store.engine_lock import QUEUE

DAY = 86400.0


@click.command(name="retry")
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--failed", is_flag=True, help="Of these jobs, those that did not succeed; else of all of the last day.")
@click.option("--since", metavar="WHEN", help="With --failed: what ended since then, for example 2h, 08:00 or 7d.")
@click.option("--only", is_flag=True, help="Leave alone what was skipped because of these jobs.")
@click.option(
    "-m", "--vram", metavar="+20%|SIZE|auto|all", help="More GPU memory than before, another size, or what is learnt."
)
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@controlling
def command(
    *,
    ids: tuple[str, ...],
    failed: bool,
    since: str | None,
    only: bool,
    vram: str | None,
    dry_run: bool,
    as_json: bool,
    sim: bool,
) -> int:
    """Run jobs again that are over: the same id and command, a new run with a log file of its own.

    Jobs that were skipped because of these are queued again with them, unless you say --only. --failed means failed,
    timeout, oom, lost and skipped: of the jobs named, or else of all jobs of the queue that ended in the last 24 hours.
    Jobs of a foreground run that is gone become jobs of the queue. `all` is all that is over.

    \b
      stoker retry 12                job 12, or all tasks of array 12
      stoker retry --failed          what failed in the last 24 hours
      stoker retry 12 --vram +20%    with more GPU memory than the last time
    """
    if not ids and not failed:
        raise UsageError("there is nothing to run again", "name jobs, or say --failed")
    if since is not None and (ids or not failed):
        raise UsageError("--since is for --failed without ids", f"write it as --failed --since {since}")
    with opened(sim) as control:
        found = _chosen(control, ids, failed=failed) if ids else _failed_of_late(control, since)
        if not found and ids:
            warn("nothing has failed" if failed else "nothing is over")
        along = [] if only else skipped_because(control.store, found)
        wishes = [*_wishes(control, found, vram), *_wishes(control, along, None)]
        deeds = _forecast(wishes) if dry_run else _retry(control, wishes)
        return tell(report_of("retry", deeds, dry_run=dry_run), as_json=wants_json(as_json))


def _chosen(control: Control, ids: Sequence[str], *, failed: bool) -> list[Job]:
    named = find(control.store, ids, "ended")
    jobs = jobs_in_order(control.store, queries.failed_among(control.store, named) if failed else named)
    for job in jobs:
        if not isinstance(job.state, Ended):
            shown = id_text(job)
            hint = f"stoker cancel {shown} ends it; with --failed only those are meant that did not succeed"
            raise UsageError(f"{shown} is not over yet", hint)
    return jobs


def _failed_of_late(control: Control, since: str | None) -> list[Job]:
    now = time.time()
    begin = now - DAY if since is None else parse_since(since, now, LocalZone())
    when = "of the last 24 h" if since is None else f"since {since}"
    failed = queries.failed_since(control.store, QUEUE, begin)
    if failed:
        warn(f"{count_text(len(failed), 'failed job')} {when}")
    else:
        warn(f"there is no failed job {when}; --since 7d looks further back")
    return jobs_in_order(control.store, failed)


class Request(NamedTuple):
    """A job that is to run again, and what is said of its memory where that changes."""

    job: Job
    request: Again
    said: str = ""


def _wishes(control: Control, jobs: Sequence[Job], vram: str | None) -> list[Request]:
    rewriter = Rewriter(control)
    left = abandoned(control, jobs)
    return [_wish(control, rewriter, job, vram, was_left=job.id in left) for job in jobs]


def _wish(control: Control, rewriter: Rewriter, job: Job, vram: str | None, *, was_left: bool) -> Request:
    spec, said = specs_in_the_queue(control, job.spec) if was_left else job.spec, ""
    if vram is not None:
        resources, said = changed_resources(spec.resources, vram, last_time(control.store, job, rewriter.devices))
        spec = msgspec.structs.replace(spec, resources=resources)
    if was_left or vram is not None:
        rewriter.refuse_impossible(job, spec.resources)
    return Request(job, Again(job.id, spec if spec != job.spec else None), f"; {said}" if said else "")


def _retry(control: Control, wishes: Sequence[Request]) -> list[Deed]:
    requests = {wish.job.id: wish.request for wish in wishes}
    left = [[requests[job.id] for job in round_] for round_ in rounds([wish.job for wish in wishes])]
    while left:
        try:
            carry_out(control, left.pop(0))
        except Unheard:  # whoever comes next shall find all of it
            ask(control.paths, control.store, list(chain(*left)), time.time())
            raise
    after = jobs_in_order(control.store, [wish.job.id for wish in wishes])
    return [_result(wish, now) for wish, now in zip(wishes, after, strict=True)]


def rounds(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs in the order of their ids, but those behind an array only when the array is known to wait again."""
    levels: dict[int, int] = {}
    of_arrays: dict[int, int] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        behind = [
            of_arrays.get(one.target, -1) + 1 if one.array else levels.get(one.target, 0) for one in job.spec.after
        ]
        levels[job.id] = max(behind, default=0)
        if job.array:
            of_arrays[job.array] = max(levels[job.id], of_arrays.get(job.array, 0))
    ordered = sorted(jobs, key=lambda job: (levels[job.id], job.id))
    for _, members in groupby(ordered, key=lambda job: levels[job.id]):
        yield list(members)


def _forecast(wishes: Sequence[Request]) -> list[Deed]:
    return [
        deed(job, job, f"would run {id_text(job)} again (was {_how(job)}{said}): {printable(job.command.text)}")
        for job, _, said in wishes
    ]


def _result(wish: Request, after: Job) -> Deed:
    before, shown = wish.job, id_text(wish.job)
    if isinstance(after.state, Ended) and after.attempts == before.attempts:
        note = f": {printable(after.state.note)}" if after.state.note else ""
        return deed(before, after, f"{shown} is {outcome(after.state)} again{note}", refused=True)
    return deed(before, after, f"{shown} is queued again (was {_how(before)}{wish.said})")


def _how(job: Job) -> str:
    assert isinstance(job.state, Ended)
    return outcome(job.state)
