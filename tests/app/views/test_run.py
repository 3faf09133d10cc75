"""The data of a foreground run, from events written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.app.views.run import KEPT_NOTICES, SETTLING_SECONDS, Recent, run_counts, saved_seconds, time_left
from stoker.core.job import (
    Assigned,
    Cancelled,
    Ended,
    Event,
    Exited,
    Job,
    JobEvent,
    Lost,
    Started,
    Waiting,
    advance,
    started_at,
)
from stoker.core.run_result import Tally
from stoker.core.spec import Command
from stoker.core.text import common_lead, without_lead
from stoker.store.status_file import EngineStatus
from support.build import GIB, a_job, declared, simulated

DEVICE = declared("0")
DEVICES = simulated(24)


def named(job_id: int, name: str = "", command: str = "python train.py") -> Job:
    """A waiting job with a command line."""
    return msgspec.structs.replace(a_job(job_id), name=name, command=Command((command,), "/bin/sh"))


def apply(recent: Recent, job: Job, *events: Event, log: str = "") -> Job:
    """Let the events happen to a job, one after the other."""
    for event in events:
        started = started_at(job)
        job = advance(job, event)
        recent.note(JobEvent(job, event, DEVICE, log if isinstance(event, Exited) else "", started))
    return job


def run_through(recent: Recent, job: Job, seconds: float, *, code: int = 0, log: str = "", note: str = "") -> Job:
    """Let a job run for so long and exit."""
    attempt = job.attempts + 1
    return apply(
        recent,
        job,
        Assigned("k", ("0",), "", 10.0),
        Started(attempt, 10.0),
        Exited(attempt, code, 0, 10.0 + seconds, note=note),
        log=log,
    )


def test_a_failure_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Exit code, running time and the last line of the log make the notice, without what could move a cursor."""
    log = tmp_path / "5.log"
    log.write_bytes(b"step 1\n\x1b[2JRuntimeError: \x07nan\n\n")
    recent = Recent()
    run_through(recent, named(5, "lr=\x1b[1m1"), 9.0, code=1, log=str(log))
    (notice,) = recent.notices()
    assert (notice.mark, notice.name, notice.what) == ("failed", "lr=\\x1b[1m1", "exit 1 after 00:09")
    assert notice.said == "RuntimeError: \\x07nan"
    assert recent.successes() == ()


def test_a_job_that_company_harmed() -> None:
    """What is different the next time takes the place of what the log says."""
    recent = Recent()
    short = Exited(1, 1, 0, 14.0, note="CUDA out of memory", cause="oom", shared=True, floor=9 * GIB)
    apply(recent, named(5, "greedy"), Assigned("k", ("0",), "", 10.0), Started(1, 10.0), short)
    (notice,) = recent.notices()
    assert (notice.mark, notice.what) == ("again", "oom after 00:04")
    assert notice.said == "retrying with 9.0G reserved; out of GPU memory while sharing"


def test_successes_are_only_counted_unless_something_was_odd() -> None:
    """A success is its number; one with a note is a notice too."""
    recent = Recent()
    run_through(recent, named(1), 2.0)
    run_through(recent, named(2), 2.0, note="left 1 process behind")
    assert recent.successes() == (1, 2)
    assert [(notice.mark, notice.id, notice.said) for notice in recent.notices()] == [
        ("note", 2, "left 1 process behind")
    ]


def test_attempts_that_are_made_again_are_told() -> None:
    """A failure with retries left and a lost worker both say that the job runs again."""
    recent = Recent()
    job = named(1)
    patient = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, retries=1))
    assert isinstance(run_through(recent, patient, 2.0, code=3).state, Waiting)
    apply(recent, named(2), Assigned("k", ("0",), "", 0.0), Started(1, 1.0), Lost(1, 5.0))
    assert [(notice.mark, notice.what, notice.said) for notice in recent.notices()] == [
        ("again", "exit 3 after 00:02", "retrying"),
        ("again", "lost after 00:04", "retrying: its worker was killed"),
    ]


