"""The page for the group: what everybody may see, and nothing of the queue of the user who serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from stoker.app.views.model import DeviceLine
from stoker.core.device import DRAINED_FOR_ALL
from stoker.features.lab.view import Lab, LabJob, LabUser, LabWaiting, read_lab
from stoker.web.answers import QueueService, answer

SCHEMA = "stoker.lab-page/1"
REST_SECONDS = 2.0
"""Browsers that ask within this time get the same answer, however many there are."""


class LabGpu(Struct, frozen=True):
    """A GPU as each user of the machine can see it, by the driver and by processes."""

    label: str
    model: str
    memory_bytes: int | None
    used_bytes: int | None
    """By all processes."""
    utilisation_percent: int | None
    drained: bool
    """By root, for all users."""
    strangers: list[str]
    """Users of processes that no lease covers."""


class LabBooking(Struct, frozen=True):
    """GPUs that are kept free for a user."""

    user: str
    gpus: list[str]
    begin: datetime
    end: datetime
    why: str


class LabWeeks(Struct, frozen=True):
    """What a user used in the last weeks, this one first."""

    user: str
    gpu_hours: list[float]
    waiting_hours: list[float]
    """Of all jobs in total."""


class LabPage(Struct, frozen=True):
    """The machine as all of its users may see it: `/api/v1/lab`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    message: str
    """Of the administrator to all users."""
    gpus: list[LabGpu]
    users: list[LabUser]
    jobs: list[LabJob]
    waiting: list[LabWaiting]
    weeks: list[LabWeeks]
    bookings: list[LabBooking]


def reads(service: QueueService) -> dict[str, Callable[[Request], Response]]:
    """Paths below /api/v1 and their endpoints."""
    lock = threading.Lock()
    last: list[tuple[float, LabPage]] = []

    def lab(_request: Request) -> Response:
        with lock:
            if not last or time.monotonic() - last[0][0] >= REST_SECONDS:
                last[:] = [(time.monotonic(), lab_page(read_lab(service.paths)))]
            return answer(last[0][1])

    return {"lab": lab}


def lab_page(lab: Lab) -> LabPage:
    """What the user who serves the page sees, without all that only this user sees."""
    return LabPage(
        SCHEMA,
        lab.at,
        lab.host,
        lab.simulated,
        message="",
        gpus=[_gpu(device) for device in lab.devices],
        users=[replace(line, you=False) for line in lab.users if line.running or line.waiting],
        jobs=[replace(job, you=False) for job in lab.jobs],
        waiting=[replace(line, you=False) for line in lab.waiting],
        weeks=[],
        bookings=[],
    )


def _gpu(device: DeviceLine) -> LabGpu:
    return LabGpu(
        device.label,
        device.model,
        device.memory_bytes,
        device.used_bytes,
        device.utilisation_percent,
        drained=device.drained is not None and device.drained.note.startswith(DRAINED_FOR_ALL),
        strangers=sorted({process.owner for process in device.strangers if not process.graphics}),
    )
