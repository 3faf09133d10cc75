"""Render `stoker status ID`: all about one job, or a table of several."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import structs

from stoker.cli.output_options import Screen, write_json, write_plain
from stoker.cli.views.history import peak_text
from stoker.cli.views.plain import jobs_plain
from stoker.cli.views.status import LOOKS, job_table
from stoker.cli.views.text import (
    EMPTY,
    Column,
    Line,
    Span,
    amount_text,
    clipped,
    heading,
    or_dash,
    sparkline,
    table_lines,
    terminal_size,
    write_lines,
)
from stoker.core.errors import StokerError
from stoker.core.text import PATTERNS, printable
from stoker.core.units import count_text, size_text
from stoker.queue.config import load_config
from stoker.queue.job_view import SCHEMA, AttemptLine, JobDetails, SelectedJobs, details_of
from stoker.queue.knowledge import Knowledge, known
from stoker.queue.select import find
from stoker.queue.view_model import exactly
from stoker.queue.view_text import ago_text, clock_text, stamp, watch_text
from stoker.store.paths import Paths
from stoker.store.reports import latest_text, read_latest
from stoker.store.writer import Store

LABEL = 11

CURVE = 32
"""Columns of the curve that shows what an attempt held over time."""

_ASKED = {"all": "whole", "auto": "memory as learnt (auto)"}

LEAST_NOTE = 10


def render_details(
    details: JobDetails, now: float, width: int, sim: str = "", *, simulated: bool = False
) -> list[Line]:
    """A heading, labelled values, the attempts, and the events; nothing is cut off."""
    lines = [_heading(details, simulated=simulated)]
    for label, text in _facts(details, now):
        lines += _wrapped(label, printable(text), width)
    if details.attempts:
        lines += [
            EMPTY,
            *_attempts(details.attempts, width),
            *_curves(details.attempts),
            *_logs(details.attempts, width),
        ]
    lines += [EMPTY, *_events(details)]
    if any(attempt.log for attempt in details.attempts):
        lines += [EMPTY, (Span(f" its output: stoker logs{sim} {details.label}", "faint"),)]
    return lines


def _heading(details: JobDetails, *, simulated: bool) -> Line:
    name = f" · {printable(details.name)}" if details.name else ""
    title = heading([f"job {details.label}{name} · "], 0, simulated=simulated)
    return *title, Span(_state(details), LOOKS.get(details.state, ""))


def _state(details: JobDetails) -> str:
    if details.ended is None:
        return details.state + (f" for {watch_text(details.seconds)}" if details.seconds is not None else "")
    how = f"signal {details.signal}" if details.signal else f"exit {details.exit_code}"
    told = f" ({how})" if details.state == "failed" else ""
    ran = f" after {watch_text(details.seconds)}" if details.seconds is not None else ""
    return f"{details.state}{told}{ran}"


def _facts(details: JobDetails, now: float) -> Iterator[tuple[str, str]]:
    """Labels and values; empty ones are left out."""
    facts = (
        ("why", details.why if details.ended is None else details.note),
        ("advice", details.advice),
        ("expected", _expected(details, now)),
        ("command", details.command if not details.shell else f"{details.command}   ({details.shell} -c)"),
        ("reported", latest_text(details.reported) if details.reported else ""),
        ("directory", details.directory),
        ("needs", _needs(details)),
        ("memory", _memory(details)),
        ("speed", "" if details.speed is None else f"{details.speed:.2f} of alone"),
        ("on", ", ".join(f"GPU {device}" for device in details.devices) if details.ended is None else ""),
        ("limits", _limits(details)),
        ("after", ", ".join(details.after)),
        ("begins", "" if details.begin is None else stamp(details.begin.timestamp())),
        ("priority", str(details.priority) if details.priority else ""),
        ("group", details.group),
        ("tags", ", ".join(f"{name}={value}" for name, value in details.tags.items())),
        ("run", details.run),
        ("commit", details.commit),
        ("variables", ", ".join(f"{name}={value}" for name, value in details.variables.items())),
        ("submitted", f"{stamp(details.submitted.timestamp())} ({ago_text(details.submitted.timestamp(), now)})"),
    )
    yield from ((label, text) for label, text in facts if text)
    for name, value in (details.environment or {}).items():
        yield "", f"{name}={value}"


def _expected(details: JobDetails, now: float) -> str:
    start, end = details.expected_start, details.expected_end
    told = [f"start ~{clock_text(start.timestamp(), now)}"] if start else []
    told += [f"end ~{clock_text(end.timestamp(), now)}"] if end else []
    return ", ".join(told) or ("start ?" if details.state == "queued" else "")


def _needs(details: JobDetails) -> str:
    told = [count_text(details.gpus, "GPU") if details.gpus else "no GPU"]
    if details.gpus:
        told.append(_ASKED.get(details.vram_mode) or f"{size_text(details.vram_bytes)} on each")
    told += [f"of the type {details.gpu_type}"] if details.gpu_type else []
    told += [f"only {','.join(details.allowed)}"] if details.allowed else []
    told += [f"{','.join(details.preferred)} first"] if details.preferred else []
    return ", ".join(told)


def _memory(details: JobDetails) -> str:
    """What is reserved, used now, and used at most."""
    if details.vram_mode == "none":
        return ""
    used = details.used_bytes if details.held_bytes is None else details.held_bytes
    told = [_reserved(details)]
    told += [f"uses {size_text(used)} now"] if used is not None and details.ended is None else []
    told += [f"at most {size_text(details.peak_vram_bytes)}"] if details.peak_vram_bytes is not None else []
    told += [] if not details.utilisation_percent else [f"kept its GPU {details.utilisation_percent}% busy"]
    return ", ".join(filter(None, told))


def _reserved(details: JobDetails) -> str:
    placed = bool(details.devices)
    if details.reserved_bytes is None:
        unknown = details.vram_mode == "auto" and not placed
        return "unknown yet: runs alone first, and is measured" if unknown else "alone on its GPU" * placed
    size = size_text(details.reserved_bytes)
    if not placed:
        return f"{size} will be set aside" if details.ended is None else ""
    return f"{size} {'were' if details.ended else 'are'} set aside"


def _limits(details: JobDetails) -> str:
    told = [f"{watch_text(details.limit_seconds)} of running time"] if details.limit_seconds is not None else []
    told += [f"{details.at_once} of its array at once"] if details.at_once is not None else []
    told += [_retries(details)] if details.retries else []
    told += [] if details.requeue else ["not run again when lost"]
    return ", ".join(told)


def _retries(details: JobDetails) -> str:
    return count_text(details.retries, "retry", "retries") + (
        f" (on {', '.join(details.retry_on)})" if details.retry_on else ""
    )


def _attempts(attempts: Sequence[AttemptLine], width: int) -> list[Line]:
    columns = [
        Column("ATTEMPT", [Span(str(one.number)) for one in attempts], 9, right=True),
        Column("GPU", [Span(printable(",".join(one.devices)) or "-") for one in attempts], 6, most=12),
        Column("STARTED", [Span(stamp(one.started.timestamp()) if one.started else "-") for one in attempts], 5),
        Column("RAN", [Span("-" if one.seconds is None else watch_text(one.seconds)) for one in attempts], 7),
        Column("END", [Span(_end(one)) for one in attempts], 8, most=30),
        Column("VRAM", [Span(_vram(one)) for one in attempts], 6, right=True),
        Column("UTIL", [Span(or_dash(one.utilisation_percent, "{}%")) for one in attempts], 3, right=True),
        Column("RAM", [Span(peak_text(one.peak_memory_bytes, None)) for one in attempts], 4, right=True),
    ]
    notes = [(Span(printable(one.note) or "-"),) for one in attempts]
    return table_lines(columns, "NOTE", notes, width, LEAST_NOTE)


def _logs(attempts: Sequence[AttemptLine], width: int) -> Iterator[Line]:
    for one in attempts:
        number = f" {one.number}" if len(attempts) > 1 else ""
        for label, path in (("log", one.log), ("errors", one.errors)):
            if path:
                yield from _wrapped(f"{label}{number}", printable(path), width)


def _end(attempt: AttemptLine) -> str:
    if attempt.why in ("", "exited"):
        if attempt.ended is None:
            return "-"
        return f"signal {attempt.signal}" if attempt.signal else f"exit {attempt.exit_code}"
    return attempt.why


def _vram(attempt: AttemptLine) -> str:
    peak, reserved = attempt.peak_vram_bytes, attempt.reserved_bytes
    if reserved is None:
        return "-" if peak is None else size_text(peak)
    return amount_text(peak, reserved)


def _curves(attempts: Sequence[AttemptLine]) -> Iterator[Line]:
    for one in attempts:
        if curve := sparkline(one.vram_curve, CURVE):
            number = f" {one.number}" if len(attempts) > 1 else ""
            most = f" up to {size_text(one.peak_vram_bytes)} in {watch_text(one.vram_curve[-1][0])}"
            yield Span(f" {'memory' + number:{LABEL}}", "faint"), Span(curve, "good"), Span(most, "faint")


def _events(details: JobDetails) -> list[Line]:
    lines: list[Line] = []
    for event in details.events:
        detail = f"  {printable(event.detail)}" if event.detail else ""
        lines.append((Span(f" {stamp(event.at.timestamp())}  ", "faint"), Span(f"{event.event}{detail}")))
    return lines


def _wrapped(label: str, text: str, width: int) -> Iterator[Line]:
    """A label and as many lines as the value takes."""
    room = max(10, width - LABEL - 1)
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    for number, part in enumerate(parts):
        yield Span(f" {label if number == 0 else '':{LABEL}}", "faint"), Span(part)


FEW = 4
"""How many jobs a terminal shows in full."""


def show_jobs(
    paths: Paths, words: Sequence[str], screen: Screen, *, everything: bool = False, environment: bool = False
) -> int:
    """Show the jobs that the words select."""
    with known(paths, simulated=screen.sim) as knowledge:
        chosen = read_details(knowledge, words, environment=environment)
    chosen = _with_reports(chosen, paths)
    if screen.form == "json":
        write_json(chosen)
    elif screen.form == "plain":
        write_plain(jobs_plain(chosen.jobs))
    else:
        width, height = terminal_size(os.environ)
        write_lines(_render(chosen, width, None if everything else height, screen.typed), screen.color)
    return 0


def read_details(knowledge: Knowledge, words: Sequence[str], *, environment: bool = False) -> SelectedJobs:
    """The jobs that the words select, in their order."""
    store = knowledge.store
    assert isinstance(store, Store)
    jobs = [job for job_id in find(store, words) if (job := store.job(job_id)) is not None]
    secrets = _secrets()
    told = [details_of(job, knowledge, secrets, environment=environment) for job in jobs]
    return SelectedJobs(SCHEMA, exactly(knowledge.now), knowledge.simulated, told)


def _with_reports(chosen: SelectedJobs, paths: Paths) -> SelectedJobs:
    told = [structs.replace(job, reported=read_latest(paths.report(job.id))) for job in chosen.jobs]
    return structs.replace(chosen, jobs=told)


def _secrets() -> tuple[str, ...]:
    """Patterns of secret variables; the default ones if the configuration cannot be read."""
    try:
        return load_config(os.environ, None).engine.secrets
    except StokerError:
        return PATTERNS


def _render(chosen: SelectedJobs, width: int, height: int | None, sim: str) -> list[Line]:
    now = chosen.at.timestamp()
    if len(chosen.jobs) > FEW:
        return [clipped(line, width) for line in _many(chosen, now, width, height, sim)]
    lines: list[Line] = []
    for details in chosen.jobs:
        told = render_details(details, now, width, sim, simulated=chosen.simulated)
        lines += [*([EMPTY, EMPTY] if lines else []), *(clipped(line, max(width, 40)) for line in told)]
    return lines


def _many(chosen: SelectedJobs, now: float, width: int, height: int | None, sim: str) -> list[Line]:
    shown: list[JobDetails] = chosen.jobs if height is None else chosen.jobs[: max(1, height - 4)]
    counts = Counter(job.state for job in chosen.jobs)
    states = ", ".join(f"{count} {word}" for word, count in counts.items())
    title = heading([f"{len(chosen.jobs)} jobs: {states}"], width, simulated=chosen.simulated)
    lines = [title, *job_table(shown, now, width)]
    hidden = len(chosen.jobs) - len(shown)
    more = f" … {hidden} more (stoker status{sim} -a ID...); all about one: stoker status{sim} {shown[0].label}"
    return [*lines, (Span(more, "faint"),)] if hidden else lines
