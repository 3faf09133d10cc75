"""TAB-separated output."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from stoker.cli.output_options import write_json, write_plain
from stoker.core.job import Job, Waiting, id_text, state_word
from stoker.core.text import printable, text_for_json
from stoker.queue.control import warn
from stoker.queue.view_model import LETTERS, DeviceLine, JobLine

if TYPE_CHECKING:
    from stoker.queue.history_view import PastLine


SCHEMA = "stoker.change/1"

LINES_ON_A_TERMINAL = 40


class Deed(Struct, frozen=True):
    """What became of one job."""

    id: int
    shown: str
    """The id as people type it: `12`, `12.3`."""
    name: str
    before: str
    """Its state when the verb was typed..."""
    after: str
    """... and when it was answered."""
    refused: bool
    """Whether the verb could not do what it is for."""
    said: str


class Report(Struct, frozen=True):
    """All that a verb did: `stoker cancel --json` and others."""

    schema: str
    verb: str
    dry_run: bool
    jobs: list[Deed]
    notes: list[str]
    """What was done to the queue or to GPUs."""


def word(job: Job) -> str:
    """The state as screens call it."""
    return "queued" if isinstance(job.state, Waiting) else state_word(job)


def deed(before: Job, after: Job, said: str, *, refused: bool = False) -> Deed:
    """What became of one job."""
    name = text_for_json(before.name)
    return Deed(before.id, id_text(before), name, word(before), word(after), refused, said)


def tell(report: Report, *, as_json: bool) -> int:
    """Print it, and return the exit code: 2 where a job was refused."""
    if as_json:
        write_json(report)
    else:
        _print([*report.notes, *_lines([one for one in report.jobs if not one.refused])])
        sys.stdout.flush()
        for one in report.jobs:
            if one.refused:
                warn(one.said)
    return 2 if any(one.refused for one in report.jobs) else 0


def report_of(verb: str, jobs: Sequence[Deed], notes: Sequence[str] = (), *, dry_run: bool = False) -> Report:
    """All that a verb did."""
    return Report(SCHEMA, verb, dry_run, list(jobs), list(notes))


def _lines(deeds: Sequence[Deed]) -> list[str]:
    """A line for each job, and one for tasks of an array that follow each other and fared alike."""
    alike = itertools.groupby(enumerate(deeds), key=_likeness)
    lines = []
    for (array, *_), run in alike:
        tasks = [one for _, one in run]
        first, last = tasks[0], tasks[-1]
        if len(tasks) == 1:
            lines.append(first.said)
        else:
            span = f"{array}.[{first.shown.partition('.')[2]}-{last.shown.partition('.')[2]}]"
            lines.append(f"{first.said.replace(first.shown, span, 1)}, {len(tasks)} tasks")
    return lines


def _likeness(numbered: tuple[int, Deed]) -> tuple[str, int, str]:
    """Array, distance of index and place (equal for those that follow each other), and what was done."""
    place, one = numbered
    array, _, task = one.shown.partition(".")
    return array, int(task or 0) - place, one.said.replace(one.shown, "", 1)


def _print(lines: Sequence[str]) -> None:
    too_many = sys.stdout.isatty() and len(lines) > LINES_ON_A_TERMINAL + 1
    shown = lines[:LINES_ON_A_TERMINAL] if too_many else lines
    write_plain(shown if len(shown) == len(lines) else [*shown, f"… and {len(lines) - len(shown)} more"])


JOB_COLUMNS = (
    *("ID", "ST", "STATE", "TASKS", "GPUS", "DEVICES", "VRAM", "RESERVED", "USED", "PEAK_VRAM", "UTIL"),
    *("SPEED", "SECONDS", "LIMIT", "START", "END", "PRIORITY", "GROUP", "RUN", "NAME", "WHY", "COMMAND"),
)


def jobs_plain(jobs: Iterable[JobLine]) -> Iterator[str]:
    """A header and a line for each job."""
    yield "\t".join(JOB_COLUMNS)
    yield from map(_job_plain, jobs)


PAST_COLUMNS = (
    *("ID", "ST", "STATE", "EXIT", "SIGNAL", "GPUS", "DEVICES", "VRAM", "RESERVED", "PEAK_VRAM", "UTIL"),
    *(
        "SUBMITTED",
        "START",
        "END",
        "WAITED",
        "RAN",
        "GPU_HOURS",
        "ATTEMPTS",
        "PEAK_RAM",
        "GROUP",
        "TAGS",
        "DIRECTORY",
        "COMMIT",
        "LOG",
        "NAME",
        "NOTE",
        "COMMAND",
    ),
)


def past_plain(jobs: Iterable[PastLine]) -> Iterator[str]:
    """A header and a line for each job that is over."""
    yield "\t".join(PAST_COLUMNS)
    yield from (row(*_past_fields(job)) for job in jobs)


def csv_lines(jobs: Iterable[PastLine]) -> Iterator[str]:
    """The same for spreadsheets: fields with commas, quotes or line ends are quoted, and unknown ones are empty."""
    yield ",".join(PAST_COLUMNS)
    yield from (",".join(_quoted(field) for field in _past_fields(job)) for job in jobs)


DEVICE_COLUMNS = (
    *("GPU", "UUID", "MODEL", "KIND", "MEMORY", "USED", "OURS", "RESERVED", "OTHERS", "UTIL", "TEMP", "WATTS"),
    *("JOBS", "SPEED", "LEASES", "STRANGERS", "DRAINED", "PROBLEM"),
)


def devices_plain(devices: Iterable[DeviceLine]) -> Iterator[str]:
    """A header and a line for each device."""
    yield "\t".join(DEVICE_COLUMNS)
    yield from map(_device_plain, devices)


def row(*fields: object) -> str:
    """One line; what is not known is `-`, and nothing in it can end a field or the line."""
    return "\t".join(_field(field) for field in fields)


def _job_plain(job: JobLine) -> str:
    start = job.started or job.expected_start
    end = getattr(job, "ended", None) or job.expected_end  # a line of a whole story knows when it was over
    return row(
        *(job.label, LETTERS[job.state], job.state, job.tasks, job.gpus, ",".join(job.devices)),
        *(_vram(job), job.reserved_bytes, job.used_bytes, job.peak_vram_bytes, job.utilisation_percent),
        *(_speed(job.speed), job.seconds, job.limit_seconds, start, end),
        *(job.priority, job.group, job.run, job.name, job.why, job.command),
    )


def _device_plain(device: DeviceLine) -> str:
    leases = ",".join(f"{lease.owner}:{lease.pid}" for lease in device.leases)
    strangers = ",".join(f"{one.owner}:{one.pid}" for one in device.strangers)
    drained = (device.drained.note or "drained") if device.drained else ""
    return row(
        *(device.label, device.id, device.model, device.kind, device.memory_bytes, device.used_bytes),
        *(device.ours_bytes, device.reserved_bytes, device.others_bytes, device.utilisation_percent),
        *(device.temperature_celsius, device.power_watts, ",".join(device.jobs)),
        *(_speed(device.combined_speed), leases, strangers, drained, device.problem),
    )


def _past_fields(job: PastLine) -> tuple[object, ...]:
    tags = " ".join(f"{name}={value}" for name, value in job.tags.items())
    return (
        *(job.label, LETTERS[job.state], job.state, job.exit_code, job.signal, job.gpus, ",".join(job.devices)),
        *(
            _vram(job),
            job.reserved_bytes,
            job.peak_vram_bytes,
            job.utilisation_percent,
            job.submitted,
            job.started,
            job.ended,
            job.wait_seconds,
            job.run_seconds,
        ),
        *(f"{job.gpu_hours:.4f}", job.attempts, job.peak_memory_bytes, job.group, tags, job.directory),
        *(job.commit, job.log, job.name, job.note, job.command),
    )


def _vram(job: JobLine | PastLine) -> object:
    return job.vram_bytes if job.vram_mode == "size" else None if job.vram_mode == "none" else job.vram_mode


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.2f}"


def _quoted(field: object) -> str:
    text = "" if field is None or field == "" else _field(field)
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if quoted != text or "," in text else text


def _field(field: object) -> str:
    if field is None or field == "":
        return "-"
    if isinstance(field, datetime):
        return field.isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(field, float):
        return f"{field:.0f}"
    return printable(str(field))
