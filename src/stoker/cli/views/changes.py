"""Report what cancel, retry, edit, pause and resume did to jobs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple, get_args

from msgspec import Struct

from stoker.cli.output_options import wants_json, write_json, write_plain
from stoker.core.job import Job, Result, Waiting, id_text, is_handed_over, state_word
from stoker.core.text import text_for_json
from stoker.queue.control import warn

SCHEMA = "stoker.change/1"
LINES_ON_A_TERMINAL = 40
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


_OVER = Sentence("{id} is over already ({was})", before=OVER)
_RETRY = Sentence("{id} is over ({was}); stoker retry {id} runs it again", before=OVER, refused=True)
_NO_SUSPEND = (
    "paused, it would keep its GPU and leave it idle; stoker cancel {id}, and later stoker retry {id}"  # not STOP
)

SENTENCES: dict[str, tuple[Sentence, ...]] = {
    "cancel": (
        _OVER,
        Sentence("cancelled {id} (was {was})", after=["cancelled"]),
        Sentence("{id} ended by itself ({now})", after=OVER),
        Sentence("{id} is being stopped already; {how}", before=["stopping"]),
        Sentence("stopping {id} (was {was}; {how})"),
    ),
    "cancel --dry-run": (
        _OVER,
        Sentence("would stop {id} ({was}; {how})", before=ACTIVE),
        Sentence("would cancel {id} ({was})"),
    ),
    "retry": (
        Sentence("{id} is {outcome} again{note}", when="ended again", refused=True),
        Sentence("{id} is queued again (was {how}{memory})"),
    ),
    "retry --dry-run": (Sentence("would run {id} again (was {how}{memory}): {command}"),),
    "edit": (
        _RETRY,
        Sentence(
            "{id} is {was}, and what runs cannot be changed; stoker cancel {id} ends it", before=ACTIVE, refused=True
        ),
        Sentence("{id}: {difference}", when="changed"),
        Sentence("{id} is {now} by now, and was not changed", refused=True),
    ),
    "pause": (
        Sentence("{id} is held already", before=["held"]),
        Sentence(_OVER.text, before=OVER, refused=True),
        Sentence("held {id}", after=["held"]),
        Sentence("{id} has ended meanwhile ({now})", after=OVER, refused=True),
        Sentence(f"{{id}} has started meanwhile: {_NO_SUSPEND}", before=["queued"], refused=True),
        Sentence(f"{{id}} is {{was}}: {_NO_SUSPEND}", refused=True),
    ),
    "resume": (
        _RETRY,
        Sentence("{id} goes on in the queue; the run that had it is gone", when="abandoned"),
        Sentence("released {id}", before=["held"]),
        Sentence("{id} is not held; it is {now}"),
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
        lines = [*notes, *_lines([one for one in results if not one.refused])]
        if sys.stdout.isatty() and (more := len(lines) - LINES_ON_A_TERMINAL) > 1:
            lines[LINES_ON_A_TERMINAL:] = [f"… and {more} more"]
        write_plain(lines)
        sys.stdout.flush()
        for one in results:
            if one.refused:
                warn(one.said)
    return 2 if any(one.refused for one in results) else 0


def _lines(results: Sequence[ChangeResult]) -> list[str]:
    """A line for each job, and one for consecutive tasks of an array with the same result."""
    lines = []
    for (array, *_), run in itertools.groupby(enumerate(results), key=_likeness):
        tasks = [one for _, one in run]
        first, last = tasks[0], tasks[-1]
        if len(tasks) == 1:
            lines.append(first.said)
        else:
            span = f"{array}.[{first.shown.partition('.')[2]}-{last.shown.partition('.')[2]}]"
            lines.append(f"{first.said.replace(first.shown, span, 1)}, {len(tasks)} tasks")
    return lines


def _likeness(numbered: tuple[int, ChangeResult]) -> tuple[str, int, str]:
    """Array, task less position (the same for consecutive tasks), and what was said."""
    position, one = numbered
    array, _, task = one.shown.partition(".")
    return array, int(task or 0) - position, one.said.replace(one.shown, "", 1)
