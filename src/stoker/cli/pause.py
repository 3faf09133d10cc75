"""`stoker pause`: hold jobs, pause the queue, or drain GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stoker.cli.control.deeds import Deed, deed, report_of, tell, word
from stoker.cli.control.gates import drain, pause_queue
from stoker.cli.control.wishes import Control, carry_out, controlling, opened, wants_json, warn
from stoker.cli.room.complete_ids import complete_jobs
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, OnHold, Queued, Waiting
from stoker.core.request import Hold
from stoker.finding import find, jobs_in_order
from stoker.words import id_text

NOTE = "held by you"


@click.command(name="pause")
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--queue", is_flag=True, help="Start nothing more of the whole queue.")
@click.option("--gpu", "gpus", metavar="IDS", help="Start nothing more on these GPUs, for example 0,2 or 0-3.")
@controlling
def command(ids: tuple[str, ...], *, queue: bool, gpus: str | None, as_json: bool, sim: bool) -> int:
    """Keep jobs from starting, or the whole queue, or drain GPUs; what runs goes on.

    It holds until `stoker resume`, whatever happens to the engine. `all` is all that waits.

    \b
      stoker pause 12 vit-*   hold jobs
      stoker pause --queue    nothing starts any more
      stoker pause --gpu 3    drain a GPU
    """
    if not ids and not queue and gpus is None:
        raise UsageError("there is nothing to pause", "name jobs, --queue or --gpu N")
    with opened(sim) as control:
        notes = [pause_queue(control)] if queue else []
        notes += drain(control, gpus.split(",")) if gpus is not None else []
        deeds = _hold(control, _meant(control, ids))
        if "all" in ids and not deeds:
            warn("nothing waits that could be held")
        return tell(report_of("pause", deeds, notes), as_json=wants_json(as_json))


def _meant(control: Control, ids: Sequence[str]) -> list[Job]:
    jobs = jobs_in_order(control.store, find(control.store, ids))
    return [job for job in jobs if isinstance(job.state, Queued)] if "all" in ids else jobs


def _hold(control: Control, found: Sequence[Job]) -> list[Deed]:
    carry_out(control, [Hold(job.id, NOTE) for job in found if isinstance(job.state, Waiting)])
    after = jobs_in_order(control.store, [job.id for job in found])
    return [_result(before, now) for before, now in zip(found, after, strict=True)]


def _result(before: Job, after: Job) -> Deed:
    shown = id_text(before)
    match before.state, after.state:
        case OnHold(), _:
            return deed(before, after, f"{shown} is held already")
        case Ended(), _:
            return deed(before, after, f"{shown} is over already ({word(before)})", refused=True)
        case Waiting(), OnHold():
            return deed(before, after, f"held {shown}")
        case Waiting(), Ended():
            return deed(before, after, f"{shown} has ended meanwhile ({word(after)})", refused=True)
        case _:
            since = "has started meanwhile" if isinstance(before.state, Waiting) else f"is {word(before)}"
            said = f"{shown} {since}: paused, it would keep its GPU and leave it idle"
            return deed(before, after, f"{said}; stoker cancel {shown}, and later stoker retry {shown}", refused=True)
