"""Render the GPUs of `stoker status` and `stoker gpus`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.model import DeviceLine, ForeignProcess, LeaseLine, Mark
from stoker.cli.screens.text import (
    EMPTY,
    Column,
    Line,
    Span,
    clipped,
    heading,
    load_bar,
    memory_bar,
    or_dash,
    table_lines,
)
from stoker.core.units import DAY, ago_text, amount_text, count_text, short_size, size_text

if TYPE_CHECKING:
    from stoker.app.views.gpus import Gpus  # `status` does not need it

MAX_BAR_COLUMNS = 40
MIN_BAR_COLUMNS = 8
USUAL_BAR_COLUMNS = 20
"""Columns of the memory bar on a terminal of 80; of the columns that a wider one has more, the bar gets a third."""
UTILISATION_BAR_COLUMNS = 4
FIXED_COLUMNS = 60
"""Columns of a device's line besides the memory bar, with room for its users."""
WIDE_COLUMNS = 100
"""Columns from which on there is room for the power."""
MIN_JOBS_COLUMNS = 16
LEGENDS = (
    "MEMORY █ used ▒ reserved ▓ others ░ free",
    "█ used ▒ reserved ▓ others ░ free",
    "█used ▒reserved ▓others ░free",
    "MEMORY",
)
"""Titles of the memory column, the first that fits is used."""
LEAST_AMOUNT = len("34.1/40G")
MOST_PIDS = 3


def device_table(
    devices: Sequence[DeviceLine], now: float, width: int, room: int, *, speeds: bool = True
) -> list[Line]:
    """A header and a line for each device; if there are more than lines, the last one counts the others."""
    if not devices or room < 2:
        return []
    shown = devices if len(devices) < room else devices[: max(1, room - 2)]
    columns = [
        Column("GPU", [Span(device.label, "id") for device in shown], 9, most=12),
        _memory_column(shown, width),
        Column("UTIL", _utilisation(shown, UTILISATION_BAR_COLUMNS if width >= FIXED_COLUMNS else 0), 5, right=True),
        Column("TEMP", [Span(or_dash(device.temperature_celsius, "{}°C")) for device in shown], 4, right=True),
    ]
    if width >= WIDE_COLUMNS and any(device.power_watts is not None for device in shown):
        columns.append(
            Column("POWER", [Span(or_dash(device.power_watts, "{:.0f}W")) for device in shown], 1, right=True)
        )
    who = [_who(device, now, speed=device.combined_speed if speeds else None) for device in shown]
    lines = table_lines(columns, "JOBS", who, width, MIN_JOBS_COLUMNS)
    if hidden := devices[len(shown) :]:
        count = f" … {count_text(len(hidden), 'more GPU')}"
        long = f"{count}, {sum(bool(device.jobs) for device in hidden)} with jobs (stoker gpus)"
        lines.append((Span(long if len(long) <= width else f"{count} (stoker gpus)", "faint"),))
    return lines


def _memory_column(devices: Sequence[DeviceLine], width: int) -> Column:
    """Bars and amounts, below a title that explains the signs of the bar if there is room."""
    bar = min(
        MAX_BAR_COLUMNS, width - FIXED_COLUMNS, USUAL_BAR_COLUMNS + (width - FIXED_COLUMNS - USUAL_BAR_COLUMNS) // 3
    )
    if bar < MIN_BAR_COLUMNS or not any(device.memory_bytes for device in devices):
        bar = 0
    cells = memory_cells(devices, bar, LEAST_AMOUNT if bar else 0)
    room = max(sum(len(span.text) for span in cell) for cell in cells) if bar else 0
    title = next((legend for legend in LEGENDS if len(legend) <= room), LEGENDS[-1])
    return Column(title, cells, 8, most=80)


def memory_cells(devices: Sequence[DeviceLine], bar: int, least: int = 0) -> list[Line]:
    """A bar of so many columns and the amounts of each device, the amounts at least `least` columns wide."""
    amounts = [_amount(device) for device in devices]
    wide = max([least, *map(len, amounts)])
    if not bar:
        return [(Span(amount.rjust(wide)),) for amount in amounts]
    cells_of: list[Line] = []
    for device, amount in zip(devices, amounts, strict=True):
        total = None if device.used_bytes is None else device.memory_bytes
        spans = memory_bar(bar, total, device.ours_bytes, device.reserved_bytes, device.others_bytes)
        cells_of.append((*spans, Span(" " + amount.rjust(wide))))
    return cells_of


