"""One line for each device: a memory bar, load, and who is on it."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.screens.clock import ago_text
from stoker.cli.screens.pieces import Line, Piece
from stoker.cli.screens.queue_scene import DeviceLine
from stoker.cli.screens.table import Column, table_lines
from stoker.core.units import count_text, size_text
from stoker.words import printable

GIB = 2**30
LONGEST_BAR = 40
SHORTEST_BAR = 8
FIXED_COLUMNS = 55
"""What stands beside the bar at least, with room to tell who is on the device."""
LEAST_JOBS = 16


def device_table(devices: Sequence[DeviceLine], now: float, width: int, room: int) -> list[Line]:
    """A header and a line for each device, or for as many as there is room for and one that tells of the others."""
    if not devices or room < 2:
        return []
    shown = devices if len(devices) < room else devices[: max(1, room - 2)]
    bar = width - FIXED_COLUMNS
    bar = 0 if bar < SHORTEST_BAR or not any(device.memory_bytes for device in shown) else min(LONGEST_BAR, bar)
    lines = table_lines(_columns(shown, bar), "JOBS", [_who(device, now) for device in shown], width, LEAST_JOBS)
    if bar:
        lines = [lines[0], *(_with_bar(line, device, bar) for line, device in zip(lines[1:], shown, strict=True))]
    return [*lines, *_others_line(devices[len(shown) :], width)]


def _columns(devices: Sequence[DeviceLine], bar: int) -> list[Column]:
    amounts = [amount_text(device.used_bytes, device.memory_bytes) for device in devices]
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
    return (margin, label, *memory_bar(device, bar), Piece(memory.text[bar:], memory.look), *rest)


def memory_bar(device: DeviceLine, cells: int) -> Line:
    """Held by our jobs, reserved by them but not used yet, other people's, and free."""
    total = device.memory_bytes
    if not total:
        return (Piece(" " * cells),)
    ours = _share(device.ours_bytes, total, cells)
    others = min(cells - ours, _share(device.others_bytes, total, cells))
    reserved = max(0, min(cells - others, round(device.reserved_bytes * cells / total)) - ours)
    free = cells - ours - reserved - others
    return (
        Piece("█" * ours, "good"),
        Piece("▒" * reserved, "good"),
        Piece("▓" * others, "odd"),
        Piece("░" * free, "faint"),
    )


def amount_text(used: int | None, total: int | None) -> str:
    """`34.1/40G`."""
    if total is None:
        return "-" if used is None else size_text(used)
    return f"{'?' if used is None else f'{used / GIB:.1f}'}/{total / GIB:.3g}G"


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


def _who(device: DeviceLine, now: float) -> Line:
    told = who_text(device, now)
    if not told:
        return (Piece("-", "faint"),)
    pieces = [piece for text, odd in told for piece in (Piece(text, "odd" if odd else ""), Piece("; "))]
    return tuple(pieces[:-1])


def _share(amount: int, total: int, cells: int) -> int:
    """Cells of an amount; a little of something is still seen."""
    full = min(cells, round(amount * cells / total))
    return max(1, full) if amount > total // 100 else full


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
