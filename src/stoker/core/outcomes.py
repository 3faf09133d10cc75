"""States and results of jobs: which of them are failures, and Slurm's codes for them."""

from __future__ import annotations

from typing import Literal

Result = Literal["done", "failed", "oom", "timeout", "cancelled", "stopped", "skipped", "lost"]
"""How a job ended. `stopped`: a sweep ended it early; `skipped`: a job that it depends on failed."""
JobWord = Literal["queued", "held", "blocked", "scheduled", "starting", "running", "stopping", Result]
"""The state of a job as users read it."""

FAILURES: tuple[Result, ...] = ("failed", "oom", "timeout", "lost")
"""A user or a sweep wanted all other ends, or the failure of another job caused them."""
RETRIED: tuple[Result, ...] = tuple(result for result in FAILURES if result != "lost")
"""Failures that --retries and --retry-on are about; a lost job is queued again anyway."""
GOOD_RESULTS: tuple[Result, ...] = ("done", "stopped")
"""Results of jobs that did not fail: the rule of a sweep ends a job early because it knows enough."""
CancelResult = Literal["cancelled", "stopped"]
"""Result of a job that was asked to end: by a user or program, or early by the rule of a sweep."""

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
