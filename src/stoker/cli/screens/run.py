"""Render the live display of `stoker run`."""

from __future__ import annotations

import contextlib
import os
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stoker.app.views.job import JobLine
from stoker.app.views.model import DeviceLine, Notice, RunStatus
from stoker.app.views.run import Recent
from stoker.cli.screens.counts import counts_line
from stoker.cli.screens.gpus import memory_cells
from stoker.cli.screens.text import (
    EMPTY,
    GAP,
    Column,
    Line,
    Look,
    Span,
    cells,
    clip,
    clipped,
    heading,
    line_cells,
    padded,
    table_lines,
    table_width,
)
from stoker.core.job import JobEvent
from stoker.core.text import printable
from stoker.core.units import amount_text, count_text, duration_text, size_text

SPARE_ROWS = 2
"""Rows of the terminal that stay free, so that messages above the display can be read."""
MOST_NOTICES = 10
LEAST_SAID = 16
"""Columns for a failure's own words; the command that shows its log is left out if there are fewer."""


class Detail(NamedTuple):
    """How much is shown of each job on a device."""

    name: int
    time: bool
    progress: int | None = None
    """Columns of the progress bar; with 0 only the time left is shown."""


DETAILS = (
    Detail(40, time=True, progress=8),
    Detail(20, time=True, progress=8),
    Detail(20, time=True, progress=0),
    Detail(24, time=True),
    Detail(12, time=True),
    Detail(12, time=False),
    Detail(6, time=False),
    Detail(0, time=False),
)
"""From much to little: names tell more than times."""


def render_run(status: RunStatus, width: int, height: int) -> list[Line]:
    """All lines, none wider and all together not taller than the terminal."""
    room = max(1, height - SPARE_ROWS - 2)
    rows = device_rows(status, width, max(1, room - min(2, len(status.notices))))
    room -= len(rows)
    news = _news_lines(status, width, room)
    room -= len(news)
    above = [EMPTY] if room >= 2 else []
    below = [EMPTY] if room >= 2 and news else []
    lines = [
        _heading(status, width),
        *above,
        *rows,
        *below,
        *news,
        counts_line(status.counts, status.elapsed, status.left, width),
    ]
    return [clipped(line, width) for line in lines]


def _heading(status: RunStatus, width: int) -> Line:
    counts, devices = status.counts, len(status.devices)
    jobs = count_text(counts.total, "job") + (" so far" if counts.open_ended else "")
    gpus = count_text(devices, "GPU") if devices else ""
    logs = f"log dir {_near(status.logs)}" if status.logs else ""
    return heading((status.label, jobs, gpus, logs), width, simulated=status.simulated)


def _near(path: str) -> str:
    """The path relative to the working directory or the home directory."""
    here, home = os.getcwd(), os.path.expanduser("~")
    if path.startswith(here + "/"):
        return "." + path.removeprefix(here)
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path


# -- devices -------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A device, or the processor for jobs that need no device."""

    device: DeviceLine | None
    jobs: Sequence[JobLine]


def device_rows(status: RunStatus, width: int, room: int) -> list[Line]:
    """A line for each device; if there are more than lines, the last one counts the others."""
    rows = _rows(status)
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    columns = _columns(rows, width)
    space = width - table_width(columns)
    last = [
        jobs_line(jobs, space) if jobs or device is None else (Span(_idle(device, status.next), "faint"),)
        for device, jobs in shown
    ]
    lines = table_lines(columns, None, last, width, 0)
    if hidden := rows[len(shown) :]:
        busy = sum(bool(row.jobs) for row in hidden)
        lines.append((Span(f" … {count_text(len(hidden), 'more GPU')}: {busy} busy, {len(hidden) - busy} idle"),))
    return lines


def _rows(status: RunStatus) -> list[_Row]:
    jobs = {job.label: job for job in status.jobs}
    rows = [_Row(device, [jobs[label] for label in device.jobs]) for device in status.devices]
    without = [job for job in status.jobs if not job.devices]
    return [*rows, _Row(None, without)] if without else rows


