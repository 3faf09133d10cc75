"""`stoker status --all-users`: who has which GPUs until when, who waits, and what is booked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.app.jobs.local_time import clock_text
from stoker.cli.console import say
from stoker.cli.options import Screen, write_json, write_plain
from stoker.cli.screens.gpus import end_text, machine_text
from stoker.cli.screens.plain import Columns, plain_lines
from stoker.cli.screens.text import EMPTY, Column, Line, Span, clipped, heading, or_dash, table_lines, write_lines
from stoker.core.units import ago_text, count_text, size_text
from stoker.features.lab.view import Lab, LabJob, LabWaiting, read_lab
from stoker.store.paths import Paths

PLAIN: Columns = {
    "USER": "user",
    "GPUS": lambda job: ",".join(job.gpus),
    "MEMORY": lambda job: "all" if job.memory_bytes is None else job.memory_bytes,
    "SINCE": "since",
    "EXPECTED_END": "expected_end",
    "LATEST_END": "latest_end",
    "UTIL": "utilisation_percent",
    "ID": "job",
    "PID": "pid",
    "TITLE": "title",
}


def show(paths: Paths, _ids: Sequence[int], screen: Screen, *, everything: bool) -> None:
    """Show all users of this machine in the form that the screen wants."""
    lab = read_lab(paths)
    if screen.form == "json":
        write_json(lab)
    elif screen.form == "plain":
        write_plain(plain_lines(lab.jobs, PLAIN))
        for note in lab.notes:
            say(note)
    else:
        write_lines(render_lab(lab, screen.size[0]), screen.color)


def render_lab(lab: Lab, width: int) -> list[Line]:
    now = lab.at.timestamp()
    parts = [f"{lab.host} · {machine_text(lab.devices) or 'no GPUs'}", *_totals(lab)]
    lines = [heading(parts, width, simulated=lab.simulated), *((Span(note, "odd"),) for note in lab.notes)]
    if lab.jobs:
        lines += [EMPTY, *_job_table(lab.jobs, now, width)]
    else:
        lines += [EMPTY, (Span("No job of any user has a GPU."),)]
    if lab.waiting:
        lines += [EMPTY, *_waiting_table(lab.waiting, now, width)]
    if lab.bookings:
        from stoker.features.lab.book import booking_table

        lines += [EMPTY, (Span(" Booked", "heading"),), *booking_table(lab.bookings, now, width)]
    return [clipped(line, width) for line in lines]


def _totals(lab: Lab) -> Iterator[str]:
    held = {gpu for job in lab.jobs for gpu in job.gpus}
    free = [device.label for device in lab.devices if device.label not in held and not device.strangers]
    yield f"{len(free)} of {count_text(len(lab.devices), 'GPU')} without jobs"
    yield f"{count_text(sum(line.jobs for line in lab.waiting), 'job')} waiting"


def _job_table(jobs: Sequence[LabJob], now: float, width: int) -> list[Line]:
    columns = [
        Column("GPUS", [Span(" ".join(job.gpus), "id") for job in jobs], 9, most=16),
        Column("USER", [_user(job) for job in jobs], 8, most=20),
        Column("MEM", [Span("all" if job.memory_bytes is None else size_text(job.memory_bytes)) for job in jobs], 3),
        Column("UTIL", [Span(or_dash(job.utilisation_percent, "{}%")) for job in jobs], 5, right=True),
        Column("SINCE", [Span(clock_text(job.since.timestamp(), now)) for job in jobs], 6, right=True),
        Column("UNTIL", [Span(end_text(job.expected_end, job.latest_end, now)) for job in jobs], 7),
        Column("PID", [Span(str(job.pid)) for job in jobs], 2, right=True),
    ]
    named = [(Span(f"{job.job or 'engine'} {job.title}".rstrip()),) for job in jobs]
    return table_lines(columns, "JOB", named, width, 6)


def _user(line: LabJob | LabWaiting) -> Span:
    return Span(f"{line.user} (you)" if line.you else line.user, "" if line.you else "odd")


def _waiting_table(waiting: Sequence[LabWaiting], now: float, width: int) -> list[Line]:
    columns = [
        Column("WAITING", [Span(count_text(line.jobs, "job")) for line in waiting], 9),
        Column("USER", [_user(line) for line in waiting], 8, most=20),
        Column("SINCE", [Span(_waits(line, now)) for line in waiting], 7),
    ]
    return table_lines(columns, "EACH WANTS", [(Span(_wanted(line)),) for line in waiting], width, 6)


def _waits(line: LabWaiting, now: float) -> str:
    return "-" if line.since is None else ago_text(line.since.timestamp(), now)


def _wanted(line: LabWaiting) -> str:
    if line.gpus is None:
        return "-"
    if not line.gpus:
        return "no GPU"
    memory = "" if line.memory_bytes is None else f", {size_text(line.memory_bytes)} on each"
    return f"{count_text(line.gpus, 'GPU')}{memory}"
