"""Print what cancel, retry, edit, pause and resume did to jobs."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence

from stoker.app.control.sentences import SCHEMA, ChangeReport, ChangeResult
from stoker.cli.console import say
from stoker.cli.options import wants_json, write_json, write_plain
from stoker.core.selectors import number_ranges, tasks_text
from stoker.core.text import printable

MOST_RANGES = 20
"""Ranges of ids in one line."""


def report(
    verb: str, results: Sequence[ChangeResult], notes: Sequence[str] = (), *, as_json: bool, dry_run: bool = False
) -> int:
    """Print the results, and return the exit code: 2 if a job was refused."""
    if wants_json(as_json):
        write_json(ChangeReport(SCHEMA, verb, dry_run, list(results), list(notes)))
    else:
        write_plain(map(printable, [*notes, *grouped_lines([result for result in results if not result.refused])]))
        sys.stdout.flush()
        for line in grouped_lines([result for result in results if result.refused]):
            say(line)
    return 2 if any(result.refused for result in results) else 0


def grouped_lines(results: Sequence[ChangeResult]) -> list[str]:
    """A line for all jobs with the same result: `cancelled 12 jobs 3-9,12,20.[0-3] (queued)`."""
    alike: dict[str, list[ChangeResult]] = {}
    for result in results:
        alike.setdefault(_said_of(result, "{}"), []).append(result)
    return [_line(group) for group in alike.values()]


def _line(group: Sequence[ChangeResult]) -> str:
    first = group[0]
    if len(group) == 1:
        return first.said
    ids = [result.shown for result in group]
    noun = "tasks" if all("." in shown for shown in ids) else "jobs"
    ranges = _ranges(ids)
    listed = ",".join(ranges[:MOST_RANGES]) + (",…" if len(ranges) > MOST_RANGES else "")
    return _said_of(first, f"{len(group)} {noun} {listed}")


def _said_of(one: ChangeResult, jobs: str) -> str:
    """The sentence about other jobs: the id stands first in it, and again in commands that it names."""
    named = one.said
    if "stoker " in named:  # most sentences have no command, and a pattern for each of 100,000 jobs takes seconds
        named = re.sub(rf"(stoker \w+) {re.escape(one.shown)}\b", r"\1 ID", named)
    return named.replace(one.shown, jobs, 1)


def _ranges(ids: Sequence[str]) -> list[str]:
    """Ids in few words: `3-9`, `20.[0-3,7]`."""
    ranges: list[str] = []
    for array, shown in itertools.groupby(ids, key=lambda shown: shown.rpartition(".")[0]):
        numbers = [int(text.rpartition(".")[2]) for text in shown]
        ranges += [tasks_text(int(array), numbers)] if array else number_ranges(numbers)
    return ranges
