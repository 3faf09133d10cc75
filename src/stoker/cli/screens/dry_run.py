"""`--dry-run` of `stoker submit` and `stoker run`, as lines or as one JSON value."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from stoker.app.jobs.dry_run import PlannedJob
from stoker.app.jobs.local_time import clock_text
from stoker.cli.options import write_json, write_plain
from stoker.cli.screens.plain import tab_line

RUN_COLUMNS = {
    "JOB": "job",
    "GPU": "devices",
    "HOW": "how",
    "DIRECTORY": "directory",
    "COMMAND": "command",
    "WHY": "why",
}
SUBMIT_COLUMNS = {
    "JOB": "job",
    "HOW": "how",
    "NEED": "need",
    "GPU": "devices",
    "START": "start",
    "AFTER": "after",
    "DIRECTORY": "directory",
    "COMMAND": "command",
    "WHY": "why",
}


class SubmitPlan(Struct, frozen=True):
    """All that would be submitted: `stoker submit --dry-run --json`."""

    schema: str
    jobs: list[PlannedJob]


class PlannedRunJob(Struct, frozen=True):
    """The expected start and place of a job."""

    job: int
    """Its place in the list."""
    devices: list[str]
    how: str
    directory: str
    command: str
    why: str


class DryRun(Struct, frozen=True):
    """A whole list: `stoker run --dry-run --json`."""

    schema: str
    jobs: list[PlannedRunJob]


def show_submit_plan(planned: Sequence[PlannedJob], *, as_json: bool) -> int:
    if as_json:
        write_json(SubmitPlan("stoker.submit-plan/1", list(planned)))
    else:
        _show_lines(planned, SUBMIT_COLUMNS)
    return 0


def show_run_plan(planned: Sequence[PlannedJob], *, as_json: bool) -> int:
    if as_json:
        jobs = msgspec.convert(planned, list[PlannedRunJob], from_attributes=True, strict=False)
        write_json(DryRun("stoker.dry-run/1", jobs))
    else:
        _show_lines(planned, RUN_COLUMNS)
    return 0


def _show_lines(planned: Sequence[PlannedJob], columns: dict[str, str]) -> None:
    now = time.time()
    rows: list[Iterable[str]] = [columns]
    for job in planned:
        start = job.start.timestamp() if job.start else None
        when = "?" if start is None else "now" if start <= now else clock_text(start, now)
        cells = {"devices": ",".join(job.devices) or "-", "start": when, "after": ", ".join(job.after) or "-"}
        rows.append([cells.get(field) or getattr(job, field) for field in columns.values()])
    write_plain(map(tab_line, rows))
