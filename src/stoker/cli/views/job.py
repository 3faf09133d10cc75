"""Render `stoker status ID`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import structs

from stoker.cli.output_options import Screen, write_json, write_plain
from stoker.cli.views.plain import jobs_plain
from stoker.cli.views.status import LOOKS, job_table
from stoker.cli.views.text import (
    EMPTY,
    Column,
    Line,
    Piece,
    amount_text,
    clipped,
    sparkline,
    table_lines,
    terminal_size,
    write_lines,
)
from stoker.core.errors import StokerError
from stoker.core.text import PATTERNS, printable
from stoker.core.units import count_text, size_text
from stoker.queue.config import load_config
from stoker.queue.job_view import SCHEMA, AttemptLine, Stories, Story, story_of
from stoker.queue.select import find
from stoker.queue.view_builder import Knowledge, ago_text, clock_text, known, stamp, watch_text
from stoker.queue.view_model import exactly
from stoker.store.paths import Places
from stoker.store.reports import latest_text, read_latest
from stoker.store.writer import Store

LABEL = 11

CURVE = 32
"""Columns of the curve that shows what an attempt held over time."""

_ASKED = {"all": "whole", "auto": "memory as learnt (auto)"}

LEAST_NOTE = 10


def story_lines(story: Story, now: float, width: int, sim: str = "", *, simulated: bool = False) -> list[Line]:
    """A heading, what is known as labels and values, the attempts, and the events; nothing is cut off."""
    lines = [_heading(story, simulated=simulated)]
    for label, text in _facts(story, now):
        lines += _wrapped(label, printable(text), width)
    if story.attempts:
        lines += [EMPTY, *_attempts(story.attempts, width), *_curves(story.attempts), *_logs(story.attempts, width)]
    lines += [EMPTY, *_events(story)]
    if any(attempt.log for attempt in story.attempts):
        lines += [EMPTY, (Piece(f" its output: stoker logs{sim} {story.label}", "faint"),)]
    return lines


def _heading(story: Story, *, simulated: bool) -> Line:
    badge = [Piece(" SIM ", "simulated"), Piece(" ")] if simulated else []
    name = f" · {printable(story.name)}" if story.name else ""
    return *badge, Piece(f"job {story.label}{name} · ", "heading"), Piece(_state(story), LOOKS.get(story.state, ""))


def _state(story: Story) -> str:
    if story.ended is None:
        return story.state + (f" for {watch_text(story.seconds)}" if story.seconds is not None else "")
    how = f"signal {story.signal}" if story.signal else f"exit {story.exit_code}"
    told = f" ({how})" if story.state == "failed" else ""
    ran = f" after {watch_text(story.seconds)}" if story.seconds is not None else ""
    return f"{story.state}{told}{ran}"


def _facts(story: Story, now: float) -> Iterator[tuple[str, str]]:
    """Labels and values, as far as there is something to say."""
    facts = (
        ("why", story.why if story.ended is None else story.note),
        ("advice", story.advice),
        ("expected", _expected(story, now)),
        ("command", story.command if not story.shell else f"{story.command}   ({story.shell} -c)"),
        ("reported", latest_text(story.reported) if story.reported else ""),
        ("directory", story.directory),
        ("needs", _needs(story)),
        ("memory", _memory(story)),
        ("speed", "" if story.speed is None else f"{story.speed:.2f} of alone"),
        ("on", ", ".join(f"GPU {device}" for device in story.devices) if story.ended is None else ""),
        ("limits", _limits(story)),
        ("after", ", ".join(story.after)),
        ("begins", "" if story.begin is None else stamp(story.begin.timestamp())),
        ("priority", str(story.priority) if story.priority else ""),
        ("group", story.group),
        ("tags", ", ".join(f"{name}={value}" for name, value in story.tags.items())),
        ("run", story.run),
        ("commit", story.commit),
        ("variables", ", ".join(f"{name}={value}" for name, value in story.variables.items())),
        ("submitted", f"{stamp(story.submitted.timestamp())} ({ago_text(story.submitted.timestamp(), now)})"),
    )
    yield from ((label, text) for label, text in facts if text)
    for name, value in (story.environment or {}).items():
        yield "", f"{name}={value}"


def _expected(story: Story, now: float) -> str:
    start, end = story.expected_start, story.expected_end
    told = [f"start ~{clock_text(start.timestamp(), now)}"] if start else []
    told += [f"end ~{clock_text(end.timestamp(), now)}"] if end else []
    return ", ".join(told) or ("start ?" if story.state == "queued" else "")


def _needs(story: Story) -> str:
    told = [count_text(story.gpus, "GPU") if story.gpus else "no GPU"]
    if story.gpus:
        told.append(_ASKED.get(story.vram_mode) or f"{size_text(story.vram_bytes)} on each")
    told += [f"of the type {story.gpu_type}"] if story.gpu_type else []
    told += [f"only {','.join(story.allowed)}"] if story.allowed else []
    told += [f"{','.join(story.preferred)} first"] if story.preferred else []
    return ", ".join(told)


def _memory(story: Story) -> str:
    """What is set aside, used now, and used at most."""
    if story.vram_mode == "none":
        return ""
    used = story.used_bytes if story.held_bytes is None else story.held_bytes
    told = [_reserved(story)]
    told += [f"uses {size_text(used)} now"] if used is not None and story.ended is None else []
    told += [f"at most {size_text(story.peak_vram_bytes)}"] if story.peak_vram_bytes is not None else []
    told += [] if not story.utilisation_percent else [f"kept its GPU {story.utilisation_percent}% busy"]
    return ", ".join(filter(None, told))


def _reserved(story: Story) -> str:
    placed = bool(story.devices)
    if story.reserved_bytes is None:
        unknown = story.vram_mode == "auto" and not placed
        return "unknown yet: runs alone first, and is measured" if unknown else "alone on its GPU" * placed
    size = size_text(story.reserved_bytes)
    if not placed:
        return f"{size} will be set aside" if story.ended is None else ""
    return f"{size} {'were' if story.ended else 'are'} set aside"


def _limits(story: Story) -> str:
    told = [f"{watch_text(story.limit_seconds)} of running time"] if story.limit_seconds is not None else []
    told += [f"{story.at_once} of its array at once"] if story.at_once is not None else []
    told += [_retries(story)] if story.retries else []
    told += [] if story.requeue else ["not run again when lost"]
    return ", ".join(told)


def _retries(story: Story) -> str:
    return count_text(story.retries, "retry", "retries") + (
        f" (on {', '.join(story.retry_on)})" if story.retry_on else ""
    )


def _attempts(attempts: Sequence[AttemptLine], width: int) -> list[Line]:
    columns = [
        Column("ATTEMPT", [Piece(str(one.number)) for one in attempts], 9, right=True),
        Column("GPU", [Piece(printable(",".join(one.devices)) or "-") for one in attempts], 6, most=12),
        Column("STARTED", [Piece(stamp(one.started.timestamp()) if one.started else "-") for one in attempts], 5),
        Column("RAN", [Piece("-" if one.seconds is None else watch_text(one.seconds)) for one in attempts], 7),
        Column("END", [Piece(_end(one)) for one in attempts], 8, most=30),
        Column("VRAM", [Piece(_vram(one)) for one in attempts], 6, right=True),
        Column("UTIL", [Piece(_percent(one)) for one in attempts], 3, right=True),
        Column("RAM", [Piece(_ram(one)) for one in attempts], 4, right=True),
    ]
    notes = [(Piece(printable(one.note) or "-"),) for one in attempts]
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


def _ram(attempt: AttemptLine) -> str:
    return "-" if attempt.peak_memory_bytes is None else size_text(attempt.peak_memory_bytes)


def _vram(attempt: AttemptLine) -> str:
    """The most that it held, of what was set aside."""
    peak, reserved = attempt.peak_vram_bytes, attempt.reserved_bytes
    if reserved is None:
        return "-" if peak is None else size_text(peak)
    return amount_text(peak, reserved)


def _percent(attempt: AttemptLine) -> str:
    return "-" if attempt.utilisation_percent is None else f"{attempt.utilisation_percent}%"


def _curves(attempts: Sequence[AttemptLine]) -> Iterator[Line]:
    for one in attempts:
        if curve := sparkline(one.vram_curve, CURVE):
            number = f" {one.number}" if len(attempts) > 1 else ""
            most = f" up to {size_text(one.peak_vram_bytes)} in {watch_text(one.vram_curve[-1][0])}"
            yield Piece(f" {'memory' + number:{LABEL}}", "faint"), Piece(curve, "good"), Piece(most, "faint")


def _events(story: Story) -> list[Line]:
    lines: list[Line] = []
    for event in story.events:
        detail = f"  {printable(event.detail)}" if event.detail else ""
        lines.append((Piece(f" {stamp(event.at.timestamp())}  ", "faint"), Piece(f"{event.event}{detail}")))
    return lines


def _wrapped(label: str, text: str, width: int) -> Iterator[Line]:
    """A label and as many lines as the value takes."""
    room = max(10, width - LABEL - 1)
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    for number, part in enumerate(parts):
        yield Piece(f" {label if number == 0 else '':{LABEL}}", "faint"), Piece(part)


FEW = 4
"""How many jobs are told of in full on a terminal."""


def show_jobs(
    places: Places, words: Sequence[str], screen: Screen, *, everything: bool = False, environment: bool = False
) -> int:
    """Tell of the jobs that the words choose."""
    with known(places, simulated=screen.sim) as knowledge:
        stories = read_stories(knowledge, words, environment=environment)
    stories = _with_reports(stories, places)
    if screen.form == "json":
        write_json(stories)
    elif screen.form == "plain":
        write_plain(jobs_plain(stories.jobs))
    else:
        width, height = terminal_size(os.environ)
        write_lines(_frame(stories, width, None if everything else height, screen.typed), screen.color)
    return 0


def read_stories(knowledge: Knowledge, words: Sequence[str], *, environment: bool = False) -> Stories:
    """The jobs that the words choose, in their order."""
    store = knowledge.store
    assert isinstance(store, Store)
    jobs = [job for job_id in find(store, words) if (job := store.job(job_id)) is not None]
    secrets = _secrets()
    told = [story_of(job, knowledge, secrets, environment=environment) for job in jobs]
    return Stories(SCHEMA, exactly(knowledge.now), knowledge.simulated, told)


def _with_reports(stories: Stories, places: Places) -> Stories:
    told = [structs.replace(job, reported=read_latest(places.report(job.id))) for job in stories.jobs]
    return structs.replace(stories, jobs=told)


def _secrets() -> tuple[str, ...]:
    """Which variables look like secrets; a configuration that cannot be read must not keep anybody from looking."""
    try:
        return load_config(os.environ, None).engine.secrets
    except StokerError:
        return PATTERNS


def _frame(stories: Stories, width: int, height: int | None, sim: str) -> list[Line]:
    now = stories.at.timestamp()
    if len(stories.jobs) > FEW:
        return [clipped(line, width) for line in _many(stories, now, width, height, sim)]
    lines: list[Line] = []
    for story in stories.jobs:
        told = story_lines(story, now, width, sim, simulated=stories.simulated)
        lines += [*([EMPTY, EMPTY] if lines else []), *(clipped(line, max(width, 40)) for line in told)]
    return lines


def _many(stories: Stories, now: float, width: int, height: int | None, sim: str) -> list[Line]:
    shown: list[Story] = stories.jobs if height is None else stories.jobs[: max(1, height - 4)]
    badge = [Piece(" SIM ", "simulated"), Piece(" ")] if stories.simulated else []
    counts = Counter(job.state for job in stories.jobs)
    heading = ", ".join(f"{count} {word}" for word, count in counts.items())
    lines = [(*badge, Piece(f"{len(stories.jobs)} jobs: {heading}", "heading")), *job_table(shown, now, width)]
    hidden = len(stories.jobs) - len(shown)
    more = f" … {hidden} more (stoker status{sim} -a ID...); all about one: stoker status{sim} {shown[0].label}"
    return [*lines, (Piece(more, "faint"),)] if hidden else lines
