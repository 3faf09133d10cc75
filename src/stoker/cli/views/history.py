"""Jobs that are over in text: newest last, beside the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.cli.views.status import LOOKS
from stoker.cli.views.text import Column, Line, Span, amount_text, cells, clipped, table_lines
from stoker.core.text import printable
from stoker.core.units import size_text
from stoker.queue.history_view import History, PastLine
from stoker.queue.view_builder import clock_text, span_text, vram_text, watch_text

LEAST_NAME = 20
LONGEST_TEXT = 2000


def render_history(history: History, width: int, sim: str = "") -> list[Line]:
    """A heading, a line for each job, and what is hidden."""
    badge = [Span(" SIM ", "simulated"), Span(" ")] if history.simulated else []
    now = history.at.timestamp()
    since = "" if history.since is None else f" since {clock_text(history.since.timestamp(), now)}"
    heading = (*badge, Span(f"jobs on {printable(history.host)} that ended{since}", "heading"))
    table = _table(history.jobs, now, width) if history.jobs else [(Span(" none"),)]
    return [clipped(line, width) for line in (heading, *table, _last_line(history, width, sim))]


def totals_text(counts: Mapping[str, int], gpu_hours: float) -> str:
    """`212 done, 3 failed · 18.40 GPU-hours`."""
    told = [f"{counts.get('done', 0)} done"]
    told += [f"{count} {word}" for word, count in sorted(counts.items()) if word != "done"]
    return f"{', '.join(told)} · {gpu_hours:.2f} GPU-hours"


def _table(jobs: Sequence[PastLine], now: float, width: int) -> list[Line]:
    columns = [
        Column("ID", [Span(job.label, "id") for job in jobs], 9, most=18),
        Column("STATE", [Span(job.state, LOOKS.get(job.state, "")) for job in jobs], 8),
        Column("EXIT", [Span(_exit(job)) for job in jobs], 6),
        Column("GPU", [Span(printable(",".join(job.devices)) or "-") for job in jobs], 4, most=7),
        Column("VRAM", [Span(vram_text(job.vram_mode, job.vram_bytes)) for job in jobs], 0, right=True),
        Column("PEAK", [Span(_peak(job)) for job in jobs], 3, right=True),
        Column("UTIL", [Span(_percent(job.utilisation_percent)) for job in jobs], 1, right=True),
        Column("WAITED", [Span(_span(job.wait_seconds)) for job in jobs], 2, right=True),
        Column("RAN", [Span(_watch(job.run_seconds)) for job in jobs], 7, right=True),
        Column("ENDED", [Span(clock_text(job.ended.timestamp(), now)) for job in jobs], 5, right=True),
    ]
    return table_lines(columns, "NAME / COMMAND", [_told(job) for job in jobs], width, LEAST_NAME)


def _told(job: PastLine) -> Line:
    name = (job.name or job.command)[:LONGEST_TEXT].strip().replace("\\\n", " ").replace("\n", "; ")
    return Span(printable(name)), Span(f" ({printable(job.note)})" if job.note else "", "faint")


def _exit(job: PastLine) -> str:
    return f"signal {job.signal}" if job.signal else "-" if job.exit_code is None else str(job.exit_code)


def _peak(job: PastLine) -> str:
    """The most that it held on a GPU, of what was set aside there."""
    if job.peak_vram_bytes is None:
        return "-"
    if job.reserved_bytes is None:
        return size_text(job.peak_vram_bytes)
    return amount_text(job.peak_vram_bytes, job.reserved_bytes)


def _percent(value: int | None) -> str:
    return "-" if value is None else f"{value}%"


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else span_text(seconds)


def _watch(seconds: float | None) -> str:
    return "-" if seconds is None else watch_text(seconds)


def _last_line(history: History, width: int, sim: str) -> Line:
    hidden = f"… {history.hidden} older (stoker history{sim} -a)" if history.hidden else ""
    text = ""
    for part in filter(None, (hidden, totals_text(history.counts, history.gpu_hours))):
        if not text or cells(text) + cells(part) + 3 <= width:
            text = f"{text} · {part}" if text else f" {part}"
    return (Span(text, "faint"),)
