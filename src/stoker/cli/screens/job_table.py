"""Tables of jobs: those that run, those that wait, interrupted runs and recent failures."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.app.jobs.local_time import clock_text, start_text
from stoker.app.views.job import JobLine
from stoker.app.views.model import FailedJob, InterruptedRun, Status
from stoker.cli.screens.text import (
    GIB,
    Column,
    Line,
    Look,
    Span,
    amount_text,
    cells,
    clip_middle,
    one_line,
    short_size,
    table_lines,
)
from stoker.core.outcomes import ACTIVE, FAILURES, JobWord
from stoker.core.text import without_common_leads
from stoker.core.units import ago_text, count_text, left_text, watch_text

WIDE = 100
"""Columns from which on progress has a longer bar."""
LONGEST_ID = 18
"""Columns of an id on a narrow screen."""
LEAST_JOB = 20
LEAST_WHY = 16
MOST_FAILURES = 3
ROUNDING = 2.0
"""Seconds by which an end that follows from the limit may differ from it."""

LOOKS: dict[JobWord, Look] = {
    "running": "good",
    "done": "good",
    "starting": "good",
    "stopping": "odd",
    "held": "odd",
    "blocked": "odd",
    "scheduled": "odd",
    **dict.fromkeys(FAILURES, "bad"),
}


def job_table(
    jobs: Sequence[JobLine], now: float, width: int, headers: int = 2, gap: Sequence[Line] = ()
) -> list[Line]:
    """The active jobs, then the others, each with columns of their own, below so many headers, a gap between them."""
    active = [job for job in jobs if job.state in ACTIVE]
    others = [job for job in jobs if job.state not in ACTIVE]
    longest = max(cells("ID"), max((cells(job.label) for job in jobs), default=0))
    wide = min(longest, max(LONGEST_ID, width // 5)), max((len(job.state) for job in jobs), default=0)
    active_lines = _active_table(active, now, width, wide) if active else []
    with_header = headers > bool(active)
    other_lines = _queued_table(others, now, width, wide, with_header=with_header) if others else []
    between = gap if active and others else ()
    return [*active_lines[headers == 0 :], *between, *other_lines[not with_header :]]


def _first_columns(jobs: Sequence[JobLine], wide: tuple[int, int]) -> list[Column]:
    """Id and state, as wide in both tables."""
    return [
        Column("ID", [Span(job.label.ljust(wide[0]), "id") for job in jobs], 9, most=wide[0]),
        Column("STATE", [Span(job.state.ljust(wide[1]), LOOKS.get(job.state, "")) for job in jobs], 8, always=True),
    ]


def _active_table(jobs: Sequence[JobLine], now: float, width: int, wide: tuple[int, int]) -> list[Line]:
    bar = 10 if width >= WIDE else 5
    done = [Column("DONE", [progress_cell(job.progress, bar) for job in jobs], 6)]
    columns = [
        *_first_columns(jobs, wide),
        Column("GPU", [gpu_cell(job.devices) for job in jobs], 5, most=7),
        Column("MEM", [memory_cell(job) for job in jobs], 3, right=True),
        Column("TIME", [Span("-" if job.seconds is None else watch_text(job.seconds)) for job in jobs], 4, right=True),
        Column("LEFT", [Span(left_cell(job, now)) for job in jobs], 7, right=True),
        *(done if any(job.progress is not None for job in jobs) else []),
    ]
    return table_lines(columns, "JOB", [_title_and_note(job) for job in jobs], width, LEAST_JOB, fit=_fit)


def _queued_table(
    jobs: Sequence[JobLine], now: float, width: int, wide: tuple[int, int], *, with_header: bool
) -> list[Line]:
    priorities = [Column("PRIO", [Span(str(job.priority)) for job in jobs], 6, right=True)]
    memory = [memory_cell(job) for job in jobs]
    most = max(16, (width - 32) // 2)
    columns = [
        *_first_columns(jobs, wide),
        *(priorities if with_header and any(job.priority for job in jobs) else []),
        *([Column("MEM", memory, 2, right=True)] if any(span.text != "-" for span in memory) else []),
        Column("START", [Span(start_cell(job, now)) for job in jobs], 5),
        Column("JOB", [Span(clip_middle(_title(job), most)) for job in jobs], 7, most=most),
    ]
    return table_lines(columns, "WHY", [(Span(_why(job)),) for job in jobs], width, LEAST_WHY)


def _title(job: JobLine) -> str:
    return one_line(job.title or job.name or job.command)


def _title_and_note(job: JobLine) -> Line:
    """The title; the command behind a name, and what there is to say about a job that runs."""
    title, command = _title(job), one_line(job.command)
    note = (Span(f" ({job.why})"),) if job.why else ()
    return Span(title), *note, *((Span(f"  {command}", "faint"),) if title != command and not job.why else ())


def _fit(line: Line, room: int) -> Line:
    """Keep the end of a title that is too long."""
    title, *rest = line
    return (title._replace(text=clip_middle(title.text, room)), *rest) if cells(title.text) > room else line


def _why(job: JobLine) -> str:
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    return tasks + job.why


def progress_cell(progress: float | None, columns: int) -> Line:
    """A bar and a percentage."""
    if progress is None:
        return (Span("-", "faint"),)
    full = int(progress * columns)
    return Span("█" * full, "good"), Span("░" * (columns - full), "faint"), Span(f" {int(progress * 100):2}%")


def memory_cell(job: JobLine) -> Span:
    """What an active job holds of the memory reserved on each GPU; what will be reserved for one that waits."""
    reserved = job.reserved_bytes
    used = job.used_bytes if job.held_bytes is None else job.held_bytes
    if used is None or job.state not in ACTIVE:
        unknown = "auto" if job.vram_mode == "auto" else "-"
        return Span(unknown if reserved is None else short_size(reserved))
    if reserved is None:
        return Span(f"{used / GIB:.1f}G")
    return Span(amount_text(used, reserved), "odd" if used > reserved else "")


def gpu_cell(devices: Sequence[str]) -> Span:
    return Span(",".join(devices) or "-")


def left_cell(job: JobLine, now: float) -> str:
    """How long it will run: `~` is an estimate, `≤` a limit, `?` unknown."""
    if job.last_seen is not None:
        return "?"
    by_limit = None if job.limit_seconds is None else job.limit_seconds - (job.seconds or 0.0)
    if job.expected_end is None:
        return "?" if by_limit is None else f"≤{left_text(by_limit)}"
    left = job.expected_end.timestamp() - now
    # The engine expects a job without earlier runs to take all of its time.
    return f"{'~' if by_limit is None or left < by_limit - ROUNDING else '≤'}{left_text(left)}"


def start_cell(job: JobLine, now: float) -> str:
    if job.expected_start is not None:
        return start_text(job.expected_start.timestamp(), now)
    return "?" if job.state == "queued" else "-"


# -- which jobs ----------------------------------------------------------------------------------


def listed_jobs(status: Status) -> list[JobLine]:
    """All jobs of a screen; those of interrupted runs have a line for each run instead."""
    if not status.interrupted:
        return status.jobs
    return [job for job in status.jobs if not job.interrupted or job.state in ACTIVE]


def headers_in(room: int) -> int:
    """How many of the two headers a screen has, with so many lines for jobs."""
    return 2 if room >= 7 else int(room >= 4)


def table_height(jobs: Sequence[JobLine], gaps: int) -> int:
    """Lines of the table of all these jobs, with so many empty lines between its two parts."""
    parts = len({job.state in ACTIVE for job in jobs})
    return len(jobs) + parts + (gaps if parts == 2 else 0)


def chosen_jobs(jobs: Sequence[JobLine], room: int, gaps: int = 0) -> list[JobLine]:
    """The jobs that fit below the headers: active ones first, but a third of the lines for those that wait."""
    active = [job for job in jobs if job.state in ACTIVE]
    queued = [job for job in jobs if job.state not in ACTIVE]
    room -= min(headers_in(room), bool(active) + bool(queued)) + (gaps if active and queued else 0)
    for_queued = min(len(queued), max(room - len(active), room // 3))
    return [*active[: max(0, room - for_queued)], *queued[: max(0, for_queued)]]


# -- below the jobs ------------------------------------------------------------------------------


def attention_lines(status: Status, now: float, width: int, sim: str, room: int) -> list[Line]:
    """Dim lines for interrupted runs, and one for each of the last failures if there is room for them, else for all."""
    runs = [line for run in status.interrupted for line in _run_lines(run, now, sim)]
    failures = _failure_lines(status.failures[:MOST_FAILURES], now, width)
    if len(failures) > 1 and len(runs) + len(failures) > room:
        states = ",".join(dict.fromkeys(job.state for job in status.failures))
        command = f"stoker history{sim} --since 1h --state {states}"
        failures = [(Span(" ✗ failures of the last hour: ", "bad"), Span(command))]
    return [*runs, *failures]


def _run_lines(run: InterruptedRun, now: float, sim: str) -> list[Line]:
    """Tell what is left of a run; each command has a line of its own, so that it can be copied."""
    when = clock_text(run.submitted.timestamp(), now)
    jobs = f"{count_text(run.jobs, 'job')} of '{one_line(run.label)}' ({when}) did not start"
    commands = (("run them in the queue", run.resume), ("discard them", run.discard))
    return [
        (Span(f" {jobs}", "faint"),),
        *((Span(f"   {text}: {command}{sim}", "faint"),) for text, command in commands if command),
    ]


def _failure_lines(failures: Sequence[FailedJob], now: float, width: int) -> list[Line]:
    most = max(12, width // 4)
    titles = [one_line(job.title) for job in failures]
    short = without_common_leads(titles)
    names = [title if cells(title) <= most else clip_middle(short[title], most) for title in titles]
    columns = [
        Column("", [Span(f"✗ {job.label}", "bad") for job in failures], 9, most=20),
        Column("", [Span(job.how) for job in failures], 8),
        Column("", [Span(ago_text(job.ended.timestamp(), now), "faint") for job in failures], 2),
        Column("", [Span(name, "faint") for name in names], 5, most=most),
    ]
    return table_lines(columns, None, [(Span(job.why),) for job in failures], width, LEAST_WHY)
