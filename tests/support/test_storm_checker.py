"""The judge of storms is judged: it finds every kind of harm in evidence that was tampered with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import Cancelled, advance
from stoker.core.spec import Command, JobSpec, NewJob, tasks_of
from stoker.store.queries import jobs_of
from stoker.store.schema import Change
from stoker.store.writer import Store
from support.storm.checker import Evidence, faults_of_runs
from support.storm.job_script import DOUBLE, LogLine
from support.storm.jobs import FIRST_EDITION, After, Work
from support.storm.killer import WorkerKill, open_attempts
from support.storm.promises import faults_of_queue
from support.storm.record import AttemptRow, JobRow, Record, open_jobs, read_record
from support.storm.request_log import CANCEL, HOLD, RELEASE, RequestLog, SentRequest, SubmittedJob

PLAIN, LOST, LATER, HELD = 1, 2, 3, 4
"""A job that failed, one that lost its worker once, one that came after this one, and one that was held."""


def line(word: str, job: int, run: int, device: str, at: float, *, code: int = 0) -> LogLine:
    return LogLine(word, job, job, run, (device,), at, code, FIRST_EDITION)


def attempt(job: int, number: int, device: str, began: float, **changes: Any) -> AttemptRow:
    usual = AttemptRow(job, number, (device,), began - 0.1, began, began + 1.0, 0, 0, "exited")
    return replace(usual, **changes)


def told(job: int, number: int, at: float, code: int = 0) -> list[dict[str, Any]]:
    """The events of an attempt that ran."""
    exited = {"type": "exited", "attempt": number, "code": code, "signal": 0, "at": at + 1.0, "why": "exited"}
    return [{"type": "assigned", "at": at - 0.1}, {"type": "started", "attempt": number, "at": at}, exited]


def a_book() -> RequestLog:
    works = [Work(PLAIN, codes=("5",)), Work(LOST), Work(LATER, after=(After(LOST, "ok"),)), Work(HELD)]
    submitted = {work.number: SubmittedJob(work, 0.0, held=work.number == HELD) for work in works}
    return RequestLog(submitted, {1: SentRequest(RELEASE, HELD, 30.0, answered=30.5)})


def an_evidence() -> Evidence:
    """Nothing is wrong here."""
    states = {PLAIN: "failed", LOST: "done", LATER: "done", HELD: "done"}
    record = Record(
        integrity=["ok"],
        jobs={job: JobRow(job, job, state, {"at": 50.0}, "queue") for job, state in states.items()},
        attempts={
            PLAIN: [attempt(PLAIN, 1, "a", 1.0, code=5)],
            LOST: [
                attempt(LOST, 1, "b", 1.0, why="lost", code=None, ended=None),
                attempt(LOST, 2, "b", 5.0, why="returned", code=None, started=None, ended=None),
                attempt(LOST, 3, "a", 10.0),
            ],
            LATER: [attempt(LATER, 1, "a", 20.0)],
            HELD: [attempt(HELD, 1, "a", 40.0)],
        },
        events={
            PLAIN: told(PLAIN, 1, 1.0, 5),
            LOST: [
                *told(LOST, 1, 1.0)[:2],
                {"type": "lost", "attempt": 1, "at": 3.0},
                {"type": "assigned", "at": 5.0},
                {"type": "returned", "attempt": 2, "at": 5.1},
                *told(LOST, 3, 10.0),
            ],
            LATER: told(LATER, 1, 20.0),
            HELD: [{"type": "resumed", "at": 30.2}, *told(HELD, 1, 40.0)],
        },
        requests=[],
    )
    runs = [(PLAIN, 1, "a", 1.0), (LOST, 2, "a", 10.0), (LATER, 1, "a", 20.0), (HELD, 1, "a", 40.0)]
    lines = [line("start", job, run, device, at) for job, run, device, at in runs]
    lines += [line("end", job, run, device, at + 0.9, code=5 * (job == PLAIN)) for job, run, device, at in runs]
    lines.append(line("start", LOST, 1, "b", 1.0))
    codes = {job: entry.work.codes for job, entry in a_book().submitted.items()}
    return Evidence(lines, record, [WorkerKill("k", (f"{LOST}.1",))], codes.__getitem__)


def faults(evidence: Evidence, request_log: RequestLog) -> list[str]:
    return [*faults_of_runs(evidence), *faults_of_queue(evidence, request_log, cpu_jobs=1)]


def test_what_is_in_order_has_no_faults() -> None:
    """The judge does not cry without a reason."""
    assert faults(an_evidence(), a_book()) == []


def test_a_damaged_journal_may_hide_a_start() -> None:
    """A loss then needs no start before it; otherwise it does."""
    evidence = an_evidence()
    del evidence.record.events[LOST][1]
    assert any("lost" in fault for fault in faults(evidence, a_book()))
    assert faults(replace(evidence, kills=None), a_book()) == []


def start_again(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.append(line("start", PLAIN, 1, "a", 1.5))


def run_behind_its_back(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.append(line("start", PLAIN, 2, "c", 2.5))


def forget_an_end(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.remove(line("end", PLAIN, 1, "a", 1.9, code=5))


def record_another_code(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.attempts[PLAIN] = [attempt(PLAIN, 1, "a", 1.0, code=6)]


def record_a_signal(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.attempts[PLAIN] = [attempt(PLAIN, 1, "a", 1.0, code=5, signal=9)]


def find_a_lock_held(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.attempts[PLAIN] = [attempt(PLAIN, 1, "a", 1.0, code=DOUBLE)]


def share_a_device(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.append(line("after", PLAIN, 1, "a", 10.5))


def lose_without_a_kill(evidence: Evidence, request_log: RequestLog) -> None:
    assert evidence.kills is not None
    evidence.kills.clear()


def hide_a_loss(evidence: Evidence, request_log: RequestLog) -> None:
    assert evidence.kills is not None
    evidence.kills.append(WorkerKill("k2", (f"{PLAIN}.1",)))


def start_the_next_run_early(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.append(line("after", LOST, 1, "b", 10.5))


def go_before_its_target(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines.append(line("after", LOST, 2, "d", 20.5))


def run_in_spite_of_a_failure(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.jobs[LOST] = replace(evidence.record.jobs[LOST], state="failed")


def leave_a_job_open(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.jobs[PLAIN] = replace(evidence.record.jobs[PLAIN], state="running")


def lose_a_job(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.submitted[9] = SubmittedJob(Work(9), 0.0)
    evidence.record.jobs[9] = JobRow(9, 9, "done", {}, "queue")


def start_what_is_held(evidence: Evidence, request_log: RequestLog) -> None:
    del evidence.record.events[HELD][0]


def release_unasked(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests.clear()


def cancel_unasked(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.events[PLAIN] = [{"type": "cancelled", "at": 1.0}]
    evidence.record.jobs[PLAIN] = replace(evidence.record.jobs[PLAIN], state="cancelled")


def cancel_in_vain(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests[2] = SentRequest(CANCEL, PLAIN, 0.1, answered=0.2)


def hold_in_vain(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests[2] = SentRequest(HOLD, LATER, 0.1, answered=0.2)


def run_under_an_old_edition(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines[0] = replace(evidence.lines[0], edition="other")


def begin_too_early(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.submitted[PLAIN] = SubmittedJob(replace(request_log.submitted[PLAIN].work, delay=2.0), 0.0)


def join_two_rows(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.rows.extend([range(1, 3), range(2, 5)])


def forget_a_row(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.rows.extend([range(1, 2), range(3, 4), range(4, 5)])


def start_in_a_shared_row(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.rows.extend([range(1, 2), range(2, 3), range(3, 5)])


def run_as_another_task(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.lines[0] = replace(evidence.lines[0], task=3)


def store_another_index(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.submitted[PLAIN] = replace(request_log.submitted[PLAIN], array=PLAIN)
    evidence.lines[0] = replace(evidence.lines[0], task=0)
    evidence.record.jobs[PLAIN] = replace(evidence.record.jobs[PLAIN], task=1)


def cancel_a_range_in_vain(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests[2] = SentRequest(CANCEL, PLAIN, 5.0, answered=5.1, count=LATER)


def give_out_after_a_cancel(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests[2] = SentRequest(CANCEL, LATER, 5.0, answered=5.1)
    evidence.record.jobs[LATER] = replace(evidence.record.jobs[LATER], detail={"at": 5.0})


def start_in_spite_of_a_hold(evidence: Evidence, request_log: RequestLog) -> None:
    request_log.requests[2] = SentRequest(HOLD, LATER, 5.0, answered=5.1, count=2)
    evidence.record.events[LATER][:0] = [{"type": "paused", "at": 5.0}, {"type": "resumed", "at": 5.5}]


def leave_a_request(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.requests.append("cancel")


def damage_the_store(evidence: Evidence, request_log: RequestLog) -> None:
    evidence.record.integrity[0] = "row missing"


@pytest.mark.parametrize(
    "harm",
    [
        start_again,
        run_behind_its_back,
        forget_an_end,
        record_another_code,
        record_a_signal,
        find_a_lock_held,
        share_a_device,
        lose_without_a_kill,
        hide_a_loss,
        start_the_next_run_early,
        go_before_its_target,
        run_in_spite_of_a_failure,
        leave_a_job_open,
        lose_a_job,
        start_what_is_held,
        release_unasked,
        cancel_unasked,
        cancel_in_vain,
        hold_in_vain,
        run_under_an_old_edition,
        begin_too_early,
        join_two_rows,
        forget_a_row,
        start_in_a_shared_row,
        run_as_another_task,
        store_another_index,
        cancel_a_range_in_vain,
        give_out_after_a_cancel,
        start_in_spite_of_a_hold,
        leave_a_request,
        damage_the_store,
    ],
)
def test_harm_is_found(harm: Callable[[Evidence, RequestLog], None]) -> None:
    """Each single harm leads to a fault."""
    evidence, request_log = an_evidence(), a_book()
    harm(evidence, request_log)
    assert faults(evidence, request_log)


def test_rows_of_several_jobs_are_read_as_these(tmp_path: Path) -> None:
    """Each job of a row has its own index, and the events of all of them."""
    new = NewJob(Command(("exec sh job.sh 7",), "/bin/sh"), JobSpec())
    with contextlib.closing(Store(tmp_path / "queue.db")) as store:
        store.add_jobs(store.add_batch("test", 1.0), "queue", tasks_of(new, range(0, 50, 10)), 1.0, array=True)
        (some,) = jobs_of(store, range(2, 5))
        event = Cancelled(2.0)
        store.record([Change(advance(some, event), [(0, event)])])
    record = read_record(tmp_path)
    assert record.rows == [range(1, 2), range(2, 5), range(5, 6)]
    assert {job: (row.number, row.task, row.state) for job, row in record.jobs.items()} == {
        1: (7, 0, "waiting"),
        2: (7, 10, "cancelled"),
        3: (7, 20, "cancelled"),
        4: (7, 30, "cancelled"),
        5: (7, 40, "waiting"),
    }
    assert {job: [event["type"] for event in events] for job, events in record.events.items()} == {
        2: ["cancelled"],
        3: ["cancelled"],
        4: ["cancelled"],
    }
    assert open_jobs(tmp_path) == [1, 5]


def test_what_a_journal_leaves_open_is_known() -> None:
    """An attempt is open from its start to its end; a line that is not whole was never written."""
    journal = b'S 1.1 1.0\nP 1.1 77\nE 1.1 2.0 0 0 exited 1 ""\nS 2.1 3.0\nP 2.1 78\nR 3.1 3.5\nS 4.1 \0\0\0'
    assert open_attempts(journal) == ("2.1",)