def _amount(device: DeviceLine) -> str:
    if device.memory_bytes is None:
        return "-" if device.used_bytes is None else size_text(device.used_bytes)
    return amount_text(device.used_bytes, device.memory_bytes)


def _utilisation(devices: Sequence[DeviceLine], bar: int) -> list[Line]:
    percents = [or_dash(device.utilisation_percent, "{}%") for device in devices]
    bar = 0 if all(device.utilisation_percent is None for device in devices) else bar
    wide = max(map(len, percents)) + (1 if bar else 0)
    return [
        (*(load_bar(bar, device.utilisation_percent) if bar else ()), Span(percent.rjust(wide)))
        for device, percent in zip(devices, percents, strict=True)
    ]


def machine_text(devices: Sequence[DeviceLine]) -> str:
    """`4 × A100 40G, 2 × T4 16G`."""
    kinds: Counter[str] = Counter()
    for device in devices:
        model = device.model.removeprefix("NVIDIA ") or "GPU"
        named = device.memory_bytes is None or model[-1:] in "GB"  # the model tells its memory
        kinds[model if named else f"{model} {size_text(device.memory_bytes).replace('.0', '')}"] += 1
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


# -- who is on a device ----------------------------------------------------------------------------


def _who(device: DeviceLine, now: float, *, speed: float | None) -> Line:
    jobs = [Span(" ".join(device.jobs))] if device.jobs else []
    jobs += [Span(f" (together {speed:.1f}x)", "faint")] if speed is not None else []
    others = [(Span("; "), Span(text, "odd")) for text in _obstacles(device, now)]
    spans = (*jobs, *(span for pair in others for span in pair))
    return (spans if jobs else spans[1:]) or (Span("-", "faint"),)


def _obstacles(device: DeviceLine, now: float) -> Iterator[str]:
    """Who besides our jobs is on the device, and why it may not be used."""
    if device.elsewhere:
        named = ", ".join(f"{job.label} {job.name}".rstrip() for job in device.elsewhere)
        yield f"other queue: {named} ({_pids(job.pid for job in device.elsewhere)})"
    leases = [lease for lease in device.leases if not (lease.yours and device.elsewhere)]
    for owner in dict.fromkeys(lease.owner for lease in leases):
        yield _leased([lease for lease in leases if lease.owner == owner], now)
    leased = {lease.owner for lease in device.leases}
    foreign = [stranger for stranger in device.strangers if stranger.owner not in leased and not stranger.graphics]
    for owner in dict.fromkeys(stranger.owner for stranger in foreign):
        yield _foreign([stranger for stranger in foreign if stranger.owner == owner])
    if device.drained:
        yield marked(device.drained, "drained", now)
    for booked in device.bookings[:1]:
        begin, end = booked.begin.timestamp(), booked.end.timestamp()
        who = "you" if booked.yours else booked.user
        if begin <= now:
            yield f"booked by {who} until {clock_text(end, now)}"
        elif begin - now < SOON_BOOKED:
            yield f"booked by {who} from {clock_text(begin, now)}"
    if device.problem:
        yield device.problem


def _leased(leases: Sequence[LeaseLine], now: float) -> str:
    """The leases of one user: `alice until ~18:00: 3 jobs 12G (pids 71 72 73)`."""
    sizes = [lease.memory_bytes for lease in leases]
    memory = "whole GPU" if None in sizes else short_size(sum(filter(None, sizes)))
    who = f"you, {leases[0].what or 'another queue'}" if leases[0].yours else leases[0].owner
    engines = [lease.pid for lease in leases if not lease.job]
    places = [_pids(lease.pid for lease in leases if lease.job), f"engine {engines[0]}" if engines else ""]
    jobs = f"{count_text(len(leases), 'job')} {memory}"
    return f"{who}{_end(leases, now)}: {jobs} ({', '.join(filter(None, places))})"


def _end(leases: Sequence[LeaseLine], now: float) -> str:
    """When the last of the jobs ends; nothing if that is unknown of one."""
    last = max(leases, key=lambda lease: lease.expected_end or lease.until or FOREVER)
    text = end_text(last.expected_end, last.until, now)
    return "" if text == "?" else f" until {text}"


