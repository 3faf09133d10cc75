"""TAB-separated output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from stoker.core.text import printable
from stoker.queue.view_model import LETTERS, DeviceLine, JobLine

if TYPE_CHECKING:
    from stoker.queue.history_view import PastLine


JOB_COLUMNS = (
    *("ID", "ST", "STATE", "TASKS", "GPUS", "DEVICES", "VRAM", "RESERVED", "USED", "PEAK_VRAM", "UTIL"),
    *("SPEED", "SECONDS", "LIMIT", "START", "END", "PRIORITY", "GROUP", "RUN", "NAME", "WHY", "COMMAND"),
)


def jobs_plain(jobs: Iterable[JobLine]) -> Iterator[str]:
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
    yield "\t".join(PAST_COLUMNS)
    yield from (row(*_past_fields(job)) for job in jobs)


FORMULA = ("=", "+", "-", "@")
"""Beginnings of cells that spreadsheets execute; a ' before them prevents that."""


def csv_lines(jobs: Iterable[PastLine]) -> Iterator[str]:
    """The same for spreadsheets: fields with commas or quotes are quoted, unknown ones are empty."""
    yield ",".join(PAST_COLUMNS)
    yield from (",".join(_quoted(field) for field in _past_fields(job)) for job in jobs)


DEVICE_COLUMNS = (
    *("GPU", "UUID", "MODEL", "KIND", "MEMORY", "USED", "OURS", "RESERVED", "OTHERS", "UTIL", "TEMP", "WATTS"),
    *("JOBS", "SPEED", "LEASES", "STRANGERS", "DRAINED", "PROBLEM"),
)


def devices_plain(devices: Iterable[DeviceLine]) -> Iterator[str]:
    yield "\t".join(DEVICE_COLUMNS)
    yield from map(_device_plain, devices)


def row(*fields: object) -> str:
    """One line; unknown is `-`, and no text in it can end a field or the line."""
    return "\t".join(_field(field) for field in fields)


def _job_plain(job: JobLine) -> str:
    start = job.started or job.expected_start
    end = getattr(job, "ended", None) or job.expected_end  # only JobDetails have it
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
    if isinstance(field, str) and text.startswith(FORMULA):
        text = f"'{text}"
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