def _columns(rows: Sequence[_Row], width: int) -> list[Column]:
    """Labels, and bars and amounts of memory if any is known."""
    devices = [row.device for row in rows if row.device is not None]
    sizes = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    names = ["CPU" if row.device is None else row.device.label for row in rows]
    labels = [Span(f"GPU{name}" if name.isdecimal() else name) for name in names]
    columns = [Column("", labels, 9, gap=" ")]
    if sizes:
        bar = 0 if width < 72 else 10 if width < 100 else 18
        memory = memory_cells(devices, bar, max(len(amount_text(total, total)) for total in sizes))
        columns.append(Column("", [*memory, (Span(""),)], 8, most=80, always=True))
    return columns


def _idle(device: DeviceLine, waits: str) -> str:
    """Why no job of the run is on the device."""
    if device.problem:
        return f"not usable: {device.problem}"
    if device.strangers:
        owners = sorted({stranger.owner for stranger in device.strangers if stranger.owner})
        return f"foreign: {size_text(device.used_bytes)} in use by {', '.join(owners) or '?'}"
    return f"idle: {waits}"


def jobs_line(jobs: Sequence[JobLine], room: int) -> Line:
    """The jobs on a device, each with as much detail as lets all be seen."""
    for detail in DETAILS:
        line = _joined([_job_spans(job, detail) for job in jobs])
        if line_cells(line) <= room:
            return line
    shown = [_job_spans(job, DETAILS[-1]) for job in jobs]
    while shown and line_cells(_joined(shown)) + len(f"{GAP}+{len(jobs)} more") > room:
        shown.pop()
    return *_joined(shown), Span(f"{GAP if shown else ''}+{len(jobs) - len(shown)} more")


def _job_spans(job: JobLine, detail: Detail) -> Line:
    """`#3 lr=1e-3 00:41 ▕▇▇▇▇▇▁▁▏~00:22`."""
    name = f" {clip(job.name, detail.name)}" if detail.name else ""
    wide = f" ×{len(job.devices)}" if len(job.devices) > 1 and detail.name else ""
    state = duration_text(job.seconds or 0.0) if job.state == "running" else job.state
    progress = "" if detail.progress is None else _progress(job, detail.progress)
    return Span(f"#{job.id}", "id"), Span(f"{name}{wide}"), Span(f" {state}{progress}" if detail.time else "", "faint")


def _progress(job: JobLine, columns: int) -> str:
    """How far a job is by its expected end; nothing once it is overdue."""
    if job.expected_end is None or job.started is None or job.seconds is None or job.state != "running":
        return ""
    expected = (job.expected_end - job.started).total_seconds()
    if job.seconds >= expected:
        return ""
    full = int(columns * job.seconds / expected)
    bar = f"▕{'▇' * full}{'▁' * (columns - full)}▏" if columns else ""
    return f" {bar}~{duration_text(expected - job.seconds + 1)}"


def _joined(lines: Sequence[Line]) -> Line:
    parts = [part for line in lines for part in (Span(GAP), *line)]
    return tuple(parts[1:])


# -- news ----------------------------------------------------------------------------------------


def _news_lines(status: RunStatus, width: int, room: int) -> list[Line]:
    """The newest failures, the newest successes, and what comes next, as far as there is room."""
    successes = [successes_line(status.successes, width)] if status.successes and room > 1 else []
    waits = [(Span(" … ", "faint"), Span(status.next))] if _tells_next(status) and room > 2 else []
    space = min(MOST_NOTICES, room - len(successes) - len(waits))
    notices = status.notices[-space:] if space > 0 else ()
    return [*notice_lines(notices, width, " --sim" if status.simulated else ""), *successes, *waits]


def _tells_next(status: RunStatus) -> bool:
    """Whether the next job needs a line of its own: not if none waits, or if an idle device tells why."""
    idle = any(not device.jobs and _idle(device, status.next).startswith("idle") for device in status.devices)
    return bool(status.next) and not status.next.startswith("no jobs waiting") and not idle


