"""Locks that jobs inherit: while one is held, a process of a worker's jobs lives.

Standard library only: the forkserver needs it, and the engine before it has loaded anything else.
"""

from __future__ import annotations

import os

MARKER = "STOKER_WORKER"
"""Variable in every job's environment by which processes of a dead worker are found."""
READY, FAILED = b"+", b"!"
"""How messages of a template to the engine begin."""
INHERITED = "jobs"
"""The lock file in a worker's folder."""
NUMBERS = range(60, 64)
"""Descriptors of the locks in a job: beyond those that scripts use, and in the kernel's smallest table.

The first is that of the job's worker; inside a job that runs within another one, the outer job's comes first.
"""


def inherited_locks() -> list[int]:
    """Descriptors of the locks that this process inherited: it runs in a job."""
    return [number for number in NUMBERS if _leads_to(number).endswith(f"/{INHERITED}")]


def _leads_to(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
