"""What is promised to jobs that share GPUs: room for all of them, and no blame for what company did to one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.storm.checker import Evidence
from support.storm.memory import GIB, MIB, SHORT
from support.storm.stays import Stay, by_device, stays_of

RESERVE = 512 * MIB
"""Bytes of each device that are left alone where several share it."""
SHARED_FAILURES_ALLOWED = 2
"""How often company may cost a job an attempt before it runs alone."""


@dataclass(frozen=True)
class Sharing:
    """All stays of a storm, and who was there together."""

    evidence: Evidence
    stays: list[Stay]
    company: dict[tuple[int, int], list[Stay]]
    """By job and attempt, the others that had one of its devices at some moment of its stay."""

    def ran_short(self, stay: Stay) -> bool:
        """Whether an attempt itself wrote down that it found too little memory, and nobody had stopped it."""
        end = stay.end or {}
        return end.get("type") == "exited" and end.get("why", "exited") == "exited" and end["code"] == SHORT

    def takes_too_much(self, stay: Stay) -> bool:
        """Whether an attempt wants more than was set aside for it on one of its devices."""
        memory, sizes = self.evidence.memory.get(stay.job), self.evidence.sizes
        return memory is not None and any(memory.holds > (part or sizes[at]) for at, part in stay.parts.items())


def faults_of_sharing(evidence: Evidence) -> list[str]:
    """Everything that those who share were promised and did not get, in words."""
    if not evidence.sizes:
        return []
    stays = stays_of(evidence.record, evidence.sizes)
    sharing = Sharing(evidence, stays, _shared(stays))
    checks = (_room, _causes, _without_blame, _for_a_reason, _alone_at_last, _ends_for_want_of_memory)
    return [fault for check in checks for fault in check(sharing)]


def tally_of_sharing(evidence: Evidence) -> str:
    """Who shared and who ran short, in a few words."""
    stays = stays_of(evidence.record, evidence.sizes)
    parts = [stay for stay in stays if not stay.whole]
    together = sum(bool(others) for others in _shared(stays).values())
    short = [stay.end for stay in stays if stay.end and stay.end.get("cause")]
    spared = sum(bool(end.get("shared")) for end in short)
    return (
        f"{len(parts)} of {len(stays)} attempts had parts, {together} company; {len(short)} ran short, {spared} spared"
    )


def _shared(stays: list[Stay]) -> dict[tuple[int, int], list[Stay]]:
    found: dict[tuple[int, int], list[Stay]] = {stay.key: [] for stay in stays}
    for on in by_device(stays).values():
        there: list[Stay] = []
        for stay in on:
            there = [other for other in there if other.until > stay.since]
            for other in there:
                found[stay.key].append(other)
                found[other.key].append(stay)
            there.append(stay)
    return found


def _room(sharing: Sharing) -> Iterator[str]:
    """At no moment more is set aside on a device than it has, and whoever has all of it is alone."""
    for device, on in by_device(sharing.stays).items():
        size = sharing.evidence.sizes[device]
        there: list[Stay] = []
        for stay in on:
            there = [*(other for other in there if other.until > stay.since), stay]
            parts = [other.parts[device] for other in there]
            names = [other.key for other in there]
            if len(parts) > 1 and None in parts:
                yield f"attempts {names} on {device} together, though one of them has all of it"
            elif (taken := sum(part or 0 for part in parts)) > size - (RESERVE if len(parts) > 1 else 0):
                yield f"attempts {names} have {taken / GIB:.2f} GiB of {device} together"


def _causes(sharing: Sharing) -> Iterator[str]:
    """Who ran out of memory is known to have, and nobody else is."""
    for stay in sharing.stays:
        told = (stay.end or {}).get("cause", "")
        if told != ("oom" if sharing.ran_short(stay) else ""):
            yield f"attempt {stay.key} ended by {stay.end}, which tells of {told or 'no shortage'}"


def _without_blame(sharing: Sharing) -> Iterator[str]:
    """A shortage in company is told as one, so that it costs no retry."""
    for stay in filter(sharing.ran_short, sharing.stays):
        assert stay.end is not None
        others = sharing.company[stay.key]
        if others and not stay.end.get("shared"):
            yield f"attempt {stay.key} ran out of memory beside {[other.key for other in others]}, told as alone"


def _for_a_reason(sharing: Sharing) -> Iterator[str]:
    """What keeps to what was set aside for it finds that, unless it meets one that takes more than its part."""
    for stay in filter(sharing.ran_short, sharing.stays):
        culprits = [stay, *sharing.company[stay.key]]
        if not any(sharing.takes_too_much(each) for each in culprits):
            yield f"attempt {stay.key} ran out of memory, though all who were there kept to their parts"


def _alone_at_last(sharing: Sharing) -> Iterator[str]:
    """A job that ran out of memory twice without blame has a device for itself from then on."""
    shared = {stay.key for stay in sharing.stays if not stay.whole}
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
    last = {stay.job: stay for stay in sharing.stays}
    for job in [job for job in last if evidence.record.jobs[job].state == "oom"]:
        if others := sharing.company[last[job].key]:
            yield f"job {job} ended as too large for a device that it had shared with {[each.key for each in others]}"
        memory = evidence.memory.get(job)
        if memory is None or memory.holds <= max(evidence.sizes.values()):
            yield f"job {job} ended as too large for a device, though it is not"