def notice_lines(notices: Sequence[Notice], width: int, option: str) -> list[Line]:
    """`✗ #5  lr=1.0  exit 1 after 00:09  RuntimeError: loss is nan  stoker logs 5`, in columns."""
    ids = max((len(str(notice.id)) for notice in notices), default=0)
    names = min(max((cells(notice.name) for notice in notices), default=0), width // 4)
    ends = max((cells(notice.what) for notice in notices), default=0)
    marks = {"failed": Span(" ✗ ", "bad"), "again": Span(" ↻ ", "odd"), "note": Span(" ! ", "odd")}
    lines: list[Line] = []
    for notice in notices:
        name = padded(clip(notice.name, names), names)
        start = (
            marks[notice.mark],
            Span(f"#{notice.id}".ljust(ids + 1), "id"),
            Span(f" {name}  {padded(notice.what, ends)}  "),
        )
        show = f"  stoker logs{option} {notice.id}" if notice.mark == "failed" else ""
        room = width - line_cells(start)
        show = show if room - len(show) >= LEAST_SAID else ""
        room = max(0, room - len(show))
        lines.append((*start, Span(padded(clip(notice.said, room), room)), Span(show, "faint")))
    return lines


def successes_line(ids: Sequence[int], width: int) -> Line:
    """`✓ #1 #2 #6`, the newest if not all fit."""
    text = ""
    for number in reversed(ids):
        longer = f" #{number}{text}"
        if len(longer) + 6 > width:
            text = f" …{text}"
            break
        text = longer
    return Span(" ✓", "good"), Span(text)


# -- the terminal ----------------------------------------------------------------------------------

STYLES: dict[Look, str] = {
    "heading": "bold",
    "simulated": "bold reverse",
    "good": "green",
    "bad": "bold red",
    "odd": "magenta",
    "faint": "dim",
    "id": "bold",
}
"""The looks of views/text.py in rich's words."""


_LOCAL_FLAGS = 3
"""Their place in the attributes of a terminal."""


class Keyboard:
    """Keeps the terminal from echoing keys into the display: a newline would move it and leave a copy."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def silence(self) -> None:
        with contextlib.suppress(OSError, termios.error):
            if self._before is None and _owns_terminal():
                self._before = termios.tcgetattr(0)
                termios.tcsetattr(
                    0, termios.TCSANOW, [*self._before[:3], self._before[3] & ~termios.ECHO, *self._before[4:]]
                )

    def restore(self) -> None:
        with contextlib.suppress(OSError, termios.error):
            if self._before is not None and _owns_terminal():
                termios.tcsetattr(0, termios.TCSANOW, self._before)
        self._before = None


def _owns_terminal() -> bool:
    """Whether we run in the foreground: from the background, a change of the terminal would stop us."""
    return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()


class LiveView:
    """Redraws a few lines at the bottom of the terminal, and removes them when it is closed."""

    interval: float | None = 0.2

    def __init__(self, console: Console | None = None) -> None:
        self.recent = Recent()
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._due = 0.0
        self._drawn: object = None
        self._gone = False
        self._keyboard = Keyboard()

    def happened(self, job_event: JobEvent) -> None:
        self.recent.note(job_event)

    def refresh(self, read: Callable[[Recent], RunStatus]) -> None:
        """Draw, if the last frame is old enough and something has changed."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + (self.interval or 0.0)
            self.draw(read(self.recent))

    def draw(self, status: RunStatus) -> None:
        """Show a status, unless it looks like the one on the screen."""
        size = self._console.size
        lines = render_run(status, size.width, size.height)
        if (lines, size) == self._drawn:
            return
        self._drawn = (lines, size)
        self._keyboard.silence()
        self._on_terminal(self._live.start)
        self._on_terminal(lambda: self._live.update(drawing(lines), refresh=True))

    def say(self, text: str) -> None:
        self._on_terminal(lambda: self._console.print(Text(f"stoker: {printable(text)}")))

    def close(self) -> None:
        self._on_terminal(self._live.stop)
        self._keyboard.restore()

    def _on_terminal(self, act: Callable[[], object]) -> None:
        """Ignore a terminal that is gone: the run goes on without it."""
        if self._gone:
            return
        try:
            act()
        except OSError:
            self._gone = True


def drawing(lines: Sequence[Line]) -> Text:
    drawn = (Text.assemble(*((span.text, STYLES.get(span.look, "")) for span in line)) for line in lines)
    text = Text("\n").join(drawn)
    text.no_wrap, text.overflow = True, "crop"
    return text
