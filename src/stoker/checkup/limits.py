"""Whether the system lets the user start as many processes and open as many files as jobs need."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from stoker.checkup.verdict import Subject, Verdict, note, ok, problem

FEW_FILES = 256
FEW_PROCESSES = 200
"""Room for so many more processes is little: a data loader alone has dozens."""


def look_at_limits(_subject: Subject) -> Iterator[Verdict]:
    """`ulimit -n` and `ulimit -u`."""
    yield judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    uid = os.getuid()
    yield judge_processes(resource.getrlimit(resource.RLIMIT_NPROC)[0], _threads_of(uid), uid)


def judge_files(limit: int) -> Verdict:
    """The limit of open files in one process."""
    if limit != resource.RLIM_INFINITY and limit < FEW_FILES:
        return problem("limits", f"a process may open only {limit} files", "raise it: ulimit -n 4096")
    return ok("limits", f"a process may open {_text(limit)} files")


def judge_processes(limit: int, running: int, uid: int) -> Verdict:
    """The limit of all processes and threads of a user, which does not hold for root."""
    if limit == resource.RLIM_INFINITY or uid == 0:
        return ok("limits", "as many processes as the machine can take")
    text = f"{running} of {limit} processes and threads that you may have are running"
    if limit - running < FEW_PROCESSES // 4:
        return problem("limits", text, "raise the limit (ulimit -u), or end some: jobs cannot start")
    if limit - running < FEW_PROCESSES:
        return note("limits", text, "raise the limit: ulimit -u")
    return ok("limits", text)


def _threads_of(uid: int) -> int:
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    count += len(os.listdir(process / "task"))
    return count


def _text(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)
