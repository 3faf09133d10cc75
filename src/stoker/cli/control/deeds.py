"""What a verb did to each job: one line for people, one value for programs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from msgspec import Struct

from stoker.cli.control.wishes import warn
from stoker.cli.screens.screen import write_json, write_plain
from stoker.core.job import Job, Waiting, state_word
from stoker.words import id_text, text_for_json

SCHEMA = "stoker.change/1"
LINES_ON_A_TERMINAL = 40


class Deed(Struct, frozen=True):
    """What became of one job."""

    id: int
    shown: str
    """The id as people type it: `12`, `12.3`."""
    name: str
    before: str
    """Its state when the verb was typed..."""
    after: str
    """... and when it was answered."""
    refused: bool
    """Whether the verb could not do what it is for."""
    said: str


class Report(Struct, frozen=True):
    """All that a verb did: `stoker cancel --json` and others."""

    schema: str
    verb: str
    dry_run: bool
    jobs: list[Deed]
    notes: list[str]
    """What was done to the queue or to GPUs."""


def word(job: Job) -> str:
    """The state as screens call it."""
    return "queued" if isinstance(job.state, Waiting) else state_word(job)


def deed(before: Job, after: Job, said: str, *, refused: bool = False) -> Deed:
    """What became of one job."""
    name = text_for_json(before.name)
    return Deed(before.id, id_text(before), name, word(before), word(after), refused, said)


def tell(report: Report, *, as_json: bool) -> int:
    """Print it, and return the exit code: 2 where a job was refused."""
    if as_json:
        write_json(report)
    else:
        _print([*report.notes, *_lines([one for one in report.jobs if not one.refused])])
        sys.stdout.flush()
        for one in report.jobs:
            if one.refused:
                warn(one.said)
    return 2 if any(one.refused for one in report.jobs) else 0


def report_of(verb: str, jobs: Sequence[Deed], notes: Sequence[str] = (), *, dry_run: bool = False) -> Report:
    """All that a verb did."""
    return Report(SCHEMA, verb, dry_run, list(jobs), list(notes))


def _lines(deeds: Sequence[Deed]) -> list[str]:
    """A line for each job, and one for tasks of an array that follow each other and fared alike."""
    alike = itertools.groupby(enumerate(deeds), key=_likeness)
    lines = []
    for (array, *_), run in alike:
        tasks = [one for _, one in run]
        first, last = tasks[0], tasks[-1]
        if len(tasks) == 1:
            lines.append(first.said)
        else:
            span = f"{array}.[{first.shown.partition('.')[2]}-{last.shown.partition('.')[2]}]"
            lines.append(f"{first.said.replace(first.shown, span, 1)}, {len(tasks)} tasks")
    return lines


def _likeness(numbered: tuple[int, Deed]) -> tuple[str, int, str]:
    """Array, distance of index and place (equal for those that follow each other), and what was done."""
    place, one = numbered
    array, _, task = one.shown.partition(".")
    return array, int(task or 0) - place, one.said.replace(one.shown, "", 1)


def _print(lines: Sequence[str]) -> None:
    too_many = sys.stdout.isatty() and len(lines) > LINES_ON_A_TERMINAL + 1
    shown = lines[:LINES_ON_A_TERMINAL] if too_many else lines
    write_plain(shown if len(shown) == len(lines) else [*shown, f"… and {len(lines) - len(shown)} more"])
