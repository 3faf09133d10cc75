"""Render `stoker history`: newest last, beside the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.cli.views.status import LOOKS
from stoker.cli.views.text import (
    Column,
    Line,
    Span,
    amount_text,
    clipped,
    fitting,
    heading,
    one_line,
    or_dash,
    table_lines,
)
from stoker.core.text import printable
from stoker.core.units import size_text
from stoker.queue.history_view import History, PastLine
from stoker.queue.view_text import clock_text, span_text, vram_text, watch_text

LEAST_NAME = 20


def render_history(history: History, width: int, sim: str = "") -> list[Line]:
    """A heading, a line for each job, and what is hidden."""
    now = history.at.timestamp()
    since = "" if history.since is None else f" since {clock_text(history.since.timestamp(), now)}"
    title = heading([f"jobs on {printable(history.host)} that ended{since}"], width, simulated=history.simulated)
    table = _table(history.jobs, now, width) if history.jobs else [(Span(" none"),)]
    hidden = f"… {history.hidden} older (stoker history{sim} -a)" if history.hidden else ""
    last = Span(f" {fitting((hidden, totals_text(history.counts, history.gpu_hours)), width - 1)}", "faint")
    return [clipped(line, width) for line in (title, *table, (last,))]


def totals_text(counts: Mapping[str, int], gpu_hours: float) -> str:
    """`212 done, 3 failed · 18.40 GPU-hours`."""
    ends = [f"{counts.get('done', 0)} done"]
    ends += [f"{count} {word}" for word, count in sorted(counts.items()) if word != "done"]
    return f"{', '.join(ends)} · {gpu_hours:.2f} GPU-hours"


def _table(jobs: Sequence[PastLine], now: float, width: int) -> list[Line]:
    waits = ["-" if job.wait_seconds is None else span_text(job.wait_seconds) for job in jobs]
    runs = ["-" if job.run_seconds is None else watch_text(job.run_seconds) for job in jobs]
    columns = [
        Column("ID", [Span(job.label, "id") for job in jobs], 9, most=18),
        Column("STATE", [Span(job.state, LOOKS.get(job.state, "")) for job in jobs], 8),
        Column("EXIT", [Span(f"signal {job.signal}" if job.signal else or_dash(job.exit_code)) for job in jobs], 6),
        Column("GPU", [Span(printable(",".join(job.devices)) or "-") for job in jobs], 4, most=7),
        Column("VRAM", [Span(vram_text(job.vram_mode, job.vram_bytes)) for job in jobs], 0, right=True),
        Column("PEAK", [Span(peak_text(job.peak_vram_bytes, job.reserved_bytes)) for job in jobs], 3, right=True),
        Column("UTIL", [Span(or_dash(job.utilisation_percent, "{}%")) for job in jobs], 1, right=True),
        Column("WAITED", list(map(Span, waits)), 2, right=True),
        Column("RAN", list(map(Span, runs)), 7, right=True),
        Column("ENDED", [Span(clock_text(job.ended.timestamp(), now)) for job in jobs], 5, right=True),
    ]
    return table_lines(columns, "NAME / COMMAND", [_what(job) for job in jobs], width, LEAST_NAME)


def peak_text(peak: int | None, reserved: int | None) -> str:
    """The most that an attempt held on a GPU, of what was reserved there."""
    if peak is None:
        return "-"
    return size_text(peak) if reserved is None else amount_text(peak, reserved)


def _what(job: PastLine) -> Line:
    return Span(one_line(job.name or job.command)), Span(f" ({printable(job.note)})" if job.note else "", "faint")
