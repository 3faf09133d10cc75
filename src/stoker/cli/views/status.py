"""Render `stoker status` and `stoker gpus`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.cli.views.job_table import ACTIVE, attention_lines, chosen_jobs, headers_in, job_table, listed_jobs
from stoker.cli.views.text import (
    EMPTY,
    Column,
    Line,
    Span,
    amount_text,
    cells,
    clipped,
    fitting,
    heading,
    memory_bar,
    or_dash,
    table_lines,
)
from stoker.core.text import printable
from stoker.core.units import count_text, size_text
from stoker.queue.view_model import DeviceLine, JobLine, Mark, Status
from stoker.queue.view_text import ago_text, clock_text, span_text

if TYPE_CHECKING:
    from stoker.queue.gpu_view import Gpus  # `status` does not need it

NO_ENGINE = "no engine runs; it starts with the next submit, or: stoker engine start"
OLD_SECONDS = 5.0
"""Age from which on the screen tells how old the readings of the GPUs are."""
ROOMY = 14
"""Lines from which on there are empty ones between the parts."""
WIDE = 100
"""Columns from which on names get a column of their own and speeds are shown."""
LONGEST_BAR = 40
SHORTEST_BAR = 8
FIXED_COLUMNS = 55
"""Columns of a device's line besides the bar, with room for its users."""
LEAST_JOBS = 16
LEAST_WHY = 24
LONGEST_NAME = 24


