"""Tables of jobs: those that run, those that wait, interrupted runs and recent failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.columns import ACTIVE_TABLE, WAITING_TABLE, JobColumn, Terminal, chosen_columns
from stoker.app.views.job import JobFacts, JobLine
from stoker.app.views.model import FailedJob, InterruptedRun, Status
from stoker.cli.screens.text import Column, Line, Span, cells, clip_middle, one_line, table_lines
from stoker.core.outcomes import ACTIVE
from stoker.core.text import without_common_leads
from stoker.core.units import ago_text, count_text

MAX_ID_COLUMNS = 18
"""Columns of an id on a narrow screen."""
MIN_JOB_COLUMNS = 20
MIN_WHY_COLUMNS = 16
MOST_FAILURES = 3


def job_table(
    jobs: Sequence[JobLine], now: float, width: int, headers: int = 2, gap: Sequence[Line] = ()
) -> list[Line]:
    """The active jobs, then the others, each with columns of their own, below so many headers, a gap between them."""
    active = [job for job in jobs if job.state in ACTIVE]
    others = [job for job in jobs if job.state not in ACTIVE]
    longest = max(cells("ID"), max((cells(job.label) for job in jobs), default=0))
    states = max(cells("STATE"), max((len(job.state) for job in jobs), default=0))
    wide = {"ID": min(longest, max(MAX_ID_COLUMNS, width // 5)), "STATE": states}
    active_lines = _active_table(active, now, width, wide) if active else []
    with_header = headers > bool(active)
    other_lines = _queued_table(others, now, width, wide, with_header=with_header) if others else []
    between = gap if active and others else ()
    return [*active_lines[headers == 0 :], *between, *other_lines[not with_header :]]


def job_columns(
    names: Sequence[str], jobs: Sequence[JobFacts], now: float, width: int, wide: Mapping[str, int] = {}
) -> list[Column]:
    """The columns of a table of jobs; `wide` gives those with these titles a width."""
    terminal = Terminal(now, width)
    return [
        Column(
            column.title,
            [_cell(column, job, terminal) for job in jobs],
            column.weight,
            most=wide.get(column.title, column.most),
            least=wide.get(column.title, 0),
            right=column.right,
            always=column.always,
        )
        for column in chosen_columns(names, jobs)
    ]


def _cell(column: JobColumn, job: JobFacts, terminal: Terminal) -> Line:
    assert column.text is not None
    text, look = column.text(job, terminal), column.look(job)
    return bar_spans(text) if look == "bar" else (Span(text, look),)


def _active_table(jobs: Sequence[JobLine], now: float, width: int, wide: Mapping[str, int]) -> list[Line]:
    columns = job_columns(ACTIVE_TABLE, jobs, now, width, wide)
    return table_lines(columns, "JOB", [_title_and_note(job) for job in jobs], width, MIN_JOB_COLUMNS, fit=_fit)


def _queued_table(
    jobs: Sequence[JobLine], now: float, width: int, wide: Mapping[str, int], *, with_header: bool
) -> list[Line]:
    names = [name for name in WAITING_TABLE if with_header or name != "priority?"]
    most = max(16, (width - 32) // 2)
    titles = Column("JOB", [Span(clip_middle(title_of(job), most)) for job in jobs], 10, most=most)
    columns = [*job_columns(names, jobs, now, width, wide), titles]
    return table_lines(columns, "WHY", [(Span(_why(job)),) for job in jobs], width, MIN_WHY_COLUMNS)


def title_of(job: JobFacts) -> str:
    return one_line(job.title or job.name or job.command)


def _title_and_note(job: JobLine) -> Line:
    """The title; the command behind a name, and what there is to say about a job that runs."""
    title, command = title_of(job), one_line(job.command)
    note = (Span(f" ({job.why})"),) if job.why else ()
    return Span(title), *note, *((Span(f"  {command}", "faint"),) if title != command and not job.why else ())


def _fit(line: Line, room: int) -> Line:
    """Keep the end of a title that is too long."""
    title, *rest = line
    return (title._replace(text=clip_middle(title.text, room)), *rest) if cells(title.text) > room else line


def _why(job: JobLine) -> str:
    tasks = f"{count_text(job.tasks, 'task')}: " if job.tasks > 1 else ""
    return tasks + job.why


def bar_spans(text: str) -> Line:
    """A bar of blocks with text behind it."""
    if not text.startswith(("█", "░")):
        return (Span(text, "faint"),)
    full, empty = text.count("█"), text.count("░")
    return Span("█" * full, "good"), Span("░" * empty, "faint"), Span(text[full + empty :])


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


def attention_lines(status: Status, now: float, width: int, option: str, room: int) -> list[Line]:
    """Dim lines for interrupted runs, and one for each of the last failures if there is room for them, else for all."""
    runs = [line for run in status.interrupted for line in _run_lines(run, now, option)]
    failures = _failure_lines(status.failures[:MOST_FAILURES], now, width)
    if len(failures) > 1 and len(runs) + len(failures) > room:
        states = ",".join(dict.fromkeys(job.state for job in status.failures))
        command = f"stoker history{option} --since 1h --state {states}"
        failures = [(Span(" ✗ failures of the last hour: ", "bad"), Span(command))]
    return [*runs, *failures]


def _run_lines(run: InterruptedRun, now: float, option: str) -> list[Line]:
    """Tell what is left of a run; each command has a line of its own, so that it can be copied."""
    when = clock_text(run.submitted.timestamp(), now)
    jobs = f"{count_text(run.jobs, 'job')} of '{one_line(run.label)}' ({when}) did not start"
    commands = (("run them in the queue", run.resume), ("discard them", run.discard))
    return [
        (Span(f" {jobs}", "faint"),),
        *((Span(f"   {text}: {command}{option}", "faint"),) for text, command in commands if command),
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
    return table_lines(columns, None, [(Span(job.why),) for job in failures], width, MIN_WHY_COLUMNS)
