"""States and results of jobs: which are active, waiting or failures, their tones, and Slurm's codes for them."""

from __future__ import annotations

from typing import Literal, get_args

Result = Literal["done", "failed", "oom", "timeout", "cancelled", "stopped", "skipped", "lost"]
"""How a job ended. `stopped`: a sweep ended it early; `skipped`: a job that it depends on failed."""
JobWord = Literal["queued", "held", "blocked", "scheduled", "starting", "running", "stopping", Result]
"""The state of a job as users read it."""

WAITING: tuple[JobWord, ...] = ("queued", "blocked", "scheduled")
"""A job waits by itself; a user has to release a held one."""
ACTIVE: tuple[JobWord, ...] = ("starting", "running", "stopping")
"""A worker has the job."""
OPEN: tuple[JobWord, ...] = (*WAITING, "held", *ACTIVE)
RESULTS: tuple[Result, ...] = get_args(Result)

FAILURES: tuple[Result, ...] = ("failed", "oom", "timeout", "lost")
"""A user or a sweep wanted all other ends, or the failure of another job caused them."""
RETRIED: tuple[Result, ...] = tuple(result for result in FAILURES if result != "lost")
"""Failures that --retries and --retry-on are about; a lost job is queued again anyway."""
GOOD_RESULTS: tuple[Result, ...] = ("done", "stopped")
"""Results of jobs that did not fail: the rule of a sweep ends a job early because it knows enough."""
CancelResult = Literal["cancelled", "stopped"]
"""Result of a job that was asked to end: by a user or program, or early by the rule of a sweep."""

Tone = Literal["active", "waiting", "held", "good", "bad", "faint"]
TONES: dict[JobWord, Tone] = {
    **dict.fromkeys(WAITING, "waiting"),
    "held": "held",
    **dict.fromkeys(ACTIVE, "active"),
    **dict.fromkeys(RESULTS, "faint"),
    **dict.fromkeys(FAILURES, "bad"),
    "done": "good",
}
"""How a screen with many colours shows a state; a terminal has fewer."""

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
