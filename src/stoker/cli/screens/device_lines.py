"""The devices as lines of a screen: how much of each is held by our jobs, and who else is on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import DeviceLine, LeaseLine, Mark, Stranger, exactly, moment
from stoker.cli.screens.speeds import together
from stoker.core.device import Device, Process, Reading
from stoker.core.job import Active, Job, need_of
from stoker.core.terms import amount_on
from stoker.mail import drained_key
from stoker.words import id_text, text_for_json


class Holders(NamedTuple):
    """Who is on a device."""

    jobs: Sequence[Job]
    leases: Sequence[LeaseLine]
    strangers: Sequence[Process]
    used_by_ours: int


def device_lines(knowledge: Knowledge) -> list[DeviceLine]:
    """Every device that an engine knows, in its order."""
    on: dict[str, list[Job]] = {}
    for job, _ in knowledge.active:
        for device_id in job.state.devices if isinstance(job.state, Active) else ():
            on.setdefault(device_id, []).append(job)
    return [_device_line(device, on.get(device.id, []), knowledge) for device in knowledge.devices.values()]


def mark_of(value: Any) -> Mark | None:
    """What somebody set, as it is kept among the settings."""
    if not isinstance(value, dict):
        return None
    return Mark(text_for_json(str(value.get("note", ""))), moment(value.get("at")))


def _device_line(device: Device, jobs: Sequence[Job], knowledge: Knowledge) -> DeviceLine:
    reading = knowledge.views.reading(device.id)
    holders = _holders(device, reading, jobs, knowledge)
    ours, others = _amounts(device, reading, holders)
    return DeviceLine(
        id=text_for_json(device.id),
        label=text_for_json(device.label),
        model=text_for_json(device.model),
        kind=device.kind,
        memory_bytes=device.memory,
        used_bytes=reading.used,
        ours_bytes=ours,
        reserved_bytes=_reserved(device, jobs),
        others_bytes=others,
        utilisation_percent=reading.utilisation,
        temperature_celsius=reading.temperature,
        power_watts=reading.power,
        problem=text_for_json(reading.problem),
        drained=mark_of(knowledge.settings.get(drained_key(device.id))),
        jobs=[id_text(job) for job in jobs],
        leases=list(holders.leases),
        strangers=[_stranger(process) for process in holders.strangers],
        combined_speed=_together(holders, knowledge),
    )


def _holders(device: Device, reading: Reading, jobs: Sequence[Job], knowledge: Knowledge) -> Holders:
    whose = knowledge.jobs_by_process
    ids = {job.id for job in jobs}
    ours = [process for process in reading.processes if whose.get(process.pid) in ids]
    living = [process for process in reading.processes if process.pid in whose or process.owner != knowledge.user]
    leases = [lease for lease in _leases(device, knowledge) if not (jobs and lease.owner == knowledge.user)]
    strangers = [process for process in living if process not in ours and whose.get(process.pid) is None]
    return Holders(jobs, leases, strangers, sum(process.memory or 0 for process in ours))


def _leases(device: Device, knowledge: Knowledge) -> Iterator[LeaseLine]:
    for lease in knowledge.views.leases:
        claim = next((claim for claim in lease.claims if claim.name in device.claims), None)
        if claim is not None:
            owner, what = text_for_json(lease.owner), text_for_json(lease.what)
            yield LeaseLine(owner, lease.pid, what, claim.memory, exactly(lease.since))


def _amounts(device: Device, reading: Reading, holders: Holders) -> tuple[int, int]:
    """What is used by us and by others; what no visible process has is whose jobs are on the device."""
    used, ours = reading.used or 0, holders.used_by_ours
    theirs = sum(process.memory or 0 for process in holders.strangers)
    rest = max(0, used - ours - theirs)
    if holders.jobs and all(process.memory is not None for process in holders.strangers):
        ours += rest
    else:
        theirs += rest
    whole = device.memory or 0
    claimed = sum(whole if lease.memory_bytes is None else lease.memory_bytes for lease in holders.leases)
    return ours, max(theirs, min(claimed, whole))


def _reserved(device: Device, jobs: Sequence[Job]) -> int:
    whole = device.memory or 0
    amounts = [amount_on(need_of(job), device) for job in jobs]
    return min(whole, sum(whole if amount is None else amount for amount in amounts))


def _together(holders: Holders, knowledge: Knowledge) -> float | None:
    """Where others compute there too, ours say too little."""
    if holders.leases or not all(process.graphics for process in holders.strangers):
        return None
    return together(holders.jobs, knowledge.speeds) if len(holders.jobs) > 1 else None


def _stranger(process: Process) -> Stranger:
    owner, command = text_for_json(process.owner), text_for_json(process.command)
    return Stranger(process.pid, owner, command, process.memory, process.graphics)
