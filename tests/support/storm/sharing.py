"""The promises to jobs that share GPUs: room for all of them, and no blame for failures that a co-tenant caused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.storm.checker import Evidence
from support.storm.device_use import DeviceUse, by_device, device_uses
from support.storm.memory import GIB, MIB, SHORT

RESERVE = 512 * MIB
"""Bytes of each device that are left alone where several share it."""
SHARED_FAILURES_ALLOWED = 2
"""How often company may cost a job an attempt before it runs alone."""


@dataclass(frozen=True)
class Sharing:
    """All attempts of a storm on their devices, and which of them were there together."""

    evidence: Evidence
    uses: list[DeviceUse]
    company: dict[tuple[int, int], list[DeviceUse]]
    """By job and attempt, the others that had one of its devices at the same time."""

    def ran_short(self, use: DeviceUse) -> bool:
        """Whether an attempt itself wrote down that it found too little memory, and nobody had stopped it."""
        end = use.end or {}
        return end.get("type") == "exited" and end.get("why", "exited") == "exited" and end["code"] == SHORT

    def takes_too_much(self, use: DeviceUse) -> bool:
        """Whether an attempt wants more than was set aside for it on one of its devices."""
        memory, sizes = self.evidence.memory.get(use.job), self.evidence.sizes
        return memory is not None and any(memory.holds > (part or sizes[at]) for at, part in use.parts.items())


def faults_of_sharing(evidence: Evidence) -> list[str]:
    """Everything that those who share were promised and did not get, in words."""
    if not evidence.sizes:
        return []
    uses = device_uses(evidence.record, evidence.sizes)
    sharing = Sharing(evidence, uses, _shared(uses))
    checks = (_room, _causes, _without_blame, _for_a_reason, _alone_at_last, _ends_for_want_of_memory)
    return [fault for check in checks for fault in check(sharing)]


def tally_of_sharing(evidence: Evidence) -> str:
    """Who shared and who ran short, in a few words."""
    uses = device_uses(evidence.record, evidence.sizes)
    parts = [use for use in uses if not use.whole]
    together = sum(bool(others) for others in _shared(uses).values())
    short = [use.end for use in uses if use.end and use.end.get("cause")]
    spared = sum(bool(end.get("shared")) for end in short)
    return (
        f"{len(parts)} of {len(uses)} attempts had parts, {together} company; {len(short)} ran short, {spared} spared"
    )


def _shared(uses: list[DeviceUse]) -> dict[tuple[int, int], list[DeviceUse]]:
    shared: dict[tuple[int, int], list[DeviceUse]] = {use.key: [] for use in uses}
    for on in by_device(uses).values():
        there: list[DeviceUse] = []
        for use in on:
            there = [other for other in there if other.until > use.since]
            for other in there:
                shared[use.key].append(other)
                shared[other.key].append(use)
            there.append(use)
    return shared


def _room(sharing: Sharing) -> Iterator[str]:
    """At no moment more is set aside on a device than it has, and whoever has all of it is alone."""
    for device, on in by_device(sharing.uses).items():
        size = sharing.evidence.sizes[device]
        there: list[DeviceUse] = []
        for use in on:
            there = [*(other for other in there if other.until > use.since), use]
            parts = [other.parts[device] for other in there]
            names = [other.key for other in there]
            if len(parts) > 1 and None in parts:
                yield f"attempts {names} on {device} together, though one of them has all of it"
            elif (taken := sum(part or 0 for part in parts)) > size - (RESERVE if len(parts) > 1 else 0):
                yield f"attempts {names} have {taken / GIB:.2f} GiB of {device} together"


def _causes(sharing: Sharing) -> Iterator[str]:
    """Who ran out of memory is known to have, and nobody else is."""
    for use in sharing.uses:
        told = (use.end or {}).get("cause", "")
        if told != ("oom" if sharing.ran_short(use) else ""):
            yield f"attempt {use.key} ended by {use.end}, which tells of {told or 'no shortage'}"


def _without_blame(sharing: Sharing) -> Iterator[str]:
    """A shortage in company is told as one, so that it costs no retry."""
    for use in filter(sharing.ran_short, sharing.uses):
        assert use.end is not None
        others = sharing.company[use.key]
        if others and not use.end.get("shared"):
            yield f"attempt {use.key} ran out of memory beside {[other.key for other in others]}, told as alone"


def _for_a_reason(sharing: Sharing) -> Iterator[str]:
    """An attempt that keeps to its reservation finds that memory, unless a co-tenant takes more than its part."""
    for use in filter(sharing.ran_short, sharing.uses):
        culprits = [use, *sharing.company[use.key]]
        if not any(sharing.takes_too_much(culprit) for culprit in culprits):
            yield f"attempt {use.key} ran out of memory, though all who were there kept to their parts"


def _alone_at_last(sharing: Sharing) -> Iterator[str]:
    """A job that ran out of memory twice without blame has a device for itself from then on."""
    shared = {use.key for use in sharing.uses if not use.whole}
    for job, events in sharing.evidence.record.events.items():
        number = spared = 0
        for event in events:
            number += event["type"] == "assigned"
            spared = 0 if event["type"] == "retried" else spared + _is_spared(event)
            if event["type"] == "assigned" and spared >= SHARED_FAILURES_ALLOWED and (job, number) in shared:
                yield f"attempt {job, number} shares its devices again after {spared} shortages in company"


def _is_spared(event: dict[str, object]) -> bool:
    return event["type"] == "exited" and event.get("cause") == "oom" and bool(event.get("shared"))


def _ends_for_want_of_memory(sharing: Sharing) -> Iterator[str]:
    """Only what fits on no device ends so, and only when it was alone."""
    evidence = sharing.evidence
    last = {use.job: use for use in sharing.uses}
    for job in [job for job in last if evidence.record.jobs[job].state == "oom"]:
        if others := sharing.company[last[job].key]:
            yield f"job {job} ended as too large for a device that it had shared with {[other.key for other in others]}"
        memory = evidence.memory.get(job)
        if memory is None or memory.holds <= max(evidence.sizes.values()):
            yield f"job {job} ended as too large for a device, though it is not"
