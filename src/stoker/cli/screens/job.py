"""Render `stoker status ID` (all about one job, or a table of several) and `stoker history`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stoker.app.jobs.local_time import clock_text, stamp, start_text
from stoker.app.jobs.options import BY_NAME, Value
from stoker.app.views.columns import ENDED_TABLE, HISTORY_TABLE, STATE_LOOKS, left_cell, peak_text, progress_text
from stoker.cli.screens.job_table import job_columns, job_table, title_of
from stoker.cli.screens.status import results_text
from stoker.cli.screens.text import (
    EMPTY,
    LABEL_COLUMNS,
    Column,
    Line,
    Span,
    clipped,
    fit_titles,
    fitting,
    heading,
    or_dash,
    sparkline,
    table_lines,
)
from stoker.core.learning import LEAST_BYTES
from stoker.core.text import printable
from stoker.core.units import ago_text, amount_text, count_text, size_text, watch_text
from stoker.features import batch_words
from stoker.store.reports import latest_text

if TYPE_CHECKING:
    from stoker.app.views.history import History
    from stoker.app.views.job import JobFacts, PastLine
    from stoker.app.views.job_details import AttemptLine, JobDetails, MemberDetails, SelectedJobs
    from stoker.app.views.pages import SelectedLines

NAMED_FILES = 4
"""Files that changed since a job was submitted, which are named."""
PROGRESS_COLUMNS = 20
"""Columns of the progress bar."""
CURVE_COLUMNS = 32
"""Columns of the curve that shows what an attempt held over time."""
_ASKED = {"all": "whole", "auto": "learnt memory (auto)"}
MIN_NOTE_COLUMNS = 10
MIN_NAME_COLUMNS = 20
"""Columns of the name and the note of an ended job."""


def render_details(details: JobDetails, chosen: SelectedJobs, width: int, option: str = "") -> list[Line]:
    """One of the chosen jobs: a heading, labelled values, the attempts, and the events; nothing is cut off."""
    now = chosen.at.timestamp()
    named = details.title if details.title != details.command else details.name
    name = f" · {named}" if named else ""
    title = heading([f"job {details.label}{name} · "], 0, simulated=chosen.simulated)
    lines: list[Line] = [(*title, Span(_state(details), STATE_LOOKS.get(details.state, "")))]
    for label, text in _facts(details, now):
        lines += _wrapped(label, text, width)
    if details.attempts:
        lines += [EMPTY, *_attempts(details.attempts, width), *_curves_and_logs(details.attempts, width)]
    lines.append(EMPTY)
    for event in details.events:
        detail = f"  {event.detail}" if event.detail else ""
        lines.append((Span(f" {stamp(event.at.timestamp())}  ", "faint"), Span(f"{event.event}{detail}")))
    if any(attempt.log for attempt in details.attempts):
        lines += [EMPTY, (Span(f" its output: stoker logs{option} {details.label}", "faint"),)]
        lines += [(Span(f"   {line}"),) for line in details.output]
    return lines


def _state(details: JobDetails) -> str:
    if details.ended is None:
        return details.state + (f" for {watch_text(details.seconds)}" if details.seconds is not None else "")
    how = f"signal {details.signal}" if details.signal else f"exit {details.exit_code}"
    cause = f" ({how})" if details.state == "failed" else ""
    ran = f" after {watch_text(details.seconds)}" if details.seconds is not None else ""
    return f"{details.state}{cause}{ran}"


def _facts(details: JobDetails, now: float) -> Iterator[tuple[str, str]]:
    """Labels and values; empty ones are left out."""
    facts = (
        ("why", details.why if details.ended is None else details.failure or details.note),
        *(("" if number else "order", text) for number, text in enumerate(details.order) if text not in details.why),
        ("advice", details.advice),
        ("progress", _progress(details)),
        ("expected", _expected(details, now)),
        ("command", details.command if not details.shell else f"{details.command}   ({details.shell} -c)"),
        *([_member(details.member)] if details.member else []),
        ("reported", latest_text(details.reported) if details.reported else ""),
        ("directory", details.directory),
        ("needs", _needs(details)),
        ("memory", _memory(details)),
        ("speed", "" if details.speed is None else f"{details.speed:.2f} of its exclusive speed"),
        ("on", ", ".join(f"GPU {device}" for device in details.devices) if details.ended is None else ""),
        ("limits", _limits(details)),
        ("preempted", count_text(details.preemptions, "time") if details.preemptions else ""),
        ("after", ", ".join(details.after)),
        ("begins", "" if details.begin is None else stamp(details.begin.timestamp())),
        *((BY_NAME[name].label, _option(value)) for name, value in details.options.items() if BY_NAME[name].label),
        ("notify", ", ".join(filter(None, (*details.notify, details.notified)))),
        ("run", details.run),
        ("code", _code(details)),
        ("commit", _commit(details.commit)),
        ("variables", _option(details.variables)),
        ("submitted", f"{stamp(details.submitted.timestamp())} ({ago_text(details.submitted.timestamp(), now)})"),
    )
    yield from ((label, text) for label, text in facts if text)
    for name, value in (details.environment or {}).items():
        yield "", f"{name}={value}"


def _member(member: MemberDetails) -> tuple[str, str]:
    return member.kind, f"{batch_words(member.kind).member} {member.number} of {member.kind} {member.batch}"


def _code(details: JobDetails) -> str:
    """Whether it is frozen, and the files that have changed since."""
    if (code := details.code) is None:
        return ""
    if not code.frozen:
        return f"not frozen: {code.reason}"
    if code.changed is None:
        return "frozen at submit"
    if not code.changed:
        return "frozen at submit, and unchanged since then"
    names = ", ".join(code.changed[:NAMED_FILES]) + (" ..." if len(code.changed) > NAMED_FILES else "")
    return f"frozen at submit; {count_text(len(code.changed), 'file')} changed since then: {names}"


def _commit(commit: str) -> str:
    return commit.replace("*", ", with changes that were not committed")


def _option(value: Value) -> str:
    return ", ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else str(value)


def _progress(details: JobDetails) -> str:
    if details.progress is None:
        return ""
    return progress_text(details.progress, PROGRESS_COLUMNS)


def _expected(details: JobDetails, now: float) -> str:
    start, end = details.expected_start, details.expected_end
    parts = [f"start {start_text(start.timestamp(), now)}"] if start else []
    left = f" ({left_cell(details, now)} left)" if end and details.seconds is not None else ""
    parts += [f"end ~{clock_text(end.timestamp(), now)}{left}"] if end else []
    return ", ".join(parts) or ("start ?" if details.state == "queued" else "")


def _needs(details: JobDetails) -> str:
    parts = [count_text(details.gpus, "GPU") if details.gpus else "no GPU"]
    if details.gpus:
        parts.append(_ASKED.get(details.vram_mode) or f"{size_text(details.vram_bytes)} on each")
    parts += [f"type {details.gpu_type}"] if details.gpu_type else []
    parts += [f"only {','.join(details.allowed)}"] if details.allowed else []
    parts += [f"{','.join(details.preferred)} first"] if details.preferred else []
    return ", ".join(parts)


def _memory(details: JobDetails) -> str:
    """Memory that is reserved, used now, and used at most."""
    if details.vram_mode == "none":
        return ""
    used = details.used_bytes if details.held_bytes is None else details.held_bytes
    parts = [_reserved(details)]
    parts += [f"{size_text(used)} in use"] if used is not None and details.ended is None else []
    parts += [f"peak {size_text(details.peak_vram_bytes)}"] if details.peak_vram_bytes is not None else []
    parts += [] if not details.utilisation_percent else [f"GPU {details.utilisation_percent}% busy"]
    return ", ".join(filter(None, parts))


def _reserved(details: JobDetails) -> str:
    placed = bool(details.devices)
    if details.reserved_bytes is None:
        unknown = details.vram_mode == "auto" and not placed
        return "not known yet: the first run is exclusive, to measure it" if unknown else "exclusive" * placed
    size = size_text(details.reserved_bytes)
    if not placed:
        why = (
            ": earlier runs used less" if details.vram_mode == "auto" and details.reserved_bytes == LEAST_BYTES else ""
        )
        return f"{size} to be reserved{why}" if details.ended is None else ""
    return f"{size} reserved"


def _limits(details: JobDetails) -> str:
    parts = [f"{watch_text(details.limit_seconds)} run time"] if details.limit_seconds is not None else []
    parts += [f"signal {details.early_signal} before it"] if details.early_signal and parts else []
    parts += [_at_once(details.at_once, is_task="." in details.label)] if details.at_once is not None else []
    if details.retries:
        when = f" (on {', '.join(details.retry_on)})" if details.retry_on else ""
        parts.append(count_text(details.retries, "retry", "retries") + when)
    parts += [] if details.requeue else ["not requeued after a crash"]
    return ", ".join(parts)


def _at_once(limit: int, *, is_task: bool) -> str:
    return f"{count_text(limit, 'task')} of its array at once" if is_task else f"{limit} of its executor at once"


def _attempts(attempts: Sequence[AttemptLine], width: int) -> list[Line]:
    columns = [
        Column("ATTEMPT", [Span(str(attempt.number)) for attempt in attempts], 9, right=True),
        Column("GPU", [Span(",".join(attempt.devices) or "-") for attempt in attempts], 6, most=12),
        Column(
            "STARTED", [Span(stamp(attempt.started.timestamp()) if attempt.started else "-") for attempt in attempts], 5
        ),
        Column(
            "RAN", [Span("-" if attempt.seconds is None else watch_text(attempt.seconds)) for attempt in attempts], 7
        ),
        Column("END", [Span(_end(attempt)) for attempt in attempts], 8, most=30),
        Column("VRAM", [Span(_vram(attempt)) for attempt in attempts], 6, right=True),
        Column("UTIL", [Span(or_dash(attempt.utilisation_percent, "{}%")) for attempt in attempts], 3, right=True),
        Column("RAM", [Span(peak_text(attempt.peak_memory_bytes, None)) for attempt in attempts], 4, right=True),
    ]
    notes = [(Span(attempt.note or "-"),) for attempt in attempts]
    return table_lines(columns, "NOTE", notes, width, MIN_NOTE_COLUMNS)


def _curves_and_logs(attempts: Sequence[AttemptLine], width: int) -> Iterator[Line]:
    numbers = {attempt.number: f" {attempt.number}" if len(attempts) > 1 else "" for attempt in attempts}
    for attempt in attempts:
        if curve := sparkline(attempt.vram_curve, CURVE_COLUMNS):
            most = f" up to {size_text(attempt.peak_vram_bytes)} in {watch_text(attempt.vram_curve[-1][0])}"
            yield (
                Span(f" {'memory' + numbers[attempt.number]:{LABEL_COLUMNS}}", "faint"),
                Span(curve, "good"),
                Span(most, "faint"),
            )
    for attempt in attempts:
        for label, path in (("log", attempt.log), ("errors", attempt.errors)):
            if path:
                yield from _wrapped(f"{label}{numbers[attempt.number]}", path, width)


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


def _wrapped(label: str, text: str, width: int) -> Iterator[Line]:
    """A label and as many lines as the value takes."""
    room = max(10, width - LABEL_COLUMNS - 1)
    text = printable(text)
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    for number, part in enumerate(parts):
        yield Span(f" {label if number == 0 else '':{LABEL_COLUMNS}}", "faint"), Span(part)


def render_jobs(chosen: SelectedJobs, width: int, option: str) -> list[Line]:
    """A few jobs in full."""
    lines: list[Line] = []
    for details in chosen.jobs:
        shown = render_details(details, chosen, width, option)
        lines += [*([EMPTY, EMPTY] if lines else []), *(clipped(line, max(width, 40)) for line in shown)]
    return lines


def render_selected(selected: SelectedLines, width: int, option: str, *, simulated: bool) -> list[Line]:
    """Many jobs as a table of those that have not ended, and one of the others."""
    now = selected.at.timestamp()
    states = ", ".join(f"{count} {word}" for word, count in selected.counts.items())
    title = heading([f"{selected.total} jobs: {states}"], width, simulated=simulated)
    tables = (job_table(selected.unfinished, now, width), _ended_table(selected.ended, now, width))
    lines = [line for table in tables if table for line in (EMPTY, *table)][1:]
    first = (*selected.unfinished, *selected.ended)[0].label
    more = f" … {selected.hidden} more (stoker status{option} -a ID...); details: stoker status{option} {first}"
    note = [(Span(more, "faint"),)] if selected.hidden else []
    return [clipped(line, width) for line in (title, *lines, *note)]


def _ended_table(jobs: Sequence[PastLine], now: float, width: int) -> list[Line]:
    """Where and how long each ran, the memory it needed, and how it ended."""
    if not jobs:
        return []
    names = [title_of(job) for job in jobs]
    last = [(Span(name), *_note(job, job.note)) for job, name in zip(jobs, names, strict=True)]
    columns = job_columns(ENDED_TABLE, jobs, now, width)
    return table_lines(columns, "NAME / NOTE", last, width, MIN_NAME_COLUMNS, fit=fit_titles(names))


def _note(job: JobFacts, text: str) -> Line:
    return (Span(f" ({text})", STATE_LOOKS.get(job.state, "")),) if text else ()


# -- stoker history --------------------------------------------------------------------------------


def render_history(history: History, width: int, option: str = "") -> list[Line]:
    """A heading, a line for each job, and what is hidden."""
    now = history.at.timestamp()
    since = "" if history.since is None else f" since {clock_text(history.since.timestamp(), now)}"
    title = heading([f"finished jobs on {history.host}{since}"], width, simulated=history.simulated)
    table = _past_table(history.jobs, now, width) if history.jobs else [(Span(" none"),)]
    hidden = f"… {history.hidden} older (stoker history{option} -a)" if history.hidden else ""
    totals = f"{results_text(history.counts)} · {history.gpu_hours:.2f} GPU-hours"
    last = Span(f" {fitting((hidden, totals), width - 1)}", "faint")
    return [clipped(line, width) for line in (title, *table, (last,))]


def _past_table(past: Sequence[PastLine], now: float, width: int) -> list[Line]:
    """By end; jobs whose ends look the same are in the order of their ids."""
    jobs = sorted(past, key=lambda job: (job.ended.timestamp() // 60, job.id))
    least = max(MIN_NAME_COLUMNS, width * 2 // 5) if any(job.note for job in jobs) else MIN_NAME_COLUMNS
    names = [title_of(job) for job in jobs]
    notes = [_past_name(job, name) for job, name in zip(jobs, names, strict=True)]
    columns = job_columns(HISTORY_TABLE, jobs, now, width)
    return table_lines(columns, "NAME / NOTE", notes, width, least, fit=fit_titles(names))


def _past_name(job: PastLine, name: str) -> Line:
    """How many tasks ended how, the name, and why it failed."""
    counts = (Span(f"{results_text(job.counts)}: "),) if job.counts else ()
    note = job.note or (f"exit {job.exit_code}" if job.state == "failed" and job.exit_code else "")
    return *counts, Span(name), *_note(job, note)
