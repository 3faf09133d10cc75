"""Lines of the live view: GPUs, table rows, details; pure functions of what `queue` has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from stoker.cli.views.gpus import machine_text, marked, memory_cells
from stoker.cli.views.job import peak_text
from stoker.cli.views.job_table import ACTIVE, LOOKS, left_cell, memory_cell, progress_cell, start_cell
from stoker.cli.views.status import results_text
from stoker.cli.views.text import (
    EMPTY,
    GPU_LOADS,
    HEIGHTS,
    Column,
    Line,
    Span,
    cells,
    clip,
    clip_middle,
    clipped,
    fitting,
    line_cells,
    load_look,
    one_line,
    or_dash,
    padded,
    table_lines,
)
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.queue.history_view import PastLine
from stoker.queue.samples import GpuSamples
from stoker.queue.view_model import DeviceLine, JobLine, Status
from stoker.queue.view_text import ago_text, clock_text, watch_text

TWO_COLUMNS = 100
"""Width from which on GPUs stand side by side; with more than four of them..."""
TWO_SHORT_COLUMNS = 76
"""... already this one."""
LEAST_NAME = 16
OLD_SECONDS = 15.0
"""Age from which on readings are said to be old."""
ROOMY = 18
"""Lines of a pane from which on there is room for all facts of a job above its log."""
Order = Literal["start", "id", "name", "state", "memory", "time"]
ORDERS: tuple[Order, ...] = ("start", "id", "name", "state", "memory", "time")


# -- the first line ------------------------------------------------------------------------------


def header_line(status: Status | None, clock: str, width: int, *, readonly: bool) -> Line:
    """The host and its GPUs on the left; counts and the time on the right."""
    if status is None:
        return (Span("stoker", "heading"), Span(f"{clock} ".rjust(width - 6)))
    badge = (Span(" SIM ", "simulated"), Span(" ")) if status.simulated else ()
    failed = sum(count for word, count in status.today.items() if word in ("failed", "oom", "timeout", "lost"))
    counts = status.counts
    right: Line = (
        *((Span("read-only  ", "odd"),) if readonly else ()),
        Span(f"{counts.active} running  ", "good" if counts.active else ""),
        Span(f"{counts.waiting} waiting  "),
        *((Span(f"{counts.held} held  ", "odd"),) if counts.held else ()),
        *((Span(f"{failed} failed  ", "bad"),) if failed else ()),
        Span(f"{clock} "),
    )
    room = width - line_cells(badge) - line_cells(right) - 2
    left = fitting([f"stoker · {printable(status.host)}", machine_text(status.devices)], room)
    return *badge, Span(padded(clip(left, max(0, room)), max(0, room)), "heading"), Span("  "), *right


def notices(status: Status, now: float) -> list[Line]:
    """What keeps the queue from working as usual, one line each."""
    engine = status.engine
    found: list[Line] = []
    if not engine.running:
        old = engine.seen is not None and now - engine.seen.timestamp() > OLD_SECONDS
        seen = f"; GPU readings are from {ago_text(engine.seen.timestamp(), now)}" if old and engine.seen else ""
        found.append((Span(f"the engine is stopped{seen}; it starts with the next stoker submit", "odd"),))
    if engine.paused is not None:
        found.append((Span(f"the queue is paused: {printable(marked(engine.paused, 'paused', now))}", "odd"),))
    if engine.draining:
        found.append((Span("the engine is draining: it starts no more jobs", "odd"),))
    return [*found, *((Span(printable(note), "bad"),) for note in status.notes)]


# -- GPUs ----------------------------------------------------------------------------------------


def gpu_lines(status: Status, samples: GpuSamples | None, now: float, width: int, most: int) -> list[Line]:
    """A line for each GPU, or for two of them; those for which there is no room are counted."""
    devices = status.devices
    if not devices:
        return [(Span(" no GPUs are known yet" if status.engine.seen is None else " no GPUs", "faint"),)]
    two = width >= TWO_COLUMNS or (len(devices) > 4 and width >= TWO_SHORT_COLUMNS)
    columns = 2 if two and len(devices) > 1 else 1
    room = (width - (columns - 1) * 3) // columns
    rows = -(-len(devices) // columns)
    shown_rows = rows if rows <= most else max(1, most - 1)
    shown = devices[: shown_rows * columns]
    curves = {} if samples is None else {one.id: one.curves.utilisation_percent for one in samples.devices}
    lines = _gpu_rows(shown, curves, now, room)
    if columns == 2:
        half = -(-len(shown) // 2)
        right = [*lines[half:], *[EMPTY] * (2 * half - len(lines))]
        pairs = zip(lines[:half], right, strict=True)
        lines = [(*_filled(one, room), Span(" │ ", "faint"), *other) for one, other in pairs]
    if hidden := len(devices) - len(shown):
        lines.append((Span(f" … {count_text(hidden, 'more GPU')} (stoker gpus)", "faint"),))
    return lines


def _gpu_rows(devices: Sequence[DeviceLine], curves: dict[str, list[int | None]], now: float, width: int) -> list[Line]:
    wide = max(cells(_gpu_name(device)) for device in devices)
    rest = width - wide - 2 - 5 - 6
    curve = max(0, min(20, rest // 4)) if curves else 0
    bar = max(6, min(40, (rest - curve - 12) * 3 // 5))
    memory = memory_cells(devices, bar, len("34.1/40G"))
    lines: list[Line] = []
    for device, cell in zip(devices, memory, strict=True):
        load = device.utilisation_percent
        line: Line = (
            Span(f" {padded(_gpu_name(device), wide)} ", "id"),
            *cell,
            *_curve(curves.get(device.id, []), curve),
            Span(or_dash(load, "{}%").rjust(5), "" if load is None else load_look(load, GPU_LOADS)),
            Span(or_dash(device.temperature_celsius, "{}°").rjust(5), "faint"),
        )
        who = Span("  " + _who(device, now), "odd" if not device.jobs else "")
        lines.append(clipped((*line, who), width))
    return lines


def _gpu_name(device: DeviceLine) -> str:
    label = printable(device.label)
    return f"GPU {label}" if len(label) <= 3 else clip(label, 14)


def _who(device: DeviceLine, now: float) -> str:
    """Jobs, or who else is there, or why it is not used."""
    if device.problem:
        return printable(device.problem)
    if device.drained is not None:
        return printable(marked(device.drained, "drained", now))
    others = sorted(
        {lease.owner for lease in device.leases} | {one.owner for one in device.strangers if not one.graphics}
    )
    return printable(" ".join([*device.jobs, *others]))


def _curve(percents: Sequence[int | None], columns: int) -> Line:
    """The last minutes, the newest on the right; a gap where nothing is known."""
    if not columns:
        return ()
    newest = list(percents)[-columns:]
    text = "".join(" " if one is None else HEIGHTS[min(7, one * 8 // 100)] for one in newest)
    return (Span(f" {text.rjust(columns)}", "light"),)


def _filled(line: Line, width: int) -> Line:
    return *line, Span(" " * max(0, width - line_cells(line)))


# -- tables --------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A header and the rows below."""

    header: Line
    rows: list[Line]


