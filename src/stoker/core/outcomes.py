"""States and results of jobs: which are active, waiting or failures, their tones, and Slurm's codes for them."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

CancelResult = Literal["cancelled", "stopped"]
"""Result of a job that was asked to end: by a user or program, or early by a rule."""
AskedResult = Literal[CancelResult, "expired", "idle"]
"""The same, also by the engine: `expired` did not start in time, `idle` did not use its GPUs."""
Result = Literal["done", "failed", "oom", "timeout", "hung", AskedResult, "skipped", "lost"]
"""How a job ended. `stopped`: a program that judges it ended it early; `skipped`: a job that it depends on failed."""
JobStateName = Literal["queued", "held", "blocked", "scheduled", "starting", "running", "stopping", Result]
"""The state of a job as users read it."""

WAITING: tuple[JobStateName, ...] = ("queued", "blocked", "scheduled")
"""A job waits by itself; a user has to release a held one."""
ACTIVE: tuple[JobStateName, ...] = ("starting", "running", "stopping")
"""A worker has the job."""
OPEN: tuple[JobStateName, ...] = (*WAITING, "held", *ACTIVE)
RESULTS: tuple[Result, ...] = get_args(Result)

Tone = Literal["active", "waiting", "held", "good", "bad", "faint"]
"""How a screen with many colours shows a state; a terminal has fewer."""


class _End(NamedTuple):
    """The meaning of a result."""

    result: Result
    code: str
    """State code of Slurm's squeue."""
    colour: str
    """In charts, which also name it."""
    tone: Tone
    is_good: bool = False
    is_whole: bool = False
    """Whether the last attempt ran as long as it ever does."""
    is_limit: bool = False
    """Whether a limit that the user set for its run ended it."""


_ENDS = (
    _End("done", "CD", "#2da44e", "good", is_good=True, is_whole=True),
    _End("failed", "F", "#cf222e", "bad"),
    _End("oom", "OOM", "#a40e26", "bad"),
    _End("timeout", "TO", "#bc4c00", "bad", is_whole=True, is_limit=True),
    _End("hung", "TO", "#9a6700", "bad", is_limit=True),
    _End("lost", "NF", "#8250df", "bad"),
    _End("cancelled", "CA", "#8c959f", "faint"),
    _End("stopped", "CA", "#6e7781", "faint", is_good=True),
    _End("idle", "CA", "#57606a", "bad"),
    _End("expired", "DL", "#6f42c1", "faint"),
    _End("skipped", "CA", "#afb8c1", "faint"),
)
"""In the order of charts."""

FAILURES = tuple(end.result for end in _ENDS if end.tone == "bad")
"""A user or a program wanted all other ends, or the failure of another job caused them."""
RETRIED = tuple(result for result in FAILURES if result != "lost")
"""Failures that --retries and --retry-on are about; a lost job is queued again anyway."""
GOOD_RESULTS = tuple(end.result for end in _ENDS if end.is_good)
"""Results of jobs that did not fail: a rule ends a job early because it knows enough."""
WHOLE_RESULTS = tuple(end.result for end in _ENDS if end.is_whole)
"""After these, the peak of what the job used is final."""
LIMIT_RESULTS = tuple(end.result for end in _ENDS if end.is_limit)
"""A single command in the foreground then exits as timeout(1) does."""
RESULT_COLOURS = {end.result: end.colour for end in _ENDS}

TONES: dict[JobStateName, Tone] = {
    **dict.fromkeys(WAITING, "waiting"),
    "held": "held",
    **dict.fromkeys(ACTIVE, "active"),
    **{result: end.tone for result in RESULTS for end in _ENDS if end.result == result},
}

SLURM_CODES: dict[JobStateName, str] = {
    **dict.fromkeys(OPEN, "PD"),
    "starting": "CF",
    "running": "R",
    "stopping": "CG",
    **{end.result: end.code for end in _ENDS},
}
"""State codes of Slurm's squeue."""
