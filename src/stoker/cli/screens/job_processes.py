"""Which of our jobs a process on a device belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_ANCESTORS = 32
_MARK = re.compile(rb"(?:\A|\0)STOKER_JOB_ID=(\d{1,18})\0")


def jobs_of_processes(pids: Iterable[int]) -> dict[int, int | None]:
    """The job of each process that still exists, None where it is nobody's of ours."""
    found = {pid: _job_of(pid) for pid in set(pids)}
    return {pid: job for pid, job in found.items() if job is not None or _parent(pid) is not None}


def _job_of(pid: int) -> int | None:
    """The job that it, or the nearest process above it that can be read, was started for."""
    above: int | None = pid
    for _ in range(MOST_ANCESTORS):
        if above is None or above <= 1:
            return None
        match = _MARK.search(_content(above, "environ"))
        if match:
            return int(match[1])
        above = _parent(above)
    return None


def _parent(pid: int) -> int | None:
    fields = _content(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _content(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # gone, or somebody else's
        return b""
