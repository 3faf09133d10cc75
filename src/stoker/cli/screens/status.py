"""Render `stoker status`: heading, GPUs, jobs, and what is hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.job import JobLine
from stoker.app.views.model import GroupLine, Status, UserLine
from stoker.cli.screens.gpus import device_table, machine_text, marked
from stoker.cli.screens.job_table import attention_lines, chosen_jobs, headers_in, job_table, listed_jobs, table_height
from stoker.cli.screens.text import EMPTY, Column, Line, Span, cells, clipped, fitting, heading, or_dash, table_lines
from stoker.core.outcomes import ACTIVE
from stoker.core.units import ago_text, count_text, short_size, span_text

NO_ENGINE = "Engine not running (starts automatically on submit; or run: stoker engine start)"
OLD_SECONDS = 5.0
"""Age from which on the screen tells how old the readings of the GPUs are."""
ROOMY_LINES = 14
"""Lines from which on there are empty ones between the parts."""
WIDE_COLUMNS = 100
"""Columns from which on names get a column of their own and speeds are shown."""


def render_status(status: Status, width: int, height: int | None, option: str = "") -> list[Line]:
    """All lines; a height of None shows everything. `option` is the one that commands on this queue need."""
    now = status.at.timestamp()
    room = (height or 10**9) - 2  # the last line, and the prompt that follows
    top = [_heading(status, width), *_note_lines(status)]
    gap = [EMPTY] if room >= ROOMY_LINES else []
    room -= len(top) + 2 * len(gap)
    listed = listed_jobs(status)
    least_jobs = min(len(listed), 3) + 1 if listed else 1
    devices = device_table(status.devices, now, width, room - least_jobs, speeds=width >= WIDE_COLUMNS)
    if status.groups or status.users:
        return _summary(status, width, room + 1)
    room -= len(devices)
    below = attention_lines(status, now, width, option, room - table_height(listed, gaps=len(gap)))
    for_jobs = room - min(len(below), room // 4)
    shown = chosen_jobs(listed, for_jobs, gaps=len(gap))
    jobs = job_table(shown, now, width, headers_in(for_jobs), gap) if shown else []
    if not any((status.counts.active, status.counts.waiting, status.counts.held)):
        jobs = [(Span(f"No jobs. Submit one: stoker submit{option} -- python3 train.py"),)]
    if status.filtered and not shown:
        jobs = [(Span("no job matches the filter"),)]
    jobs += below[: max(0, room - len(jobs))]
    parts = [part for part in (top, devices, [*jobs, *_last_line(status, shown, width, option)]) if part]
    lines = [line for part in parts for line in (*gap, *part)]
    return [clipped(line, width) for line in lines[len(gap) :]]


def _summary(status: Status, width: int, room: int) -> list[Line]:
    """Counts of groups or users in place of devices and jobs."""
    from stoker.cli.screens.status import group_table, user_table

    now = status.at.timestamp()
    lines = group_table(status.groups, width) if status.groups else user_table(status.users, now, width)
    more = [(Span(f" … {len(lines) - room} more (--plain)", "faint"),)] if len(lines) > room + 1 else []
    shown = lines[:room] if more else lines
    return [clipped(line, width) for line in (_heading(status, width), *_note_lines(status), *shown, *more)]


# -- heading, notes and last line ----------------------------------------------------------------


def _heading(status: Status, width: int) -> Line:
    """`stoker on lab7 · engine up 3d 2h · 4 × A100 40G · web http://127.0.0.1:7717`."""
    engine, mark = status.engine, status.engine.paused
    paused = f"the queue is {marked(mark, 'paused', status.at.timestamp())}" if mark else ""
    up = "" if engine.since is None else f" up {span_text((status.at - engine.since).total_seconds())}"
    web = f"web {status.web}" if status.web else ""
    parts = (paused, f"engine{up}" if engine.running else "engine not running", machine_text(status.devices), web)
    return heading((f"stoker on {status.host}", *parts), width, simulated=status.simulated)


def _note_lines(status: Status) -> list[Line]:
    """Tell what is wrong, or old."""
    lines: list[Line] = []
    seen = status.engine.seen
    if not status.engine.running:
        lines.append((Span(NO_ENGINE, "odd"),))
    if seen is not None and status.devices and (status.at - seen).total_seconds() > OLD_SECONDS:
        when = ago_text(seen.timestamp(), status.at.timestamp())
        silent = status.engine.running and not status.engine.silence  # a note says that, and why
        why = "the engine does not answer; " if silent else ""
        lines.append((Span(f"{why}GPU readings are from {when}", "odd"),))
    if status.engine.draining:
        lines.append(
            (Span("the engine is draining: it starts no more jobs, and stops when the running jobs have ended", "odd"),)
        )
    return [*lines, *((Span(note, "bad"),) for note in status.notes)]


def _last_line(status: Status, shown: Sequence[JobLine], width: int, option: str) -> list[Line]:
    """What is hidden and how to see it, when the queue will be empty, and what ended today."""
    empty = status.expected_empty
    until = "" if empty is None else f"queue empty ~{clock_text(empty.timestamp(), status.at.timestamp())}"
    today = _today(status, width - 2, f"(stoker history{option})")
    text = fitting((_hidden(status, shown, width, option), until, today), width - 2)
    return [(Span(f" {text}", "faint"),)] if text else []


def _today(status: Status, width: int, more: str) -> str:
    """Tell what ended today, in as many words as there is room for; `more` names the command for the rest."""
    results, ended = results_text(status.today), sum(status.today.values())
    forms = (f"today {results} {more}", f"today {results}", f"today {ended} ended {more}")
    return next((form for form in forms if cells(form) <= width), forms[-1]) if ended else ""


def _hidden(status: Status, shown: Sequence[JobLine], width: int, option: str) -> str:
    active = sum(job.state in ACTIVE for job in shown)
    held = sum(job.tasks for job in shown if job.state == "held")
    queued = sum(job.tasks for job in shown) - active - held
    counts = status.counts
    queued += sum(run.jobs for run in status.interrupted)  # they have a line of their own
    left = ((counts.active - active, "running"), (counts.waiting - queued, "waiting"), (counts.held - held, "held"))
    counted = [f"{count} more {word}" for count, word in left if count > 0]
    more = sum(max(0, count) for count, _ in left)
    forms = (f"… {', '.join(counted)} (stoker status{option} -a)", f"… {more} more (stoker status{option} -a)")
    return next((form for form in forms if cells(form) < width), forms[-1]) if counted else ""


def results_text(counts: Mapping[str, int]) -> str:
    """`212 done, 3 failed`."""
    others = [f"{count} {word}" for word, count in sorted(counts.items()) if word != "done" and count]
    done = [f"{counts.get('done', 0)} done"] if counts.get("done") or not others else []
    return ", ".join([*done, *others])


# -- summaries by group and by user ------------------------------------------------------------

MIN_LIMIT_COLUMNS = 5
MIN_SINCE_COLUMNS = 8


def group_table(groups: Sequence[GroupLine], width: int) -> list[Line]:
    """A header and a line for each group."""
    columns = [
        Column("GROUP", [Span(group.group or "-", "id") for group in groups], 9, most=24),
        Column("RUNNING", [Span(str(group.active), "good" if group.active else "") for group in groups], 8, right=True),
        Column("WAITING", [Span(str(group.waiting)) for group in groups], 7, right=True),
        Column("HELD", [Span(str(group.held)) for group in groups], 3, right=True),
        Column("GPUS", [Span(str(group.gpus)) for group in groups], 5, right=True),
    ]
    return table_lines(columns, "LIMIT", [(Span(or_dash(group.limit)),) for group in groups], width, MIN_LIMIT_COLUMNS)


def user_table(users: Sequence[UserLine], now: float, width: int) -> list[Line]:
    """A header and a line for each user; what only the user's own queue knows is `-` for others."""
    names = [user.user + (" (you)" if user.you else "") for user in users]
    memory = ["whole GPUs" if user.vram_bytes is None else short_size(user.vram_bytes) for user in users]
    since = ["" if user.waiting_since is None else ago_text(user.waiting_since.timestamp(), now) for user in users]
    columns = [
        Column("USER", [Span(name, "id") for name in names], 9, most=24),
        Column("RUNNING", [Span(str(user.running), "good" if user.running else "") for user in users], 8, right=True),
        Column("GPUS", [Span(str(user.gpus)) for user in users], 7, right=True),
        Column("MEM", [Span(size) for size in memory], 4, right=True),
        Column("WAITING", [Span(_waiting(user)) for user in users], 6, right=True),
        Column("COULD USE", [Span(_usable(user)) for user in users], 5, right=True),
        Column("USED LATELY", [Span(or_dash(user.recent_gpu_hours, "{:.2f} GPU-h")) for user in users], 3, right=True),
    ]
    return table_lines(columns, "WAITS SINCE", [(Span(text or "-"),) for text in since], width, MIN_SINCE_COLUMNS)


def _waiting(user: UserLine) -> str:
    return "-" if user.waiting is None else count_text(user.waiting, "job")


def _usable(user: UserLine) -> str:
    return count_text(user.waiting_gpus, "GPU") if user.waiting_gpus else "-"
