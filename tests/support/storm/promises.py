"""What the queue promises for what was asked of it: dependencies, delays, limits, holds, edits and cancels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from support.storm.book import AGAIN, CANCEL, EDIT, HOLD, RELEASE, Entry, JobBook, Wish
from support.storm.checker import Evidence, most_at_once
from support.storm.jobs import After
from support.storm.record import AttemptRow
from support.storm.story import Story, faults_of_story
from support.storm.witness import Line

SLACK = 0.05
"""Seconds by which the clocks of a job, an engine and the storm may differ."""
LATE = 8.0
"""Seconds by which a worker may be late with the end of a time limit on a busy machine."""
_ASKED = {"cancelled": CANCEL, "paused": HOLD, "resumed": RELEASE, "edited": EDIT, "retried": AGAIN}


@dataclass(frozen=True)
class Case:
    """Everything about one job."""

    job: int
    entry: Entry
    story: Story
    starts: list[Line]
    evidence: Evidence
    book: JobBook

    def moments(self, kind: str) -> list[float]:
        """When events of a kind happened."""
        return [event["at"] for event in self.evidence.record.events.get(self.job, ()) if event["type"] == kind]

    @property
    def attempts(self) -> list[AttemptRow]:
        """The job's attempts as the store has them."""
        return self.evidence.record.attempts.get(self.job, [])

    def wishes(self, kind: str) -> list[Wish]:
        """What was asked for the job."""
        return self.book.of(self.job, kind)


def faults_of_queue(evidence: Evidence, book: JobBook, cpu_jobs: int, *, timed: bool = True) -> list[str]:
    """Everything that the queue did not keep, in words; not timed where the engine had another clock than the jobs."""
    faults = [f"job {job} was submitted and is not there" for job in book.entries if job not in evidence.record.jobs]
    faults += [f"nobody answered {request}" for request in evidence.record.requests]
    starts: dict[int, list[Line]] = defaultdict(list)
    for line in evidence.lines:
        if line.word == "start":
            starts[line.job].append(line)
    for job, entry in book.entries.items():
        story = Story(entry.work, held=entry.held)
        faults += faults_of_story(evidence, job, story)
        case = Case(job, entry, story, sorted(starts[job], key=lambda line: line.attempt), evidence, book)
        faults += [f"job {job} {fault}" for check in (_CHECKS if timed else _UNTIMED) for fault in check(case)]
    return [*faults, *_limits(evidence, book, cpu_jobs)]


def _shape(case: Case) -> Iterator[str]:
    """It ran on as many devices as it asked for, saying what it was last given to say."""
    for line in case.starts:
        if len(line.devices) != case.entry.work.gpus:
            yield f"ran on {line.devices} instead of {case.entry.work.gpus} devices"
    said = {line.attempt: line.edition for line in case.starts}
    given = dict(enumerate(case.story.editions, 1))
    yield from (f"said {word} instead of {given.get(run)}" for run, word in said.items() if given.get(run) != word)


def _not_before(case: Case) -> Iterator[str]:
    earliest = case.entry.at + case.entry.work.delay
    if case.entry.held:
        earliest = max(earliest, min((wish.asked for wish in case.wishes(RELEASE)), default=float("inf")))
    for line in case.starts:
        if line.at < earliest - SLACK:
            yield f"started {earliest - line.at:.3f} s too early"


def _dependencies(case: Case) -> Iterator[str]:
    verdicts = {after: _wrong(case, after) for after in case.entry.work.after}
    if case.story.result == "skipped" and not any(verdicts.values()):
        yield f"was skipped without a reason: {verdicts}"
    if case.starts and any(verdicts.values()):
        yield f"ran in spite of {verdicts}"
    for after in verdicts if case.starts else ():
        targets = _targets(case, after)
        ends = [line.at for line in case.evidence.lines if line.job in targets]
        if ends and case.starts[0].at < max(ends):
            yield f"started {max(ends) - case.starts[0].at:.3f} s before what it comes after was over"


def _targets(case: Case, after: After) -> set[int]:
    entries = case.book.entries.items()
    return {job for job, entry in entries if (entry.array if after.array else job) == after.target}


def _wrong(case: Case, after: After) -> bool:
    """Whether what a job comes after ended in another way than it was to."""
    succeeded = all(case.evidence.record.jobs[job].state == "done" for job in _targets(case, after))
    return after.kind != "any" and succeeded != (after.kind == "ok")


def _time_limits(case: Case) -> Iterator[str]:
    limit = case.entry.work.limit
    for attempt in case.attempts:
        if attempt.why == "timeout" and limit is None:
            yield f"had no time limit, and attempt {attempt.number} ran into one"
        if attempt.started is None or attempt.ended is None or limit is None:
            continue
        took = attempt.ended - attempt.started
        if (attempt.why == "timeout" and took < limit - SLACK) or took > limit + LATE:
            yield f"attempt {attempt.number} took {took:.3f} s with a limit of {limit:.3f} s"


def _only_what_was_asked(case: Case) -> Iterator[str]:
    for event, kind in _ASKED.items():
        moments = [at for at in case.moments(event) if at not in case.story.tried_again]
        asked = [wish.asked for wish in case.wishes(kind)]
        if len(moments) > len(asked) or any(at < min(asked) - SLACK for at in moments):
            yield f"was {event} at {moments}, which was asked for at {asked}"
    if any(attempt.why == "stopped" for attempt in case.attempts) and not case.wishes(CANCEL):
        yield "was stopped, which nobody asked for"


def _all_that_was_asked(case: Case) -> Iterator[str]:
    """A request that is gone was obeyed, or came too late."""
    over = case.evidence.record.jobs[case.job].detail.get("at", 0.0)
    for wish in case.wishes(CANCEL):
        if not case.moments("cancelled") and not case.wishes(AGAIN) and over > wish.answered + SLACK:
            yield f"went on for {over - wish.answered:.3f} s after it was cancelled"
    if case.moments("retried") or case.entry.held:  # it may have been over, or held, when that was asked
        return
    first = min((attempt.assigned for attempt in case.attempts), default=0.0)
    for event, kind in (("paused", HOLD), ("edited", EDIT)):
        in_time = any(first > wish.answered + SLACK for wish in case.wishes(kind))
        if in_time and not case.moments(event):
            yield f"was never {event}, though that was asked in time"


def _limits(evidence: Evidence, book: JobBook, cpu_jobs: int) -> Iterator[str]:
    arrays: dict[int, list[Line]] = defaultdict(list)
    for line in evidence.lines:
        if line.job in book.entries:
            arrays[book.entries[line.job].array].append(line)
    for array, lines in arrays.items():
        at_once = book.entries[array].work.at_once if array else None
        if at_once is not None and most_at_once(lines) > at_once:
            yield f"of array {array}, {most_at_once(lines)} ran at once instead of {at_once}"
    without = [line for line in chain(*arrays.values()) if not line.devices]
    if most_at_once(without) > cpu_jobs:
        yield f"{most_at_once(without)} jobs without devices ran at once instead of {cpu_jobs}"


def tally(book: JobBook) -> str:
    """What was asked for, in a few words."""
    return f"requests {dict(Counter(wish.kind for wish in book.wishes.values()))}"


_UNTIMED = (_shape, _dependencies, _time_limits)
_CHECKS = (*_UNTIMED, _not_before, _only_what_was_asked, _all_that_was_asked)
