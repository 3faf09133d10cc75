"""Print what cancel, retry, edit, pause and resume did to jobs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from stoker.app.control.sentences import SCHEMA, ChangeReport, Effect, change_results
from stoker.cli.console import say
from stoker.cli.options import wants_json, write_json, write_plain
from stoker.core.job import Job, ids_of
from stoker.core.ranges import Ranges
from stoker.core.selectors import number_ranges, tasks_text
from stoker.core.text import printable

MOST_RANGES = 20
"""Ranges of ids in one line."""


def report(
    verb: str, effects: Sequence[Effect], notes: Sequence[str] = (), *, as_json: bool, dry_run: bool = False
) -> int:
    """Print what happened, and return the exit code: 2 if a job was refused."""
    if wants_json(as_json):
        write_json(ChangeReport(SCHEMA, verb, dry_run, change_results(effects), list(notes)))
    else:
        write_plain(map(printable, [*notes, *grouped_lines([effect for effect in effects if not effect.refused])]))
        sys.stdout.flush()
        for line in grouped_lines([effect for effect in effects if effect.refused]):
            say(line)
    return 2 if any(effect.refused for effect in effects) else 0


def grouped_lines(effects: Sequence[Effect]) -> list[str]:
    """A line for all jobs with the same result: `cancelled 12 jobs 3-9,12,20.[0-3] (queued)`."""
    alike: dict[str, list[Effect]] = {}
    for effect in effects:
        alike.setdefault(effect.said_of("", "ID"), []).append(effect)
    return [_line(group) for group in alike.values()]


def _line(group: Sequence[Effect]) -> str:
    jobs = [effect.job for effect in group]
    count = sum(job.count for job in jobs)
    if count == 1:
        return group[0].said
    noun = "tasks" if all(job.task is not None for job in jobs) else "jobs"
    ranges = _ranges(jobs)
    listed = ",".join(ranges[:MOST_RANGES]) + (",…" if len(ranges) > MOST_RANGES else "")
    return group[0].said_of(f"{count} {noun} {listed}", "ID")


def _ranges(jobs: Sequence[Job]) -> list[str]:
    """Ids in few words: `3-9`, `20.[0-3,7]`."""
    ranges: list[str] = []
    for array, some in itertools.groupby(jobs, key=lambda job: 0 if job.task is None else job.array):
        alike = list(some)
        ranges += [tasks_text(array, Ranges(job.indices for job in alike))] if array else number_ranges(ids_of(alike))
    return ranges
