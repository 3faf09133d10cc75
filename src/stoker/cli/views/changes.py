"""Report what cancel, retry, edit, pause and resume did to jobs."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple, get_args

from msgspec import Struct

from stoker.cli.output_options import wants_json, write_json, write_plain
from stoker.core.job import Job, Result, Waiting, id_text, is_handed_over, state_word
from stoker.core.text import text_for_json
from stoker.queue.control import warn

SCHEMA = "stoker.change/1"
MOST_RANGES = 20
"""Ranges of ids in one line."""
OVER: Collection[str] = get_args(Result)
ACTIVE = ("starting", "running", "stopping")


class ChangeResult(Struct, frozen=True):
    """What became of one job."""

    id: int
    shown: str
    """The id as users type it: `12`, `12.3`."""
    name: str
    before: str
    """Its state when the command was typed..."""
    after: str
    """... and when the engine had answered."""
    refused: bool
    """Whether the command could not do what was asked."""
    said: str


class Report(Struct, frozen=True):
    """All that a verb did: `stoker cancel --json` and others."""

    schema: str
    verb: str
    dry_run: bool
    jobs: list[ChangeResult]
    notes: list[str]
    """What was done to the queue or to GPUs."""


class Sentence(NamedTuple):
    """What is said of a job that was and is in these states; empty is any."""

    text: str
    before: Collection[str] = ()
    after: Collection[str] = ()
    when: str = ""
    """A condition that the states do not tell, by name."""
    refused: bool = False

    def fits(self, was: str, now: str, when: str) -> bool:
        states = (not self.before or was in self.before) and (not self.after or now in self.after)
        return states and self.when in ("", when)


_OVER = Sentence("already finished: {id} ({was})", before=OVER)
_RETRY = Sentence("already finished: {id} ({was}); to run it again: stoker retry {id}", before=OVER, refused=True)
_NO_SUSPEND = (
    "a running job cannot be paused (it would block its GPU); instead: stoker cancel {id}, later: stoker retry {id}"
)

SENTENCES: dict[str, tuple[Sentence, ...]] = {
    "cancel": (
        _OVER,
        Sentence("cancelled {id} ({was})", after=["cancelled"]),
        Sentence("finished before the cancel: {id} ({now})", after=OVER),
        Sentence("already stopping: {id} ({how})", before=["stopping"]),
        Sentence("stopping {id} ({how})"),
    ),
    "cancel --dry-run": (
        _OVER,
        Sentence("would stop {id} ({was}; {how})", before=ACTIVE),
        Sentence("would cancel {id} ({was})"),
    ),
    "retry": (
        Sentence("{id} is {outcome} again{note}", when="ended again", refused=True),
        Sentence("requeued {id} (last result: {how}{memory})"),
    ),
    "retry --dry-run": (Sentence("would requeue {id} (last result: {how}{memory}): {command}"),),
    "edit": (
        _RETRY,
        Sentence("{id} is stopping; it cannot be changed", before=["stopping"], refused=True),
        Sentence("{id}: {difference}", when="changed"),
        Sentence(
            "{id} keeps its time limit: an older version of Stoker started it; the rest was changed",
            when="limit kept",
            refused=True,
        ),
        Sentence("{id} is now {now}; not changed", refused=True),
    ),
    "pause": (
        Sentence("already held: {id}", before=["held"]),
        Sentence(_OVER.text, before=OVER, refused=True),
        Sentence("held {id}", after=["held"]),
        Sentence("{id} has just ended ({now})", after=OVER, refused=True),
        Sentence(f"{{id}} has just started: {_NO_SUSPEND}", before=["queued"], refused=True),
        Sentence(f"{{id}} is {{was}}: {_NO_SUSPEND}", refused=True),
    ),
    "resume": (
        _RETRY,
        Sentence("moved {id} into the queue (its 'stoker run' was interrupted)", when="abandoned"),
        Sentence("released {id}", before=["held"]),
        Sentence("not held: {id} ({now})"),
    ),
}
"""By command; the first that fits is said."""


def word(job: Job) -> str:
    return "queued" if isinstance(job.state, Waiting) or is_handed_over(job) else state_word(job)


def result(verb: str, before: Job, after: Job, when: str = "", **details: str) -> ChangeResult:
    """What a command did to a job; `details` fill the sentence."""
    was, now, shown = word(before), word(after), id_text(before)
    sentence = next(one for one in SENTENCES[verb] if one.fits(was, now, when))
    said = sentence.text.format(id=shown, was=was, now=now, **details)
    return ChangeResult(before.id, shown, text_for_json(before.name), was, now, sentence.refused, said)


def report(
    verb: str, results: Sequence[ChangeResult], notes: Sequence[str] = (), *, as_json: bool, dry_run: bool = False
) -> int:
    """Print the results, and return the exit code: 2 if a job was refused."""
    if wants_json(as_json):
        write_json(Report(SCHEMA, verb, dry_run, list(results), list(notes)))
    else:
        write_plain([*notes, *grouped_lines([one for one in results if not one.refused])])
        sys.stdout.flush()
        for line in grouped_lines([one for one in results if one.refused]):
            warn(line)
    return 2 if any(one.refused for one in results) else 0


def grouped_lines(results: Sequence[ChangeResult]) -> list[str]:
    """A line for all jobs with the same result: `cancelled 12 jobs 3-9,12,20.[0-3] (queued)`."""
    alike: dict[str, list[ChangeResult]] = {}
    for one in results:
        alike.setdefault(_said_of(one, "{}"), []).append(one)
    return [_line(group) for group in alike.values()]


def _line(group: Sequence[ChangeResult]) -> str:
    first = group[0]
    if len(group) == 1:
        return first.said
    ids = [one.shown for one in group]
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
    """Ids in few words: `3-9`, `20.[0-3]`."""
    found = []
    for (array, _), run in itertools.groupby(enumerate(ids), key=_place):
        numbers = [shown.rpartition(".")[2] for _, shown in run]
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        found.append(span if not array else f"{array}.{span}" if len(numbers) == 1 else f"{array}.[{span}]")
    return found


def _place(numbered: tuple[int, str]) -> tuple[str, int]:
    """The array, and the number less the position, which is the same for consecutive numbers."""
    position, shown = numbered
    array, _, number = shown.rpartition(".")
    return array, int(number) - position
