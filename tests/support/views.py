"""Data of screens, with defaults for everything that a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.app.jobs.local_time import exactly
from stoker.app.views.job import JobLine
from stoker.app.views.model import Counts, DeviceLine, EngineLine, RunCounts, RunStatus, Status
from stoker.cli.screens.text import Line

GIB = 2**30
NOW = 1_800_000_000.0

_DEVICE = DeviceLine(
    id="GPU-0",
    label="0",
    model="NVIDIA A100-SXM4-40GB",
    kind="nvidia",
    memory_bytes=40 * GIB,
    used_bytes=0,
    ours_bytes=0,
    reserved_bytes=0,
    others_bytes=0,
    utilisation_percent=97,
    temperature_celsius=71,
    power_watts=250.0,
    problem="",
    drained=None,
    jobs=[],
    leases=[],
    strangers=[],
)
_JOB = JobLine(
    id=1,
    label="1",
    tasks=1,
    name="",
    command="python train.py",
    state="queued",
    group="",
    priority=0,
    gpus=1,
    devices=[],
    vram_bytes=None,
    used_bytes=None,
    submitted=exactly(NOW - 5000),
    started=None,
    seconds=None,
    limit_seconds=None,
    expected_start=None,
    expected_end=None,
    why="",
    run="",
)


def a_device(label: str = "0", **fields: Any) -> DeviceLine:
    """A device that is free."""
    return msgspec.structs.replace(_DEVICE, label=label, id=f"GPU-{label}", **fields)


def a_line(job_id: int = 1, **fields: Any) -> JobLine:
    """A job that waits."""
    return msgspec.structs.replace(_JOB, id=job_id, **{"label": str(job_id), **fields})


def a_running_line(job_id: int = 1, **fields: Any) -> JobLine:
    """A job that has been running for a while on GPU 0."""
    usual = {"state": "running", "devices": ["0"], "started": exactly(NOW - 4323), "seconds": 4323.0}
    return a_line(job_id, **{**usual, **fields})


def a_status(jobs: Sequence[JobLine] = (), devices: Sequence[DeviceLine] = (), **fields: Any) -> Status:
    """A queue with an engine at work; the counts are those of the jobs unless they are given."""
    active = sum(job.state in ("starting", "running", "stopping") for job in jobs)
    held = sum(job.tasks for job in jobs if job.state == "held")
    counts = Counts(active, sum(job.tasks for job in jobs) - active - held, held)
    usual: dict[str, Any] = {
        "schema": "stoker.status/1",
        "at": exactly(NOW),
        "host": "lab7",
        "version": "1",
        "simulated": False,
        "engine": EngineLine(running=True, pid=1, since=exactly(NOW - 266400)),
        "devices": list(devices),
        "jobs": list(jobs),
        "counts": counts,
        "hidden": Counts(0, 0, 0),
        "today": {},
        "expected_empty": None,
        "notes": [],
    }
    return Status(**{**usual, **fields})


def a_run_job(job_id: int, name: str, seconds: float, **fields: Any) -> JobLine:
    """A job of a foreground run that has been running for so long."""
    return a_running_line(job_id, name=name, seconds=seconds, started=exactly(NOW - seconds), **fields)


def a_run(devices: Sequence[DeviceLine] = (), jobs: Sequence[JobLine] = (), **fields: Any) -> RunStatus:
    """A foreground run of 24 jobs after 84 seconds."""
    usual: dict[str, Any] = {
        "label": "stoker run jobs.txt",
        "at": exactly(NOW),
        "elapsed": 84.0,
        "simulated": False,
        "logs": "",
        "devices": list(devices),
        "jobs": list(jobs),
        "counts": RunCounts(total=24, ok=5, failed=1, running=6, waiting=12),
    }
    return RunStatus(**{**usual, **fields})


def texts(lines: Sequence[Line]) -> list[str]:
    """The lines without their looks."""
    return ["".join(span.text for span in line) for line in lines]
