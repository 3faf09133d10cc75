"""The jobs behind the processes on GPUs, by their environment in /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker.devices.interface import ancestors, parent_of, process_file

if TYPE_CHECKING:
    from stoker.core.parent import ParentAllocation

_MARK = re.compile(rb"(?:\A|\0)STOKER_JOB_ID=(\d{1,18})\0")


def jobs_of_processes(pids: Iterable[int]) -> dict[int, int | None]:
    """The job of each living process; None for a process that belongs to none of ours."""
    jobs = {pid: _job_of(pid) for pid in set(pids)}
    return {pid: job for pid, job in jobs.items() if job is not None or parent_of(pid) is not None}


def _job_of(pid: int) -> int | None:
    """The job id in the environment of the process, or of its nearest ancestor that has one."""
    marks = (_MARK.search(process_file(above, "environ")) for above in ancestors(pid))
    return next((int(mark[1]) for mark in marks if mark), None)


class JobElsewhere(NamedTuple):
    """A job of another queue of this user, by the environment of its first process."""

    pid: int
    name: str
    allocation: ParentAllocation


def jobs_elsewhere(workers: Path) -> list[JobElsewhere]:
    """This user's jobs with GPUs of the same ledger whose workers are elsewhere, each by its oldest process."""
    from stoker.core.parent import VARIABLE, read_parent  # few users have several queues

    ledger = os.environ.get("STOKER_LEDGER", "")
    jobs: dict[str, JobElsewhere] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        environment = process_file(pid, "environ")
        if VARIABLE.encode() not in environment:
            continue
        variables = dict(pair.partition("=")[::2] for pair in environment.decode(errors="replace").split("\0"))
        allocation = read_parent(variables.get(VARIABLE, ""))
        if allocation is None or variables.get("STOKER_LEDGER", "") != ledger:
            continue
        if Path(allocation.folder).parent != workers:
            jobs.setdefault(allocation.folder, JobElsewhere(pid, variables.get("STOKER_JOB_NAME", ""), allocation))
    return list(jobs.values())
