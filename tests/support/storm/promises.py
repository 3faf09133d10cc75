"""The promises of the queue about requests: dependencies, delays, limits, holds, edits and cancels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from support.storm.checker import Evidence, most_at_once
from support.storm.job_script import LogLine
from support.storm.jobs import After
from support.storm.record import AttemptRow
from support.storm.replay import JobReplay, faults_of_replay
from support.storm.request_log import AGAIN, CANCEL, EDIT, HOLD, PREEMPT, RELEASE, RequestLog, SentRequest, SubmittedJob

SLACK = 0.05
"""Seconds by which the clocks of a job, an engine and the storm may differ."""
LATE = 8.0
"""Seconds by which a worker may be late with the end of a time limit on a busy machine."""
_ASKED = {"cancelled": CANCEL, "paused": HOLD, "resumed": RELEASE, "edited": EDIT, "retried": AGAIN}


@dataclass(frozen=True)
class Case:
    """Everything about one job."""

    job: int
    entry: SubmittedJob
    replay: JobReplay
    starts: list[LogLine]
    evidence: Evidence
    request_log: RequestLog

    def moments(self, kind: str) -> list[float]:
        """When events of a kind happened."""
        return [event["at"] for event in self.evidence.record.events.get(self.job, ()) if event["type"] == kind]

    @property
    def attempts(self) -> list[AttemptRow]:
        """The job's attempts as the store has them."""
        return self.evidence.record.attempts.get(self.job, [])

    def requests(self, kind: str) -> list[SentRequest]:
        """The requests of one kind for the job."""
        return self.request_log.of(self.job, kind)


def faults_of_queue(evidence: Evidence, request_log: RequestLog, cpu_jobs: int, *, timed: bool = True) -> list[str]:
    """Everything that the queue did not keep, in words; not timed if the engine had another clock than the jobs."""
    faults = [
        f"job {job} was submitted and is not there" for job in request_log.submitted if job not in evidence.record.jobs
    ]
    faults += [f"nobody answered {request}" for request in evidence.record.requests]
    starts: dict[int, list[LogLine]] = defaultdict(list)
    for line in evidence.lines:
        if line.word == "start":
            starts[line.job].append(line)
    for job, entry in request_log.submitted.items():
        replay = JobReplay(entry.work, held=entry.held)
        faults += faults_of_replay(evidence, job, replay)
        case = Case(job, entry, replay, sorted(starts[job], key=lambda line: line.attempt), evidence, request_log)
        faults += [f"job {job} {fault}" for check in (_CHECKS if timed else _UNTIMED) for fault in check(case)]
    return [*faults, *_limits(evidence, request_log, cpu_jobs)]


def _shape(case: Case) -> Iterator[str]:
    """It ran on as many devices as it asked for, with its own index, saying what it was last given to say."""
    index = case.job - case.entry.array if case.entry.array else None
    if (stored := case.evidence.record.jobs[case.job].task) != index:
        yield f"is task {stored} instead of {index}"
    for line in case.starts:
        if line.task != index:
            yield f"ran as task {line.task} instead of {index}"
        if len(line.devices) != case.entry.work.gpus:
            yield f"ran on {line.devices} instead of {case.entry.work.gpus} devices"
    said = {line.attempt: line.edition for line in case.starts}
    given = dict(enumerate(case.replay.editions, 1))
    yield from (f"said {word} instead of {given.get(run)}" for run, word in said.items() if given.get(run) != word)


def _not_before(case: Case) -> Iterator[str]:
    earliest = case.entry.at + case.entry.work.delay
    if case.entry.held:
        released = [*case.requests(RELEASE), *case.requests(AGAIN)]  # it may have been cancelled meanwhile
        earliest = max(earliest, min((request.asked for request in released), default=float("inf")))
    for line in case.starts:
        if line.at < earliest - SLACK:
            yield f"started {earliest - line.at:.3f} s too early"


