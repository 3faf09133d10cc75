"""Render `stoker status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.cli.views.text import (
    EMPTY,
    GIB,
    Amounts,
    Column,
    Line,
    Look,
    Span,
    amount_text,
    cells,
    clip,
    clipped,
    line_cells,
    memory_bar,
    short_size,
    table_lines,
)
from stoker.core.text import printable
from stoker.core.units import count_text, size_text
from stoker.queue.view_builder import ago_text, clock_text, left_text, span_text, watch_text
from stoker.queue.view_model import DeviceLine, JobLine, JobWord, Status

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
    memory = [Span(" " * (bar + 1 if bar else 0) + amount.rjust(wide)) for amount in amounts]
    return [
        Column("GPU", [Span(printable(device.label), "id") for device in devices], 9, most=12),
        Column(title, memory, 8, most=80),
        Column("UTIL", [Span(_percent(device.utilisation_percent)) for device in devices], 5, right=True),
        Column("TEMP", [Span(_degrees(device.temperature_celsius)) for device in devices], 4, right=True),
    ]


def _with_bar(line: Line, device: DeviceLine, bar: int) -> Line:
    """The line with the bar in the place that its column keeps free for it."""
    margin, label, memory, *rest = line
    amounts = Amounts(device.memory_bytes, device.ours_bytes, device.reserved_bytes, device.others_bytes)
    return (margin, label, *memory_bar(amounts, bar), Span(memory.text[bar:], memory.look), *rest)


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
        return (Span("-", "faint"),)
    spans = [span for text, odd in told for span in (Span(text, "odd" if odd else ""), Span("; "))]
    if speed is not None:
        spans[1:1] = [Span(f" (together {speed:.1f}x)", "faint")]
    return tuple(spans[:-1])


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
    return [(Span(long if len(long) <= width else f"{count} (stoker gpus)", "faint"),)]


WIDE = 100
"""Columns from which on the name has a place of its own."""

LEAST_WHY = 24

LONGEST_NAME = 24

LONGEST_TEXT = 2000
"""Characters of a command that are looked at: no terminal shows more."""

ACTIVE: tuple[JobWord, ...] = ("starting", "running", "stopping")

LOOKS: dict[JobWord, Look] = {
    "running": "good",
    "done": "good",
    "starting": "good",
    "stopping": "odd",
    "held": "odd",
    "blocked": "odd",
    "scheduled": "odd",
    "failed": "bad",
    "oom": "bad",
    "timeout": "bad",
    "lost": "bad",
}


def job_table(jobs: Sequence[JobLine], now: float, width: int) -> list[Line]:
    """A header and a line for each job."""
    wide = width >= WIDE and any(job.name for job in jobs)
    columns = [
        Column("ID", [Span(job.label, "id") for job in jobs], 9, most=18),
        Column("STATE", [Span(job.state, LOOKS.get(job.state, "")) for job in jobs], 8, always=True),
        Column("GPU", [Span(printable(",".join(job.devices)) or "-") for job in jobs], 5, most=7),
        Column("MEM", [_memory(job) for job in jobs], 3, right=True),
        Column("TIME", [Span(_time(job)) for job in jobs], 4, right=True),
        Column("LEFT", [Span(_left(job, now)) for job in jobs], 6, right=True),
        *([Column("NAME", [Span(_shown(job.name) or "-") for job in jobs], 2, most=LONGEST_NAME)] if wide else []),
    ]
    told = [(Span(_told(job, named=wide)),) for job in jobs]
    return table_lines(columns, "WHY / COMMAND" if wide else "NAME / WHY", told, width, LEAST_WHY)


def _told(job: JobLine, *, named: bool) -> str:
    """What a job is, for one that a worker has; why it is none of these, for one that waits."""
    if job.state in ACTIVE:
        what = _shown(job.command if named or not job.name else job.name)
        return f"{what} ({printable(job.why)})" if job.why else what
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    return tasks + printable(job.why)


def _shown(text: str) -> str:
    return printable(clip(text[:LONGEST_TEXT].strip().replace("\\\n", " ").replace("\n", "; "), LONGEST_TEXT))


def _memory(job: JobLine) -> Span:
    """What it uses of what is set aside on each GPU; for one that waits, what would be or is to be learnt."""
    reserved = job.reserved_bytes
    used = job.used_bytes if job.held_bytes is None else job.held_bytes
    if used is None or job.state not in ACTIVE:
        unknown = "auto" if job.vram_mode == "auto" else "-"
        return Span(unknown if reserved is None else short_size(reserved))
    if reserved is None:
        return Span(f"{used / GIB:.1f}G")
    return Span(amount_text(used, reserved), "odd" if used > reserved else "")


def _time(job: JobLine) -> str:
    return "-" if job.seconds is None else watch_text(job.seconds)


def _left(job: JobLine, now: float) -> str:
    """How long it will run, or when it will start: `~` is a guess, `≤` a limit, `?` nobody knows."""
    if job.state in ACTIVE:
        if job.expected_end is not None:
            return f"~{left_text(job.expected_end.timestamp() - now)}"
        if job.limit_seconds is not None:
            return f"≤{left_text(job.limit_seconds - (job.seconds or 0.0))}"
        return "?"
    if job.expected_start is not None:
        return f"~{clock_text(job.expected_start.timestamp(), now)}"
    return "?" if job.state == "queued" else "-"


NO_ENGINE = "no engine runs; it starts with the next submit, or: stoker engine start"

OLD_SECONDS = 5.0
"""Age from which on it is told how old the numbers are."""

ROOMY = 14
"""Lines from which on there are empty ones between the parts."""


def render_status(status: Status, width: int, height: int | None, sim: str = "") -> list[Line]:
    """All lines; a height of None shows everything. `sim` is what commands on this queue have to be typed with."""
    now = status.at.timestamp()
    room = (height or 10**9) - 2  # the last line, and the prompt that follows
    top = [heading_line(status, width), *note_lines(status)]
    gap = [EMPTY] if room >= ROOMY else []
    room -= len(top) + 2 * len(gap)
    least_jobs = min(len(status.jobs), 3) + 1 if status.jobs else 1
    devices = device_table(status.devices, now, width, room - least_jobs, speeds=width >= WIDE)
    shown = _chosen(status.jobs, room - len(devices) - 1)
    jobs = job_table(shown, now, width) if shown else _empty_lines(status, sim)
    parts = [part for part in (top, devices, [*jobs, *last_line(status, shown, width, sim)]) if part]
    lines = [line for part in parts for line in (*gap, *part)]
    return [clipped(line, width) for line in lines[len(gap) :]]


def heading_line(status: Status, width: int) -> Line:
    """`stoker on lab7 · 4 × A100 40G · engine up 3d 2h`; parts that do not fit are left out."""
    badge = [Span(" SIM ", "simulated"), Span(" ")] if status.simulated else []
    room = width - line_cells(badge)
    text = f"stoker on {printable(status.host)}"
    for part in (_paused(status), _engine(status), machine_text(status.devices)):
        if part and cells(text) + cells(part) + 3 <= room:
            text = f"{text} · {part}"
    return (*badge, Span(text, "heading"))


def note_lines(status: Status) -> list[Line]:
    """What is wrong, or old."""
    lines: list[Line] = []
    seen = status.engine.seen
    if not status.engine.running:
        lines.append((Span(NO_ENGINE, "odd"),))
    if seen is not None and status.devices and (status.at - seen).total_seconds() > OLD_SECONDS:
        when = ago_text(seen.timestamp(), status.at.timestamp())
        why = "the engine does not answer; " if status.engine.running else ""
        lines.append((Span(f"{why}the GPUs are shown as they were {when}", "odd"),))
    if status.engine.draining:
        lines.append((Span("the engine starts nothing more, and leaves when nothing runs", "odd"),))
    return [*lines, *((Span(printable(note), "bad"),) for note in status.notes)]


def last_line(status: Status, shown: Sequence[JobLine], width: int, sim: str) -> list[Line]:
    """What is hidden and how to see it, when the queue will be empty, and what ended today."""
    now = status.at.timestamp()
    parts = [_hidden(status, shown, width, sim)]
    if status.expected_empty is not None:
        parts.append(f"queue empty ~{clock_text(status.expected_empty.timestamp(), now)}")
    parts.append(_today(status, sim))
    text = ""
    for part in filter(None, parts):
        if not text or cells(text) + cells(part) + 4 <= width:
            text = f"{text} · {part}" if text else f" {part}"
    return [(Span(text, "faint"),)] if text else []


def _chosen(jobs: Sequence[JobLine], room: int) -> list[JobLine]:
    """The jobs for which there is room: what runs first, but never so many that nothing that waits is seen."""
    active = [job for job in jobs if job.state in ACTIVE]
    queued = [job for job in jobs if job.state not in ACTIVE]
    for_queued = min(len(queued), max(room - len(active), room // 3))
    return [*active[: max(0, room - for_queued)], *queued[: max(0, for_queued)]]


def _hidden(status: Status, shown: Sequence[JobLine], width: int, sim: str) -> str:
    active = sum(job.state in ACTIVE for job in shown)
    held = sum(job.tasks for job in shown if job.state == "held")
    queued = sum(job.tasks for job in shown) - active - held
    counts = status.counts
    left = ((counts.active - active, "running"), (counts.waiting - queued, "waiting"), (counts.held - held, "held"))
    told = [f"{count} more {word}" for count, word in left if count > 0]
    more = sum(max(0, count) for count, _ in left)
    forms = (f"… {', '.join(told)} (stoker status{sim} -a)", f"… {more} more (stoker status{sim} -a)")
    return next((form for form in forms if cells(form) < width), forms[-1]) if told else ""


def _today(status: Status, sim: str) -> str:
    done = status.today.get("done", 0)
    others = [f"{count} {word}" for word, count in sorted(status.today.items()) if word != "done" and count]
    return f"today {', '.join([f'{done} done', *others])} (stoker history{sim})" if status.today else ""


def _empty_lines(status: Status, sim: str) -> list[Line]:
    if any((status.counts.active, status.counts.waiting, status.counts.held)):
        return []
    return [(Span(f"the queue is empty; put something into it: stoker submit{sim} python train.py"),)]


def _paused(status: Status) -> str:
    mark = status.engine.paused
    if mark is None:
        return ""
    since = "" if mark.since is None else f", {ago_text(mark.since.timestamp(), status.at.timestamp())}"
    return f"the queue is {printable(mark.note) or 'paused'}{since}"


def _engine(status: Status) -> str:
    engine = status.engine
    if not engine.running:
        return "no engine"
    up = "" if engine.since is None else f" up {span_text((status.at - engine.since).total_seconds())}"
    return f"engine{up}"


def machine_text(devices: Sequence[DeviceLine]) -> str:
    """`4 × A100 40G, 2 × T4 16G`."""
    kinds = Counter(_kind(device) for device in devices)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _kind(device: DeviceLine) -> str:
    model = printable(device.model).removeprefix("NVIDIA ") or "GPU"
    if device.memory_bytes is None or model[-1:] in "GB":
        return model
    return f"{model} {size_text(device.memory_bytes).replace('.0', '')}"
