"""States and results of jobs: their words, and Slurm's codes for them."""

from __future__ import annotations

from typing import Literal

JobWord = Literal[
    "queued",
    "held",
    "blocked",
    "scheduled",
    "starting",
    "running",
    "stopping",
    "done",
    "failed",
    "oom",
    "timeout",
    "cancelled",
    "stopped",
    "skipped",
    "lost",
]

LETTERS: dict[JobWord, str] = {
    "queued": "PD",
    "held": "PD",
    "blocked": "PD",
    "scheduled": "PD",
    "starting": "CF",
    "running": "R",
    "stopping": "CG",
    "done": "CD",
    "failed": "F",
    "oom": "OOM",
    "timeout": "TO",
    "cancelled": "CA",
    "stopped": "CA",
    "skipped": "CA",
    "lost": "NF",
}
"""State codes of Slurm's squeue."""