def _dependencies(case: Case) -> Iterator[str]:
    verdicts = {after: _wrong(case, after) for after in case.entry.work.after}
    if case.replay.result == "skipped" and not any(verdicts.values()):
        yield f"was skipped without a reason: {verdicts}"
    if case.starts and any(verdicts.values()):
        yield f"ran in spite of {verdicts}"
    for after in verdicts if case.starts else ():
        targets = _targets(case, after)
        ends = [line.at for line in case.evidence.lines if line.job in targets]
        if ends and case.starts[0].at < max(ends):
            yield f"started {max(ends) - case.starts[0].at:.3f} s before what it comes after was over"


def _targets(case: Case, after: After) -> set[int]:
    submitted = case.request_log.submitted.items()
    return {job for job, entry in submitted if (entry.array if after.array else job) == after.target}


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
        moments = [at for at in case.moments(event) if at not in case.replay.tried_again]
        asked = [request.asked for request in case.requests(kind)]
        if len(moments) > len(asked) or any(at < min(asked) - SLACK for at in moments):
            yield f"was {event} at {moments}, which was asked for at {asked}"
    if any(attempt.why == "preempted" for attempt in case.attempts) and not case.requests(PREEMPT):
        yield "gave way, which nobody asked for"
    if any(attempt.why == "stopped" for attempt in case.attempts) and not case.requests(CANCEL):
        yield "was stopped, which nobody asked for"


def _all_that_was_asked(case: Case) -> Iterator[str]:
    """A request that is gone was obeyed, or came too late."""
    over = case.evidence.record.jobs[case.job].detail.get("at", 0.0)
    for request in case.requests(CANCEL):
        if case.requests(AGAIN):
            continue
        if not case.moments("cancelled") and over > request.answered + SLACK:
            yield f"went on for {over - request.answered:.3f} s after it was cancelled"
        if any(attempt.assigned > request.answered + SLACK for attempt in case.attempts):
            yield f"was given out after it was cancelled at {request.answered:.3f}"
    if case.moments("retried") or case.entry.held:  # it may have been over, or held, when that was asked
        return
    first = min((attempt.assigned for attempt in case.attempts), default=0.0)
    for event, kind in (("paused", HOLD), ("edited", EDIT)):
        in_time = any(first > request.answered + SLACK for request in case.requests(kind))
        if in_time and not case.moments(event):
            yield f"was never {event}, though that was asked in time"


def _held_back(case: Case) -> Iterator[str]:
    """What is held before it first runs does so only after somebody lets it."""
    first = min((attempt.assigned for attempt in case.attempts), default=0.0)
    let = [request.asked for kind in (RELEASE, AGAIN) for request in case.requests(kind)]
    for request in case.requests(HOLD):
        if first > request.answered + SLACK and not any(request.asked <= asked <= first for asked in let):
            yield f"started though it was held since {request.answered:.3f}"


def _limits(evidence: Evidence, request_log: RequestLog, cpu_jobs: int) -> Iterator[str]:
    arrays: dict[int, list[LogLine]] = defaultdict(list)
    for line in evidence.lines:
        if line.job in request_log.submitted:
            arrays[request_log.submitted[line.job].array].append(line)
    for array, lines in arrays.items():
        at_once = request_log.submitted[array].work.at_once if array else None
        if at_once is not None and most_at_once(lines) > at_once:
            yield f"of array {array}, {most_at_once(lines)} ran at once instead of {at_once}"
    without = [line for line in chain(*arrays.values()) if not line.devices]
    if most_at_once(without) > cpu_jobs:
        yield f"{most_at_once(without)} jobs without devices ran at once instead of {cpu_jobs}"


def tally(request_log: RequestLog) -> str:
    """The requests in a few words."""
    return f"requests {dict(Counter(request.kind for request in request_log.requests.values()))}"


_UNTIMED = (_shape, _dependencies, _time_limits)
_CHECKS = (*_UNTIMED, _not_before, _only_what_was_asked, _all_that_was_asked, _held_back)
