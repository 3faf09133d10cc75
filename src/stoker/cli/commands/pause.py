"""`stoker pause`: hold jobs, the queue or a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from stoker.cli.completion import complete_jobs
from stoker.cli.output_options import controlling, wants_json
from stoker.cli.views.plain import Deed, deed, report_of, tell, word
from stoker.core.device import resolve
from stoker.core.errors import UsageError
from stoker.core.job import Active, Ended, Job, OnHold, Queued, Waiting, id_text
from stoker.core.requests import Hold
from stoker.queue.control import Control, carry_out, opened, start_for, warn
from stoker.queue.select import find, jobs_in_order
from stoker.store.engine_lock import QUEUE, wake
from stoker.store.queries import drained_key, paused_key
from stoker.store.status_file import EngineStatus, read_status

PAUSED = "paused by you"

DRAINED = "drained by you"


def pause_queue(control: Control) -> str:
    """Let nothing of the queue start; what runs goes on."""
    if not _set(control, paused_key(QUEUE), PAUSED):
        return "the queue is paused already"
    running = len(control.store.active_jobs(QUEUE))
    goes_on = f"; {running} running {'job goes' if running == 1 else 'jobs go'} on" if running else ""
    return f"paused the queue{goes_on}"


def resume_queue(control: Control) -> str:
    """Let jobs of the queue start again."""
    return "resumed the queue" if _unset(control, paused_key(QUEUE)) else "the queue was not paused"


def drain(control: Control, words: Sequence[str]) -> list[str]:
    """Let nothing new start on these GPUs."""
    return [_drain_one(control, device_id, label) for device_id, label in _devices(control, words)]


def undrain(control: Control, words: Sequence[str]) -> list[str]:
    """Let jobs start on these GPUs again."""
    return [
        f"GPU {label} takes jobs again" if _unset(control, drained_key(device_id)) else f"GPU {label} was not drained"
        for device_id, label in _devices(control, words)
    ]


def _drain_one(control: Control, device_id: str, label: str) -> str:
    if not _set(control, drained_key(device_id), DRAINED):
        return f"GPU {label} is drained already"
    there = [
        id_text(job)
        for engine in control.store.engines_with_active_jobs()
        for job in control.store.active_jobs(engine)
        if isinstance(job.state, Active) and device_id in job.state.devices
    ]
    goes_on = f"; {', '.join(there)} {'goes' if len(there) == 1 else 'go'} on there until the end" if there else ""
    return f"GPU {label} takes no new jobs{goes_on}"


def _devices(control: Control, words: Sequence[str]) -> list[tuple[str, str]]:
    """Id and label of each device; a name that was given several times means all that have it."""
    view = _view(control)
    found: dict[str, str] = {}
    for name in (each for typed in words for each in _spread(typed, view)):
        same = [device for device in view.devices if device.label == name]
        wanted = {device.id for device in same} or {resolve(view.snapshot, name)}
        found.update((device.id, device.label) for device in view.devices if device.id in wanted)
    return list(found.items())


def _spread(word: str, view: EngineStatus) -> list[str]:
    """The devices of `0-3`, which is what ids of jobs look like, too."""
    first, dash, last = word.strip().partition("-")
    named = any(device.label == word for device in view.devices)
    if named or not dash or not (first.isdecimal() and last.isdecimal()) or max(len(first), len(last)) > 4:
        return [word]
    if int(last) < int(first):
        raise UsageError(f"--gpu {word} ends before it begins", f"write it as {last}-{first}")
    return [str(number) for number in range(int(first), int(last) + 1)]


def _view(control: Control) -> EngineStatus:
    """What the engine sees; one is started where none was there yet."""
    view = read_status(control.paths.status_file(QUEUE))
    if view is None:
        start_for(control, "which GPUs there are is not known without one")
        view = read_status(control.paths.status_file(QUEUE))
    assert view is not None, "an engine shows what it sees before it is ready"
    return view


def _set(control: Control, key: str, note: str) -> bool:
    """Set something that was not set; what was set keeps its moment."""
    if key in control.store.settings():
        return False
    control.store.put_setting(key, {"note": note, "at": time.time()})
    wake(control.paths, QUEUE)
    return True


def _unset(control: Control, key: str) -> bool:
    there = key in control.store.settings()
    if there:
        control.store.put_setting(key, None)
        wake(control.paths, QUEUE)
    return there


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
