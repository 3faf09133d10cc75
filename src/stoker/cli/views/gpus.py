"""The devices in text, and below them everybody who is no job of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stoker.cli.views.status import device_table, machine_text
from stoker.cli.views.text import EMPTY, Column, Line, Span, clipped, table_lines
from stoker.core.text import printable
from stoker.core.units import size_text
from stoker.queue.gpu_view import Gpus
from stoker.queue.view_builder import clock_text

LEAST_WHAT = 16
NO_LIMIT = 10**9


class Other(NamedTuple):
    """Somebody on a device."""

    device: str
    who: str
    pid: str
    memory: str
    since: str
    what: str


def render_gpus(gpus: Gpus, width: int) -> list[Line]:
    """A heading, a line for each device, and one for each lease of others and each process that is not ours."""
    now = gpus.at.timestamp()
    badge = [Span(" SIM ", "simulated"), Span(" ")] if gpus.simulated else []
    machine = machine_text(gpus.devices) or "no GPUs"
    heading = (*badge, Span(f"{printable(gpus.host)} · {machine}", "heading"))
    notes = [(Span(printable(note), "odd"),) for note in gpus.notes]
    others = list(_others(gpus, now))
    table = _others_table(others, width) if others else []
    lines = [heading, *notes, *device_table(gpus.devices, now, width, NO_LIMIT), *([EMPTY, *table] if table else [])]
    return [clipped(line, width) for line in lines]


def _others(gpus: Gpus, now: float) -> Iterator[Other]:
    for device in gpus.devices:
        for lease in device.leases:
            memory = "all" if lease.memory_bytes is None else size_text(lease.memory_bytes)
            since = clock_text(lease.since.timestamp(), now)
            yield Other(device.label, lease.owner, str(lease.pid), memory, since, lease.what or "a lease")
        for one in device.strangers:
            what = f"{one.command or '?'}{' (draws)' if one.graphics else ''}"
            yield Other(device.label, one.owner or "?", str(one.pid), size_text(one.memory_bytes), "-", what)


def _others_table(others: list[Other], width: int) -> list[Line]:
    columns = [
        Column("GPU", [Span(printable(one.device), "id") for one in others], 9, most=12),
        Column("WHO", [Span(printable(one.who), "odd") for one in others], 8, most=16),
        Column("PID", [Span(one.pid) for one in others], 5, right=True),
        Column("MEM", [Span(one.memory) for one in others], 6, right=True),
        Column("SINCE", [Span(one.since) for one in others], 3, right=True),
    ]
    return table_lines(columns, "WHAT (not ours)", [(Span(printable(one.what)),) for one in others], width, LEAST_WHAT)
