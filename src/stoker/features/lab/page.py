"""The page for the group: what everybody may see, and nothing of the queue of the user who serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import date, datetime

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from stoker.app.views.model import DeviceLine
from stoker.core.device import DRAINED_FOR_ALL
from stoker.features.lab.usage import WEEK_DAYS, UsageTotal
from stoker.features.lab.view import Lab, LabJob, LabMessage, LabUser, LabWaiting, read_lab
from stoker.web.answers import QueueService, answer

SCHEMA = "stoker.lab-page/1"
WEEKS = 4
REST_SECONDS = 2.0
"""Browsers that ask within this time get the same answer, however many there are."""
SHARE = 10
"""Reads take at most this part (1/N) of a core."""


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
    """What a user had in the last weeks, of which the first one ends today."""

    user: str
    gpu_hours: list[float]
    waiting_hours: float
    """From submit to start, of all jobs that started in the last 7 days."""
    idle_gpu_hours: float | None
    """Of the last 7 days: hours in which jobs had a GPU and almost did not use it; null if not measured."""


class LabPage(Struct, frozen=True):
    """The machine as all of its users may see it: `/api/v1/lab`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    messages: list[LabMessage]
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
            if not last or time.monotonic() >= last[0][0]:
                began = time.thread_time()
                page = lab_page(read_lab(service.paths, WEEKS * WEEK_DAYS))
                rest = max(REST_SECONDS, SHARE * (time.thread_time() - began))
                last[:] = [(time.monotonic() + rest, page)]
            return answer(last[0][1])

    return {"lab": lab}


def lab_page(lab: Lab) -> LabPage:
    """The view of the user who serves the page, without all that only this user may see."""
    return LabPage(
        SCHEMA,
        lab.at,
        lab.host,
        lab.simulated,
        messages=lab.messages,
        gpus=[_gpu(device) for device in lab.devices],
        users=[replace(line, you=False) for line in lab.users if line.running or line.waiting],
        jobs=[replace(job, you=False) for job in lab.jobs],
        waiting=[replace(line, you=False) for line in lab.waiting],
        weeks=[_weeks(user, lab) for user in sorted({total.user for total in lab.usage})],
        bookings=[
            LabBooking(booking.user, booking.gpus, booking.begin, booking.end, booking.why) for booking in lab.bookings
        ],
    )


def _weeks(user: str, lab: Lab) -> LabWeeks:
    weeks: list[list[UsageTotal]] = [[] for _ in range(WEEKS)]
    for total in lab.usage:
        age = (lab.at.astimezone().date() - date.fromisoformat(total.day)).days
        if total.user == user and 0 <= age < WEEKS * WEEK_DAYS:
            weeks[age // WEEK_DAYS].append(total)
    idle = [total.idle_gpu_hours for total in weeks[0] if total.idle_gpu_hours is not None]
    return LabWeeks(
        user,
        [round(sum(total.gpu_hours for total in week), 4) for week in weeks],
        sum(total.waiting_hours or 0.0 for total in weeks[0]),
        sum(idle) if idle else None,
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
