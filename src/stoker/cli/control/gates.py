"""The whole queue paused, and GPUs that take no new jobs: settings that outlive every engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stoker.cli.control.wishes import Control, start_for
from stoker.core.device_name import resolve
from stoker.core.errors import UsageError
from stoker.core.job import Active
from stoker.mail import drained_key, paused_key
from stoker.presence import QUEUE, ring
from stoker.published import View, read_view
from stoker.words import id_text

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
    for word in (each for typed in words for each in _spread(typed, view)):
        same = [device for device in view.devices if device.label == word]
        wanted = {device.id for device in same} or {resolve(view.snapshot, word)}
        found.update((device.id, device.label) for device in view.devices if device.id in wanted)
    return list(found.items())


def _spread(word: str, view: View) -> list[str]:
    """The devices of `0-3`, which is what ids of jobs look like, too."""
    first, dash, last = word.strip().partition("-")
    named = any(device.label == word for device in view.devices)
    if named or not dash or not (first.isdecimal() and last.isdecimal()) or max(len(first), len(last)) > 4:
        return [word]
    if int(last) < int(first):
        raise UsageError(f"--gpu {word} ends before it begins", f"write it as {last}-{first}")
    return [str(number) for number in range(int(first), int(last) + 1)]


def _view(control: Control) -> View:
    """What the engine sees; one is started where none was there yet."""
    view = read_view(control.places.bulletin(QUEUE))
    if view is None:
        start_for(control, "which GPUs there are is not known without one")
        view = read_view(control.places.bulletin(QUEUE))
    assert view is not None, "an engine shows what it sees before it is ready"
    return view


def _set(control: Control, key: str, note: str) -> bool:
    """Set something that was not set; what was set keeps its moment."""
    if key in control.store.settings():
        return False
    control.store.put_setting(key, {"note": note, "at": time.time()})
    ring(control.places, QUEUE)
    return True


def _unset(control: Control, key: str) -> bool:
    there = key in control.store.settings()
    if there:
        control.store.put_setting(key, None)
        ring(control.places, QUEUE)
    return there