def end_text(expected: datetime | None, latest: datetime | None, now: float) -> str:
    """`~14:30` as expected, `14:30 latest` by the time limit, or `?`."""
    if expected is not None and expected.timestamp() > now:
        return f"~{clock_text(expected.timestamp(), now)}"
    return "?" if latest is None else f"{clock_text(latest.timestamp(), now)} latest"


def _foreign(processes: Sequence[ForeignProcess]) -> str:
    """The foreign processes of one user: `alice: 26G foreign (pids 9911 9912)`."""
    sizes = [process.memory_bytes for process in processes if process.memory_bytes is not None]
    memory = f"{short_size(sum(sizes))} " if sizes else ""
    return f"{processes[0].owner or '?'}: {memory}foreign ({_pids(process.pid for process in processes)})"


def _pids(pids: Iterable[int]) -> str:
    numbers = list(dict.fromkeys(pids))
    if not numbers:
        return ""
    more = " …" if len(numbers) > MOST_PIDS else ""
    return f"pid{'s' if len(numbers) > 1 else ''} {' '.join(map(str, numbers[:MOST_PIDS]))}{more}"


def marked(mark: Mark, default: str, now: float) -> str:
    since = "" if mark.since is None else f", {ago_text(mark.since.timestamp(), now)}"
    return f"{mark.note or default}{since}"


# -- stoker gpus -----------------------------------------------------------------------------------

SOON_BOOKED = DAY
"""Seconds before a booking begins from which on the table of GPUs names it."""
MIN_WHAT_COLUMNS = 16
NO_LIMIT = 10**9
FOREVER = datetime.max.replace(tzinfo=UTC)
Other = tuple[str, str, str, str, str, str]
"""Device, owner, pid, memory, since, and what it is."""


def render_gpus(gpus: Gpus, width: int) -> list[Line]:
    """A heading, a line for each device, and one for each lease of others and each foreign process."""
    now = gpus.at.timestamp()
    title = heading([f"{gpus.host} · {machine_text(gpus.devices) or 'no GPUs'}"], width, simulated=gpus.simulated)
    notes = [(Span(note, "odd"),) for note in gpus.notes]
    lines = [title, *notes, *device_table(gpus.devices, now, width, NO_LIMIT)]
    if others := list(_others(gpus, now)):
        lines += [EMPTY, *_others_table(others, width)]
    return [clipped(line, width) for line in lines]


def _others(gpus: Gpus, now: float) -> Iterator[Other]:
    for device in gpus.devices:
        for job in device.elsewhere:
            what = f"job {job.label} {job.name}".rstrip() + " of your other queue"
            yield (
                device.label,
                "you",
                str(job.pid),
                "all" if job.memory_bytes is None else size_text(job.memory_bytes),
                "-",
                what,
            )
        for lease in device.leases:
            if lease.yours and device.elsewhere:
                continue
            memory = "all" if lease.memory_bytes is None else size_text(lease.memory_bytes)
            since = clock_text(lease.since.timestamp(), now)
            yield device.label, lease.owner, str(lease.pid), memory, since, _lease_text(lease, now)
        for stranger in device.strangers:
            what = f"{stranger.command or '?'} ({'graphics' if stranger.graphics else 'foreign process'})"
            yield device.label, stranger.owner or "?", str(stranger.pid), size_text(stranger.memory_bytes), "-", what


def _lease_text(lease: LeaseLine, now: float) -> str:
    """`job 12 (stoker), until ~17:10, 18:00 latest`; without a job, the process is that of the engine."""
    what = lease.what or "a lease"
    ends = [end_text(lease.expected_end, None, now), end_text(None, lease.until, now)]
    end = ", until " + ", ".join(end for end in ends if end != "?") if set(ends) != {"?"} else ""
    return f"job {lease.job} ({what}){end}" if lease.job else f"{what} (engine)"


def _others_table(others: list[Other], width: int) -> list[Line]:
    devices, owners, pids, sizes, moments, what = zip(*others, strict=True)
    columns = [
        Column("GPU", [Span(device, "id") for device in devices], 9, most=12),
        Column("USER", [Span(owner, "odd") for owner in owners], 8, most=16),
        Column("PID", list(map(Span, pids)), 5, right=True),
        Column("MEM", list(map(Span, sizes)), 6, right=True),
        Column("SINCE", list(map(Span, moments)), 3, right=True),
    ]
    return table_lines(columns, "OTHER JOBS AND PROCESSES", [(Span(text),) for text in what], width, MIN_WHAT_COLUMNS)
