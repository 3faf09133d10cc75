"""One line for each device: a memory bar, load, and who is on it."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.screens.clock import ago_text
from stoker.cli.screens.memory_bar import Amounts, amount_text, memory_bar
from stoker.cli.screens.pieces import Line, Piece
from stoker.cli.screens.queue_scene import DeviceLine
from stoker.cli.screens.table import Column, table_lines
from stoker.core.units import count_text, size_text
from stoker.words import printable

LONGEST_BAR = 40
SHORTEST_BAR = 8
FIXED_COLUMNS = 55
"""What stands beside the bar at least, with room to tell who is on the device."""
LEAST_JOBS = 16


def device_table(
    devices: Sequence[DeviceLine], now: float, width: int, room: int, *, speeds: bool = True
) -> list[Line]:
    """A header and a line for each device, or for as many as there is room for and one that tells of the others.

    With `speeds` it is told how fast jobs are together, where that is known.
    """
    if not devices or room < 2:
        return []
    shown = devices if len(devices) < room else devices[: max(1, room - 2)]
    bar = width - FIXED_COLUMNS
    bar = 0 if bar < SHORTEST_BAR or not any(device.memory_bytes for device in shown) else min(LONGEST_BAR, bar)
    who = [_who(device, now, speed=device.combined_speed if speeds else None) for device in shown]
    lines = table_lines(_columns(shown, bar), "JOBS", who, width, LEAST_JOBS)
    if bar:
        lines = [lines[0], *(_with_bar(line, device, bar) for line, device in zip(lines[1:], shown, strict=True))]
    return [*lines, *_others_line(devices[len(shown) :], width)]


def _columns(devices: Sequence[DeviceLine], bar: int) -> list[Column]:
    amounts = [_amount(device) for device in devices]
    title = "MEMORY held/total (others)" if bar else "MEMORY"
    wide = max(map(len, amounts))
    memory = [Piece(" " * (bar + 1 if bar else 0) + amount.rjust(wide)) for amount in amounts]
    return [
        Column("GPU", [Piece(printable(device.label), "id") for device in devices], 9, most=12),
        Column(title, memory, 8, most=80),
        Column("UTIL", [Piece(_percent(device.utilisation_percent)) for device in devices], 5, right=True),
        Column("TEMP", [Piece(_degrees(device.temperature_celsius)) for device in devices], 4, right=True),
    ]


def _with_bar(line: Line, device: DeviceLine, bar: int) -> Line:
    """The line with the bar in the place that its column keeps free for it."""
    margin, label, memory, *rest = line
    amounts = Amounts(device.memory_bytes, device.ours_bytes, device.reserved_bytes, device.others_bytes)
    return (margin, label, *memory_bar(amounts, bar), Piece(memory.text[bar:], memory.look), *rest)


def _amount(device: DeviceLine) -> str:
    if device.memory_bytes is None:
        return "-" if device.used_bytes is None else size_text(device.used_bytes)
    return amount_text(device.used_bytes, device.memory_bytes)


def who_text(device: DeviceLine, now: float) -> list[tuple[str, bool]]:
    """Who is on the device, in words, each with whether it is no job of ours."""
    told = [(" ".join(device.jobs), False)] if device.jobs else []
    told += [(f"{lease.owner}: {lease.what or 'a lease'}", True) for lease in device.leases]
    leased = {lease.owner for lease in device.leases}
    strangers = [one for one in device.strangers if one.owner not in leased and not one.graphics]
    told += [(f"{one.owner} pid {one.pid} (not ours)", True) for one in strangers]
    if device.drained:
        since = "" if device.drained.since is None else f", {ago_text(device.drained.since.timestamp(), now)}"
        told.append((f"{device.drained.note or 'drained'}{since}", True))
    told += [(device.problem, True)] if device.problem else []
    return [(printable(text), odd) for text, odd in told]


def _who(device: DeviceLine, now: float, *, speed: float | None) -> Line:
    told = who_text(device, now)
    if not told:
        return (Piece("-", "faint"),)
    pieces = [piece for text, odd in told for piece in (Piece(text, "odd" if odd else ""), Piece("; "))]
    if speed is not None:
        pieces[1:1] = [Piece(f" (together {speed:.1f}x)", "faint")]
    return tuple(pieces[:-1])


def _percent(value: int | None) -> str:
    return "-" if value is None else f"{value}%"


def _degrees(value: int | None) -> str:
    return "-" if value is None else f"{value}°C"


def _others_line(hidden: Sequence[DeviceLine], width: int) -> list[Line]:
    if not hidden:
        return []
    busy = sum(bool(device.jobs) for device in hidden)
    count = f" … {count_text(len(hidden), 'more GPU')}"
    long = f"{count}, {busy} with jobs (stoker gpus)"
    return [(Piece(long if len(long) <= width else f"{count} (stoker gpus)", "faint"),)]
