"""Whether the state directory is in a good place, and has room."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stoker.checkup.verdict import Subject, Verdict, note, ok, problem
from stoker.core.units import size_text
from stoker.places import NETWORK_FILE_SYSTEMS, file_system_of

SCARCE = 2**30
"""Bytes of free space below which a full disk is near..."""
GONE = 64 * 2**20
"""... and below which it is as good as full."""
_ELSEWHERE = "set STOKER_STATE to a directory on a local disk"


def look_at_place(subject: Subject, mountinfo: str = "/proc/self/mountinfo") -> Iterator[Verdict]:
    """The file system of the queue."""
    places = subject.places
    if places.note:
        yield note("state", places.note, "nothing has to be done; STOKER_STATE chooses another local directory")
        return
    kind = file_system_of(places.state, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        yield problem("state", f"{places.state} is on {kind}, where a queue is not safe", _ELSEWHERE)
    else:
        yield ok("state", f"{places.state} is on {kind}")


def look_at_space(subject: Subject) -> Iterator[Verdict]:
    """Room for the queue and the logs."""
    status = os.statvfs(subject.places.state)
    yield _space(status.f_bavail * status.f_frsize, str(subject.places.state))
    if status.f_files and status.f_favail < 1000:
        yield problem("disk", f"only {status.f_favail} more files fit on the disk of the queue", "remove some there")


def _space(free: int, where: str) -> Verdict:
    text = f"{size_text(free)} free for {where}"
    if free < GONE:
        return problem("disk", text, "free some space there: jobs and their ends cannot be recorded on a full disk")
    if free < SCARCE:
        return note("disk", text, "free some space there before it is full")
    return ok("disk", text)
