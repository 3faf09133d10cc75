"""What `stoker submit` prints: a line with the id, only ids, or one JSON value."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from stoker.cli.submission.desk import Entered
from stoker.core.attempt import output_paths
from stoker.core.job import Job, Waiting
from stoker.options import current_user
from stoker.words import printable, shortened, text_for_json

WIDTH = 200


class SubmittedJob(Struct, frozen=True):
    """A job that was submitted, or an array of them."""

    id: int
    tasks: str | None
    """The indices of an array as they were typed; null for a job that is none."""
    count: int
    """How many tasks; 1 for a job that is no array."""
    name: str
    command: str
    log: str | None
    """Where the output of its first attempt will be; null for an array, which has a file for each task."""


class SubmitResult(Struct, frozen=True):
    """All that was submitted: `stoker submit --json`."""

    schema: str
    held: bool
    jobs: list[SubmittedJob]
    problem: str | None
    """Why there is no engine to run them, though they are safe in the queue; null where there is one."""


def submit_result(entered: Sequence[Entered], problem: str | None, *, held: bool) -> SubmitResult:
    """What was submitted, as data."""
    return SubmitResult("stoker.submit/1", held, [job for one in entered for job in _jobs(one)], problem)


def show_result(result: SubmitResult) -> None:
    """One JSON value."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


def show_ids(entered: Sequence[Entered]) -> None:
    """An id on each line; an array has one."""
    for one in entered:
        sys.stdout.write("".join(f"{job_id}\n" for job_id in (one.ids[:1] if one.part.array else one.ids)))


def show_lines(entered: Sequence[Entered]) -> None:
    """A line for a job, an array, or many jobs."""
    for one in entered:
        single = f": {_title(one)}" if one.part.array or len(one.ids) == 1 else ""
        print(f"submitted {_ids_text(one)}{single}")


def unprinted_text(entered: Sequence[Entered]) -> str:
    """Where the jobs are that nobody could be told of: `job 3 is in the queue, but its id`."""
    if len(entered) == 1 and (len(entered[0].ids) == 1 or entered[0].part.array):
        return f"job {entered[0].ids[0]} is in the queue, but its id"
    return f"jobs {', '.join(map(_ids_text, entered))} are in the queue, but their ids"


def _ids_text(one: Entered) -> str:
    if one.part.array:
        return f"{one.ids[0]} (tasks {one.part.array})"
    return str(one.ids[0]) if len(one.ids) == 1 else f"{one.ids[0]}-{one.ids[-1]} ({len(one.ids)} jobs)"


def _title(one: Entered) -> str:
    text = one.part.jobs[0].command.text.strip().replace("\\\n", " ").replace("\n", "; ")
    return shortened(printable(text), WIDTH)


def _jobs(one: Entered) -> Iterator[SubmittedJob]:
    if one.part.array:
        first = one.part.jobs[0]
        command, name = text_for_json(first.command.text), text_for_json(first.name)
        yield SubmittedJob(one.ids[0], one.part.array, len(one.ids), name, command, None)
        return
    user = current_user()
    for job_id, new in zip(one.ids, one.part.jobs, strict=True):
        job = Job(job_id, 0, new.command, new.terms, Waiting(0.0), 0.0, new.name)
        log = text_for_json(output_paths(job, user)[0])
        yield SubmittedJob(job_id, None, 1, text_for_json(new.name), text_for_json(new.command.text), log)
