"""Compares what jobs wrote down themselves with what the database says; shares no code with the program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from support.storm.device_use import device_uses
from support.storm.job_script import DOUBLE, SAVED, End, LogLine, end_of_run
from support.storm.killer import WorkerKill
from support.storm.memory import SHORT, Memory
from support.storm.record import AttemptRow, Record

_NOBODY = (float("-inf"), (0, 0))
KILLED = (137, 9)
LOSSES_ALLOWED = 3
"""How often a job that loses its worker is promised to be queued again."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known when a storm is over."""

    lines: list[LogLine]
    record: Record
    kills: list[WorkerKill] | None
    """None where workers died unseen, so that any attempt that began may be lost."""
    codes: Callable[[int], tuple[str, ...]]
    """The exit codes that each job's script ends with, run by run."""
    memory: dict[int, Memory] = field(default_factory=dict)
    """The memory that jobs hold on their devices, if they do."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each device, if devices have memory."""
    struck: frozenset[tuple[int, int]] = frozenset()
    """Runs whose own process was killed, so that they may end with that signal."""

    def counts(self) -> str:
        """The number of jobs, lines and attempts, in a few words."""
        attempts = [attempt for attempts_of_job in self.record.attempts.values() for attempt in attempts_of_job]
        whys = Counter(attempt.why for attempt in attempts)
        states = Counter(job.state for job in self.record.jobs.values())
        return f"{len(self.record.jobs)} jobs {dict(states)}, {len(self.lines)} lines, attempts {dict(whys)}"


def faults_of_runs(evidence: Evidence) -> list[str]:
    """Everything that must not be after any storm, in words."""
    checks = (_integrity, _twice, _runs, _losses, _in_turn, _exclusive)
    return [fault for check in checks for fault in check(evidence)]


def _integrity(evidence: Evidence) -> Iterator[str]:
    if evidence.record.integrity != ["ok"]:
        yield f"the store is damaged: {evidence.record.integrity}"
    yield from faulty_rows(evidence.record)


def faulty_rows(record: Record) -> Iterator[str]:
    """Every id is in one row, and a row stands for several jobs only until they start."""
    following = 1
    for jobs in record.rows:
        if jobs.start != following or not jobs:
            yield f"rows of the store do not fit together: one of {jobs} where {following} comes next"
        following = jobs.stop
        if len(jobs) > 1 and (started := [job for job in jobs if job in record.attempts]):
            yield f"jobs {started} have started, and share the row of {jobs}"


def _twice(evidence: Evidence) -> Iterator[str]:
    for word in ("start", "end", "after"):
        counts = Counter(line.key for line in evidence.lines if line.word == word)
        yield from (f"{word} of job {key} {times} times" for key, times in counts.items() if times > 1)


def _runs(evidence: Evidence) -> Iterator[str]:
    """Every run is an attempt of the store on the same devices, and every exit code is the one that was given."""
    starts = {line.key: line for line in evidence.lines if line.word == "start"}
    ends = {line.key: line for line in evidence.lines if line.word == "end"}
    for job, run, attempt in evidence.record.runs():
        start, end = starts.pop((job, run), None), ends.pop((job, run), None)
        if start is not None and start.devices != attempt.devices:
            yield f"attempt {attempt.key} ran on {start.devices} instead of {attempt.devices}"
        if attempt.code == DOUBLE and attempt.why == "exited":
            yield f"double run: the kernel saw attempt {attempt.key} beside another run of its job or on its devices"
            continue
        due = [end_of_run(evidence.codes(job), run), *([End(SHORT)] if job in evidence.memory else [])]
        if (job, run) in evidence.struck and (attempt.code, attempt.signal) == KILLED:
            continue
        yield from _faulty_end(attempt, start, end, due)
    yield from (f"{line} was written down, and the store does not know" for line in (*starts.values(), *ends.values()))


def _faulty_end(attempt: AttemptRow, start: LogLine | None, end: LogLine | None, due: list[End]) -> Iterator[str]:
    """An attempt that came to its own end did so with a code or signal of its script; what was stopped need not."""
    seen = f"attempt {attempt.key} {attempt.why} with {attempt.code}, signal {attempt.signal}"
    if attempt.why == "exited":
        told = End(attempt.code or 0, attempt.signal or 0)
        if start is None or end is None or end.code != told.code or told not in due:
            yield f"{seen} instead of {due}; it wrote down {start} and {end}"
    elif attempt.why == "preempted" and attempt.code == SAVED:
        if start is None or end is None or end.code != SAVED:
            yield f"{seen}; it wrote down {start} and {end}"
    elif attempt.why not in ("lost", "timeout", "stopped", "preempted"):
        yield f"{seen}, as no attempt should"


def _losses(evidence: Evidence) -> Iterator[str]:
    """Attempts that a killed worker had begun are lost; no others are."""
    if evidence.kills is None:
        return
    whys = {attempt.key: attempt.why for attempts in evidence.record.attempts.values() for attempt in attempts}
    expected = {attempt for kill in evidence.kills for attempt in kill.open}
    told = Counter(evidence.record.lost())
    for attempt in sorted(expected | set(told)):
        if attempt not in expected:
            yield f"attempt {attempt} is told as lost, though no kill hit it"
        elif told[attempt] != 1 or whys.get(attempt) != "lost":
            yield f"attempt {attempt} was hit, and told as {whys.get(attempt)} ({told[attempt]} losses)"


def _in_turn(evidence: Evidence) -> Iterator[str]:
    """A run of a job starts when nothing of its run before is left."""
    spans = _spans(evidence.lines)
    for (job, run), (_, last) in spans.items():
        following = spans.get((job, run + 1))
        if following is not None and following[0] < last:
            yield f"run {run + 1} of job {job} started {last - following[0]:.3f} s before run {run} was over"


def _exclusive(evidence: Evidence) -> Iterator[str]:
    """No run beside one that has a device for itself, what a command leaves behind included."""
    spans = _spans(evidence.lines)
    shared = _shared(evidence)
    on: dict[str, list[tuple[float, float, tuple[int, int]]]] = defaultdict(list)
    for line in evidence.lines:
        if line.word == "start":
            for device in line.devices:
                on[device].append((*spans[line.key], line.key))
    for device, intervals in on.items():
        exclusive, anybody = _NOBODY, _NOBODY
        for begin, end, key in sorted(intervals):
            until, other = exclusive if key in shared else anybody
            if begin < until:
                yield f"runs {other} and {key} on {device} together for {until - begin:.3f} s"
            anybody = max(anybody, (end, key))
            exclusive = exclusive if key in shared else max(exclusive, (end, key))


def _shared(evidence: Evidence) -> set[tuple[int, int]]:
    """The runs that suffer others on their devices."""
    shared = {use.key for use in device_uses(evidence.record, evidence.sizes) if not use.whole}
    return {(job, run) for job, run, attempt in evidence.record.runs() if (job, attempt.number) in shared}


def most_at_once(lines: list[LogLine]) -> int:
    """How many of the runs were seen at the same time at most."""
    moments = [moment for first, last in _spans(lines).values() for moment in ((first, 1), (last, -1))]
    most = now = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def _spans(lines: list[LogLine]) -> dict[tuple[int, int], tuple[float, float]]:
    """The first and the last that was seen of each run."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for line in lines:
        first, last = spans.get(line.key, (line.at, line.at))
        spans[line.key] = min(first, line.at), max(last, line.at)
    return spans
