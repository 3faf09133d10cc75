"""`stoker resume`: let jobs go that are held or were left behind, the queue, or GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stoker.cli.commands.pause import resume_queue, undrain
from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import controlling, wants_json
from stoker.cli.views.plain import Deed, deed, report_of, tell, word
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, OnHold, Queued, id_text
from stoker.core.requests import Edit, Release, Request
from stoker.queue.control import Control, abandoned, carry_out, opened, specs_in_the_queue, start_for, warn
from stoker.queue.select import find, jobs_in_order
from stoker.store import queries
from stoker.store.engine_lock import QUEUE


@click.command(name="resume")
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--queue", is_flag=True, help="Let the whole queue go on.")
@click.option("--gpu", "gpus", metavar="IDS", help="Let jobs start on these GPUs again, for example 0,2 or 0-3.")
@controlling
def command(ids: tuple[str, ...], *, queue: bool, gpus: str | None, as_json: bool, sim: bool) -> int:
    """Let jobs start that were held, or that a dead run left waiting; the opposite of pause.

    `all` is all that is held and all that dead runs left; the queue goes on with what they left.

    \b
      stoker resume 12        let job 12 start
      stoker resume --queue   let the queue go on
      stoker resume --gpu 3   use the GPU again
    """
    if not ids and not queue and gpus is None:
        raise UsageError("there is nothing to resume", "name jobs, --queue or --gpu N")
    with opened(sim) as control:
        notes = [resume_queue(control)] if queue else []
        notes += undrain(control, gpus.split(",")) if gpus is not None else []
        deeds = _release(control, ids)
        if "all" in ids and not deeds:
            warn("nothing is held")
        if queries.is_expected(control.store, QUEUE):
            start_for(control, "the jobs are safe in the queue")
        return tell(report_of("resume", deeds, notes), as_json=wants_json(as_json))


def _release(control: Control, ids: Sequence[str]) -> list[Deed]:
    found = jobs_in_order(control.store, find(control.store, ids))
    left = abandoned(control, found)
    ready = [job for job in found if isinstance(job.state, OnHold) or _was_left(job, left)]
    found = ready if "all" in ids else found
    carry_out(control, [request for job in ready for request in _requests(control, job, left)])
    after = jobs_in_order(control.store, [job.id for job in found])
    return [_result(before, now, left) for before, now in zip(found, after, strict=True)]


def _was_left(job: Job, left: set[int]) -> bool:
    return isinstance(job.state, Queued) and job.id in left


def _requests(control: Control, job: Job, left: set[int]) -> list[Request]:
    spec = specs_in_the_queue(control, job.spec) if job.id in left else job.spec
    changed: list[Request] = [Edit(job.id, spec, job.name)] if spec != job.spec else []
    return [*changed, Release(job.id)]


def _result(before: Job, after: Job, left: set[int]) -> Deed:
    shown = id_text(before)
    if isinstance(before.state, Ended):
        said = f"{shown} is over ({word(before)}); stoker retry {shown} runs it again"
        return deed(before, after, said, refused=True)
    if _was_left(before, left):
        return deed(before, after, f"{shown} goes on in the queue; the run that had it is gone")
    if isinstance(before.state, OnHold):
        return deed(before, after, f"released {shown}")
    return deed(before, after, f"{shown} is not held; it is {word(after)}")
