"""What the live display remembers, from happenings written down by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stoker.cli.views.run import KEPT_KINDS, KEPT_NOTICES, Recent, common_lead, expected_left, kind_of, without_lead
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
from stoker.core.spec import Command
from support.build import GIB, a_job, declared

DEVICE = declared("0")


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
    assert notice.said == "again with 9.0G set aside; ran out of GPU memory beside others"


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
        ("again", "exit 3 after 00:02", "runs again"),
        ("again", "lost after 00:04", "runs again: its worker was killed"),
    ]


def test_a_job_cancelled_before_it_ran_has_no_running_time() -> None:
    """What never started is told without a time."""
    recent = Recent()
    job = apply(recent, named(1), Cancelled(5.0, "not wanted"))
    assert isinstance(job.state, Ended)
    assert [(notice.what, notice.said) for notice in recent.notices()] == [("cancelled", "not wanted")]


def test_memory_is_bounded() -> None:
    """Thousands of different jobs leave only the newest notices, and no more kinds than agreed."""
    recent = Recent()
    for number in range(2 * KEPT_KINDS):
        run_through(recent, named(number, command=f"./run-{number}.sh"), 1.0, code=number % 2)
    assert [notice.id for notice in recent.notices()][-1] == 2 * KEPT_KINDS - 1
    assert len(recent.notices()) == KEPT_NOTICES


def test_durations_are_known_only_when_they_agree() -> None:
    """Two successes of about the same length make an estimate; a much longer one takes it away."""
    recent = Recent()
    job = named(9, command="python train.py --lr 3")
    run_through(recent, named(1, command="python train.py --lr 1"), 10.0)
    assert recent.expected_seconds(job) is None
    run_through(recent, named(2, command="python train.py --lr 2"), 12.0)
    assert recent.expected_seconds(job) == 11.0
    assert recent.expected_seconds(named(9, command="python eval.py")) is None
    run_through(recent, named(3, command="python train.py --lr 4"), 100.0)
    assert recent.expected_seconds(job) is None


def test_the_kind_of_a_job_is_its_program() -> None:
    """Options of the interpreter do not stand for the program that it runs."""
    commands = ["python train.py --lr 1", "python -m train --lr 2", "sleep 3", "./go", "env"]
    programs = [kind_of(named(1, command=command)).program for command in commands]
    assert programs == [("python", "train.py"), ("python", "-m", "train"), ("sleep", "3"), ("./go",), ("env",)]


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


def test_what_is_left_follows_from_the_mean() -> None:
    """Waiting jobs take the mean each, so many at once; nothing known or nothing running is unknown."""
    assert expected_left(10.0, [4.0, 6.0], waiting=4, at_once=2.0) == 25.0
    assert expected_left(10.0, [12.0], waiting=0, at_once=1.0) == 0.0
    assert expected_left(None, [4.0], waiting=4, at_once=1.0) is None
    assert expected_left(10.0, [], waiting=4, at_once=1.0) is None