def test_a_job_cancelled_before_it_ran_has_no_running_time() -> None:
    """What never started is told without a time."""
    recent = Recent()
    job = apply(recent, named(1), Cancelled(5.0, "not wanted"))
    assert isinstance(job.state, Ended)
    assert [(notice.what, notice.said) for notice in recent.notices()] == [("cancelled", "not wanted")]


def test_memory_is_bounded() -> None:
    """Thousands of jobs leave only the newest notices."""
    recent = Recent()
    for number in range(2000):
        run_through(recent, named(number, command=f"./run-{number}.sh"), 1.0, code=number % 2)
    assert [notice.id for notice in recent.notices()][-1] == 1999
    assert len(recent.notices()) == KEPT_NOTICES


def test_a_device_settles_after_a_job() -> None:
    """For a moment after an end, a snapshot may still show the job."""
    recent = Recent()
    run_through(recent, named(1), 5.0)
    assert recent.settling(15.0 + SETTLING_SECONDS) == {DEVICE[0].id}
    assert recent.settling(15.1 + SETTLING_SECONDS) == set()


def test_commands_are_named_by_what_sets_them_apart() -> None:
    """The words that all commands begin with are left out, but not the name of an option."""
    recent = Recent()
    jobs = [named(number, command=f"python train.py --lr {number}") for number in (1, 2)]
    assert recent.short_name(jobs[0]) == "python train.py --lr 1"
    for job in jobs:
        run_through(recent, job, 1.0)
    assert [recent.short_name(job) for job in jobs] == ["--lr 1", "--lr 2"]
    assert recent.short_name(named(3, "mine")) == "mine"
    assert recent.short_name(named(4, command="true")) == "true"


def test_a_common_lead_may_be_everything_or_nothing() -> None:
    """Equal commands keep their text; commands without a common word do too."""
    assert common_lead(["a", "b"], ["a", "b", "c"]) == ("a", "b")
    assert common_lead(["a"], ["b"]) == ()
    assert without_lead("a b", ["a", "b"]) == "a b"
    assert without_lead("a b", []) == "a b"


def a_run_engine(**fields: Any) -> EngineStatus:
    """The engine of a run that has ten waiting jobs."""
    empty: dict[str, Any] = {"devices": (), "readings": {}, "note": "", "trouble": "", "leases": (), "waits": ()}
    usual = {"waiting": 10, "blocked": 0, "draining": False, "empty": 130.0}
    return EngineStatus("e", "stoker run", 1, "1", 0.0, 100.0, **{**empty, **usual, **fields})


def test_the_time_left_is_the_forecast() -> None:
    """It counts down between two forecasts; jobs that the engine does not have yet take as long as those it has."""
    counts = run_counts(Tally(given=12), 2, expected=12)
    assert counts.waiting == 10
    assert time_left(a_run_engine(), counts, 100.0) == 30.0
    assert time_left(a_run_engine(), counts, 140.0) == 0.0
    assert time_left(a_run_engine(), run_counts(Tally(given=12), 2, expected=32), 100.0) == 90.0
    assert time_left(a_run_engine(draining=True), run_counts(Tally(given=12), 2, expected=32), 100.0) == 30.0
    assert time_left(a_run_engine(empty=None), counts, 100.0) is None


def test_jobs_of_a_stream() -> None:
    """How many there will be is not known."""
    counts = run_counts(Tally(given=3, skipped=1, unusable=1), 2, expected=None)
    assert (counts.total, counts.waiting, counts.open_ended) == (3, 1, True)
    assert run_counts(Tally(given=3, skipped=1, unusable=1), 2, expected=9).total == 7


@pytest.mark.parametrize(("count", "saved"), [(0, 0.0), (1, 0.0), (2, 100.0), (3, 200.0)])
def test_time_together_is_saved(count: int, saved: float) -> None:
    """Jobs that ran for a hundred seconds on one GPU, all at the same time."""
    tally = Tally()
    for number in range(count):
        tally.note(JobEvent(a_job(number), Started(1, 1.0), DEVICES))
    for number in range(count):
        job = a_job(number, state=Ended("done", 101.0))
        tally.note(JobEvent(job, Exited(1, 0, 0, 101.0, shared=True), DEVICES, "", 1.0))
    assert saved_seconds(tally) == saved