def jobs_table(jobs: Sequence[JobLine], now: float, width: int) -> Table:
    """Some jobs; those that wait show when they start and why not yet."""
    columns = [
        Column("ID", [Span(job.label, "id") for job in jobs], 10, most=18),
        Column("STATE", [Span(job.state, LOOKS.get(job.state, "")) for job in jobs], 9, always=True),
        Column("GPU", [Span(printable(",".join(job.devices)) or "-") for job in jobs], 5, most=7),
        Column("MEM", [memory_cell(job) for job in jobs], 4, right=True),
        Column("TIME", [_time(job, now) for job in jobs], 3, right=True),
        Column("LEFT", [Span(_left_or_start(job, now)) for job in jobs], 7, right=True),
    ]
    if any(job.progress is not None for job in jobs):
        columns.append(Column("DONE", [progress_cell(job.progress, 5) for job in jobs], 2))
    if any(job.priority for job in jobs):
        columns.append(Column("PRIO", [Span(str(job.priority)) for job in jobs], 6, right=True))
    return _table(columns, "NAME", [_name(job) for job in jobs], width)


def _table(columns: Sequence[Column], title: str, last: Sequence[Line], width: int) -> Table:
    header, *lines = table_lines(columns, title, last, width - 1, LEAST_NAME, fit=_fit)
    return Table(header, lines)


