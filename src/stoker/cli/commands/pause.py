"""`stoker pause` and `stoker resume`: hold and release jobs, the queue, or GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import click

from stoker.app.control.actions import hold, preempt, release
from stoker.app.control.requests import Control, opened, start_for
from stoker.app.control.sentences import Effect
from stoker.app.jobs.select import find, find_queued, jobs_in_order
from stoker.cli.console import say, say_progress
from stoker.cli.options import StokerCommand, complete_jobs, controlling
from stoker.cli.screens.changes import report
from stoker.core.device import Device, Drain, resolve
from stoker.core.errors import UsageError
from stoker.core.job import Active, Job, id_text
from stoker.core.units import count_text
from stoker.ledger import Ledger
from stoker.ledger.coordinators import is_coordinator
from stoker.store.engine_lock import QUEUE, wake
from stoker.store.paths import Paths
from stoker.store.queries import drained_key, paused_key
from stoker.store.status_file import EngineStatus, read_status

PAUSED = "paused by you"
DRAINED = "drained by you"
FOR_ALL = click.option("--for-all", is_flag=True, help="With --gpu: for all users, as root or coordinator.")


@click.command(name="pause", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--queue", is_flag=True, help="Pause the whole queue: start no more jobs.")
@click.option(
    "--gpu", "gpus", metavar="IDS", help="Drain these GPUs: start no more jobs on them, for example 0,2 or 0-3."
)
@FOR_ALL
@click.option("--now", is_flag=True, help="With --gpu: your preemptible jobs on these GPUs give way at once.")
@controlling
def pause(
    ids: tuple[str, ...], *, queue: bool, gpus: str | None, for_all: bool, now: bool, as_json: bool, paths: Paths
) -> int:
    """Hold jobs, pause the queue, or drain GPUs; running jobs continue, except with --now.

    This lasts until `stoker resume`, even if the engine restarts. `all` means every waiting job.

    \b
      stoker pause 12 'vit-*'   hold jobs
      stoker pause --queue    start no more jobs
      stoker pause --gpu 3    drain a GPU, for your own queue only
      stoker pause --gpu 3 --now   preemptible jobs on it save and leave
      stoker pause --gpu 3 --for-all   drain it for all users, as root or coordinator
    """
    _check(ids, queue=queue, gpus=gpus, for_all=for_all)
    if now and gpus is None:
        raise UsageError("--now is for GPUs", "write it as --gpu N --now, or name jobs with stoker preempt")
    with opened(paths, say_progress) as control:
        notes = [_pause_queue(control)] if queue else []
        devices = _devices(control, gpus.split(",")) if gpus is not None else []
        notes += (
            _drain_for_all(control, devices) if for_all else [_drain(control, device, now=now) for device in devices]
        )
        jobs = find_queued(control.store, ids)
        results = hold(control, jobs) + (_send_away(control, devices) if now else [])
        if "all" in ids and not results:
            say("no waiting jobs to hold")
        return report("pause", results, notes, as_json=as_json)


@click.command(name="resume", cls=StokerCommand)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.option("--queue", is_flag=True, help="Resume the whole queue.")
@click.option("--gpu", "gpus", metavar="IDS", help="Use these GPUs again, for example 0,2 or 0-3.")
@FOR_ALL
@controlling
def resume(ids: tuple[str, ...], *, queue: bool, gpus: str | None, for_all: bool, as_json: bool, paths: Paths) -> int:
    """Release held jobs, resume the queue, or use drained GPUs again.

    It also moves jobs that an interrupted foreground run left waiting into the queue. `all` means all of both.

    \b
      stoker resume 12        release job 12
      stoker resume --queue   resume the queue
      stoker resume --gpu 3   use the GPU again
    """
    _check(ids, queue=queue, gpus=gpus, for_all=for_all)
    with opened(paths, say_progress) as control:
        notes = []
        if queue:
            was_paused = _unset(control, paused_key(QUEUE))
            notes.append("resumed the queue" if was_paused else "the queue was not paused")
        devices = _devices(control, gpus.split(",")) if gpus is not None else []
        notes += _use_for_all(control, devices) if for_all else [_use(control, device) for device in devices]
        jobs = jobs_in_order(control.store, find(control.store, ids))
        results = release(control, jobs, only_held="all" in ids)
        if "all" in ids and not results:
            say("no held jobs")
        return report("resume", results, notes, as_json=as_json)


# -- the queue and GPUs --------------------------------------------------------------------------


def _pause_queue(control: Control) -> str:
    if not _set(control, paused_key(QUEUE), PAUSED):
        return "the queue is already paused"
    running = len(control.store.active_jobs(QUEUE))
    others = f" ({count_text(running, 'running job')} not affected)" if running else ""
    return f"paused the queue{others}"


def _check(ids: Sequence[str], *, queue: bool, gpus: str | None, for_all: bool) -> None:
    if not ids and not queue and gpus is None:
        raise UsageError("no jobs given", "name jobs, --queue or --gpu N")
    if for_all and (gpus is None or ids or queue):
        raise UsageError("--for-all is for GPUs", "write it as --gpu N --for-all")
    if for_all and not is_coordinator(os.geteuid()):
        who = "only root and coordinators (see docs/lab.md) can drain GPUs for all users"
        raise UsageError(who, "without --for-all it is for your own queue")


def _drain_for_all(control: Control, devices: Sequence[Device]) -> list[str]:
    """Engines read the list within a second; it lasts until the ledger is emptied, as at a reboot."""
    ledger, now = _ledger(control), time.time()
    before = ledger.live().drained
    new = [device for device in devices if not all(name in before for name in device.claims)]
    ledger.agreements.drain({name: now for device in new for name in device.claims if name not in before})
    return [
        f"GPU {device.label} drained for all users: no new jobs"
        if device in new
        else f"GPU {device.label} is already drained for all users"
        for device in devices
    ]


def _use_for_all(control: Control, devices: Sequence[Device]) -> list[str]:
    ledger = _ledger(control)
    before = ledger.live().drained
    ledger.agreements.drain({name: None for device in devices for name in device.claims})
    after = ledger.live().drained
    return [_used_for_all(device, before, after) for device in devices]


def _used_for_all(device: Device, before: Mapping[str, Drain], after: Mapping[str, Drain]) -> str:
    if drain := _drain_of(device, after):
        return f"GPU {device.label} stays drained for all users by {drain.by}; only {_ended_by(drain)} can end this"
    return f"GPU {device.label} {'is no longer' if _drain_of(device, before) else 'was not'} drained for all users"


def _ledger(control: Control) -> Ledger:
    from stoker.app.views.summary import ledger_here

    return ledger_here(control.paths)


def _use(control: Control, device: Device) -> str:
    label, was_drained = device.label, _unset(control, drained_key(device.id))
    if drain := _drain_of(device, _ledger(control).live().drained):
        who = _ended_by(drain)
        return f"GPU {label} is drained for all users; only {who} can end this: stoker resume --gpu {label} --for-all"
    return f"GPU {label} is in use again" if was_drained else f"GPU {label} was not drained"


def _ended_by(drain: Drain) -> str:
    return drain.by if drain.by == "root" else f"{drain.by} or root"


def _drain_of(device: Device, drained: Mapping[str, Drain]) -> Drain | None:
    return next((drained[name] for name in device.claims if name in drained), None)


def _jobs_on(control: Control, devices: Sequence[Device]) -> list[Job]:
    """The user's jobs on devices, in order."""
    ids = {device.id for device in devices}
    active = [job for engine in control.store.engines_with_active_jobs() for job in control.store.active_jobs(engine)]
    there = [job for job in active if isinstance(job.state, Active) and not ids.isdisjoint(job.state.devices)]
    return sorted(there, key=lambda job: job.id)


