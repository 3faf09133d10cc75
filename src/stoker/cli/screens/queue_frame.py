"""The first screen of the queue in text: no wider than the terminal, and no taller unless all is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.cli.screens.clock import ago_text, clock_text, span_text
from stoker.cli.screens.device_table import device_table
from stoker.cli.screens.job_table import ACTIVE, WIDE, job_table
from stoker.cli.screens.pieces import EMPTY, Line, Piece, cells, clipped, line_cells
from stoker.cli.screens.queue_scene import DeviceLine, JobLine, Status
from stoker.core.units import size_text
from stoker.words import printable

NO_ENGINE = "no engine runs; it starts with the next submit, or: stoker engine start"
OLD_SECONDS = 5.0
"""Age from which on it is told how old the numbers are."""
ROOMY = 14
"""Lines from which on there are empty ones between the parts."""


def status_frame(status: Status, width: int, height: int | None, sim: str = "") -> list[Line]:
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
    badge = [Piece(" SIM ", "simulated"), Piece(" ")] if status.simulated else []
    room = width - line_cells(badge)
    text = f"stoker on {printable(status.host)}"
    for part in (_paused(status), _engine(status), machine_text(status.devices)):
        if part and cells(text) + cells(part) + 3 <= room:
            text = f"{text} · {part}"
    return (*badge, Piece(text, "heading"))


def note_lines(status: Status) -> list[Line]:
    """What is wrong, or old."""
    lines: list[Line] = []
    seen = status.engine.seen
    if not status.engine.running:
        lines.append((Piece(NO_ENGINE, "odd"),))
    if seen is not None and status.devices and (status.at - seen).total_seconds() > OLD_SECONDS:
        when = ago_text(seen.timestamp(), status.at.timestamp())
        why = "the engine does not answer; " if status.engine.running else ""
        lines.append((Piece(f"{why}the GPUs are shown as they were {when}", "odd"),))
    if status.engine.draining:
        lines.append((Piece("the engine starts nothing more, and leaves when nothing runs", "odd"),))
    return [*lines, *((Piece(printable(note), "bad"),) for note in status.notes)]


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
    return [(Piece(text, "faint"),)] if text else []


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
    return [(Piece(f"the queue is empty; put something into it: stoker submit{sim} python train.py"),)]


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
