"""The lines above the tabs: the machine and its counts, the GPUs, and what keeps the queue from working."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container

from stoker.app.views.model import Counts, DeviceLine, Status
from stoker.app.views.samples import GpuSamples
from stoker.cli.screens.gpus import machine_text, marked, memory_cells
from stoker.cli.screens.text import (
    EMPTY,
    GPU_LOADS,
    HEIGHTS,
    Line,
    Span,
    cells,
    clip,
    clipped,
    fitting,
    line_cells,
    load_look,
    or_dash,
    padded,
)
from stoker.cli.top.widgets import TextLines
from stoker.core.outcomes import FAILURES
from stoker.core.units import ago_text, count_text

TWO_COLUMNS = 100
"""Width from which on GPUs stand side by side."""
TWO_SHORT_COLUMNS = 76
"""The same for more than four GPUs."""
OLD_SECONDS = 15.0
"""Age from which on readings are said to be old."""


class Summary(Container):
    """A line for the machine, lines for GPUs, and notices, in as much height as they need."""

    def __init__(self, *, readonly: bool, id: str) -> None:
        super().__init__(id=id)
        self._readonly = readonly
        self._status: Status | None = None
        self._samples: GpuSamples | None = None
        self.error = ""
        """Why the queue could not be read; drawn with the notices."""
        self._header, self._gpus, self._notices = TextLines(id="header"), TextLines(id="gpus"), TextLines(id="notices")

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._gpus
        yield self._notices

    def show_status(self, status: Status | None) -> None:
        """Draw all lines for another look at the queue."""
        self._status = status
        self.draw_header()
        self._draw_gpus()
        self.draw_notices()

    def show_samples(self, samples: GpuSamples) -> None:
        """Draw the GPUs with other curves."""
        self._samples = samples
        self._draw_gpus()

    def draw_header(self) -> None:
        """Draw the first line, which has a clock."""
        clock = time.strftime("%H:%M:%S", time.localtime(time.time()))
        line = header_line(self._status, clock, self.app.size.width, readonly=self._readonly)
        self._header.show([line])

    def _draw_gpus(self) -> None:
        if self._status is None:
            return
        width, height = self.app.size
        lines = gpu_lines(self._status, self._samples, time.time(), width, max(2, height // 3))
        _fit(self._gpus, lines)

    def draw_notices(self) -> None:
        """Draw the error and what the queue tells."""
        told = [] if self._status is None else notices(self._status, time.time())
        error: list[Line] = [(Span(self.error, "bad"),)] if self.error else []
        lines = [(Span(" "), *clipped(line, self.app.size.width - 2)) for line in (*error, *told)]
        _fit(self._notices, lines)


def _fit(widget: TextLines, lines: Sequence[Line]) -> None:
    """Show lines in as much height as they need."""
    if widget.styles.height is None or widget.styles.height.value != len(lines):
        widget.styles.height = len(lines)
    widget.show(lines)


# -- the first line ------------------------------------------------------------------------------


def header_line(status: Status | None, clock: str, width: int, *, readonly: bool) -> Line:
    """The host and its GPUs on the left; counts and the time on the right."""
    if status is None:
        return (Span("stoker", "heading"), Span(f"{clock} ".rjust(width - 6)))
    badge = (Span(" SIM ", "simulated"), Span(" ")) if status.simulated else ()
    failed = sum(count for word, count in status.today.items() if word in FAILURES)
    counts = status.total or status.counts
    right: Line = (
        *((Span("read-only  ", "odd"),) if readonly else ()),
        Span(f"{counts.active} running  ", "good" if counts.active else ""),
        Span(f"{counts.waiting} waiting  "),
        *((Span(f"{counts.held} held  ", "odd"),) if counts.held else ()),
        *((Span(f"{failed} failed  ", "bad"),) if failed else ()),
        Span(f"{clock} "),
    )
    room = width - line_cells(badge) - line_cells(right) - 2
    left = fitting([f"stoker · {status.host}", machine_text(status.devices)], room)
    return *badge, Span(padded(clip(left, max(0, room)), max(0, room)), "heading"), Span("  "), *right


def filter_text(text: str, status: Status | None) -> str:
    """`filter: bert (14 of 53)`: how many of all open jobs match."""
    matching = f" ({_size(status.counts)} of {_size(status.total)})" if status and status.total else ""
    return f"filter: {text}{matching}"


def _size(counts: Counts) -> int:
    return counts.active + counts.waiting + counts.held


def notices(status: Status, now: float) -> list[Line]:
    """Reasons why the queue does not work as usual, one line each."""
    engine = status.engine
    lines: list[Line] = []
    if not engine.running:
        old = engine.seen is not None and now - engine.seen.timestamp() > OLD_SECONDS
        seen = f"; GPU readings are from {ago_text(engine.seen.timestamp(), now)}" if old and engine.seen else ""
        lines.append((Span(f"the engine is stopped{seen}; it starts with the next stoker submit", "odd"),))
    if engine.paused is not None:
        lines.append((Span(f"the queue is paused: {marked(engine.paused, 'paused', now)}", "odd"),))
    if engine.draining:
        lines.append((Span("the engine is draining: it starts no more jobs", "odd"),))
    return [*lines, *((Span(note, "bad"),) for note in status.notes)]


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
    curves = {} if samples is None else {device.id: device.curves.utilisation_percent for device in samples.devices}
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
    label = device.label
    return f"GPU {label}" if len(label) <= 3 else clip(label, 14)


def _who(device: DeviceLine, now: float) -> str:
    """Jobs, or who else is there, or why it is not used."""
    if device.problem:
        return device.problem
    if device.drained is not None:
        return marked(device.drained, "drained", now)
    others = sorted(
        {lease.owner for lease in device.leases}
        | {stranger.owner for stranger in device.strangers if not stranger.graphics}
    )
    return " ".join([*device.jobs, *others])


def _curve(percents: Sequence[int | None], columns: int) -> Line:
    """The last minutes, the newest on the right; a gap where nothing is known."""
    if not columns:
        return ()
    newest = list(percents)[-columns:]
    text = "".join(" " if one is None else HEIGHTS[min(7, one * 8 // 100)] for one in newest)
    return (Span(f" {text.rjust(columns)}", "light"),)


def _filled(line: Line, width: int) -> Line:
    return *line, Span(" " * max(0, width - line_cells(line)))
