"""One line for each job: what it does, for how long, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.screens.clock import clock_text, left_text, watch_text
from stoker.cli.screens.memory_bar import GIB, amount_text, short_size
from stoker.cli.screens.pieces import Line, Look, Piece, clip
from stoker.cli.screens.queue_scene import JobLine, JobWord
from stoker.cli.screens.table import Column, table_lines
from stoker.core.units import count_text
from stoker.words import printable

WIDE = 100
"""Columns from which on the name has a place of its own."""
LEAST_WHY = 24
LONGEST_NAME = 24
LONGEST_TEXT = 2000
"""Characters of a command that are looked at: no terminal shows more."""
ACTIVE: tuple[JobWord, ...] = ("starting", "running", "stopping")
LOOKS: dict[JobWord, Look] = {
    "running": "good",
    "done": "good",
    "starting": "good",
    "stopping": "odd",
    "held": "odd",
    "blocked": "odd",
    "scheduled": "odd",
    "failed": "bad",
    "oom": "bad",
    "timeout": "bad",
    "lost": "bad",
}


def job_table(jobs: Sequence[JobLine], now: float, width: int) -> list[Line]:
    """A header and a line for each job."""
    wide = width >= WIDE and any(job.name for job in jobs)
    columns = [
        Column("ID", [Piece(job.label, "id") for job in jobs], 9, most=18),
        Column("STATE", [Piece(job.state, LOOKS.get(job.state, "")) for job in jobs], 8, always=True),
        Column("GPU", [Piece(printable(",".join(job.devices)) or "-") for job in jobs], 5, most=7),
        Column("MEM", [_memory(job) for job in jobs], 3, right=True),
        Column("TIME", [Piece(_time(job)) for job in jobs], 4, right=True),
        Column("LEFT", [Piece(_left(job, now)) for job in jobs], 6, right=True),
        *([Column("NAME", [Piece(_shown(job.name) or "-") for job in jobs], 2, most=LONGEST_NAME)] if wide else []),
    ]
    told = [(Piece(_told(job, named=wide)),) for job in jobs]
    return table_lines(columns, "WHY / COMMAND" if wide else "NAME / WHY", told, width, LEAST_WHY)


def _told(job: JobLine, *, named: bool) -> str:
    """What a job is, for one that a keeper has; why it is none of these, for one that waits."""
    if job.state in ACTIVE:
        what = _shown(job.command if named or not job.name else job.name)
        return f"{what} ({printable(job.why)})" if job.why else what
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    return tasks + printable(job.why)


def _shown(text: str) -> str:
    return printable(clip(text[:LONGEST_TEXT].strip().replace("\\\n", " ").replace("\n", "; "), LONGEST_TEXT))


def _memory(job: JobLine) -> Piece:
    """What it uses of what is set aside on each GPU; for one that waits, what would be or is to be learnt."""
    reserved = job.reserved_bytes
    used = job.used_bytes if job.held_bytes is None else job.held_bytes
    if used is None or job.state not in ACTIVE:
        unknown = "auto" if job.vram_mode == "auto" else "-"
        return Piece(unknown if reserved is None else short_size(reserved))
    if reserved is None:
        return Piece(f"{used / GIB:.1f}G")
    return Piece(amount_text(used, reserved), "odd" if used > reserved else "")


def _time(job: JobLine) -> str:
    return "-" if job.seconds is None else watch_text(job.seconds)


def _left(job: JobLine, now: float) -> str:
    """How long it will run, or when it will start: `~` is a guess, `≤` a limit, `?` nobody knows."""
    if job.state in ACTIVE:
        if job.expected_end is not None:
            return f"~{left_text(job.expected_end.timestamp() - now)}"
        if job.limit_seconds is not None:
            return f"≤{left_text(job.limit_seconds - (job.seconds or 0.0))}"
        return "?"
    if job.expected_start is not None:
        return f"~{clock_text(job.expected_start.timestamp(), now)}"
    return "?" if job.state == "queued" else "-"