def _send_away(control: Control, devices: Sequence[Device]) -> list[Effect]:
    """Let preemptible jobs on drained devices give way."""
    jobs = [job for job in _jobs_on(control, devices) if job.spec.preemptible]
    return preempt(control, jobs, 0, "its GPU is drained")


def _drain(control: Control, device: Device, *, now: bool) -> str:
    device_id, label = device.id, device.label
    if not _set(control, drained_key(device_id), DRAINED):
        return f"GPU {label} is already drained"
    staying = [id_text(job) for job in _jobs_on(control, [device]) if not (now and job.spec.preemptible)]
    running = f" ({', '.join(staying)} {'keeps' if len(staying) == 1 else 'keep'} running)" if staying else ""
    others = f"other users may use it (for all, as root: stoker pause --gpu {label} --for-all)"
    return f"GPU {label} drained for your own queue only: no new jobs{running}; {others}"


def _devices(control: Control, words: Sequence[str]) -> list[Device]:
    """The named devices; a label that several devices have means all of them."""
    from stoker.app.views.gpus import known_devices

    with known_devices(control.paths) as facts:
        status = facts.statuses.queue
    if status is None:  # there never was an engine, and simulated GPUs are those of one
        start_for(control, "it is needed to identify the GPUs")
        status = read_status(control.paths.status_file(QUEUE))
    assert status is not None, "an engine writes its status before it is ready"
    devices: dict[str, Device] = {}
    for name in (word for typed in words for word in _spread(typed, status)):
        same = [device for device in status.devices if device.label == name]
        wanted = {device.id for device in same} or {resolve(status.snapshot, name)}
        devices.update((device.id, device) for device in status.devices if device.id in wanted)
    return list(devices.values())


def _spread(word: str, status: EngineStatus) -> list[str]:
    """`0-3` as four words, unless a device is called so."""
    first, dash, last = word.strip().partition("-")
    named = any(device.label == word for device in status.devices)
    if named or not dash or not (first.isdecimal() and last.isdecimal()) or max(len(first), len(last)) > 4:
        return [word]
    if int(last) < int(first):
        raise UsageError(f"--gpu {word} is a reversed range", f"write it as {last}-{first}")
    return [str(number) for number in range(int(first), int(last) + 1)]


def _set(control: Control, key: str, note: str) -> bool:
    """Set something, unless it is set: then it keeps its time."""
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
