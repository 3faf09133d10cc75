"""TAB-separated output, and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from msgspec import Struct

from stoker.app.views.columns import COLUMNS, HISTORY_PLAIN, STATUS_PLAIN
from stoker.core.text import printable

FORMULA = ("=", "+", "-", "@")
"""Beginnings of cells that spreadsheets execute; a ' before them prevents that. No number is negative."""
Columns = Mapping[str, str | Callable[[Any], object]]
"""Titles, and the field of a line or the function that gives its value."""


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.2f}"


JOB_COLUMNS: Columns = {COLUMNS[name].plain: COLUMNS[name].value or COLUMNS[name].field for name in STATUS_PLAIN}
PAST_COLUMNS: Columns = {COLUMNS[name].plain: COLUMNS[name].value or COLUMNS[name].field for name in HISTORY_PLAIN}
DEVICE_COLUMNS: Columns = {
    "GPU": "label",
    "UUID": "id",
    "MODEL": "model",
    "KIND": "kind",
    "MEMORY": "memory_bytes",
    "USED": "used_bytes",
    "OURS": "ours_bytes",
    "RESERVED": "reserved_bytes",
    "OTHERS": "others_bytes",
    "UTIL": "utilisation_percent",
    "TEMP": "temperature_celsius",
    "WATTS": "power_watts",
    "JOBS": lambda device: ",".join(device.jobs),
    "SPEED": lambda device: _speed(device.combined_speed),
    "LEASES": lambda device: ",".join(f"{lease.owner}:{lease.pid}" for lease in device.leases),
    "STRANGERS": lambda device: ",".join(f"{stranger.owner}:{stranger.pid}" for stranger in device.strangers),
    "DRAINED": lambda device: (device.drained.note or "drained") if device.drained else "",
    "PROBLEM": "problem",
}
GROUP_COLUMNS: Columns = {
    "GROUP": "group",
    "RUNNING": "active",
    "WAITING": "waiting",
    "HELD": "held",
    "GPUS": "gpus",
    "LIMIT": "limit",
}
USER_COLUMNS: Columns = {
    "USER": "user",
    "RUNNING": "running",
    "GPUS": "gpus",
    "VRAM": lambda user: "all" if user.vram_bytes is None else user.vram_bytes,
    "WAITING": "waiting",
    "WAITING_GPUS": "waiting_gpus",
    "SINCE": "waiting_since",
    "GPU_HOURS": lambda user: None if user.recent_gpu_hours is None else f"{user.recent_gpu_hours:.4f}",
}


def plain_lines(lines: Iterable[Struct], columns: Columns) -> Iterator[str]:
    """A header and a line each; unknown is `-`, and no text can end a field or the line."""
    yield "\t".join(columns)
    yield from ("\t".join(field or "-" for field in fields) for fields in _fields(lines, columns))


def tab_line(cells: Iterable[str]) -> str:
    """A row of texts, none of which can end a field or the line."""
    return "\t".join(map(printable, cells))


def csv_lines(lines: Iterable[Struct], columns: Columns = PAST_COLUMNS) -> Iterator[str]:
    """The same for spreadsheets: fields with commas or quotes are quoted, unknown ones are empty."""
    yield ",".join(columns)
    for fields in _fields(lines, columns):
        safe = (f"'{field}" if field.startswith(FORMULA) else field for field in fields)
        quoted = (field.replace('"', '""') for field in safe)
        yield ",".join(f'"{field}"' if '"' in field or "," in field else field for field in quoted)


def _fields(lines: Iterable[object], columns: Columns) -> Iterator[list[str]]:
    values = [attrgetter(value) if isinstance(value, str) else value for value in columns.values()]
    return ([_text(value(line)) for value in values] for line in lines)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{value:.0f}" if isinstance(value, float) else printable(str(value))
