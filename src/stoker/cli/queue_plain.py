"""Jobs, devices and history for programs that read lines: TAB separated, with a header, nothing cut off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from stoker.cli.queue_scene import LETTERS, JobLine
from stoker.words import printable

JOB_COLUMNS = (
    *("ID", "ST", "STATE", "TASKS", "GPUS", "DEVICES", "VRAM", "USED", "SECONDS", "LIMIT"),
    *("START", "END", "PRIORITY", "GROUP", "RUN", "NAME", "WHY", "COMMAND"),
)


def jobs_plain(jobs: Iterable[JobLine]) -> Iterator[str]:
    """A header and a line for each job."""
    yield "\t".join(JOB_COLUMNS)
    yield from map(_job_plain, jobs)


def row(*fields: object) -> str:
    """One line; what is not known is `-`, and nothing in it can end a field or the line."""
    return "\t".join(_field(field) for field in fields)


def _job_plain(job: JobLine) -> str:
    start = job.started or job.expected_start
    return row(
        *(job.label, LETTERS[job.state], job.state, job.tasks, job.gpus, ",".join(job.devices)),
        *(job.vram_bytes, job.used_bytes, job.seconds, job.limit_seconds, start, job.expected_end),
        *(job.priority, job.group, job.run, job.name, job.why, job.command),
    )


def _field(field: object) -> str:
    if field is None or field == "":
        return "-"
    if isinstance(field, datetime):
        return field.isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(field, float):
        return f"{field:.0f}"
    return printable(str(field))
