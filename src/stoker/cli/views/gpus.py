"""Render `stoker gpus`: the devices, and below them leases of others and processes that are not ours."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.cli.views.status import device_table, machine_text
from stoker.cli.views.text import EMPTY, Column, Line, Span, clipped, heading, table_lines
from stoker.core.text import printable
from stoker.core.units import size_text
from stoker.queue.gpu_view import Gpus
from stoker.queue.view_text import clock_text

LEAST_WHAT = 16
NO_LIMIT = 10**9

Other = tuple[str, str, str, str, str, str]
"""Device, owner, pid, memory, since, and what it is."""


def render_gpus(gpus: Gpus, width: int) -> list[Line]:
    """A heading, a line for each device, and one for each lease of others and each process that is not ours."""
    now = gpus.at.timestamp()
    title = heading(
        [f"{printable(gpus.host)} · {machine_text(gpus.devices) or 'no GPUs'}"], width, simulated=gpus.simulated
    )
    notes = [(Span(printable(note), "odd"),) for note in gpus.notes]
    others = list(_others(gpus, now))
    table = [EMPTY, *_others_table(others, width)] if others else []
    lines = [title, *notes, *device_table(gpus.devices, now, width, NO_LIMIT), *table]
    return [clipped(line, width) for line in lines]


def _others(gpus: Gpus, now: float) -> Iterator[Other]:
    for device in gpus.devices:
        for lease in device.leases:
            memory = "all" if lease.memory_bytes is None else size_text(lease.memory_bytes)
            since = clock_text(lease.since.timestamp(), now)
            yield device.label, lease.owner, str(lease.pid), memory, since, lease.what or "a lease"
        for one in device.strangers:
            what = f"{one.command or '?'}{' (draws)' if one.graphics else ''}"
            yield device.label, one.owner or "?", str(one.pid), size_text(one.memory_bytes), "-", what


def _others_table(others: list[Other], width: int) -> list[Line]:
    devices, owners, pids, sizes, moments, what = zip(*others, strict=True)
    columns = [
        Column("GPU", [Span(printable(one), "id") for one in devices], 9, most=12),
        Column("WHO", [Span(printable(one), "odd") for one in owners], 8, most=16),
        Column("PID", list(map(Span, pids)), 5, right=True),
        Column("MEM", list(map(Span, sizes)), 6, right=True),
        Column("SINCE", list(map(Span, moments)), 3, right=True),
    ]
    return table_lines(columns, "WHAT (not ours)", [(Span(printable(one)),) for one in what], width, LEAST_WHAT)