def render_status(status: Status, width: int, height: int | None, sim: str = "") -> list[Line]:
    """All lines; a height of None shows everything. `sim` is the option that commands on this queue need."""
    now = status.at.timestamp()
    room = (height or 10**9) - 2  # the last line, and the prompt that follows
    top = [_heading(status, width), *_note_lines(status)]
    gap = [EMPTY] if room >= ROOMY else []
    room -= len(top) + 2 * len(gap)
    listed = listed_jobs(status)
    below = attention_lines(status, now, width, sim)
    least_jobs = min(len(listed), 3) + 1 if listed else 1
    devices = device_table(status.devices, now, width, room - least_jobs, speeds=width >= WIDE)
    room -= len(devices)
    for_jobs = room - min(len(below), room // 4)
    shown = chosen_jobs(listed, for_jobs)
    jobs = job_table(shown, now, width, headers_in(for_jobs)) if shown else []
    if not any((status.counts.active, status.counts.waiting, status.counts.held)):
        jobs = [(Span(f"the queue is empty; put something into it: stoker submit{sim} python train.py"),)]
    jobs += below[: max(0, room - len(jobs))]
    parts = [part for part in (top, devices, [*jobs, *_last_line(status, shown, width, sim)]) if part]
    lines = [line for part in parts for line in (*gap, *part)]
    return [clipped(line, width) for line in lines[len(gap) :]]


# -- devices -------------------------------------------------------------------------------------


def device_table(
    devices: Sequence[DeviceLine], now: float, width: int, room: int, *, speeds: bool = True
) -> list[Line]:
    """A header and a line for each device; if there are more than lines, the last one counts the others."""
    if not devices or room < 2:
        return []
    shown = devices if len(devices) < room else devices[: max(1, room - 2)]
    bar = width - FIXED_COLUMNS
    bar = 0 if bar < SHORTEST_BAR or not any(device.memory_bytes for device in shown) else min(LONGEST_BAR, bar)
    title = "MEMORY held/total (others)" if bar else "MEMORY"
    columns = [
        Column("GPU", [Span(printable(device.label), "id") for device in shown], 9, most=12),
        Column(title, memory_cells(shown, bar), 8, most=80),
        Column("UTIL", [Span(or_dash(device.utilisation_percent, "{}%")) for device in shown], 5, right=True),
        Column("TEMP", [Span(or_dash(device.temperature_celsius, "{}°C")) for device in shown], 4, right=True),
    ]
    who = [_who(device, now, speed=device.combined_speed if speeds else None) for device in shown]
    lines = table_lines(columns, "JOBS", who, width, LEAST_JOBS)
    if hidden := devices[len(shown) :]:
        count = f" … {count_text(len(hidden), 'more GPU')}"
        long = f"{count}, {sum(bool(device.jobs) for device in hidden)} with jobs (stoker gpus)"
        lines.append((Span(long if len(long) <= width else f"{count} (stoker gpus)", "faint"),))
    return lines


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


def _who(device: DeviceLine, now: float, *, speed: float | None) -> Line:
    jobs = [Span(" ".join(device.jobs))] if device.jobs else []
    jobs += [Span(f" (together {speed:.1f}x)", "faint")] if speed is not None else []
    others = [(Span("; "), Span(printable(text), "odd")) for text in _obstacles(device, now)]
    spans = (*jobs, *(span for pair in others for span in pair))
    return (spans if jobs else spans[1:]) or (Span("-", "faint"),)


def _obstacles(device: DeviceLine, now: float) -> Iterator[str]:
    """Who besides our jobs is on the device, and why it may not be used."""
    yield from (f"{lease.owner}: {lease.what or 'a lease'}" for lease in device.leases)
    leased = {lease.owner for lease in device.leases}
    strangers = [one for one in device.strangers if one.owner not in leased and not one.graphics]
    yield from (f"{one.owner} pid {one.pid} (not ours)" for one in strangers)
    if device.drained:
        yield _marked(device.drained, "drained", now)
    if device.problem:
        yield device.problem


def _marked(mark: Mark, default: str, now: float) -> str:
    since = "" if mark.since is None else f", {ago_text(mark.since.timestamp(), now)}"
    return f"{mark.note or default}{since}"


def machine_text(devices: Sequence[DeviceLine]) -> str:
    """`4 × A100 40G, 2 × T4 16G`."""
    kinds: Counter[str] = Counter()
    for device in devices:
        model = printable(device.model).removeprefix("NVIDIA ") or "GPU"
        named = device.memory_bytes is None or model[-1:] in "GB"  # the model tells its memory
        kinds[model if named else f"{model} {size_text(device.memory_bytes).replace('.0', '')}"] += 1
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


# -- heading, notes and last line ----------------------------------------------------------------


def _heading(status: Status, width: int) -> Line:
    """`stoker on lab7 · engine up 3d 2h · 4 × A100 40G`."""
    engine, mark = status.engine, status.engine.paused
    paused = f"the queue is {printable(_marked(mark, 'paused', status.at.timestamp()))}" if mark else ""
    up = "" if engine.since is None else f" up {span_text((status.at - engine.since).total_seconds())}"
    parts = (paused, f"engine{up}" if engine.running else "no engine", machine_text(status.devices))
    return heading((f"stoker on {printable(status.host)}", *parts), width, simulated=status.simulated)


def _note_lines(status: Status) -> list[Line]:
    """What is wrong, or old."""
    lines: list[Line] = []
    seen = status.engine.seen
    if not status.engine.running:
        lines.append((Span(NO_ENGINE, "odd"),))
    if seen is not None and status.devices and (status.at - seen).total_seconds() > OLD_SECONDS:
        when = ago_text(seen.timestamp(), status.at.timestamp())
        silent = status.engine.running and not status.engine.silence  # a note says that, and why
        why = "the engine does not answer; " if silent else ""
        lines.append((Span(f"{why}the GPUs are shown as they were {when}", "odd"),))
    if status.engine.draining:
        lines.append((Span("the engine starts nothing more, and leaves when nothing runs", "odd"),))
    return [*lines, *((Span(printable(note), "bad"),) for note in status.notes)]


def _last_line(status: Status, shown: Sequence[JobLine], width: int, sim: str) -> list[Line]:
    """What is hidden and how to see it, when the queue will be empty, and what ended today."""
    empty = status.expected_empty
    until = "" if empty is None else f"queue empty ~{clock_text(empty.timestamp(), status.at.timestamp())}"
    today = f"today {results_text(status.today)} (stoker history{sim})" if status.today else ""
    text = fitting((_hidden(status, shown, width, sim), until, today), width - 2)
    return [(Span(f" {text}", "faint"),)] if text else []


def _hidden(status: Status, shown: Sequence[JobLine], width: int, sim: str) -> str:
    active = sum(job.state in ACTIVE for job in shown)
    held = sum(job.tasks for job in shown if job.state == "held")
    queued = sum(job.tasks for job in shown) - active - held
    counts = status.counts
    queued += sum(run.jobs for run in status.interrupted)  # they have a line of their own
    left = ((counts.active - active, "running"), (counts.waiting - queued, "waiting"), (counts.held - held, "held"))
    counted = [f"{count} more {word}" for count, word in left if count > 0]
    more = sum(max(0, count) for count, _ in left)
    forms = (f"… {', '.join(counted)} (stoker status{sim} -a)", f"… {more} more (stoker status{sim} -a)")
    return next((form for form in forms if cells(form) < width), forms[-1]) if counted else ""


def results_text(counts: Mapping[str, int]) -> str:
    """`212 done, 3 failed`."""
    others = [f"{count} {word}" for word, count in sorted(counts.items()) if word != "done" and count]
    return ", ".join([f"{counts.get('done', 0)} done", *others])


# -- stoker gpus -----------------------------------------------------------------------------------

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
    lines = [title, *notes, *device_table(gpus.devices, now, width, NO_LIMIT)]
    if others := list(_others(gpus, now)):
        lines += [EMPTY, *_others_table(others, width)]
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