def _fit(line: Line, room: int) -> Line:
    name, *rest = line
    least = min(cells(name.text), max(LEAST_NAME, room // 3)) if rest else room
    return clipped((name._replace(text=clip_middle(name.text, least)), *rest), room)


def ordered(jobs: Sequence[JobLine], order: Order) -> list[JobLine]:
    """The jobs by start, which is the order of `status`, or by something else."""
    if order == "start":
        return list(jobs)
    keys: dict[str, Callable[[JobLine], tuple[object, ...]]] = {
        "id": lambda job: (job.id,),
        "name": lambda job: (job.title.casefold(), job.id),
        "state": lambda job: (job.state, job.id),
        "memory": lambda job: (-(job.held_bytes or job.used_bytes or job.reserved_bytes or 0), job.id),
        "time": lambda job: (-(job.seconds or 0.0), job.id),
    }
    return sorted(jobs, key=keys[order])


def _time(job: JobLine, now: float) -> Span:
    """How long it runs; counted from its start, so that it goes on between two looks at the queue."""
    if job.started is None or job.state not in ACTIVE:
        return Span("-")
    seconds = job.seconds if job.last_seen is not None else now - job.started.timestamp()
    return Span(watch_text(seconds or 0.0))


def _left_or_start(job: JobLine, now: float) -> str:
    if job.state in ACTIVE:
        return left_cell(job, now)
    start = start_cell(job, now)
    return f"~{start.removeprefix('at ')}" if job.expected_start is not None else start


def _name(job: JobLine) -> Line:
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    why = f"  {tasks}{printable(job.why)}" if job.why or tasks else ""
    return Span(one_line(job.title or job.name or job.command)), *((Span(why, "faint"),) if why else ())


def history_table(jobs: Sequence[PastLine], now: float, width: int) -> Table:
    """Some ended jobs."""
    runs = ["-" if job.run_seconds is None else watch_text(job.run_seconds) for job in jobs]
    columns = [
        Column("ID", [Span(job.label, "id") for job in jobs], 10, most=18),
        Column("STATE", [Span(job.state, LOOKS.get(job.state, "")) for job in jobs], 9, always=True),
        Column("ENDED", [Span(clock_text(job.ended.timestamp(), now)) for job in jobs], 7, right=True),
        Column("RAN", list(map(Span, runs)), 8, right=True),
        Column("GPU", [Span(printable(",".join(job.devices)) or "-") for job in jobs], 3, most=7),
        Column("PEAK", [Span(peak_text(job.peak_vram_bytes, job.reserved_bytes)) for job in jobs], 4, right=True),
        Column("GPU-H", [Span(f"{job.gpu_hours:.2f}" if job.gpus else "-") for job in jobs], 5, right=True),
    ]
    return _table(columns, "NAME / NOTE", [_past_name(job) for job in jobs], width)


def _past_name(job: PastLine) -> Line:
    counts = f"{results_text(job.counts)}: " if job.counts else ""
    note = f"  {printable(job.note)}" if job.note else ""
    name = Span(counts + one_line(job.title or job.name or job.command))
    return name, *((Span(note, LOOKS.get(job.state, "faint")),) if note else ())
